"""ClusterControl: the registered brokers and controllers, and which brokers may lead.

A broker registers at each start, under a new incarnation id. The offset of that record is its epoch, which it
sends with later requests. It is fenced until it has caught up with the metadata, and again when its session
ends. The record that fences a broker and those that move its leaders are one batch. So no reader ever sees a
fenced broker as a leader or in an ISR.

It decides by `metadata` and the sessions. BrokerChange updates the partitions, and the writer collects the
records. Owned by the controller's loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import (
    BrokerIdNotRegistered,
    DuplicateBrokerRegistration,
    InconsistentClusterId,
    InvalidRequest,
    StaleBrokerEpoch,
    UnknownServerError,
)
from kreplica.common.message import replace
from kreplica.common.messages.administration import UnregisterBrokerRequest, UnregisterBrokerResponse
from kreplica.common.messages.controllers import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)
from kreplica.common.ports import Clock
from kreplica.common.types import INT64_MAX, Uuid
from kreplica.common.wire import NO_THROTTLE, topic_id_of
from kreplica.controller.broker_change import BrokerChange
from kreplica.controller.broker_heartbeat_manager import BrokerControlState, BrokerHeartbeatManager
from kreplica.controller.controller_broker_request_batch import ControllerResult
from kreplica.controller.controller_context import ControllerContext
from kreplica.controller.feature_control import check_supported
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.records import (
    BrokerRegistrationChangeRecord,
    Endpoint,
    MetadataRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    SupportedFeature,
    UnregisterBrokerRecord,
)
from kreplica.metadata.registrations import (
    LOST_DIRECTORY,
    MIGRATING_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    BrokerRegistration,
)
from kreplica.metadata.serde import in_lowest_version

RESERVED_DIRECTORIES = frozenset({LOST_DIRECTORY, MIGRATING_DIRECTORY, UNASSIGNED_DIRECTORY})
# How often to guess the offset of a registration again if records of the quorum itself took it.
GUESSES = 8


class RecordWriter(Protocol):
    """Collects the records of one event of the controller, which are written atomically.

    `next_offset`: the offset of the event's first record.
    """

    @property
    def next_offset(self) -> int: ...

    def add(self, message: MetadataRecord) -> None:
        """Write the record with the others of the event."""
        ...

    def add_last(self, message: MetadataRecord) -> None:
        """Write the record after all others of the event."""
        ...

    def expect_offset(self, offset: int) -> None:
        """Repeat the event if its first record would get an offset other than `offset`."""
        ...

    def after_append(self, action: Callable[[int], object]) -> None:
        """Call `action` with the offset of the last record after all are appended, else never."""
        ...


def check_broker_epoch(metadata: ClusterMetadata, broker_id: int, epoch: int) -> BrokerRegistration:
    """Return the broker's registration. Raises StaleBrokerEpoch unless it is registered in `epoch`."""
    broker = metadata.brokers.get(broker_id)
    if broker is None:
        raise StaleBrokerEpoch(f"broker {broker_id} is not registered")
    if broker.epoch != epoch:
        raise StaleBrokerEpoch(f"broker {broker_id} is registered in epoch {broker.epoch}, not {epoch}")
    return broker


