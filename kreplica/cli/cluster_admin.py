"""What `kreplica cluster`, `broker` and `partition` ask of a cluster, and how they change it.

All of it are requests that Kafka's own brokers answer, too: DescribeCluster, Metadata, DescribeLogDirs,
ListPartitionReassignments, AlterPartitionReassignments, ElectLeaders, DescribeConfigs,
IncrementalAlterConfigs, UnregisterBroker. Brokers pass on what only the controller does. Thread rule: one
thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from kreplica.cli.config_changes import config_changes
from kreplica.cli.kafka_connection import TIMEOUT_S, Brokers, check
from kreplica.common.dataclass import dataclass
from kreplica.common.errors import (
    ElectionNotNeeded,
    KafkaStorageError,
    KreplicaError,
    NetworkException,
    NoReassignmentInProgress,
)
from kreplica.common.message import in_version
from kreplica.common.messages.administration import (
    AlterPartitionReassignmentsRequest,
    DescribableLogDirTopic,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeLogDirsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
    UnregisterBrokerRequest,
)
from kreplica.common.messages.data import DescribeClusterRequest
from kreplica.common.types import TopicPartition
from kreplica.common.wire import error_of
from kreplica.metadata.cluster_metadata import BROKER_RESOURCE, TOPIC_RESOURCE

PREFERRED, UNCLEAN = 0, 1
# Settings of topics that are asked for in one request.
MOST_TOPICS = 500
LEADER_RATE, FOLLOWER_RATE = "leader.replication.throttled.rate", "follower.replication.throttled.rate"
LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"
EVERYTHING = "*"
# How often a command looks again while it waits, and how long it waits for a controller that it can do
# without.
LOOK_AGAIN_S, LOOK_S = 0.5, 3.0
# Kafka's number for a value that is set on the topic itself, not on a broker or by default.
DYNAMIC_TOPIC_CONFIG = 1

Failures = dict[TopicPartition, str]


class RegisteredBroker(NamedTuple):
    """A broker that the controller knows. `address`: empty if no broker of this id is registered."""

    broker_id: int
    address: str
    rack: str | None
    is_up: bool


class Move(NamedTuple):
    """A partition whose replicas are changing now."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas at the end of the move."""
        return tuple(each for each in self.replicas if each not in self.removing)


@dataclass(frozen=True, slots=True)
class LogDirectory:
    """A log directory. `error`: why it cannot be read. Sizes are -1 where the broker does not give them."""

    broker_id: int
    path: str
    error: str | None
    total_bytes: int
    usable_bytes: int
    logs: Mapping[TopicPartition, int]


