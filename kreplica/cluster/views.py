"""Views of a Cluster: PartitionView, a live view of a partition; ClusterWatch, an iterator over changes; and
plain descriptions.

One thread at a time reads a ClusterWatch; any thread may close it, and use the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from kreplica.common.errors import NotLeaderOrFollower, UnknownTopicOrPartition
from kreplica.common.future import Future
from kreplica.common.html import table
from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.common.types import TopicPartition, Uuid
from kreplica.metadata.batch_reader import decoded_batches
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.image_paths import TreeChange, partition_path, shown_partition
from kreplica.metadata.metadata_loader import TreeReplay
from kreplica.metadata.registrations import PartitionRegistration
from kreplica.metadata.watches import Watch
from kreplica.raft.snapshots import RecordsSnapshotReader
from kreplica.replica.partition_state import IsrChange, IsrChangeReason

if TYPE_CHECKING:
    from kreplica.broker.node import Node
    from kreplica.raft.kafka_metadata_log import KafkaMetadataLog
    from kreplica.replica.partition import Partition
    from kreplica.replica.partition_state import OutOfIsr

# Bytes of the metadata log to read at once.
READ_BYTES = 1 << 20


class PartitionView:
    """A live view of a partition: each property returns the current state.

    The controller's decisions come from the node with the most recent metadata, offsets from the running
    leader. Every property raises UnknownTopicOrPartition once the partition is deleted.
    """

    def __init__(
        self, at: TopicPartition, newest: Callable[[], Node], node: Callable[[int], Node | None]
    ) -> None:
        """Make the view. `newest()`: the node with the most recent metadata."""
        self._at = at
        self._newest = newest
        self._node = node

    def _metadata(self) -> ClusterMetadata:
        return self._newest().loader.published

    @property
    def topic(self) -> str:
        return self._at.topic

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self._at.partition

    @property
    def topic_id(self) -> Uuid:
        found = self._metadata().topics.get(self._at.topic)
        if found is None:
            raise UnknownTopicOrPartition(f"there is no topic {self._at.topic!r}")
        return found.topic_id

    @property
    def leader(self) -> int | None:
        """The broker that leads, or None if there is no leader."""
        leader = self._registration().leader
        return None if leader == NO_LEADER else leader

    @property
    def leader_epoch(self) -> int:
        return self._registration().leader_epoch

    @property
    def partition_epoch(self) -> int:
        """The version of the controller's decision about this partition."""
        return self._registration().partition_epoch

    @property
    def replicas(self) -> tuple[int, ...]:
        """The brokers with a replica, the preferred leader first."""
        return self._registration().replicas

    @property
    def isr(self) -> tuple[int, ...]:
        """The brokers in sync."""
        return self._registration().isr

    @property
    def elr(self) -> tuple[int, ...]:
        """The brokers outside the ISR that have all committed records nevertheless (KIP-966)."""
        return self._registration().elr

    @property
    def adding_replicas(self) -> tuple[int, ...]:
        return self._registration().adding_replicas

    @property
    def removing_replicas(self) -> tuple[int, ...]:
        return self._registration().removing_replicas

    @property
    def high_watermark(self) -> int:
        """The offset below which all records are committed. Raises NotLeaderOrFollower if no leader runs."""
        return self._leading().high_watermark

    @property
    def log_end_offset(self) -> int:
        """The offset of the leader's next record. Raises as `high_watermark` does."""
        return self._leading().local_log.log_end_offset

    @property
    def log_start_offset(self) -> int:
        """The leader's first offset. Raises as `high_watermark` does."""
        return self._leading().local_log.log_start_offset

    def why_not_in_isr(self, broker_id: int) -> OutOfIsr | None:
        """Return why the replica is out of sync, or None if it is in sync.

        The reason is the rule that it does not meet now, with offsets and times. Raises as `high_watermark`
        does.
        """
        return self._leading().why_not_in_isr(broker_id)

    @property
    def changes(self) -> tuple[TreeChange, ...]:
        """Every change of the partition that the metadata log has, oldest first, such as another leader.

        They are those that Cluster.watch yields at the partition's path. They survive restarts and go back to
        the oldest snapshot of the log.
        """
        self._registration()
        path = partition_path(*self._at)
        found = [each for each in _changes_in(self._newest().raft.log) if each.path == path]
        created = max(place for place, each in enumerate(found) if each.old is None)
        return tuple(found[created:])

    @property
    def isr_history(self) -> tuple[IsrChange, ...]:
        """The changes of the ISR that the metadata log has, oldest first, each with its time.

        Reasons and offsets come from the leader that made the change: it keeps its last changes in memory.
        After its restart the reason is UNKNOWN, the offsets are -1 and the times of fetches None.
        """
        found: dict[tuple[int, int, str], IsrChange] = {}
        for broker_id in self._registration().replicas:
            node = self._node(broker_id)
            if node is None or node.broker is None:
                continue
            partition = node.broker.replica_manager.partitions.get(self._at)
            for change in () if partition is None else partition.isr_history:
                found.setdefault((change.partition_epoch, change.broker_id, change.kind), change)
        for each in self.changes:
            for change in _isr_changes(each):
                key = change.partition_epoch, change.broker_id, change.kind
                found[key] = found.get(key, change)._replace(time_ms=change.time_ms)
        return tuple(found[key] for key in sorted(found))

    def _registration(self) -> PartitionRegistration:
        return self._metadata().require_partition(self._at)

    def _leading(self) -> Partition:
        leader = self.leader
        node = None if leader is None else self._node(leader)
        if node is None or node.broker is None:
            raise NotLeaderOrFollower(f"{self._at}: its leader is not running")
        return node.broker.replica_manager.partitions.get_or_error(self._at)

    def _repr_html_(self) -> str:
        """Return the partition's replicas as a table, for notebooks."""
        found = self._registration()
        rows = [(each, *_standing(each, found)) for each in found.replicas]
        try:
            offsets = f", offsets {self.log_start_offset:,} to {self.log_end_offset:,}"
            offsets += f", committed to {self.high_watermark:,}"
        except NotLeaderOrFollower:
            offsets = ", no leader runs"
        caption = f"Partition {self._at}, leader epoch {found.leader_epoch}{offsets}"
        return table(caption, ("broker", "role", "in sync"), rows)

    def __repr__(self) -> str:
        found = self._metadata().partition(self._at)
        if found is None:
            return f"PartitionView({self._at}, gone)"
        return (
            f"PartitionView({self._at}, leader {found.leader}, epoch {found.leader_epoch}, isr {found.isr})"
        )