class ClusterControl:
    """Registers, fences and shuts down brokers, and registers controllers."""

    def __init__(
        self,
        cluster_id: str,
        context: ControllerContext,
        heartbeats: BrokerHeartbeatManager,
        changes: BrokerChange,
        writer: RecordWriter,
        clock: Clock,
    ) -> None:
        self._cluster_id = cluster_id
        self._context = context
        self._metadata = context.metadata
        self._heartbeats = heartbeats
        self._changes = changes
        self._writer = writer
        self._clock = clock

    # ---- registration -------------------------------------------------------------------------------------

    def register_broker(self, request: BrokerRegistrationRequest) -> BrokerRegistrationResponse:
        """Handle BrokerRegistration (62): register a starting broker. It is fenced, except in the same
        incarnation.

        Raises InconsistentClusterId, DuplicateBrokerRegistration if another broker with this id may be alive,
        UnsupportedVersion if it lacks a feature of the cluster, and InvalidRequest if it names no directories
        or those of another broker.
        """
        broker_id, incarnation = request.broker_id, topic_id_of(request.incarnation_id)
        if request.cluster_id != self._cluster_id:
            raise InconsistentClusterId(
                f"broker {broker_id} belongs to cluster {request.cluster_id[:80]!r}, not to"
                f" {self._cluster_id!r}"
            )
        now_ns = self._clock.monotonic_ns()
        existing = self._metadata.brokers.get(broker_id)
        is_same = existing is not None and existing.incarnation_id == incarnation
        if (
            existing is not None
            and not is_same
            and not existing.in_controlled_shutdown
            and self._heartbeats.has_valid_session(broker_id, existing.epoch, now_ns)
        ):
            raise DuplicateBrokerRegistration(
                f"a broker {broker_id} is already registered in epoch {existing.epoch} and alive: wait for"
                " the end of its session, or use another id"
            )
        directories = self._checked_directories(broker_id, request.log_dirs)
        features = tuple(_feature(each) for each in request.features)
        check_supported(self._metadata.features, features, f"broker {broker_id}")
        record = RegisterBrokerRecord(
            broker_id=broker_id,
            incarnation_id=incarnation,
            broker_epoch=existing.epoch if existing is not None and is_same else -1,
            end_points=tuple(_endpoint(each) for each in request.listeners),
            features=features,
            rack=request.rack,
            fenced=existing.fenced if existing is not None and is_same else True,
            in_controlled_shutdown=existing.in_controlled_shutdown if existing and is_same else False,
            log_dirs=directories,
        )
        epoch = record.broker_epoch
        if epoch < 0:
            epoch = self._writer.next_offset
            self._writer.expect_offset(epoch)
        self._writer.add(replace(record, broker_epoch=epoch))
        if not is_same:
            if existing is not None:
                self._end_life(existing, is_clean=request.previous_broker_epoch == existing.epoch)
            self._writer.after_append(
                lambda _: self._heartbeats.register(broker_id, epoch, now_ns, is_fenced=True)
            )
        return BrokerRegistrationResponse(
            throttle_time=NO_THROTTLE, error_code=ErrorCode.none, broker_epoch=epoch
        )

    def _end_life(self, broker: BrokerRegistration, *, is_clean: bool) -> None:
        # The previous incarnation leads nothing now. If it did not shut down cleanly, it may have lost data,
        # so it no longer counts as having all committed records (KIP-966).
        if not broker.fenced:
            self._changes.on_broker_failure([broker.broker_id])
        if not is_clean:
            self._changes.on_unclean_shutdown(broker.broker_id)

    def _checked_directories(self, broker_id: int, given: Iterable[Any]) -> tuple[Uuid, ...]:
        directories = tuple(topic_id_of(each) for each in given)
        if not directories or len(set(directories)) < len(directories):
            raise InvalidRequest(f"broker {broker_id} must name at least one log directory, and none twice")
        if RESERVED_DIRECTORIES & set(directories):
            raise InvalidRequest(f"broker {broker_id} names a directory with a reserved id")
        for other in self._metadata.brokers.values():
            shared = set(other.directories) & set(directories)
            if other.broker_id != broker_id and shared:
                raise InvalidRequest(
                    f"broker {broker_id} names directory {shared.pop()}, which belongs to broker"
                    f" {other.broker_id}"
                )
        return directories

    def unregister_broker(self, request: UnregisterBrokerRequest) -> UnregisterBrokerResponse:
        """Handle UnregisterBroker (64): remove a broker. Raises BrokerIdNotRegistered."""
        broker = self._metadata.brokers.get(request.broker_id)
        if broker is None:
            raise BrokerIdNotRegistered(f"broker {request.broker_id} is not registered")
        self._changes.on_broker_failure([broker.broker_id])
        record = UnregisterBrokerRecord(broker_id=broker.broker_id, broker_epoch=broker.epoch)
        self._writer.add(record)
        self._writer.after_append(lambda _: self._heartbeats.remove(broker.broker_id))
        return UnregisterBrokerResponse(
            throttle_time=NO_THROTTLE, error_code=ErrorCode.none, error_message=None
        )

    def register_controller(self, request: ControllerRegistrationRequest) -> ControllerRegistrationResponse:
        """Handle ControllerRegistration (70): store a controller's listeners and supported features."""
        features = tuple(_feature(each) for each in request.features)
        check_supported(self._metadata.features, features, f"controller {request.controller_id}")
        record = RegisterControllerRecord(
            controller_id=request.controller_id,
            incarnation_id=topic_id_of(request.incarnation_id),
            zk_migration_ready=request.zk_migration_ready,
            end_points=tuple(_endpoint(each) for each in request.listeners),
            features=features,
        )
        self._writer.add(record)
        return ControllerRegistrationResponse(
            throttle_time=NO_THROTTLE, error_code=ErrorCode.none, error_message=None
        )

    # ---- heartbeats ---------------------------------------------------------------------------------------

    def process_broker_heartbeat(self, request: BrokerHeartbeatRequest) -> BrokerHeartbeatResponse:
        """Handle BrokerHeartbeat (63): renew the session and move towards the wanted state. Raises
        StaleBrokerEpoch.
        """
        broker = check_broker_epoch(self._metadata, request.broker_id, request.broker_epoch)
        broker_id, offset = broker.broker_id, request.current_metadata_offset
        self._heartbeats.touch(broker_id, self._clock.monotonic_ns(), offset)
        state = self._heartbeats.next_state(
            broker_id,
            wants_fence=request.want_fence,
            wants_shutdown=request.want_shut_down,
            metadata_offset=offset,
            has_leaderships=lambda: self._has_leaderships(broker),
        )
        self._changes.on_metadata_offset(broker_id, offset)
        self._enter(broker, state)
        if request.offline_log_dirs:
            # This comes last, because unfencing a broker resets its directories to online.
            self._take_offline(broker, [topic_id_of(each) for each in request.offline_log_dirs])
        is_fenced = state in (BrokerControlState.FENCED, BrokerControlState.SHUTDOWN_NOW)
        return BrokerHeartbeatResponse(
            throttle_time=NO_THROTTLE,
            error_code=ErrorCode.none,
            is_caught_up=offset >= broker.epoch,
            is_fenced=is_fenced,
            should_shut_down=state is BrokerControlState.SHUTDOWN_NOW,
        )

    def _enter(self, broker: BrokerRegistration, state: BrokerControlState) -> None:
        broker_id = broker.broker_id
        if state in (BrokerControlState.FENCED, BrokerControlState.SHUTDOWN_NOW):
            if not broker.fenced:
                self._fence([broker_id], expired=False)
        elif state is BrokerControlState.UNFENCED:
            if broker.fenced:
                self._write_change(broker, fenced=-1)
                self._writer.after_append(lambda _: self._heartbeats.unfence(broker_id))
                self._changes.on_broker_startup([broker_id])
        elif not broker.in_controlled_shutdown:
            self._write_change(broker, in_controlled_shutdown=1)
            self._changes.on_broker_shutdown(broker_id)
            self._await_all(broker_id)

    def _has_leaderships(self, broker: BrokerRegistration) -> bool:
        """Return whether the broker leads anything that others could lead.

        A leaving broker tries to hand that over. Partitions that only this broker can lead go offline with
        it; it does not wait for them.
        """
        led = len(self._context.partitions_led_by(broker.broker_id))
        if not broker.in_controlled_shutdown:
            return led > 0
        left = self._changes.on_broker_shutdown(broker.broker_id)
        if not left and len(self._context.partitions_led_by(broker.broker_id)) == led:
            return False
        self._await_all(broker.broker_id)
        return True

    def _await_all(self, broker_id: int) -> None:
        # The other brokers must apply the records of this event before the broker may stop.
        self._writer.after_append(lambda last: self._heartbeats.begin_controlled_shutdown(broker_id, last))

    def _take_offline(self, broker: BrokerRegistration, directories: Sequence[Uuid]) -> None:
        # Each heartbeat names all of them, since this controller may be newer than the first one.
        known = self._context.offline_directories.get(broker.broker_id, frozenset())
        failed = [each for each in directories if each not in known]
        if not failed:
            return
        self._changes.on_broker_log_dir_failure(broker.broker_id, failed)
        left = tuple(each for each in broker.directories if each not in failed)
        if left and left != broker.directories:
            self._write_change(broker, log_dirs=left)

    # ---- fencing ------------------------------------------------------------------------------------------

    def activate(self, former_leader: int | None) -> None:
        """Start an epoch of the controller: give each broker a whole session, since none could be heard
        before.

        Brokers that have to find the new controller first get more time. The former leader does not: it knows
        of the change, and is the likeliest to be dead.
        """
        now_ns = self._clock.monotonic_ns()
        for broker in self._metadata.brokers.values():
            broker_id = broker.broker_id
            self._heartbeats.register(broker_id, broker.epoch, now_ns, is_fenced=broker.fenced)
            if broker_id != former_leader:
                self._heartbeats.await_after_failover(broker_id, now_ns)
            if broker.in_controlled_shutdown and not broker.fenced:
                self._heartbeats.begin_controlled_shutdown(broker_id, self._writer.next_offset - 1)

    def fence_expired_brokers(self) -> list[int]:
        """Fence all brokers whose sessions have ended. Returns their ids."""
        expired = self._heartbeats.expired_brokers(self._clock.monotonic_ns())
        if expired:
            self._fence(expired, expired=True)
        return expired

    def _fence(self, broker_ids: Sequence[int], *, expired: bool) -> None:
        # Mark all as dead before the first election, so that none of them is elected (KAFKA-13173).
        self._changes.on_broker_failure(broker_ids)
        for broker_id in broker_ids:
            # The fence comes after the elections. If it takes several batches, only the first may be
            # committed. A broker that is not fenced then is fenced again, with the partitions it still has.
            epoch = self._metadata.brokers[broker_id].epoch
            self._writer.add_last(
                BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=epoch, fenced=1)
            )
        self._writer.after_append(lambda _: self._note_fenced(broker_ids, expired))

    def _note_fenced(self, broker_ids: Sequence[int], expired: bool) -> None:
        for broker_id in broker_ids:
            self._heartbeats.fence(broker_id, expired=expired)

    def _write_change(self, broker: BrokerRegistration, **changes: Any) -> None:
        record = BrokerRegistrationChangeRecord(
            broker_id=broker.broker_id, broker_epoch=broker.epoch, **changes
        )
        self._writer.add(record)