class ClusterAdmin(Brokers):
    """A cluster at one moment: its brokers, partitions and moves. The requests for changes follow below."""

    def __init__(self, bootstrap: str, *, needs_controller: bool = True) -> None:
        """Raises the error of the controller if it is needed; else `no_controller` has it, and the moves are
        unknown.
        """
        super().__init__(bootstrap)
        self.partitions = self.partitions_of(None)
        self.moves: dict[TopicPartition, Move] = {}
        self.no_controller: KreplicaError | None = None
        try:
            self.moves = self._moves(TIMEOUT_S if needs_controller else LOOK_S)
        except KreplicaError as error:
            if needs_controller:
                raise
            self.no_controller = error
        self.registered = self._registered()
        # The replicas of each partition; those of a moving one are those at the end of the move.
        self.layout = {
            at: self.moves[at].target if at in self.moves else tuple(each.replica_nodes)
            for at, each in sorted(self.partitions.items())
        }

    @property
    def up(self) -> list[int]:
        """The brokers that may lead."""
        return [each.broker_id for each in self.registered.values() if each.is_up]

    def missing_replicas(self, at: TopicPartition) -> int:
        """Return how many replicas are not in sync; one that a move adds is not expected to be."""
        found = self.partitions[at]
        expected = set(found.replica_nodes) - set(self.moves[at].adding if at in self.moves else ())
        return max(len(expected) - len(set(found.isr_nodes)), 0)

    def _ask_controller(self, request: Any, versions: Sequence[int], timeout_s: float = TIMEOUT_S) -> Any:
        """Ask the broker that Metadata names, which is the controller or passes requests on to it.

        If no connection to it can be made, ask another one.
        """
        first = [self.controller] if self.controller in self.addresses else []
        unreachable: NetworkException | None = None
        for node in (*first, *(each for each in self.brokers if each not in first)):
            try:
                version = self.newest(node, request.__api_key__, versions)
            except NetworkException as error:
                unreachable = error
                continue
            return self.ask(node, in_version(request, version), timeout_s)
        raise unreachable or NetworkException(f"{self.bootstrap} names no live broker")

    def _registered(self) -> dict[int, RegisteredBroker]:
        request = DescribeClusterRequest(
            include_cluster_authorized_operations=False, include_fenced_brokers=True
        )
        # All brokers know it, also without a controller.
        answer = self.seed.ask_newest(request, range(3))
        check(answer)
        found = {
            each.broker_id: RegisteredBroker(
                each.broker_id,
                f"{each.host}:{each.port}",
                each.rack,
                not getattr(each, "is_fenced", False),
            )
            for each in answer.brokers
        }
        # Before version 2 only the live brokers are listed.
        for node in {node for each in self.partitions.values() for node in each.replica_nodes} - set(found):
            found[node] = RegisteredBroker(node, "", None, False)
        return dict(sorted(found.items()))

    def _moves(self, timeout_s: float) -> dict[TopicPartition, Move]:
        answer = self._ask_controller(ListPartitionReassignmentsRequest(topics=None), (0,), timeout_s)
        check(answer)
        return {
            TopicPartition(topic.name, each.partition_index): Move(
                tuple(each.replicas), tuple(each.adding_replicas), tuple(each.removing_replicas)
            )
            for topic in answer.topics
            for each in topic.partitions
        }

    # ---- disks --------------------------------------------------------------------------------------------

    def directories(
        self, broker: int, partitions: Iterable[TopicPartition] | None = None
    ) -> list[LogDirectory]:
        """Return the log directories of a live broker, with the sizes of these logs, or of all.

        Raises NetworkException, and the broker's error.
        """
        topics = None
        if partitions is not None:
            topics = tuple(
                DescribableLogDirTopic(topic=name, partitions=numbers)
                for name, numbers in by_topic(partitions)
            )
        answer = self.ask_newest(broker, DescribeLogDirsRequest(topics=topics), range(1, 5))
        error = error_of(getattr(answer, "error_code", 0))
        if error is not None:
            raise error
        return [_directory(broker, each) for each in answer.results]

    def disks(
        self, asked: Mapping[int, Iterable[TopicPartition]] | None = None
    ) -> Iterator[tuple[int, list[LogDirectory], str]]:
        """Yield the log directories of each broker that is up, and why one has not answered.

        `asked`: the logs whose sizes are wanted, by broker; None: all logs of all brokers.
        """
        for broker in self.up:
            if asked is not None and broker not in asked:
                continue
            try:
                found, problem = self.directories(broker, asked[broker] if asked else None), ""
            except (KreplicaError, OSError) as error:
                found, problem = [], str(error)
            yield broker, found, problem

    def leader_sizes(self) -> tuple[dict[TopicPartition, int], list[str]]:
        """Return the size of each partition on its leader, and what could not be asked, in words."""
        sizes: dict[TopicPartition, int] = {}
        problems = []
        for broker, found, problem in self.disks():
            if problem:
                problems.append(f"sizes of broker {broker}: {problem}")
            for directory in found:
                for at, size in directory.logs.items():
                    if at in self.partitions and self.partitions[at].leader_id == broker:
                        sizes[at] = size
        return sizes, problems

    # ---- settings -----------------------------------------------------------------------------------------

    def topic_settings(self, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
        """Yield each topic with each of these settings of it. Raises the broker's error."""
        topics = sorted({at.topic for at in self.partitions})
        for start in range(0, len(topics), MOST_TOPICS):
            asked = tuple(
                DescribeConfigsResource(
                    resource_type=TOPIC_RESOURCE, resource_name=topic, configuration_keys=tuple(names)
                )
                for topic in topics[start : start + MOST_TOPICS]
            )
            answer = self.ask_newest(self.brokers[0], DescribeConfigsRequest(resources=asked), range(1, 5))
            for result in answer.results:
                check(result)
                for each in result.configs:
                    yield result.resource_name, each

    def _alter_topics(self, changes: Mapping[str, Mapping[str, str | None]]) -> None:
        """Set settings of topics, or with None reset them. Raises the broker's error."""
        if changes:
            _check_altered(self._ask_controller(config_changes(TOPIC_RESOURCE, changes), (0, 1)))

    def _alter_broker(self, broker: int, settings: Mapping[str, str | None]) -> None:
        """Set settings of a live broker, which Kafka's brokers take only for themselves."""
        request = config_changes(BROKER_RESOURCE, {str(broker): settings})
        _check_altered(self.ask_newest(broker, request, (0, 1)))

    # ---- changes ------------------------------------------------------------------------------------------

    def reassign(self, layout: Mapping[TopicPartition, tuple[int, ...] | None]) -> Failures:
        """Begin to move partitions to these replicas, or with None cancel their moves; return what failed."""
        topics = tuple(
            ReassignableTopic(
                name=name,
                partitions=tuple(
                    ReassignablePartition(partition_index=at.partition, replicas=layout[at]) for at in group
                ),
            )
            for name, group in groupby(sorted(layout), key=lambda at: at.topic)
        )
        if not topics:
            return {}
        answer = self._ask_controller(AlterPartitionReassignmentsRequest(topics=topics), (0, 1))
        check(answer)
        return {
            TopicPartition(topic.name, each.partition_index): str(error)
            for topic in answer.responses
            for each in topic.partitions
            if (error := error_of(each.error_code, each.error_message)) is not None
            and not isinstance(error, NoReassignmentInProgress)
        }

    def elect(self, partitions: Iterable[TopicPartition], kind: int) -> Failures:
        """Elect leaders of these partitions; return what failed."""
        asked = tuple(
            TopicPartitions(topic=name, partitions=numbers) for name, numbers in by_topic(partitions)
        )
        if not asked:
            return {}
        request = ElectLeadersRequest(election_type=kind, topic_partitions=asked)
        answer = self._ask_controller(request, (1, 2))
        error = error_of(answer.error_code)
        if error is not None:
            raise error
        return {
            TopicPartition(topic.topic, each.partition_id): str(error)
            for topic in answer.replica_election_results
            for each in topic.partition_result
            if (error := error_of(each.error_code, each.error_message)) is not None
            and not isinstance(error, ElectionNotNeeded)
        }

    def throttle(self, rate: int, changes: Mapping[TopicPartition, tuple[int, ...]]) -> list[int]:
        """Limit the replication of these moves to `rate` bytes a second on each live broker.

        `changes`: the new replicas of each partition, which has not begun to move. Returns the brokers that
        are down: they take settings only themselves, so they have no limit when they come back.
        """
        leaders: dict[str, list[str]] = {}
        followers: dict[str, list[str]] = {}
        brokers: set[int] = set()
        for at, after in changes.items():
            before = tuple(self.partitions[at].replica_nodes)
            added = [each for each in after if each not in before]
            if added:
                leaders.setdefault(at.topic, []).extend(f"{at.partition}:{each}" for each in before)
                followers.setdefault(at.topic, []).extend(f"{at.partition}:{each}" for each in added)
                brokers |= {*before, *added}
        for broker in sorted(brokers & set(self.up)):
            self._alter_broker(broker, {LEADER_RATE: str(rate), FOLLOWER_RATE: str(rate)})
        self._alter_topics(
            {
                topic: {LEADER_REPLICAS: ",".join(listed), FOLLOWER_REPLICAS: ",".join(followers[topic])}
                for topic, listed in leaders.items()
            }
        )
        return sorted(brokers - set(self.up))

    def remove_throttle(self) -> bool:
        """Remove the throttle of moves from all topics and live brokers; return whether there was one."""
        throttled = {
            topic
            for topic, each in self.topic_settings((LEADER_REPLICAS, FOLLOWER_REPLICAS))
            if each.config_source == DYNAMIC_TOPIC_CONFIG and each.value not in ("", EVERYTHING)
        }
        if not throttled:
            return False
        self._alter_topics({topic: {LEADER_REPLICAS: None, FOLLOWER_REPLICAS: None} for topic in throttled})
        for broker in self.up:
            self._alter_broker(broker, {LEADER_RATE: None, FOLLOWER_RATE: None})
        return True

    def unregister(self, broker: int) -> None:
        """Remove a stopped broker from the cluster. Raises BrokerIdNotRegistered."""
        check(self._ask_controller(UnregisterBrokerRequest(broker_id=broker), (0,)))


def _directory(broker: int, found: Any) -> LogDirectory:
    error = error_of(found.error_code)
    text = None
    if error is not None:
        text = "has failed" if isinstance(error, KafkaStorageError) else str(error)
    return LogDirectory(
        broker,
        found.log_dir,
        text,
        getattr(found, "total_bytes", -1),
        getattr(found, "usable_bytes", -1),
        {
            TopicPartition(topic.name, each.partition_index): each.partition_size
            for topic in found.topics
            for each in topic.partitions
            if not each.is_future_key
        },
    )


def _check_altered(answer: Any) -> None:
    for result in answer.responses:
        check(result)


def by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, tuple[int, ...]]]:
    """Return the partitions' numbers by topic."""
    return [
        (name, tuple(at.partition for at in group))
        for name, group in groupby(sorted(partitions), key=lambda at: at.topic)
    ]


def reachable(bootstrap: str, patience_s: float) -> ClusterAdmin:
    """Look at the cluster, again and again while no broker answers, as in an election.

    Raises NetworkException after `patience_s`.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return ClusterAdmin(bootstrap)
        except (NetworkException, OSError):
            if time.monotonic() > deadline:
                raise
        time.sleep(LOOK_AGAIN_S)
