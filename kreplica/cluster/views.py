"""Views of a Cluster: PartitionView, a live view of a partition, and plain descriptions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kreplica.common.errors import NotLeaderOrFollower, UnknownTopicOrPartition
from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.common.types import TopicPartition, Uuid
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.registrations import PartitionRegistration

if TYPE_CHECKING:
    from kreplica.broker.node import Node
    from kreplica.replica.isr_history import IsrChange, OutOfIsr
    from kreplica.replica.partition import Partition


class PartitionView:
    """A live view of a partition: each property returns the current state.

    The controller's decisions come from the node with the most recent metadata, offsets from the running
    leader.
    Every property raises UnknownTopicOrPartition once the partition is deleted.
    """

    def __init__(
        self,
        at: TopicPartition,
        metadata: Callable[[], ClusterMetadata],
        node: Callable[[int], Node | None],
    ) -> None:
        self._at = at
        self._metadata = metadata
        self._node = node

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
    def isr_history(self) -> tuple[IsrChange, ...]:
        """The last changes of the ISR, oldest first, each with its time, reason and offsets.

        Each leader records the changes of its own term; this merges the records of all replicas that run in
        this
        process. A restarted node begins with an empty history.
        """
        found: dict[tuple[int, int, str], IsrChange] = {}
        for broker_id in self._registration().replicas:
            node = self._node(broker_id)
            if node is None or node.broker is None:
                continue
            partition = node.broker.replica_manager.partitions.get(self._at)
            for change in () if partition is None else partition.isr_history:
                found.setdefault((change.partition_epoch, change.broker_id, change.kind), change)
        return tuple(found[key] for key in sorted(found))

    def _registration(self) -> PartitionRegistration:
        found = self._metadata().partition(self._at)
        if found is None:
            raise UnknownTopicOrPartition(f"there is no partition {self._at}")
        return found

    def _leading(self) -> Partition:
        leader = self.leader
        node = None if leader is None else self._node(leader)
        if node is None or node.broker is None:
            raise NotLeaderOrFollower(f"{self._at}: its leader is not running")
        return node.broker.replica_manager.partitions.get_or_error(self._at)

    def __repr__(self) -> str:
        found = self._metadata().partition(self._at)
        if found is None:
            return f"PartitionView({self._at}, gone)"
        return (
            f"PartitionView({self._at}, leader {found.leader}, epoch {found.leader_epoch}, isr {found.isr})"
        )


def describe_topics(metadata: ClusterMetadata) -> dict[str, dict[str, Any]]:
    """Return every topic with its partitions, as JSON-compatible values."""
    return {
        name: {
            "topic_id": str(topic.topic_id),
            "partitions": {
                number: {
                    "leader": None if each.leader == NO_LEADER else each.leader,
                    "leader_epoch": each.leader_epoch,
                    "replicas": list(each.replicas),
                    "isr": list(each.isr),
                    "elr": list(each.elr),
                    "adding_replicas": list(each.adding_replicas),
                    "removing_replicas": list(each.removing_replicas),
                }
                for number, each in sorted(topic.partitions.items())
            },
        }
        for name, topic in sorted(metadata.topics.items())
    }