def _endpoint(listener: Any) -> Endpoint:
    return Endpoint(
        name=listener.name,
        host=listener.host,
        port=int(listener.port),
        security_protocol=int(listener.security_protocol),
    )


def _feature(feature: Any) -> SupportedFeature:
    return SupportedFeature(
        name=feature.name,
        min_supported_version=int(feature.min_supported_version),
        max_supported_version=int(feature.max_supported_version),
    )


PRODUCER_ID_BLOCK_SIZE = 1_000


class ProducerIdControl:
    """Checks requests against `metadata` and returns the records to write. Owned by the controller's loop."""

    def __init__(self, metadata: ClusterMetadata) -> None:
        self._metadata = metadata

    def allocate(self, request: AllocateProducerIdsRequest) -> ControllerResult[AllocateProducerIdsResponse]:
        """Handle AllocateProducerIds (67): give the next block to the broker, whether it will be used or not.

        Raises StaleBrokerEpoch if the broker's epoch is not current, UnknownServerError if all ids are used
        up.
        """
        check_broker_epoch(self._metadata, request.broker_id, request.broker_epoch)
        first = self._metadata.next_producer_id
        if first > INT64_MAX - PRODUCER_ID_BLOCK_SIZE:
            raise UnknownServerError(f"all producer ids are used up: the next one would be {first}")
        record = ProducerIdsRecord(
            broker_id=request.broker_id,
            broker_epoch=request.broker_epoch,
            next_producer_id=first + PRODUCER_ID_BLOCK_SIZE,
        )
        response = AllocateProducerIdsResponse(
            throttle_time=NO_THROTTLE,
            error_code=ErrorCode.none,
            producer_id_start=first,
            producer_id_len=PRODUCER_ID_BLOCK_SIZE,
        )
        return ControllerResult((in_lowest_version(record),), response)
