"""CommittedNews: a readable account of what the metadata log of a cluster of whole nodes commits.

Thread rule: one thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.common.types import TopicPartition
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.registrations import BrokerRegistration, PartitionRegistration
from kreplica.sim.nodes.node_cluster import NodeCluster


class CommittedNews:
    """Describes each change of the committed metadata, as known by the node that has applied the most."""

    def __init__(self, cluster: NodeCluster) -> None:
        self._cluster = cluster
        self._known: ClusterMetadata | None = None
        self._partitions: dict[TopicPartition, PartitionRegistration] = {}
        self._brokers: dict[int, BrokerRegistration] = {}
        self._active: tuple[int, int] | None = None
        self._news: list[str] = []

    def take(self) -> list[str]:
        """Return the lines since the last call."""
        news, self._news = self._news, []
        return news

    def look(self) -> None:
        """Look for changes after an event."""
        if not self._cluster.live():
            return
        metadata = self._cluster.metadata()
        if metadata is not self._known:
            self._known = metadata
            self._news += self._of_brokers(metadata)
            self._news += self._of_partitions(metadata)
        active = self._cluster.controller
        node = None if active is None else self._cluster.node(active)
        if active is not None and node is not None:
            now_active = active, node.raft.leader_and_epoch.epoch
            if self._active is not None and now_active != self._active:
                self._news.append(f"{active} is the active controller, in epoch {now_active[1]}")
            self._active = now_active

    def _of_brokers(self, metadata: ClusterMetadata) -> Iterator[str]:
        for broker_id, now in sorted(metadata.brokers.items()):
            before = self._brokers.get(broker_id)
            if before is not None and before.epoch != now.epoch:
                yield f"controller: broker {broker_id} is registered anew"
            if before is not None and before.fenced != now.fenced:
                yield f"controller: broker {broker_id} is {'fenced' if now.fenced else 'no longer fenced'}"
        self._brokers = dict(metadata.brokers)

    def _of_partitions(self, metadata: ClusterMetadata) -> Iterator[str]:
        now = {at: registration for at, _, registration in metadata.partitions()}
        for at, registration in sorted(now.items()):
            if self._partitions.get(at) != registration:
                yield f"controller: {at}: {stands(registration)}"
        for at in sorted(self._partitions.keys() - now.keys()):
            yield f"controller: {at} is no more"
        self._partitions = now


def stands(registration: PartitionRegistration) -> str:
    """Describe a partition's state by the controller."""
    leader = "no leader" if registration.leader == NO_LEADER else f"leader {registration.leader}"
    parts = [f"{leader} in epoch {registration.leader_epoch}", f"ISR {_listed(registration.isr)}"]
    if registration.elr:
        parts.append(f"ELR {_listed(registration.elr)}")
    if registration.adding_replicas:
        parts.append(f"adding {_listed(registration.adding_replicas)}")
    if registration.removing_replicas:
        parts.append(f"removing {_listed(registration.removing_replicas)}")
    return f"{', '.join(parts)} (partition epoch {registration.partition_epoch})"


def _listed(brokers: Sequence[int]) -> str:
    return ",".join(str(broker) for broker in sorted(brokers)) or "none"
