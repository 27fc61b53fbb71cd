"""Records from a running cluster, kreplica's or Kafka's, by Kafka's protocol.

Planning asks for offsets, each task fetches its range from whoever leads the partition; batches become
columns as they come, and no object is made for a record. A leader that is gone is looked for again until
TIMEOUT_S have passed. Ownership: the connections, which a pickled source has none of. Thread rule: one
thread.
"""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from kio.schema.fetch.v12.request import FetchPartition, FetchRequest, FetchTopic
from kio.schema.list_offsets.v7.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.metadata.v9.request import MetadataRequest

from kreplica._core.arrow import to_arrow
from kreplica._core.columns import ColumnBuilder
from kreplica._core.records import batches
from kreplica.cli.kafka_connection import KafkaConnection, parse_bootstrap
from kreplica.common.errors import (
    CorruptMessage,
    KreplicaError,
    LeaderNotAvailable,
    NetworkException,
    OffsetOutOfRange,
    RequestTimedOut,
)
from kreplica.common.types import INT64_MAX, TopicPartition
from kreplica.common.wire import error_of, maker
from spark_connector.log_source import PIECE_BYTES, PIECE_ROWS, Bounds, LogRange, lost
from spark_connector.offsets import EARLIEST, LATEST
from spark_connector.options import OptionError

if TYPE_CHECKING:
    from pyarrow import RecordBatch as ArrowRecordBatch

TIMEOUT_S = 60.0
BACKOFF_S = 0.1
FETCH_BYTES = 8 << 20
MAX_WAIT = timedelta(milliseconds=500)
CONSUMER = -1
ISOLATION_LEVEL = {"high_watermark": 0, "txn_committed": 1}

_fetch, _fetch_topic, _fetch_partition = maker(FetchRequest), maker(FetchTopic), maker(FetchPartition)
_list, _list_topic, _list_partition = (
    maker(ListOffsetsRequest),
    maker(ListOffsetsTopic),
    maker(ListOffsetsPartition),
)
_metadata = maker(MetadataRequest)

Address = tuple[str, int]
T = TypeVar("T")


class Leader(NamedTuple):
    """Where the partition's leader listens, None if there is none, and in which epoch it leads."""

    address: Address | None
    epoch: int


