"""`kreplica transactions`: find and abort transactions that no coordinator ends, in any Kafka-compatible
cluster (KIP-664).

Requests go to the leader of each partition. Thread rule: one thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from kreplica.cli.kafka_connection import KafkaConnection, any_broker
from kreplica.cli.output import Fact, print_facts, print_json, say
from kreplica.common.closing import Closing
from kreplica.common.dataclass import dataclass
from kreplica.common.errors import (
    InvalidTxnState,
    KreplicaError,
    LeaderNotAvailable,
    NetworkException,
    UnknownServerError,
    UnknownTopicOrPartition,
)
from kreplica.common.message import in_version
from kreplica.common.messages.data import DescribeProducersRequest, MetadataRequest, MetadataRequestTopic
from kreplica.common.messages.data import DescribeProducersRequestTopicRequest as TopicRequest
from kreplica.common.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from kreplica.common.types import TopicPartition
from kreplica.common.wire import error_of
from kreplica.runtime.clock import SystemClock

METADATA, DESCRIBE_PRODUCERS, WRITE_TXN_MARKERS = 3, 61, 27
# Versions of Metadata that name topics and include the cluster's id.
METADATA_VERSIONS = range(4, 8)
MS_A_MINUTE = 60_000
# How long and how often to ask again about partitions without an answer.
RETRY_S, RETRY_BACKOFF_S = 5.0, 0.2
NO_COORDINATOR_EPOCH = -1
COLUMNS = ("topic", "partition", "producer_id", "producer_epoch", "start_offset", "last_timestamp", "idle_ms")


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """An open transaction, as the leader of its partition reports it."""

    at: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp: int

    def fact(self, now_ms: int) -> Fact:
        """Return the fact to print. `idle_ms`: time since the producer's last write."""
        return {
            "topic": self.at.topic,
            "partition": self.at.partition,
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
            "start_offset": self.start_offset,
            "last_timestamp": self.last_timestamp,
            "idle_ms": max(0, now_ms - self.last_timestamp),
            "coordinator_epoch": self.coordinator_epoch,
        }


class Leaders(Closing):
    """Connections to the leaders of partitions."""

    def __init__(self, bootstrap: str) -> None:
        self._held = ExitStack()
        self._connections: dict[int, KafkaConnection] = {}
        self._seed = self._held.enter_context(any_broker(bootstrap))
        self._addresses: dict[int, tuple[str, int]] = {}
        self.bootstrap = bootstrap
        self.cluster_id = ""

    def close(self) -> None:
        """Close all connections."""
        self._held.close()

    def leaders_of(self, topic: str | None) -> dict[TopicPartition, int]:
        """Return the leader of each partition of the topic, or of all topics; -1 for no leader.

        Raises UnknownTopicOrPartition.
        """
        version = self._seed.newest(METADATA, METADATA_VERSIONS).__version__
        topics = None
        if topic is not None:
            topics = (MetadataRequestTopic(name=topic),)
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        answer = self._seed.ask(in_version(request, version))
        self.cluster_id = answer.cluster_id or "without id"
        self._addresses = {each.node_id: (each.host, each.port) for each in answer.brokers}
        leaders = {}
        for found in answer.topics:
            error = error_of(found.error_code)
            if error is not None and topic is not None:
                raise type(error)(f"topic {topic}: {error}")
            for each in found.partitions:
                leaders[TopicPartition(found.name, each.partition_index)] = each.leader_id
        return leaders

    def leader_of(self, at: TopicPartition) -> int:
        """Return the leader of a partition. Raises UnknownTopicOrPartition, LeaderNotAvailable."""
        leader = self.leaders_of(at.topic).get(at)
        if leader is None:
            raise UnknownTopicOrPartition(f"there is no partition {at}")
        if leader < 0:
            raise LeaderNotAvailable(f"{at} has no leader, which alone can end a transaction")
        return leader

    def ask(self, node_id: int, request: Any) -> Any:
        """Send a request to that broker and return the answer. Raises NetworkException, UnsupportedVersion,
        InvalidRequest."""
        connection = self._connections.get(node_id)
        if connection is None:
            address = self._addresses.get(node_id)
            if address is None:
                raise NetworkException(f"broker {node_id} is not among the cluster's live brokers")
            try:
                connection = KafkaConnection(*address)
            except OSError as error:
                raise NetworkException(f"broker {node_id} at {address[0]}:{address[1]}: {error}") from error
            self._connections[node_id] = self._held.enter_context(connection)
        connection.newest(request.__api_key__, (request.__version__,))
        return connection.ask(request)

    def open_transactions(
        self, partitions: Mapping[TopicPartition, int]
    ) -> Iterator[OpenTransaction | tuple[TopicPartition, KreplicaError]]:
        """Return the open transactions of these partitions, given with their leaders, and the partitions that
        could not be checked."""
        by_leader: dict[int, list[TopicPartition]] = {}
        for at, leader in sorted(partitions.items()):
            if leader < 0:
                yield at, LeaderNotAvailable(f"{at} has no leader")
            else:
                by_leader.setdefault(leader, []).append(at)
        for leader, led in by_leader.items():
            try:
                answer = self.ask(leader, _question(led))
            except KreplicaError as error:
                yield from ((at, error) for at in led)
                continue
            for topic in answer.topics:
                for each in topic.partitions:
                    at = TopicPartition(topic.name, each.partition_index)
                    failure = error_of(each.error_code, each.error_message)
                    if failure is not None:
                        yield at, failure
                        continue
                    for producer in each.active_producers:
                        if producer.current_txn_start_offset >= 0:
                            yield _open(at, producer)


