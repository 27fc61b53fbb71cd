"""ClusterAdministration: what Cluster and Simulation let a program ask of topics and partitions.

How a question is waited for differs: by a thread in one of them, by letting virtual time pass in the other.
Those are the hooks at the end. Thread rule: the subclass's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import index
from typing import Literal, TypeVar

from kreplica.broker.node import Node
from kreplica.client.admin import ELECTION_TYPES, Admin
from kreplica.cluster.arguments import (
    assignment_of,
    broker_ids,
    choice,
    milliseconds,
    replication_factor_of,
    topic_name,
)
from kreplica.cluster.views import PartitionView
from kreplica.common.errors import UnknownTopicOrPartition
from kreplica.common.future import Future
from kreplica.common.types import TopicPartition
from kreplica.metadata.cluster_metadata import ClusterMetadata

T = TypeVar("T")

# Seconds, virtual ones in a simulation.
TIMEOUT = 30.0


class ClusterAdministration(ABC):
    """Topics, their partitions, and who leads them."""

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
        """Create a topic; every live broker knows it when this returns.

        `replication_factor`: by default three, or as many brokers as there are. `assignment`: by partition
        its brokers, the preferred leader first, instead of both. Raises TopicAlreadyExists, InvalidTopic,
        InvalidPartitions, InvalidReplicationFactor, InvalidReplicaAssignment, InvalidConfig,
        RequestTimedOut.
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
        """Delete a topic; no live broker knows it when this returns. Raises UnknownTopicOrPartition,
        RequestTimedOut."""
        topic_name(name)
        self._ask(partial(self._admin.delete_topic, name, timeout_ms=milliseconds(timeout)), timeout)
        self._wait(lambda: all(name not in each.topics for each in self._known()), timeout, name)

    def create_partitions(self, name: str, count: int, *, timeout: float = TIMEOUT) -> None:
        """Let the topic have `count` partitions. Raises UnknownTopicOrPartition, InvalidPartitions,
        RequestTimedOut."""
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
        self, name: str, changes: Mapping[str, object | None], *, timeout: float = TIMEOUT
    ) -> None:
        """Change settings of a topic; None takes one back to its default. Raises InvalidConfig,
        UnknownTopicOrPartition, RequestTimedOut."""
        topic_name(name)
        asked = partial(self._admin.alter_config, name, changes, timeout_ms=milliseconds(timeout))
        self._ask(asked, timeout)

    def topics(self) -> list[str]:
        """The names of all topics."""
        return sorted(self._newest().topics)

    # ---- partitions ---------------------------------------------------------------------------------------

    def partition(self, topic: str, partition: int = 0) -> PartitionView:
        """A live look at a partition. Raises UnknownTopicOrPartition."""
        at = self._require(topic, partition)
        return PartitionView(at, self._newest, self._node)

    def reassign(
        self,
        topic: str,
        partition: int,
        replicas: Sequence[int] | None,
        *,
        wait: bool = True,
        timeout: float = TIMEOUT,
    ) -> None:
        """Move the partition to these brokers; None cancels a move. Comes back when it is done, or, without
        `wait`, when it has begun. Raises InvalidReplicaAssignment, NoReassignmentInProgress,
        UnknownTopicOrPartition, RequestTimedOut.
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
        """Let the preferred replica lead; or, unclean, any replica that is there, even one that lost records.

        Raises PreferredLeaderNotAvailable, EligibleLeadersNotAvailable, UnknownTopicOrPartition,
        RequestTimedOut.
        """
        at = self._require(topic, partition)
        choice(kind, ELECTION_TYPES, "kind")
        self._ask(partial(self._admin.elect_leader, at, kind, timeout_ms=milliseconds(timeout)), timeout)

    def _require(self, topic: str, partition: int) -> TopicPartition:
        at = TopicPartition(topic, partition)
        if self._newest().partition(at) is None:
            raise UnknownTopicOrPartition(f"there is no partition {at}")
        return at

    # ---- for subclasses -----------------------------------------------------------------------------------

    @property
    @abstractmethod
    def _admin(self) -> Admin:
        """Whom topics are asked of."""

    @abstractmethod
    def _ask(self, ask: Callable[[], Future[T]], timeout: float) -> T:
        """Ask, and wait for the answer, which comes within `timeout` seconds or fails."""

    @abstractmethod
    def _wait(self, condition: Callable[[], bool], timeout: float, what: str) -> None:
        """Come back when the condition holds. Raises RequestTimedOut."""

    @abstractmethod
    def _newest(self) -> ClusterMetadata:
        """What the node that knows most knows. Raises KreplicaError where none runs."""

    @abstractmethod
    def _known(self) -> list[ClusterMetadata]:
        """What each live broker knows."""

    @abstractmethod
    def _node(self, node_id: int) -> Node | None:
        """The node, None where it does not run."""
