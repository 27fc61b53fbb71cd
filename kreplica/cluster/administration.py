"""ClusterAdministration: operations on topics and partitions, shared by Cluster and Simulation.

The two differ in how they wait for an answer: in a thread, or by advancing virtual time. The abstract methods
at the end are the hooks for that. Thread rule: the subclass's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import index
from typing import Literal, TypeVar

from kreplica.broker.node import Node
from kreplica.client.admin import CONFIG_KINDS, ELECTION_TYPES, Admin, ConfigKind
from kreplica.client.arguments import (
    assignment_of,
    broker_ids,
    choice,
    milliseconds,
    replication_factor_of,
    topic_name,
)
from kreplica.cluster.views import PartitionView
from kreplica.common.future import Future
from kreplica.common.types import TopicPartition
from kreplica.metadata.cluster_metadata import ClusterMetadata

T = TypeVar("T")

# Seconds; virtual seconds in a simulation.
TIMEOUT = 30.0


class ClusterAdministration(ABC):
    """Operations on topics, their partitions and the leaders."""

    # ---- topics -------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        config: Mapping[str, object] | None = None,
        *,
        assignment: Mapping[int, Sequence[int]] | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        """Create a topic; when this returns, every live broker knows it.

        `replication_factor`: three by default, or the number of brokers if there are fewer. `assignment`: the
        brokers of each partition, the preferred leader first; replaces `partitions` and `replication_factor`.
        Raises TopicAlreadyExists, InvalidTopic, InvalidPartitions, InvalidReplicationFactor,
        InvalidReplicaAssignment, InvalidConfig, RequestTimedOut.
        """
        topic_name(name)
        replicas = assignment_of(assignment)
        asked = partial(
            self._admin.create_topic,
            name,
            partitions=-1 if replicas else index(partitions),
            replication_factor=-1 if replicas else replication_factor_of(replication_factor),
            assignment=replicas,
            config=config,
            timeout_ms=milliseconds(timeout),
        )
        self._ask(asked, timeout)
        self._wait(lambda: all(name in each.topics for each in self._known()), timeout, name)

    def delete_topic(self, name: str, *, timeout: float = TIMEOUT) -> None:
        """Delete a topic; when this returns, no live broker knows it any longer.

        Raises UnknownTopicOrPartition, RequestTimedOut.
        """
        topic_name(name)
        self._ask(partial(self._admin.delete_topic, name, timeout_ms=milliseconds(timeout)), timeout)
        self._wait(lambda: all(name not in each.topics for each in self._known()), timeout, name)

    def create_partitions(self, name: str, count: int, *, timeout: float = TIMEOUT) -> None:
        """Increase the topic's partitions to `count`.

        Raises UnknownTopicOrPartition, InvalidPartitions, RequestTimedOut.
        """
        topic_name(name)
        last = TopicPartition(name, index(count) - 1)
        asked = partial(self._admin.create_partitions, name, index(count), timeout_ms=milliseconds(timeout))
        self._ask(asked, timeout)
        self._wait(
            lambda: all(each.partition(last) is not None for each in self._known()),
            timeout,
            str(last),
        )

    def alter_config(
        self,
        name: str,
        changes: Mapping[str, object | None],
        *,
        kind: ConfigKind = "topic",
        timeout: float = TIMEOUT,
    ) -> None:
        """Change settings of a topic, or with kind="group" of a group; None resets a setting to its default.

        Raises InvalidConfig, UnknownTopicOrPartition, RequestTimedOut.
        """
        choice(kind, CONFIG_KINDS, "kind")
        if kind == "topic":
            topic_name(name)
        asked = partial(self._admin.alter_config, name, changes, kind=kind, timeout_ms=milliseconds(timeout))
        self._ask(asked, timeout)

    def topics(self) -> list[str]:
        """Return the names of all topics."""
        return sorted(self._newest().topics)

    # ---- partitions ---------------------------------------------------------------------------------------

    def partition(self, topic: str, partition: int = 0) -> PartitionView:
        """Return a live view of a partition. Raises UnknownTopicOrPartition."""
        at = self._require(topic, partition)
        return PartitionView(at, self._newest_node, self._node)

    def reassign(
        self,
        topic: str,
        partition: int,
        replicas: Sequence[int] | None,
        *,
        wait: bool = True,
        timeout: float = TIMEOUT,
    ) -> None:
        """Move the partition to these brokers; None cancels a move.

        Returns when the move is complete, or without `wait` when it has started. Raises
        InvalidReplicaAssignment, NoReassignmentInProgress, UnknownTopicOrPartition, RequestTimedOut.
        """
        at = self._require(topic, partition)
        wanted = None if replicas is None else broker_ids(replicas)
        self._ask(partial(self._admin.reassign, at, wanted, timeout_ms=milliseconds(timeout)), timeout)
        if wait and wanted is not None:
            view = self.partition(topic, partition)
            self._wait(lambda: view.replicas == wanted and not view.adding_replicas, timeout, str(at))

    def elect(
        self,
        topic: str,
        partition: int = 0,
        kind: Literal["preferred", "unclean"] = "preferred",
        *,
        timeout: float = TIMEOUT,
    ) -> None:
        """Elect the preferred replica, or with "unclean" any live one, even one that lacks records.

        Raises PreferredLeaderNotAvailable, EligibleLeadersNotAvailable, UnknownTopicOrPartition,
        RequestTimedOut.
        """
        at = self._require(topic, partition)
        choice(kind, ELECTION_TYPES, "kind")
        self._ask(partial(self._admin.elect_leader, at, kind, timeout_ms=milliseconds(timeout)), timeout)

    def _require(self, topic: str, partition: int) -> TopicPartition:
        at = TopicPartition(topic, partition)
        self._newest().require_partition(at)
        return at

    # ---- for subclasses -----------------------------------------------------------------------------------

    @property
    @abstractmethod
    def _admin(self) -> Admin:
        """The client that sends administrative requests."""

    @abstractmethod
    def _ask(self, ask: Callable[[], Future[T]], timeout: float) -> T:
        """Send the request and wait for its result, which arrives or fails within `timeout` seconds."""

    @abstractmethod
    def _wait(self, condition: Callable[[], bool], timeout: float, what: str) -> None:
        """Return when the condition holds. Raises RequestTimedOut."""

    def _newest(self) -> ClusterMetadata:
        return self._newest_node().loader.published

    @abstractmethod
    def _newest_node(self) -> Node:
        """Return the node with the most recent metadata. Raises KreplicaError if no node runs."""

    @abstractmethod
    def _known(self) -> list[ClusterMetadata]:
        """Return the metadata of each live broker."""

    @abstractmethod
    def _node(self, node_id: int) -> Node | None:
        """Return the node, or None if it does not run."""
