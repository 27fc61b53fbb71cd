"""Read records from a running cluster, kreplica's or Kafka's, by Kafka's protocol.

Planning asks the cluster for offsets; each task fetches its range from the partition's leader. Batches become
columns as they arrive, without an object for each record. Ownership: a ClusterClient. Thread rule: one
thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kreplica.spark.cluster_client import ClusterClient
from kreplica.spark.log_source import PIECE_BYTES, PIECE_ROWS, Bounds, LogRange, lost
from kreplica.spark.offsets import EARLIEST, LATEST

from kreplica._core.arrow import to_arrow
from kreplica._core.columns import ColumnBuilder
from kreplica._core.records import batches
from kreplica.client.client_config import ISOLATION_LEVEL
from kreplica.common.errors import CorruptMessage, OffsetOutOfRange, UnknownTopicOrPartition
from kreplica.common.types import INT64_MAX, TopicPartition

if TYPE_CHECKING:
    from pyarrow import RecordBatch as ArrowRecordBatch

# What a record counts where its size is not known, as in the JVM's reader.
RECORD_BYTES = 1024


class ClusterSource:
    """A LogSource of a cluster. `servers`, `security`: see ClusterClient. Raises OptionError."""

    def __init__(
        self, servers: str, isolation: str, fail_on_data_loss: bool, security: Mapping[str, str]
    ) -> None:
        self._client = ClusterClient(servers, security)
        self._isolation = isolation
        self._fail = fail_on_data_loss

    def __str__(self) -> str:
        return str(self._client)

    # ---- planning ---------------------------------------------------------------------------------------

    def partitions(self) -> Sequence[TopicPartition]:
        return self._client.partitions()

    def bounds(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Bounds]:
        try:
            return self._bounds(partitions)
        except UnknownTopicOrPartition:
            known = set(self._client.partitions())
            gone = [at for at in partitions if at not in known]
            if not gone:
                raise
            for at in gone:
                lost(self._fail, f"{at}: the partition no longer exists")
            return self._bounds([at for at in partitions if at in known])

    def _bounds(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Bounds]:
        level = ISOLATION_LEVEL[self._isolation]
        # The end of committed records comes first, so that it is not above the log's.
        stable = self._client.offsets(dict.fromkeys(partitions, LATEST), level)
        ends = self._client.offsets(dict.fromkeys(partitions, LATEST), 0) if level else stable
        starts = self._client.offsets(dict.fromkeys(partitions, EARLIEST), 0)
        return {at: Bounds(starts[at], stable[at], ends[at]) for at in partitions}

    def place(self, at: TopicPartition) -> str:  # noqa: ARG002 (the leader at the time of the read)
        return ""

    def offsets_for_timestamps(
        self, times: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int | None]:
        found = self._client.offsets(times, ISOLATION_LEVEL[self._isolation])
        return {at: None if offset < 0 else offset for at, offset in found.items()}

    def size(self, _at: TopicPartition, start: int, stop: int) -> int:
        return (stop - start) * RECORD_BYTES

    def cuts(self, _at: TopicPartition, start: int, stop: int, limit: int) -> list[int]:
        return list(range(start + limit, stop, limit))

    def close(self) -> None:
        self._client.close()

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
                records, aborted = self._fetched(wanted.at, offset)
            except OffsetOutOfRange:
                offset = self._after_loss(wanted, offset)
                continue
            except UnknownTopicOrPartition:
                lost(self._fail, f"{wanted.at}: the partition no longer exists")
                break
            builder.hide_aborted(aborted)
            # The first batch may begin below the requested offset.
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
        first = self._client.offset(wanted.at, EARLIEST, 0)
        if first > offset:
            gone = min(first, wanted.stop)
            lost(self._fail, f"{wanted.at}: offsets {offset} to {gone - 1} no longer exist")
            return gone
        lost(self._fail, f"{wanted.at}: the log ends below {offset}, but was already read up to there")
        return wanted.stop

    def _fetched(self, at: TopicPartition, offset: int) -> tuple[Any, list[tuple[int, int, int]]]:
        answer = self._client.fetch(at, offset, ISOLATION_LEVEL[self._isolation])
        aborted = [(each.producer_id, each.first_offset) for each in answer.aborted_transactions or ()]
        return answer.records, _with_ends(aborted, answer.records)


def _builder(wanted: LogRange, columns: Sequence[str]) -> ColumnBuilder:
    builder = ColumnBuilder(columns)
    if wanted.from_time is not None:
        builder.from_time = wanted.from_time
    if wanted.to_time is not None:
        builder.to_time = wanted.to_time
    return builder


def _extend(builder: ColumnBuilder, records: Any, position: int, offset: int, wanted: LogRange) -> int:
    """Read on from `position` and return the new position. An answer may end within a batch."""
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
    """Return the aborted transactions with the offsets of their markers; INT64_MAX if not in `records`."""
    if not aborted:
        return []
    markers: dict[int, list[int]] = {}
    try:
        for batch in batches(records):
            if batch.is_control:
                markers.setdefault(batch.producer_id, []).append(batch.base_offset)
    except CorruptMessage:
        pass  # The answer may end within a batch. The reader reports any other damage.
    return [
        (
            producer_id,
            first,
            min((end for end in markers.get(producer_id, ()) if end >= first), default=INT64_MAX),
        )
        for producer_id, first in aborted
    ]
