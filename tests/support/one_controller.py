"""A controller on a quorum of one that a test controls: commits are immediate or on request, and it may lose
the leadership.
"""

from __future__ import annotations

import datetime
import random
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kreplica.broker.controller_apis import ControllerApis
from kreplica.common.errors import NotLeader, UnexpectedBaseOffset
from kreplica.common.messages.administration import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kreplica.common.messages.controllers import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    Feature,
)
from kreplica.common.metrics import MetricRegistry
from kreplica.common.types import TopicPartition, Uuid
from kreplica.controller.controller_config import ControllerConfig
from kreplica.controller.feature_control import SUPPORTED_FEATURES
from kreplica.controller.quorum_controller import QuorumController
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.metadata.records import MetadataRecord
from kreplica.metadata.registrations import PartitionRegistration
from kreplica.metadata.serde import ApiMessageAndVersion, decode, encode
from tests.support.virtual import VirtualMachine

CLUSTER_ID = "one-controller-cluster"
NODE_ID = 100
CONFIG = ControllerConfig(
    broker_session_timeout_ms=200,
    broker_session_hint_ms=80,
    broker_session_max_timeout_ms=800,
    metadata_max_idle_interval_ms=0,
)


class LeaderAndEpoch(NamedTuple):
    """The leader and epoch as the quorum's client reports them."""

    leader_id: int | None
    epoch: int


class CommandedQuorum:
    """A quorum of one. With `holds`, appends wait for `commit`."""

    def __init__(self, stage: OneController) -> None:
        self._stage = stage
        self.epoch = 0
        self.leads = False
        self.holds = False
        self.was_atomic = True  # whether the last batch had to be appended as a whole
        self.metadata = ClusterMetadata()  # the committed metadata
        self.batches: list[list[MetadataRecord]] = []
        self.committed = 0
        self._waiting: list[tuple[int, Sequence[ApiMessageAndVersion[MetadataRecord]]]] = []
        self._next_offset = 0

    @property
    def next_offset(self) -> int:
        return self._next_offset

    def schedule_append(
        self,
        epoch: int,
        records: Sequence[ApiMessageAndVersion[MetadataRecord]],
        *,
        expected_base_offset: int | None = None,
        is_atomic: bool = True,
    ) -> int:
        if not self.leads or epoch != self.epoch:
            raise NotLeader(f"epoch {epoch} is over")
        if expected_base_offset not in (None, self._next_offset):
            raise UnexpectedBaseOffset(where=self._next_offset)
        # Decoded copies, as from a disk.
        copies = [decode(encode(*record)) for record in records]
        self.batches.append([record.message for record in copies])
        self.was_atomic = is_atomic
        self._waiting.append((self._next_offset, copies))
        self._next_offset += len(records)
        if not self.holds:
            self._stage.loop.post(self.commit)
        return self._next_offset - 1

    def append_control_record(self) -> None:
        """Append a control record of the quorum, as for a change of voters."""
        self._next_offset += 1

    def commit(self) -> None:
        """Commit everything that waits."""
        waiting, self._waiting = self._waiting, []
        for base_offset, records in waiting:
            for offset, (message, version) in enumerate(records, base_offset):
                self.metadata.replay(message, version, offset)
            self.committed = base_offset + len(records)
            applied = OffsetAndEpoch(self.committed, self.epoch)
            self._stage.controller.on_metadata_update(self.metadata.take_delta(), self.metadata, applied)

    def commit_first(self, count: int) -> None:
        """Commit the first records of the only waiting batch; the rest is lost with the leadership."""
        ((base_offset, records),) = self._waiting
        self._waiting = [(base_offset, records[:count])]
        self.commit()

    def resign(self, epoch: int) -> None:
        if self.leads and epoch == self.epoch:
            self.lose()

    def lose(self, leader_id: int | None = None) -> None:
        """Lose the leadership, and everything uncommitted."""
        self.leads = False
        self._next_offset = self.committed
        self._waiting.clear()
        self.epoch += 1
        self._stage.controller.on_leader_change(LeaderAndEpoch(leader_id, self.epoch))

    def win(self) -> None:
        """Make this node lead the quorum again, in a new epoch."""
        self.leads = True
        self.epoch += 1
        self._next_offset = self.committed = self.committed + 1  # a leader's first record
        self._stage.controller.on_leader_change(LeaderAndEpoch(NODE_ID, self.epoch))


