"""Members of share groups beside a simulated broker, and a store of share states in memory."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from kreplica._core.records import batches
from kreplica.broker.request_context import RequestContext
from kreplica.broker.share_fetch_apis import ShareFetchApis
from kreplica.common.errors import FencedLeaderEpoch, KreplicaError
from kreplica.common.future import Future, failed, resolved
from kreplica.common.messages.share_groups import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchTopic,
    ShareForgottenTopic,
)
from kreplica.common.metrics import MetricRegistry
from kreplica.common.share_state import NO_START_OFFSET, SharePartitionKey, ShareState, StateBatch
from kreplica.common.types import AppendOrigin, TopicPartition, Uuid
from kreplica.common.wire import uuid_of
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.record.control import EndTransactionMarker, build_end_transaction_marker
from kreplica.security.peer import Peer
from kreplica.share.dead_letters import HEADER
from kreplica.share.share_config import ShareGroupConfig
from kreplica.share.share_partition import ShareSettings
from kreplica.share.share_partition_manager import SharePartitionManager
from kreplica.sim.scheduler import Incarnation, VirtualClock
from tests.support.replicas import TOPIC, Replicas, batch

GROUP = "g"


class MemoryPersister:
    """Keeps states in memory. `error`: fails all calls; `held`: writes that wait, if it is not None."""

    def __init__(self) -> None:
        self.states: dict[SharePartitionKey, ShareState] = {}
        self.writes: list[ShareState] = []
        self.error: KreplicaError | None = None
        self.held: list[tuple[Future[None], SharePartitionKey, ShareState]] | None = None

    def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> Future[None]:
        self.states[key] = ShareState(state_epoch, 0, start_offset)
        return resolved(None)

    def read(self, key: SharePartitionKey, leader_epoch: int) -> Future[ShareState]:
        if self.error is not None:
            return failed(self.error)
        state = self.states.get(key, ShareState(0, 0, NO_START_OFFSET))
        if leader_epoch < state.leader_epoch:
            return failed(FencedLeaderEpoch())
        self.states[key] = state._replace(leader_epoch=leader_epoch)
        return resolved(state)

    def write(self, key: SharePartitionKey, state: ShareState) -> Future[None]:
        if self.held is not None:
            future: Future[None] = Future()
            self.held.append((future, key, state))
            return future
        return self._write(key, state)

    def _write(self, key: SharePartitionKey, state: ShareState) -> Future[None]:
        known = self.states[key]
        if self.error is not None:
            return failed(self.error)
        if state.leader_epoch < known.leader_epoch:
            return failed(FencedLeaderEpoch())
        self.writes.append(state)
        kept = {each: (b.delivery_state, b.delivery_count) for b in known.batches for each in _offsets(b)}
        kept.update(
            {each: (b.delivery_state, b.delivery_count) for b in state.batches for each in _offsets(b)}
        )
        parts = [StateBatch(at, at, *kept[at]) for at in sorted(kept) if at >= state.start_offset]
        self.states[key] = state._replace(batches=parts)
        return resolved(None)

    def release(self) -> None:
        """Make the writes that wait."""
        held, self.held = self.held or [], None
        for future, key, state in held:
            error = self._write(key, state).exception()
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

    def delete(self, key: SharePartitionKey) -> Future[None]:
        self.states.pop(key, None)
        return resolved(None)

    def summary(self, key: SharePartitionKey, leader_epoch: int) -> Future[ShareState]:
        del leader_epoch
        return resolved(self.states.get(key, ShareState(0, 0, NO_START_OFFSET)))


class Letters:
    """Keeps dead letters in memory. `error`: fails all appends; `held`: appends that wait, if not None."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, TopicPartition, bytes]] = []
        self.error: KreplicaError | None = None
        self.held: list[tuple[Future[None], tuple[str, TopicPartition, bytes]]] | None = None
        self.tries = 0

    def append(self, topic: str, source: TopicPartition, batch: bytes) -> Future[None]:
        self.tries += 1
        if self.error is not None:
            return failed(self.error)
        if self.held is not None:
            future: Future[None] = Future()
            self.held.append((future, (topic, source, batch)))
            return future
        self.batches.append((topic, source, batch))
        return resolved(None)

    def release(self, error: KreplicaError | None = None) -> None:
        """Make the appends that wait, or fail them."""
        held, self.held = self.held or [], None
        for future, letter in held:
            if error is None:
                self.batches.append(letter)
                future.set_result(None)
            else:
                future.set_exception(error)

    def records(self) -> list[Any]:
        """Return the letters, in their order."""
        return [record for _, _, batch in self.batches for each in batches(batch) for record in each]

    def headers(self) -> list[dict[str, str]]:
        """Return the context of each letter, without the start of the names."""
        return [
            {name[len(HEADER) :]: value.decode() for name, value in record.headers if name.startswith(HEADER)}
            for record in self.records()
        ]

    def offsets(self) -> list[int]:
        """Return the offsets of the records whose letters were written."""
        return [int(each["offset"]) for each in self.headers()]