class ClusterSource:
    """See the module. `servers`: host:port, several with commas between them. Raises OptionError."""

    def __init__(self, servers: str, isolation: str, fail_on_data_loss: bool) -> None:
        try:
            self._bootstrap = parse_bootstrap(servers)
        except ValueError as error:
            raise OptionError(f"kafka.bootstrap.servers: {error}") from error
        self._servers = servers
        self._isolation = isolation
        self._fail = fail_on_data_loss
        self._leaders: dict[TopicPartition, Leader] = {}
        self._connections: dict[Address, KafkaConnection] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connections": {}}

    def __str__(self) -> str:
        return f"the cluster at {self._servers}"

    # ---- what there is ----------------------------------------------------------------------------------

    def partitions(self) -> Sequence[TopicPartition]:
        self._retrying(self._refresh)
        return sorted(self._leaders)

    def bounds(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Bounds]:
        level = ISOLATION_LEVEL[self._isolation]
        found = {}
        for at in partitions:
            end = self._offset(at, LATEST, level)
            found[at] = Bounds(self._offset(at, EARLIEST, level), end, self._offset(at, LATEST, 0))
        return found

    def place(self, at: TopicPartition) -> str:  # noqa: ARG002 (whoever leads it then)
        return ""

    def offset_for_timestamp(self, at: TopicPartition, timestamp: int) -> int | None:
        offset = self._offset(at, timestamp, ISOLATION_LEVEL[self._isolation])
        return None if offset < 0 else offset

    def cuts(self, at: TopicPartition, start: int, stop: int, limit: int) -> list[int]:  # noqa: ARG002
        return list(range(start + limit, stop, limit))

    def close(self) -> None:
        for connection in self._connections.values():
            connection.__exit__(None, None, None)
        self._connections.clear()

    def _offset(self, at: TopicPartition, timestamp: int, level: int) -> int:
        def ask() -> int:
            leader = self._leader(at)
            wanted = _list_partition(
                partition_index=at.partition, current_leader_epoch=leader.epoch, timestamp=timestamp
            )
            topics = (_list_topic(name=at.topic, partitions=(wanted,)),)
            request = _list(replica_id=CONSUMER, isolation_level=level, topics=topics)
            answer = self._ask(leader, request).topics[0].partitions[0]
            _raise(answer.error_code, at)
            return int(answer.offset)

        return self._retrying(ask)

    # ---- reading ----------------------------------------------------------------------------------------

    def read(self, wanted: LogRange, columns: Sequence[str]) -> Iterator[ArrowRecordBatch]:
        try:
            yield from self._read(wanted, columns)
        finally:
            self.close()

    def _read(self, wanted: LogRange, columns: Sequence[str]) -> Iterator[ArrowRecordBatch]:
        builder, offset = _builder(wanted, columns), wanted.start
        while offset < wanted.stop:
            try:
                records, aborted = self._retrying(partial(self._fetched, wanted.at, offset))
            except OffsetOutOfRange:
                offset = self._after_loss(wanted, offset)
                continue
            builder.hide_aborted(aborted)
            # The first batch may begin below what was asked for.
            builder.next_offset = position = 0
            while position < len(records):
                reached = _extend(builder, records, position, offset, wanted)
                if reached == position:
                    break
                position = reached
                if len(builder) >= PIECE_ROWS or builder.data_bytes >= PIECE_BYTES:
                    yield to_arrow(builder.finish()).select(list(columns))
            offset = builder.next_offset
        if len(builder):
            yield to_arrow(builder.finish()).select(list(columns))

    def _after_loss(self, wanted: LogRange, offset: int) -> int:
        first = self._offset(wanted.at, EARLIEST, 0)
        if first > offset:
            gone = min(first, wanted.stop)
            lost(self._fail, f"{wanted.at}: offsets {offset} to {gone - 1} are not there any more")
            return gone
        lost(self._fail, f"{wanted.at}: the log ends below {offset}, which had been read up to")
        return wanted.stop

    def _fetched(self, at: TopicPartition, offset: int) -> tuple[Any, list[tuple[int, int, int]]]:
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
            isolation_level=ISOLATION_LEVEL[self._isolation],
            topics=(_fetch_topic(topic=at.topic, partitions=(wanted,)),),
            forgotten_topics_data=(),
            rack_id="",
        )
        response = self._ask(leader, request)
        _raise(response.error_code, at)
        answer = response.responses[0].partitions[0]
        _raise(answer.error_code, at)
        if not answer.records:
            # It was there when the read was planned: a new leader may have to learn what is committed.
            raise RequestTimedOut(f"{at}: nothing was answered at offset {offset}")
        aborted = [(each.producer_id, each.first_offset) for each in answer.aborted_transactions or ()]
        return answer.records, _with_ends(aborted, answer.records)

    # ---- whom to ask ------------------------------------------------------------------------------------

    def _leader(self, at: TopicPartition) -> Leader:
        if at not in self._leaders:
            self._refresh()
        leader = self._leaders.get(at)
        if leader is None or leader.address is None:
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
        addresses = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        self._leaders = {
            TopicPartition(topic.name, each.partition_index): Leader(
                addresses.get(each.leader_id), each.leader_epoch
            )
            for topic in answer.topics
            for each in topic.partitions
        }

    def _any(self, request: Any) -> Any:
        known = [leader.address for leader in self._leaders.values() if leader.address is not None]
        failed: list[str] = []
        for address in dict.fromkeys([*self._connections, *self._bootstrap, *known]):
            try:
                return self._connection(address).ask(request)
            except NetworkException as error:
                self._drop(address)
                failed.append(str(error))
        raise NetworkException(f"kafka.bootstrap.servers: nobody answers: {'; '.join(failed)}")

    def _ask(self, leader: Leader, request: Any) -> Any:
        assert leader.address is not None
        try:
            return self._connection(leader.address).ask(request)
        except NetworkException:
            self._drop(leader.address)
            raise

    def _connection(self, address: Address) -> KafkaConnection:
        connection = self._connections.get(address)
        if connection is None:
            try:
                connection = KafkaConnection(*address)
            except OSError as error:
                raise NetworkException(f"{address[0]}:{address[1]}: {error}") from error
            self._connections[address] = connection
        return connection

    def _drop(self, address: Address) -> None:
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.__exit__(None, None, None)

    def _retrying(self, ask: Callable[[], T]) -> T:
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                return ask()
            except KreplicaError as error:
                if not error.retriable or isinstance(error, CorruptMessage) or time.monotonic() > deadline:
                    raise
            # Who leads may have changed.
            self._leaders.clear()
            time.sleep(BACKOFF_S)


def _raise(code: Any, at: TopicPartition) -> None:
    error = error_of(code, str(at))
    if error is not None:
        raise error


def _builder(wanted: LogRange, columns: Sequence[str]) -> ColumnBuilder:
    builder = ColumnBuilder(columns)
    if wanted.from_time is not None:
        builder.from_time = wanted.from_time
    if wanted.to_time is not None:
        builder.to_time = wanted.to_time
    return builder


def _extend(builder: ColumnBuilder, records: Any, position: int, offset: int, wanted: LogRange) -> int:
    """Read on from `position`; where it stands then. An answer may end within a batch."""
    try:
        return builder.extend(
            records,
            position,
            first=offset,
            stop=wanted.stop,
            max_rows=PIECE_ROWS,
            max_bytes=PIECE_BYTES,
        )
    except CorruptMessage as error:
        if builder.position == 0:
            raise type(error)(f"{wanted.at}: at offset {offset}: {error}", where=offset) from error
        return builder.position


def _with_ends(aborted: Sequence[tuple[int, int]], records: Any) -> list[tuple[int, int, int]]:
    """The aborted transactions with the offsets of their markers, as far as they are in `records`."""
    if not aborted:
        return []
    markers: dict[int, list[int]] = {}
    try:
        for batch in batches(records):
            if batch.is_control:
                markers.setdefault(batch.producer_id, []).append(batch.base_offset)
    except CorruptMessage:
        pass  # an answer that ends within a batch; whatever else it is, reading tells
    return [
        (
            producer_id,
            first,
            min((end for end in markers.get(producer_id, ()) if end >= first), default=INT64_MAX),
        )
        for producer_id, first in aborted
    ]
