"""PartitionStates: the partitions of one fetcher, and what keeps each of them from being fetched now.

A fetcher's step costs what has changed, not what there is: so beside the states stand, as ordered sets, those
that the leader is to be told anew or to forget at the next fetch, and those that are left out of it. Thread
rule: the fetcher's lock guards all of it.
"""

from __future__ import annotations

from collections.abc import Iterable

from kreplica.common.types import TopicPartition
from kreplica.replica.partition_fetch_state import PartitionFetchState, ReplicaState
from kreplica.replica.replication_quota import ReplicationQuotaManager

States = dict[TopicPartition, PartitionFetchState]
# A set that keeps its order.
Kept = dict[TopicPartition, None]


class PartitionStates:
    """See the module. `by_partition` goes from the state that was put longest ago to the last one, so that no
    partition starves behind others.

    `changed`, `gone`: what the leader does not know yet. `truncating`, `out_of_range`, `delayed`,
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
        """Begin with the partition, from this state; it is none of these now."""
        topic_partition = state.topic_partition
        self._by_id[state.topic_id.raw, topic_partition.partition] = topic_partition
        self.put(state)

    def put(self, state: PartitionFetchState) -> None:
        """The partition's state from now on."""
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
        """End with the partition; its state, None where it was none of these."""
        state = self.by_partition.pop(topic_partition, None)
        for kept in (self.changed, self.truncating, self.out_of_range, self.delayed, self.held_back):
            kept.pop(topic_partition, None)
        if state is not None:
            self._by_id.pop((state.topic_id.raw, topic_partition.partition), None)
        return state

    def with_id(self, topic_id: bytes, number: int) -> TopicPartition | None:
        """The partition of the topic with that id; None where it is none of these."""
        return self._by_id.get((topic_id, number))

    def end_delays(self, now_ms: int) -> None:
        """Let those go on whose delay is over."""
        for topic_partition in list(self.delayed):
            state = self.by_partition[topic_partition]
            if state.delayed_until_ms <= now_ms:
                self.put(state._replace(delayed_until_ms=0))

    def first_delay_ends_ms(self) -> int:
        """When the next delay is over; there is one."""
        return min(self.by_partition[topic_partition].delayed_until_ms for topic_partition in self.delayed)

    def hold_back(self, quota: ReplicationQuotaManager) -> None:
        """Note which throttled partitions, not in sync, have to wait now (KIP-73)."""
        for topic_partition in list(self.held_back):
            if not _must_wait(self.by_partition[topic_partition], quota):
                del self.held_back[topic_partition]
                self.changed[topic_partition] = None
        if quota.is_active:
            for state in self.by_partition.values():
                if _must_wait(state, quota):
                    self.held_back[state.topic_partition] = None

    def left_out(self) -> set[TopicPartition]:
        """Those that cannot be fetched now."""
        out: set[TopicPartition] = set()
        for kept in (self.truncating, self.out_of_range, self.delayed, self.held_back):
            if kept:
                out.update(kept)
        return out

    def to_name(self, out: set[TopicPartition], *, every: bool) -> Iterable[PartitionFetchState]:
        """The states that the next fetch names, but for those of `out`: of `every` partition, or of what has
        changed since the last one."""
        names: Iterable[TopicPartition] = self.by_partition if every else self.changed
        return [self.by_partition[each] for each in names if each not in out]

    def told(self) -> None:
        """The leader is told of all that has changed and is gone."""
        self.changed.clear()
        self.gone.clear()


def _must_wait(state: PartitionFetchState, quota: ReplicationQuotaManager) -> bool:
    return quota.holds_back(state.topic_partition, is_in_sync=state.is_in_sync)
