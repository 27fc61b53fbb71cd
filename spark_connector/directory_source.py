"""Records from log directories, kreplica's or Kafka's, with or without a broker that writes them meanwhile.

Nothing above what the writer has published as committed is ever planned, and no read goes past its plan.
While a partition is read its files are mapped, so retention takes nothing from under a read. What rotted is
an error with its place, or is passed over with a warning. Ownership: each look and each read has a log of its
own, which it closes. Thread rule: one thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from bindings.partition_directories import PartitionDirectories, open_log
from kreplica.common.errors import DamagedLog, InvalidFile, KafkaStorageError, OffsetOutOfRange
from kreplica.common.types import TopicPartition
from kreplica.log.column_reader import ColumnReader, arrow_batches
from kreplica.log.unified_log import UnifiedLog
from spark_connector.log_source import PIECE_BYTES, PIECE_ROWS, Bounds, LogRange, logger, lost

if TYPE_CHECKING:
    from pyarrow import RecordBatch as ArrowRecordBatch


class DirectorySource:
    """See the module."""

    def __init__(
        self,
        paths: Sequence[str],
        isolation: str,
        *,
        skip_damaged: bool = False,
        fail_on_data_loss: bool = True,
    ) -> None:
        self._paths = tuple(paths)
        self._isolation = isolation
        self._skip_damaged = skip_damaged
        self._fail = fail_on_data_loss
        self._found: PartitionDirectories | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_found": None}

    def __str__(self) -> str:
        return ", ".join(self._paths)

    # ---- what there is -------------------------------------------------------------------------------------

    def partitions(self) -> Sequence[TopicPartition]:
        self._found = PartitionDirectories.find(self._paths)
        return self._found.partitions

    def place(self, at: TopicPartition) -> str:
        found = self._found
        if found is None or at not in found.partitions:
            self._found = found = PartitionDirectories.find(self._paths)
        if at not in found.partitions:
            raise InvalidFile(f"{at}: no such partition in {self}")
        return found.directory(at)

    def bounds(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Bounds]:
        return {at: self._bounds(self.place(at)) for at in partitions}

    def _bounds(self, directory: str) -> Bounds:
        with closing(open_log(directory)) as log:
            committed = self._isolation == "txn_committed"
            end = log.last_stable_offset if committed else log.high_watermark
            if log.high_watermark == log.log_end_offset:
                end = self._end_behind_rot(log, end)
            return Bounds(log.log_start_offset, end, max(end, log.log_end_offset))

    def _end_behind_rot(self, log: UnifiedLog, end: int) -> int:
        """`end`, or where the log really ends: of a directory that nobody writes and that rotted near its
        end a log tells only what is before it. The log may not be read afterwards."""
        probe = ColumnReader(
            log, ["offset"], start=log.log_end_offset, isolation="log_end", skip_damaged=True, own=True
        )
        for _ in probe:
            pass
        if not probe.skipped:
            return end
        damage = probe.skipped[0]
        if self._isolation == "high_watermark":
            return max(probe.next_offset, damage.first_offset + 1)
        # Which transactions ended behind it is not known.
        if not self._skip_damaged:
            raise DamagedLog(f"{log.topic_partition}: lost are {damage}", where=damage.first_offset)
        logger.warning("%s: read up to what is lost, %s", log.topic_partition, damage)
        return end

    def offset_for_timestamp(self, at: TopicPartition, timestamp: int) -> int | None:
        with closing(open_log(self.place(at))) as log:
            found = log.offset_for_timestamp(timestamp)
        return None if found is None else found.offset

    def cuts(self, at: TopicPartition, start: int, stop: int, limit: int) -> list[int]:
        found = []
        with closing(open_log(self.place(at))) as log:
            while stop - start > limit:
                start = _boundary(log, start, start + limit)
                if start >= stop:
                    break
                found.append(start)
        return found

    def close(self) -> None:
        self._found = None

    # ---- reading -------------------------------------------------------------------------------------------

    def read(self, wanted: LogRange, columns: Sequence[str]) -> Iterator[ArrowRecordBatch]:
        with closing(open_log(wanted.place)) as log:
            start = self._start(log, wanted)
            if start >= wanted.stop:
                return
            reader = ColumnReader(
                log,
                columns,
                start=start,
                stop=wanted.stop,
                # The plan ends at the high watermark, so that what lies behind rot can be reached.
                isolation="log_end" if self._isolation == "high_watermark" else self._isolation,
                from_time=wanted.from_time,
                to_time=wanted.to_time,
                skip_damaged=self._skip_damaged,
                own=True,
                piece_rows=PIECE_ROWS,
                piece_bytes=PIECE_BYTES,
            )
            yield from self._beside_retention(reader, wanted, columns)
            for damage in reader.skipped:
                logger.warning("%s: passed over what is lost, %s", wanted.at, damage)

    def _start(self, log: UnifiedLog, wanted: LogRange) -> int:
        if wanted.start < log.log_start_offset:
            first = min(log.log_start_offset, wanted.stop)
            lost(self._fail, f"{wanted.at}: offsets {wanted.start} to {first - 1} are not there any more")
            return first
        if wanted.stop > log.log_end_offset:
            end = self._bounds(wanted.place).end
            if end < wanted.stop:
                lost(
                    self._fail, f"{wanted.at}: the log ends at {end}, where {wanted.stop} had been read up to"
                )
            return min(wanted.start, end)
        return wanted.start

    def _beside_retention(
        self, reader: ColumnReader, wanted: LogRange, columns: Sequence[str]
    ) -> Iterator[ArrowRecordBatch]:
        try:
            yield from arrow_batches(reader, columns)
        except DamagedLog:
            raise
        except (KafkaStorageError, OffsetOutOfRange):
            # Its writer may have deleted a file before it was mapped.
            with closing(open_log(wanted.place)) as log:
                if log.log_start_offset <= reader.next_offset:
                    raise
            yield from self.read(wanted._replace(start=reader.next_offset), columns)


def _boundary(log: UnifiedLog, start: int, wanted: int) -> int:
    """Where a batch begins at or before `wanted` and after `start`; or else behind the batch of `start`."""
    segments = log.local.segments
    index = max(0, segments.index_for(wanted))
    found = log.position_of(segments[index], wanted)
    if found is None:
        return wanted
    _, _, first, last = found
    if first > wanted:
        return wanted
    return first if first > start else last + 1