def _question(partitions: Sequence[TopicPartition]) -> DescribeProducersRequest:
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    asked = tuple(
        TopicRequest(name=name, partition_indexes=tuple(numbers)) for name, numbers in topics.items()
    )
    return DescribeProducersRequest(topics=asked)


def _open(at: TopicPartition, producer: Any) -> OpenTransaction:
    return OpenTransaction(
        at,
        producer.producer_id,
        producer.producer_epoch,
        producer.coordinator_epoch,
        producer.current_txn_start_offset,
        producer.last_timestamp,
    )


def find_hanging(
    bootstrap: str, topic: str | None, partition: int | None, broker: int | None, minutes: int, as_json: bool
) -> int:
    """Print the open transactions without a write for more than `minutes`.

    `topic`, `partition` and `broker` (a leader) restrict the search. Returns the exit code: 1 if a partition
    could not be checked.
    """
    now_ms = SystemClock().time_ms()
    found: list[OpenTransaction] = []
    failures: list[tuple[TopicPartition, KreplicaError]] = []
    with Leaders(bootstrap) as leaders:
        wanted = {
            at: leader
            for at, leader in leaders.leaders_of(topic).items()
            if partition in (None, at.partition) and broker in (None, leader)
        }
        if topic is not None and partition is not None and not wanted and broker is None:
            raise UnknownTopicOrPartition(f"there is no partition {topic}-{partition}")
        deadline = time.monotonic() + RETRY_S
        left = wanted
        while True:
            failures = []
            for each in leaders.open_transactions(left):
                if isinstance(each, OpenTransaction):
                    found.append(each)
                else:
                    failures.append(each)
            if not failures or time.monotonic() > deadline:
                break
            # The leader may just have changed: ask again about partitions without an answer.
            time.sleep(RETRY_BACKOFF_S)
            now = leaders.leaders_of(topic)
            left = {at: now[at] for at, _ in failures if at in now}
    facts = [
        fact
        for fact in (each.fact(now_ms) for each in sorted(found, key=lambda each: each.at))
        if int(str(fact["idle_ms"])) > minutes * MS_A_MINUTE or not minutes
    ]
    if facts or as_json:
        print_facts(f"open transactions of cluster {leaders.cluster_id}", COLUMNS, facts, as_json)
    else:
        say(f"no hanging transaction in {len(wanted)} partitions")
    if len(facts) < len(found):
        say(
            f"{len(found) - len(facts)} open transactions were written to in the last {minutes} minutes:"
            " --max-transaction-timeout 0 lists them, too",
            stderr=True,
        )
    for at, error in failures:
        say(f"{at}: not checked: {error}", stderr=True)
    return 1 if failures else 0


def abort(
    bootstrap: str, at: TopicPartition, start_offset: int | None, producer_id: int | None, as_json: bool
) -> int:
    """Abort the open transaction that begins at `start_offset`, or that of `producer_id`; returns the exit
    code.

    Returns when all in-sync replicas have the marker. Raises InvalidTxnState if there is no such transaction,
    UnknownTopicOrPartition, LeaderNotAvailable, and the leader's errors.
    """
    with Leaders(bootstrap) as leaders:
        leader = leaders.leader_of(at)
        transaction = _the_one(leaders, at, leader, start_offset, producer_id)
        marker = WritableTxnMarker(
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            transaction_result=False,
            topics=(WritableTxnMarkerTopic(name=at.topic, partition_indexes=(at.partition,)),),
            coordinator_epoch=max(transaction.coordinator_epoch, 0),
        )
        answer = leaders.ask(leader, in_version(WriteTxnMarkersRequest(markers=(marker,)), 1))
        results = [part for each in answer.markers for topic in each.topics for part in topic.partitions]
        if len(results) != 1:
            raise UnknownServerError(f"broker {leader} answered for {len(results)} partitions instead of 1")
        error = error_of(results[0].error_code)
        if error is not None:
            raise type(error)(f"{at}: producer {transaction.producer_id}: {error}")
    if as_json:
        print_json({**transaction.fact(SystemClock().time_ms()), "done": "aborted"})
    else:
        say(
            f"aborted the transaction of producer {transaction.producer_id} that begins at offset"
            f" {transaction.start_offset} of {at}, in cluster {leaders.cluster_id} at {bootstrap}"
        )
    return 0


def _the_one(
    leaders: Leaders, at: TopicPartition, leader: int, start_offset: int | None, producer_id: int | None
) -> OpenTransaction:
    found = []
    for each in leaders.open_transactions({at: leader}):
        if not isinstance(each, OpenTransaction):
            raise each[1]
        found.append(each)
    for each in found:
        if start_offset in (None, each.start_offset) and producer_id in (None, each.producer_id):
            return each
    what = f"begins at offset {start_offset}" if producer_id is None else f"is of producer {producer_id}"
    others = ", ".join(f"producer {each.producer_id} from {each.start_offset}" for each in found) or "none"
    raise InvalidTxnState(f"{at}: no open transaction {what}; open are: {others}")
