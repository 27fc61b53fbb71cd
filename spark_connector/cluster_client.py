"""A client of a running cluster, kreplica's or Kafka's: lists partitions, fetches and appends.

Requests about a partition go to its leader, those about a group or a transactional id to its coordinator. If
the broker is gone, the client looks for the new one for up to TIMEOUT_S. Fetch and Produce cover one
partition, because a Spark task reads or writes one; ListOffsets covers all partitions of a leader.
Ownership: the connections; a pickled client has none. A Spark worker keeps its client, with the connections,
from one task to the next. Thread rule: one thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

from kreplica.spark.option_table import OptionError

from kreplica.cli import client_config
from kreplica.cli.client_config import ClientConfig
from kreplica.cli.kafka_connection import KafkaConnection, parse_bootstrap
from kreplica.common.errors import (
    ConcurrentTransactions,
    CorruptMessage,
    KreplicaError,
    LeaderNotAvailable,
    NetworkException,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from kreplica.common.message import in_version, maker
from kreplica.common.messages.administration import CreatableTopic, CreateTopicsRequest
from kreplica.common.messages.data import (
    ApiVersionsRequest,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    InitProducerIdRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    MetadataRequest,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kreplica.common.messages.groups import FindCoordinatorRequest, OffsetFetchRequest
from kreplica.common.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    TxnOffsetCommitRequest,
)
from kreplica.common.types import TopicPartition
from kreplica.common.wire import error_of

TIMEOUT_S = 60.0
# A cluster that has never answered is more likely named wrongly than out of order.
FIRST_CONTACT_S = 10.0
# Brokers learn of a new topic within this time; later it is a topic that does not exist.
UNKNOWN_S = 3.0
VERSION_S = 30.0
BACKOFF_S = 0.1
# The markers of the previous transaction are on their way; this takes some milliseconds.
CONCURRENT_BACKOFF_S = 0.02
FETCH_BYTES = 8 << 20
MAX_WAIT = timedelta(milliseconds=500)
APPEND_TIMEOUT = timedelta(seconds=10)
CONSUMER = -1
ALL_IN_SYNC = -1
# Kinds of coordinators in FindCoordinator.
GROUP, TRANSACTION = 0, 1
NO_OFFSET = -1
TRANSACTION_VERSION = "transaction.version"

_fetch, _fetch_topic, _fetch_partition = maker(FetchRequest), maker(FetchTopic), maker(FetchPartition)
_list, _list_topic, _list_partition = (
    maker(ListOffsetsRequest),
    maker(ListOffsetsTopic),
    maker(ListOffsetsPartition),
)
_produce, _produce_topic, _produce_partition = (
    maker(ProduceRequest),
    maker(TopicProduceData),
    maker(PartitionProduceData),
)
_metadata = maker(MetadataRequest)
# Versions that name topics, as options and offsets of a query do.
VERSIONS: dict[Any, int] = {
    AddOffsetsToTxnRequest: 3,
    AddPartitionsToTxnRequest: 3,
    ApiVersionsRequest: 3,
    CreateTopicsRequest: 5,
    EndTxnRequest: 3,
    FetchRequest: 12,
    FindCoordinatorRequest: 3,
    InitProducerIdRequest: 3,
    ListOffsetsRequest: 7,
    MetadataRequest: 9,
    OffsetFetchRequest: 7,
    ProduceRequest: 8,
    TxnOffsetCommitRequest: 3,
}

Address = tuple[str, int]
T = TypeVar("T")


class Leader(NamedTuple):
    """The address of a partition's leader (None: no leader) and its leader epoch."""

    address: Address | None
    epoch: int