def _offsets(batch: StateBatch) -> range:
    return range(batch.first_offset, batch.last_offset + 1)


class Cache:
    """The metadata that the handlers look at."""

    def __init__(self, at: Replicas) -> None:
        self.metadata = ClusterMetadata()
        self.metadata.features["share.version"] = 1
        self._topic_id = at.controller.topic_id(TOPIC)

    def topic_name(self, topic_id: Uuid) -> str | None:
        return TOPIC if topic_id == self._topic_id else None


class ShareMembers:
    """The share partitions of broker 1, which leads all partitions of the topic."""

    def __init__(self, *, partitions: int = 1, max_sessions: int = 3, **settings: Any) -> None:
        self.letters = Letters()
        self.metrics = MetricRegistry()
        self.at = Replicas(partitions=partitions, settings=settings.pop("topic_settings", None))
        self.persister = MemoryPersister()
        self.config = ShareGroupConfig(ShareSettings(**settings), "earliest", "high_watermark")
        machines = self.at.cluster
        self.clock = VirtualClock(machines.time)
        self.topic_id = self.at.controller.topic_id(TOPIC)
        cache: Any = Cache(self.at)
        self.cache = cache
        self.manager = SharePartitionManager(
            self.at.manager().partitions,
            self.persister,
            clock=self.clock,
            loop=machines.scheduler.loop(Incarnation(1), "share-partitions"),
            max_sessions=max_sessions,
            config_of=lambda _: self.config,
            topic_name=cache.topic_name,
            letter_topics=self.letters,
            metrics=self.metrics,
        )
        self.apis = ShareFetchApis(self.manager, cache)
        self.epochs: dict[str, int] = {}

    def key(self, number: int = 0) -> SharePartitionKey:
        return SharePartitionKey(GROUP, self.topic_id, number)

    def produce(self, *values: bytes, number: int = 0) -> None:
        done = self.at.manager().append_records(
            {TopicPartition(TOPIC, number): batch(*values)}, timeout_ms=9_000
        )
        self.at.settle()
        assert done.done()

    def end_transaction(self) -> None:
        """Write the marker of a transaction that has no records."""
        marker = build_end_transaction_marker(
            EndTransactionMarker(True, 0), producer_id=7, producer_epoch=0, timestamp_ms=1
        )
        self.at.manager().append_records(
            {self.at.partitions[0]: marker}, timeout_ms=9_000, origin=AppendOrigin.COORDINATOR
        )
        self.at.settle()

    # ---- requests -----------------------------------------------------------------------------------------

    def fetch(self, member: str = "a", *acks: Any, **more: Any) -> Future[Any]:
        """Send a fetch of partition 0, or of `numbers`; `acks`: (first, last, types...) of the first one.

        By default it waits for 1 ms, in which the state is read if that has not been done.
        """
        waits = more.get("max_wait_ms", 1) == 1
        numbers = more.pop("numbers", [0])
        epoch = more.pop("epoch", None)
        version, connection = more.pop("version", 2), more.pop("connection", None)
        topic_id = more.pop("topic_id", self.topic_id)
        if epoch is None:
            epoch = self.epochs.get(member, 0)
            self.epochs[member] = epoch + 1
        topics = (
            ShareFetchTopic(
                topic_id=uuid_of(topic_id),
                partitions=tuple(
                    ShareFetchPartition(
                        partition_index=n, acknowledgement_batches=_asked(acks) if n == numbers[0] else ()
                    )
                    for n in numbers
                ),
            ),
        )
        forgotten = more.pop("forgotten", ())
        fields: dict[str, Any] = {
            "group_id": GROUP,
            "member_id": member,
            "share_session_epoch": epoch,
            "max_wait": timedelta(milliseconds=more.pop("max_wait_ms", 1)),
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 500,
            "batch_size": 500,
            "topics": topics if numbers else (),
            "forgotten_topics_data": (
                ShareForgottenTopic(topic_id=uuid_of(self.topic_id), partitions=tuple(forgotten)),
            )
            if forgotten
            else (),
        }
        request = ShareFetchRequest(**(fields | more))
        done = self.apis.handle_share_fetch(request, RequestContext(version, "c", Peer(""), connection))
        self.at.settle()
        if waits and not done.done():
            self.at.pass_time(1)
        return done

    def acknowledge(self, member: str, *acks: Any, **more: Any) -> Future[Any]:
        """Acknowledge records of partition 0."""
        epoch = more.pop("epoch", None)
        version, connection = more.pop("version", 2), more.pop("connection", None)
        if epoch is None:
            epoch = self.epochs.get(member, 0)
            self.epochs[member] = epoch + 1
        fields: dict[str, Any] = {
            "group_id": GROUP,
            "member_id": member,
            "share_session_epoch": epoch,
            "topics": (
                AcknowledgeTopic(
                    topic_id=uuid_of(more.pop("topic_id", self.topic_id)),
                    partitions=(
                        AcknowledgePartition(
                            partition_index=more.pop("number", 0), acknowledgement_batches=_asked(acks)
                        ),
                    ),
                ),
            ),
        }
        request = ShareAcknowledgeRequest(**(fields | more))
        done = self.apis.handle_share_acknowledge(request, RequestContext(version, "c", Peer(""), connection))
        self.at.settle()
        return done

    def acquired(self, done: Future[Any]) -> dict[int, list[tuple[int, int, int]]]:
        """Return the acquired ranges of a fetch's answer by partition; the records must hold them."""
        found = {}
        response = done.result(0)
        assert response.error_code == 0, response.error_message
        for topic in response.responses:
            for each in topic.partitions:
                assert each.error_code == 0, each.error_message
                if each.acquired_records:
                    found[each.partition_index] = [
                        (a.first_offset, a.last_offset, a.delivery_count) for a in each.acquired_records
                    ]
                    held = [record.offset for b in batches(each.records) for record in b]
                    assert held[0] <= each.acquired_records[0].first_offset
                    assert held[-1] >= each.acquired_records[-1].last_offset
        return found


def error(done: Future[Any]) -> int:
    """Return the error of a response, or of its first partition; for a fetch also of acknowledgements."""
    response = done.result(0)
    if response.error_code or not response.responses:
        return int(response.error_code)
    first = response.responses[0].partitions[0]
    return int(first.error_code) or int(getattr(first, "acknowledge_error_code", 0))


def _asked(acks: Any) -> tuple[AcknowledgementBatch, ...]:
    return tuple(
        AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=types)
        for first, last, *rest in acks
        for types in [tuple(rest)]
    )


__all__ = ["GROUP", "MemoryPersister", "ShareMembers", "error"]