class OneController(VirtualMachine):
    """The active controller, and the requests of brokers and clients that a test sends."""

    def __init__(self, config: ControllerConfig = CONFIG) -> None:
        super().__init__()
        self.quorum = CommandedQuorum(self)
        self.metrics = MetricRegistry()
        self.controller = QuorumController(
            config,
            node_id=NODE_ID,
            cluster_id=CLUSTER_ID,
            quorum=self.quorum,
            metadata=lambda: self.quorum.metadata,
            in_transaction=lambda: self.quorum.metadata.in_transaction,
            clock=self.clock,
            random=random.Random(1),
            loop=self.loop,
            metrics=self.metrics,
        )
        self.apis = ControllerApis(self.controller)
        self.epochs: dict[int, int] = {}  # the brokers' epochs, from their registrations
        self.fenced: dict[int, bool] = {}
        self.quorum.win()
        self.settle()

    @property
    def committed(self) -> ClusterMetadata:
        return self.quorum.metadata

    def ask(self, request: Any) -> Any:
        """Return the response to a request that completes at once."""
        future = self.apis.handle(request)
        self.settle()
        return future.result(timeout=0)

    def do(self, operation: Callable[[Any], Any]) -> Any:
        """Run an operation as an event of the active controller; return its result."""
        future = self.controller.append_write_event("test", operation)
        self.settle()
        return future.result(timeout=0)

    # ---- brokers ------------------------------------------------------------------------------------------

    def register(self, broker_id: int, **changes: Any) -> BrokerRegistrationResponse:
        response: BrokerRegistrationResponse = self.ask(registration(broker_id, **changes))
        if int(response.error_code) == 0:
            self.epochs[broker_id] = response.broker_epoch
        return response

    def heartbeat(self, broker_id: int, **changes: Any) -> BrokerHeartbeatResponse:
        """Send a heartbeat of a broker that has applied everything committed."""
        response: BrokerHeartbeatResponse = self.ask(self.heartbeat_of(broker_id, **changes))
        self.fenced[broker_id] = response.is_fenced
        return response

    def heartbeat_of(self, broker_id: int, **changes: Any) -> BrokerHeartbeatRequest:
        fields: dict[str, Any] = {
            "broker_epoch": self.epochs[broker_id],
            "current_metadata_offset": self.quorum.committed - 1,
            "want_fence": False,
            "want_shut_down": False,
        }
        return BrokerHeartbeatRequest(broker_id=broker_id, **{**fields, **changes})  # type: ignore[arg-type]

    def start(self, *broker_ids: int) -> None:
        """Register and unfence the brokers."""
        for broker_id in broker_ids:
            assert int(self.register(broker_id).error_code) == 0
            self.heartbeat(broker_id)
            assert not self.fenced[broker_id]

    def pass_with(self, broker_ids: Sequence[int], duration_ms: int) -> None:
        """Let time pass while these brokers send a heartbeat every 40 ms."""
        while duration_ms > 0:
            step_ms = min(duration_ms, 40)
            self.pass_time(step_ms)
            duration_ms -= step_ms
            for broker_id in broker_ids:
                self.heartbeat(broker_id)

    # ---- topics -------------------------------------------------------------------------------------------

    def create_topic(self, name: str, *assignments: Sequence[int], **configs: str) -> None:
        """Create a topic with a partition for each assignment."""
        (result,) = self.ask(topic_creation(name, *assignments, **configs)).topics
        assert int(result.error_code) == 0, result.error_message

    def partition(self, topic: str, number: int = 0) -> PartitionRegistration:
        """Return a committed partition."""
        registration = self.committed.partition(TopicPartition(topic, number))
        assert registration is not None
        return registration


def registration(broker_id: int, *, life: int = 1, **changes: Any) -> BrokerRegistrationRequest:
    """Return a broker's registration request; `life` determines its incarnation id."""
    fields: dict[str, Any] = {
        "cluster_id": CLUSTER_ID,
        "incarnation_id": uuid.UUID(int=broker_id << 32 | life),
        "listeners": (),
        "features": tuple(
            Feature(
                name=each.name,
                min_supported_version=each.min_supported_version,  # type: ignore[arg-type]
                max_supported_version=each.max_supported_version,  # type: ignore[arg-type]
            )
            for each in SUPPORTED_FEATURES
        ),
        "rack": None,
        "log_dirs": (uuid.UUID(bytes=directory_of(broker_id).raw),),
    }
    return BrokerRegistrationRequest(broker_id=broker_id, **{**fields, **changes})  # type: ignore[arg-type]


def directory_of(broker_id: int, number: int = 0) -> Uuid:
    """Return the id of one of a broker's log directories."""
    return Uuid((broker_id << 8 | 0x10 + number).to_bytes(16, "big"))


def topic_creation(name: str, *assignments: Sequence[int], **configs: str) -> CreateTopicsRequest:
    """Return a request for a topic with a partition for each assignment; underscores stand for dots."""
    return CreateTopicsRequest(
        topics=(
            CreatableTopic(
                name=name,  # type: ignore[arg-type]
                num_partitions=-1,  # type: ignore[arg-type]
                replication_factor=-1,  # type: ignore[arg-type]
                assignments=tuple(
                    CreatableReplicaAssignment(partition_index=number, broker_ids=tuple(replicas))  # type: ignore[arg-type]
                    for number, replicas in enumerate(assignments)
                ),
                configs=tuple(
                    CreatableTopicConfig(name=key.replace("_", "."), value=value)
                    for key, value in configs.items()
                ),
            ),
        ),
        timeout=datetime.timedelta(seconds=1),  # type: ignore[arg-type]
    )