def _standing(broker_id: int, found: PartitionRegistration) -> tuple[str, str]:
    role = "leader" if broker_id == found.leader else "follower"
    return role, "yes" if broker_id in found.isr else "no, eligible" if broker_id in found.elr else "no"


def _changes_in(log: KafkaMetadataLog) -> Iterator[TreeChange]:
    """Yield the committed changes in a metadata log, from its oldest snapshot or first record on."""
    replay = TreeReplay()
    oldest = log.earliest_snapshot_id if log.start_offset else None
    raw = None if oldest is None else log.read_snapshot(oldest)
    if raw is not None:
        with RecordsSnapshotReader(raw) as reader:
            yield from replay.load(reader, reader.snapshot_id, reader.last_contained_log_timestamp)
    while replay.end.offset < log.high_watermark:
        records = log.read(replay.end.offset, READ_BYTES, committed_only=True).records
        for batch in decoded_batches(b"" if records is None else records):
            yield from replay.replay(batch)


def _isr_changes(change: TreeChange) -> Iterator[IsrChange]:
    if change.old is None or change.new is None:
        return
    before, after = change.old["isr"], change.new["isr"]
    left = [(broker_id, "shrink") for broker_id in before if broker_id not in after]
    joined = [(broker_id, "expand") for broker_id in after if broker_id not in before]
    for broker_id, kind in left + joined:
        yield IsrChange(
            time_ms=change.timestamp_ms,
            kind=kind,
            broker_id=broker_id,
            reason=IsrChangeReason.UNKNOWN,
            log_end_offset=-1,
            leader_log_end_offset=-1,
            high_watermark=-1,
            last_fetch_time_ms=None,
            last_caught_up_time_ms=None,
            leader_epoch=change.new["leader_epoch"],
            partition_epoch=change.new["partition_epoch"],
            isr=tuple(after),
        )


class ClusterWatch:
    """An iterator over changes, oldest first. Close it, or use it as a context manager.

    The iteration ends when no change has come within the watch's timeout; iterating again continues. It also
    ends when the watch is closed. It raises WatchOverflowed if the reader was too slow, and ClusterClosed,
    both after the changes before that.
    """

    def __init__(self, watch: Watch, wait: Callable[[Future[None]], bool]) -> None:
        """Iterate over `watch`. `wait(future)` returns whether the future was done in time."""
        self._watch = watch
        self._wait = wait

    @property
    def path(self) -> str:
        """The path that is watched, with all paths below it."""
        return self._watch.path

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> TreeChange:
        while (change := self._watch.pop()) is None:
            if self._watch.is_closed or not self._wait(self._watch.ready()):
                raise StopIteration
        return change

    def close(self) -> None:
        """End the watch, also for a reader in another thread."""
        self._watch.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def describe_topics(metadata: ClusterMetadata) -> dict[str, dict[str, Any]]:
    """Return every topic with its partitions, as JSON-compatible values."""
    return {
        name: {
            "topic_id": str(topic.topic_id),
            "partitions": {
                number: shown_partition(each) for number, each in sorted(topic.partitions.items())
            },
        }
        for name, topic in sorted(metadata.topics.items())
    }
