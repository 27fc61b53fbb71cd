"""PartitionStates: the fetch states of one fetcher's partitions, and what keeps each from being fetched now.

The cost of a fetcher's step depends on the changes, not on the number of partitions. So beside the states
there are ordered sets of partitions: those that the next fetch names, asks the leader to forget, or leaves
out. Thread rule: the fetcher's lock guards all of it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import NamedTuple

from kreplica.common.types import TopicPartition, Uuid
from kreplica.replica.replication_quotas import ReplicationQuotaManager


class ReplicaState(enum.Enum):
    """What the fetcher does next: find where the logs diverge, or fetch."""

    TRUNCATING = "truncating"
    FETCHING = "fetching"


class InitialFetchState(NamedTuple):
    """Where a partition's replication starts.

    `fetch_offset`: the log end if the log knows leader epochs, else the high watermark.
    """

    topic_id: Uuid
    leader: int
    leader_epoch: int
    fetch_offset: int


class PartitionFetchState(NamedTuple):
    """The state of one partition. It is immutable, and an answer is dropped if the state has changed since.

    `lag`: messages behind the leader's high watermark, None before the first answer. `last_fetched_epoch`: of
    the record before `fetch_offset`, -1 if the log does not know it. `delayed_until_ms`: when it may be
    fetched again after an error; 0 for now.
    """

    topic_partition: TopicPartition
    topic_id: Uuid
    fetch_offset: int
    leader_epoch: int
    state: ReplicaState
    last_fetched_epoch: int
    lag: int | None = None
    delayed_until_ms: int = 0

    def asks(self, log_start_offset: int) -> FetchData:
        """Return what a fetch sends for the partition, whose log starts at `log_start_offset`."""
        return FetchData(
            self.topic_id, self.fetch_offset, log_start_offset, self.leader_epoch, self.last_fetched_epoch
        )

    def advanced_to(self, fetch_offset: int, lag: int, last_fetched_epoch: int) -> PartitionFetchState:
        """Return the state after an append. Faster than _replace, since this runs for each record."""
        topic_partition, topic_id, _, leader_epoch, state, _, _, delayed_until_ms = self
        return PartitionFetchState(
            topic_partition,
            topic_id,
            fetch_offset,
            leader_epoch,
            state,
            last_fetched_epoch,
            lag,
            delayed_until_ms,
        )

    @property
    def is_in_sync(self) -> bool:
        """Whether it had all committed records at the last answer."""
        return self.lag is not None and self.lag <= 0


class FetchData(NamedTuple):
    """What a fetch sends for one partition."""

    topic_id: Uuid
    fetch_offset: int
    log_start_offset: int
    leader_epoch: int
    last_fetched_epoch: int


States = dict[TopicPartition, PartitionFetchState]
# An ordered set.
Kept = dict[TopicPartition, None]


class PartitionStates:
    """The states of a fetcher's partitions, and ordered sets of those with a special state.

    `by_partition` is ordered by the time of the last `put`, oldest first, so that no partition starves.
    `changed`, `gone`: what the leader has not been sent yet. `truncating`, `out_of_range`, `delayed`,
    `held_back`: why a partition is not fetched.
    """

    __slots__ = (
        "_by_id",
        "by_partition",
        "changed",
        "delayed",
        "gone",
        "held_back",
        "out_of_range",
        "truncating",
    )

    def __init__(self) -> None:
        self.by_partition: States = {}
        self.changed: Kept = {}
        self.gone: Kept = {}
        self.truncating: Kept = {}
        self.out_of_range: Kept = {}
        self.delayed: Kept = {}
        self.held_back: Kept = {}
        self._by_id: dict[tuple[bytes, int], TopicPartition] = {}  # by the bytes of the topic's id

    def __len__(self) -> int:
        return len(self.by_partition)

    def add(self, state: PartitionFetchState) -> None:
        """Add the partition with this state."""
        topic_partition = state.topic_partition
        self._by_id[state.topic_id.raw, topic_partition.partition] = topic_partition
        self.put(state)

    def put(self, state: PartitionFetchState) -> None:
        """Set the partition's state."""
        topic_partition = state.topic_partition
        self.by_partition.pop(topic_partition, None)
        self.by_partition[topic_partition] = state
        self.changed[topic_partition] = None
        for kept, holds in (
            (self.truncating, state.state is ReplicaState.TRUNCATING),
            (self.delayed, state.delayed_until_ms > 0),
            (self.gone, False),
        ):
            if holds:
                kept[topic_partition] = None
            elif kept:
                kept.pop(topic_partition, None)

    def forget(self, topic_partition: TopicPartition) -> PartitionFetchState | None:
        """Remove the partition. Returns its state, or None if it was unknown."""
        state = self.by_partition.pop(topic_partition, None)
        for kept in (self.changed, self.truncating, self.out_of_range, self.delayed, self.held_back):
            kept.pop(topic_partition, None)
        if state is not None:
            self._by_id.pop((state.topic_id.raw, topic_partition.partition), None)
        return state

    def with_id(self, topic_id: bytes, number: int) -> TopicPartition | None:
        """Return the partition of the topic with that id, or None if it is unknown."""
        return self._by_id.get((topic_id, number))

    def end_delays(self, now_ms: int) -> None:
        """Resume the partitions whose delay has passed."""
        for topic_partition in list(self.delayed):
            state = self.by_partition[topic_partition]
            if state.delayed_until_ms <= now_ms:
                self.put(state._replace(delayed_until_ms=0))

    def first_delay_ends_ms(self) -> int:
        """Return when the next delay ends. There must be one."""
        return min(self.by_partition[topic_partition].delayed_until_ms for topic_partition in self.delayed)

    def hold_back(self, quota: ReplicationQuotaManager) -> None:
        """Record which throttled partitions that are out of sync must wait now (KIP-73)."""
        for topic_partition in list(self.held_back):
            if not _must_wait(self.by_partition[topic_partition], quota):
                del self.held_back[topic_partition]
                self.changed[topic_partition] = None
        if quota.is_active:
            for state in self.by_partition.values():
                if _must_wait(state, quota):
                    self.held_back[state.topic_partition] = None

    def left_out(self) -> set[TopicPartition]:
        """Return the partitions that cannot be fetched now."""
        out: set[TopicPartition] = set()
        if not (self.truncating or self.out_of_range or self.delayed or self.held_back):
            return out
        for kept in (self.truncating, self.out_of_range, self.delayed, self.held_back):
            if kept:
                out.update(kept)
        return out

    def to_name(self, out: set[TopicPartition], *, every: bool) -> Iterable[PartitionFetchState]:
        """Return the states that the next fetch names, without those in `out`.

        `every`: all partitions, not only those that have changed since the last fetch.
        """
        names: Iterable[TopicPartition] = self.by_partition if every else self.changed
        return [self.by_partition[each] for each in names if each not in out]

    def mark_sent(self) -> None:
        """Note that the leader gets all changes with the fetch that is sent now."""
        self.changed.clear()
        self.gone.clear()


def _must_wait(state: PartitionFetchState, quota: ReplicationQuotaManager) -> bool:
    return quota.holds_back(state.topic_partition, is_in_sync=state.is_in_sync)