class ClusterClient:
    """Send requests to a cluster. `servers`: host:port, separated by commas. Raises OptionError.

    `security`: how to connect, as properties of Kafka's clients.
    """

    def __init__(self, servers: str, security: Mapping[str, str] | None = None) -> None:
        try:
            self._bootstrap = parse_bootstrap(servers)
        except ValueError as error:
            raise OptionError(f"kafka.bootstrap.servers: {error}") from error
        self._servers = servers
        self._properties = dict(security or {})
        # Read again on each machine, from the files there.
        self._security: ClientConfig | None = None
        self._leaders: dict[TopicPartition, Leader] = {}
        self._coordinators: dict[tuple[int, str], Address] = {}
        self._connections: dict[Address, KafkaConnection] = {}
        # A connection whose request failed in the middle is not used again.
        self._in_use: set[Address] = set()
        self._has_answered = False
        # The level of transaction.version, and until when it counts.
        self._transaction_version: tuple[int | None, float] = (None, 0.0)
        self._is_kept = False

    def __reduce__(self) -> Any:
        return _of_this_process, (self._servers, self._properties, self._leaders)

    def __str__(self) -> str:
        return f"the cluster at {self._servers}"

    def close(self) -> None:
        """Close the connections; a worker's client keeps those that can be used again."""
        for address in list(self._in_use if self._is_kept else self._connections):
            self._drop(address)

    # ---- requests -----------------------------------------------------------------------------------------

    def partitions(self) -> list[TopicPartition]:
        """Return all partitions of the cluster, sorted."""
        self._retrying(self._refresh)
        return sorted(self._leaders)

    def knows(self, wanted: Iterable[TopicPartition]) -> bool:
        """Return whether the cluster had these partitions when it was asked last."""
        return all(at in self._leaders for at in wanted)

    def offset(self, at: TopicPartition, timestamp: int, isolation_level: int) -> int:
        """Return the offset of one partition, as `offsets` does."""
        return self.offsets({at: timestamp}, isolation_level)[at]

    def offsets(
        self, wanted: Mapping[TopicPartition, int], isolation_level: int
    ) -> dict[TopicPartition, int]:
        """Return the offsets that ListOffsets answers for these timestamps, with one request per leader.

        Timestamp -2 asks for the first offset, -1 for the end. A time in ms asks for the first offset with
        that time or a later one; the answer is -1 if there is no such record.
        """
        found: dict[TopicPartition, int] = {}

        def ask() -> dict[TopicPartition, int]:
            problem: KreplicaError | None = None
            left = [at for at in wanted if at not in found]
            for address, mine in self._by_leader(left).items():
                request = _list_request(wanted, mine, isolation_level)
                for topic in self._ask(address, request).topics:
                    for each in topic.partitions:
                        at = TopicPartition(topic.name, each.partition_index)
                        error = error_of(each.error_code, str(at))
                        if error is None:
                            found[at] = int(each.offset)
                        problem = problem or error
            if problem is not None:
                raise problem
            return found

        return self._retrying(ask)

    def _by_leader(self, wanted: Iterable[TopicPartition]) -> dict[Address, dict[TopicPartition, int]]:
        """Return the leader epochs of the partitions, by the address of their leader."""
        found: dict[Address, dict[TopicPartition, int]] = {}
        for at in wanted:
            leader = self._leader(at)
            assert leader.address is not None
            found.setdefault(leader.address, {})[at] = leader.epoch
        return found

    def fetch(self, at: TopicPartition, offset: int, isolation_level: int) -> Any:
        """Fetch records from `offset` on; return the partition's part of the response.

        Raises OffsetOutOfRange, and RequestTimedOut if there are no records.
        """
        return self._retrying(lambda: self._fetch(at, offset, isolation_level))

    def create_topic(self, name: str, partitions: int, replication_factor: int) -> None:
        """Create a topic and wait for its leaders. Raises TopicAlreadyExists or the cluster's other error."""
        wanted = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            assignments=(),
            configs=(),
        )

        def ask() -> None:
            (answer,) = self._any(CreateTopicsRequest(topics=(wanted,))).topics
            _raise(answer.error_code, answer.error_message or name)

        def look() -> None:
            self._refresh()
            for number in range(partitions):
                self._leader(TopicPartition(name, number))

        self._retrying(ask)
        self._retrying(look)

    def producer_id(self) -> tuple[int, int]:
        """Request a new producer id; return it with its epoch."""

        def ask() -> tuple[int, int]:
            answer = self._any(InitProducerIdRequest(transactional_id=None, transaction_timeout=MAX_WAIT))
            _raise(answer.error_code, "a producer's id")
            return int(answer.producer_id), int(answer.producer_epoch)

        return self._retrying(ask)

    def transaction_version(self) -> int | None:
        """Return the finalized level of transaction.version; None if the cluster has no transactions.

        A worker's client asks once in VERSION_S.
        """
        level, until = self._transaction_version
        if time.monotonic() < until:
            return level
        level = self._asked_transaction_version()
        if self._is_kept:
            self._transaction_version = level, time.monotonic() + VERSION_S
        return level

    def _asked_transaction_version(self) -> int | None:

        def ask() -> int | None:
            request = ApiVersionsRequest(client_software_name="kreplica", client_software_version="1")
            answer = self._any(request)
            _raise(answer.error_code, "the versions of requests")
            if EndTxnRequest.__api_key__ not in {each.api_key for each in answer.api_keys}:
                return None
            levels = {each.name: int(each.max_version_level) for each in answer.finalized_features}
            return levels.get(TRANSACTION_VERSION, 0)

        return self._retrying(ask)

    def committed_offsets(self, group: str) -> dict[TopicPartition, int]:
        """Return all committed offsets of a group, once no transaction may change them."""

        def ask() -> dict[TopicPartition, int]:
            answer = self._coordinator(
                GROUP, group, OffsetFetchRequest(group_id=group, topics=None, require_stable=True)
            )
            _raise(answer.error_code, f"group {group}")
            found = {}
            for topic in answer.topics:
                for each in topic.partitions:
                    at = TopicPartition(topic.name, each.partition_index)
                    _raise(each.error_code, f"group {group}, {at}")
                    if each.committed_offset != NO_OFFSET:
                        found[at] = int(each.committed_offset)
            return found

        return self._retrying(ask)

    def ask_coordinator(self, kind: int, key: str, request: Any, errors: Callable[[Any], Any]) -> Any:
        """Send a request to the coordinator of a group or transactional id; return the answer.

        `errors`: iterates over the error codes of an answer. Raises the first error that retries do not end.
        """

        def ask() -> Any:
            answer = self._coordinator(kind, key, request)
            for code in errors(answer):
                _raise(code, key)
            return answer

        return self._retrying(ask)

    def produce(self, at: TopicPartition, batch: bytes, transactional_id: str | None = None) -> None:
        """Append the batch with acks=all; a batch of a transaction needs its transactional id.

        A retry sends the same bytes, so the batch must carry an idempotent producer's id. Raises the
        leader's error if it refuses the batch.
        """

        def ask() -> None:
            leader = self._leader(at)
            data = (_produce_partition(index=at.partition, records=batch),)
            request = _produce(
                transactional_id=transactional_id,
                acks=ALL_IN_SYNC,
                timeout=APPEND_TIMEOUT,
                topic_data=(_produce_topic(name=at.topic, partition_data=data),),
            )
            answer = self._ask(leader.address, request).responses[0].partition_responses[0]
            _raise(answer.error_code, f"{at}: {answer.error_message}" if answer.error_message else at)

        self._retrying(ask)

    def _fetch(self, at: TopicPartition, offset: int, isolation_level: int) -> Any:
        leader = self._leader(at)
        wanted = _fetch_partition(
            partition=at.partition,
            current_leader_epoch=leader.epoch,
            fetch_offset=offset,
            partition_max_bytes=FETCH_BYTES,
        )
        request = _fetch(
            replica_id=CONSUMER,
            max_wait=MAX_WAIT,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            isolation_level=isolation_level,
            topics=(_fetch_topic(topic=at.topic, partitions=(wanted,)),),
            forgotten_topics_data=(),
            rack_id="",
        )
        response = self._ask(leader.address, request)
        _raise(response.error_code, at)
        answer = response.responses[0].partitions[0]
        _raise(answer.error_code, at)
        if not answer.records:
            # The record existed when the read was planned. A new leader may not know yet that it is
            # committed.
            raise RequestTimedOut(f"{at}: the leader returned no records at offset {offset}")
        return answer

    # ---- leaders and connections --------------------------------------------------------------------------

    def _leader(self, at: TopicPartition) -> Leader:
        if at not in self._leaders:
            self._refresh()
        leader = self._leaders.get(at)
        if leader is None:
            raise UnknownTopicOrPartition(f"{at}: {self} has no such partition")
        if leader.address is None:
            raise LeaderNotAvailable(f"{at}: no leader in {self}")
        return leader

    def _refresh(self) -> None:
        request = _metadata(
            topics=None,
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        answer = self._any(request)
        addresses: Mapping[int, Address] = {
            broker.node_id: (broker.host, broker.port) for broker in answer.brokers
        }
        self._leaders = {
            TopicPartition(topic.name, each.partition_index): Leader(
                addresses.get(each.leader_id), each.leader_epoch
            )
            for topic in answer.topics
            for each in topic.partitions
        }

    def _coordinator(self, kind: int, key: str, request: Any) -> Any:
        address = self._coordinators.get((kind, key))
        if address is None:
            answer = self._any(FindCoordinatorRequest(key=key, key_type=kind))
            _raise(answer.error_code, f"the coordinator of {key}")
            address = self._coordinators[kind, key] = str(answer.host), int(answer.port)
        return self._ask(address, request)

    def _any(self, request: Any) -> Any:
        known = [leader.address for leader in self._leaders.values() if leader.address is not None]
        failed: list[str] = []
        for address in dict.fromkeys([*self._connections, *self._bootstrap, *known]):
            try:
                return self._ask(address, request)
            except NetworkException as error:
                failed.append(str(error))
        raise NetworkException(
            f"kafka.bootstrap.servers: no server answers, check the addresses: {'; '.join(failed)}"
        )

    def _ask(self, address: Address | None, request: Any) -> Any:
        assert address is not None
        try:
            connection = self._connection(address)
            self._in_use.add(address)
            answer = connection.ask(in_version(request, VERSIONS[type(request)]))
        except NetworkException:
            self._drop(address)
            raise
        self._in_use.discard(address)
        self._has_answered = True
        return answer

    def _connection(self, address: Address) -> KafkaConnection:
        connection = self._connections.get(address)
        if connection is None:
            if self._security is None:
                self._security = client_config.parse(self._properties)
            try:
                connection = KafkaConnection(*address, self._security)
            except OSError as error:
                raise NetworkException(f"{address[0]}:{address[1]}: {error}") from error
            self._connections[address] = connection
        return connection

    def _drop(self, address: Address) -> None:
        self._in_use.discard(address)
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.__exit__(None, None, None)

    def _patience_s(self, error: KreplicaError) -> float:
        if not self._has_answered:
            return FIRST_CONTACT_S
        return UNKNOWN_S if isinstance(error, UnknownTopicOrPartition) else TIMEOUT_S

    def _retrying(self, ask: Callable[[], T]) -> T:
        began = time.monotonic()
        while True:
            try:
                return ask()
            except ConcurrentTransactions:
                if time.monotonic() - began > TIMEOUT_S:
                    raise
                time.sleep(CONCURRENT_BACKOFF_S)
                continue
            except KreplicaError as error:
                if not error.retriable or isinstance(error, CorruptMessage):
                    raise
                if time.monotonic() - began > self._patience_s(error):
                    raise
            # The leader or the coordinator may have changed.
            self._leaders.clear()
            self._coordinators.clear()
            time.sleep(BACKOFF_S)


# The clients that this process keeps, by servers and security.
_kept: dict[Any, ClusterClient] = {}


def _of_this_process(
    servers: str, security: Mapping[str, str], leaders: dict[TopicPartition, Leader]
) -> ClusterClient:
    """Return the client that this Spark worker keeps; in other processes a new one."""
    if "SPARK_REUSE_WORKER" not in os.environ:
        found = ClusterClient(servers, security)
    else:
        key = servers, tuple(sorted(security.items()))
        found = _kept[key] = _kept.get(key) or ClusterClient(servers, security)
        found._is_kept = True
    found._leaders = found._leaders or dict(leaders)
    return found


def _list_request(
    wanted: Mapping[TopicPartition, int], epochs: Mapping[TopicPartition, int], isolation_level: int
) -> Any:
    topics: dict[str, list[Any]] = {}
    for at, epoch in epochs.items():
        each = _list_partition(partition_index=at.partition, current_leader_epoch=epoch, timestamp=wanted[at])
        topics.setdefault(at.topic, []).append(each)
    return _list(
        replica_id=CONSUMER,
        isolation_level=isolation_level,
        topics=tuple(_list_topic(name=name, partitions=tuple(each)) for name, each in topics.items()),
    )


def _raise(code: Any, what: object) -> None:
    error = error_of(code, str(what))
    if error is not None:
        raise error
