"""Read records from log directories, kreplica's or Kafka's, with or without a broker writing to them.

A plan ends at what the writer has published as committed, and a read never goes past its plan. The files of a
partition stay mapped while it is read, so retention removes nothing under a read. Damaged records are an
error that says where they are, or are skipped with a warning. Ownership: each lookup and each read opens its
own log and closes it. Thread rule: one thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from kreplica.arrow.partition_directories import PartitionDirectories, open_log
from kreplica.spark.log_source import PIECE_BYTES, PIECE_ROWS, Bounds, LogRange, logger, lost
from kreplica.spark.path_patterns import matching

from kreplica.common.errors import DamagedLog, InvalidFile, KafkaStorageError, OffsetOutOfRange
from kreplica.common.types import TopicPartition
from kreplica.log.column_reader import ColumnReader, arrow_batches
from kreplica.log.damage import Damage
from kreplica.log.unified_log import UnifiedLog

if TYPE_CHECKING:
    from pyarrow import RecordBatch as ArrowRecordBatch


class DirectorySource:
    """A LogSource of local log directories."""

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

    # ---- planning ------------------------------------------------------------------------------------------

    def partitions(self) -> Sequence[TopicPartition]:
        return self._find().partitions

    def _find(self) -> PartitionDirectories:
        self._found = PartitionDirectories.find(matching(self._paths))
        return self._found

    def place(self, at: TopicPartition) -> str:
        found = self._found
        if found is None or at not in found.partitions:
            found = self._find()
        if at not in found.partitions:
            raise InvalidFile(f"{at}: {self} has no such partition")
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
        """Return `end`, or the log's real end if records before it are damaged.

        If a directory without a writer is damaged near its end, opening the log finds only what precedes the
        damage. The log must not be read afterwards.
        """
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
        # It is unknown which transactions ended after the damage.
        if not self._skip_damaged:
            raise DamagedLog(
                f"{log.topic_partition}: damaged records, {damage}; skipDamaged=true skips them",
                where=damage.first_offset,
            )
        logger.warning("%s: reading stops before damaged records, %s", log.topic_partition, damage)
        return end

    def offsets_for_timestamps(
        self, times: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int | None]:
        return {at: self._offset_for_timestamp(at, time) for at, time in times.items()}

    def _offset_for_timestamp(self, at: TopicPartition, timestamp: int) -> int | None:
        with closing(open_log(self.place(at))) as log:
            found = log.offset_for_timestamp(timestamp)
        return None if found is None else found.offset

    def size(self, at: TopicPartition, start: int, stop: int) -> int:
        found = 0.0
        with closing(open_log(self.place(at))) as log:
            segments = list(log.local.segments)
            ends = [*(each.base_offset for each in segments[1:]), log.log_end_offset]
            for segment, end in zip(segments, ends, strict=True):
                offsets = end - segment.base_offset
                wanted = min(stop, end) - max(start, segment.base_offset)
                if wanted > 0:
                    found += segment.size * wanted / offsets
        return int(found)

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
                # The plan ends at the high watermark, so records after damage can be read.
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
                logger.warning("%s: skipped damaged records, %s", wanted.at, damage)

    def _start(self, log: UnifiedLog, wanted: LogRange) -> int:
        if wanted.start < log.log_start_offset:
            first = min(log.log_start_offset, wanted.stop)
            lost(self._fail, f"{wanted.at}: offsets {wanted.start} to {first - 1} no longer exist")
            return first
        if wanted.stop > log.log_end_offset:
            end = self._bounds(wanted.place).end
            if end < wanted.stop:
                lost(
                    self._fail,
                    f"{wanted.at}: the log ends at {end}, but was already read up to {wanted.stop}",
                )
            return min(wanted.start, end)
        return wanted.start

    def _beside_retention(
        self, reader: ColumnReader, wanted: LogRange, columns: Sequence[str]
    ) -> Iterator[ArrowRecordBatch]:
        try:
            yield from arrow_batches(reader, columns)
        except DamagedLog as error:
            gap = _gap(wanted.place, error.where)
            if gap is None or self._fail:
                also = "" if gap is None else ", and so does failOnDataLoss=false"
                raise DamagedLog(f"{error}; skipDamaged=true skips them{also}", where=error.where) from error
            logger.warning("%s: skipped damaged records, %s", wanted.at, gap)
            yield from self.read(wanted._replace(start=min(gap.stop_offset, wanted.stop)), columns)
        except (KafkaStorageError, OffsetOutOfRange):
            # The writer may have deleted a file before it was mapped.
            with closing(open_log(wanted.place)) as log:
                if log.log_start_offset <= reader.next_offset:
                    raise
            yield from self.read(wanted._replace(start=reader.next_offset), columns)


def _gap(directory: str, offset: int | None) -> Damage | None:
    """Return the loss at this offset if a file is missing or ends early; None if there are damaged bytes."""
    with closing(open_log(directory)) as log:
        start = log.log_start_offset if offset is None else offset
        probe = ColumnReader(
            log, ["offset"], start=start, stop=start + 1, isolation="log_end", skip_damaged=True, own=True
        )
        for _ in probe:
            pass
        found = probe.skipped
    return found[0] if found and found[0].position == found[0].end_position else None


def _boundary(log: UnifiedLog, start: int, wanted: int) -> int:
    """Return the start of a batch at or before `wanted` and after `start`, else the end of `start`'s
    batch."""
    segments = log.local.segments
    index = max(0, segments.index_for(wanted))
    found = log.position_of(segments[index], wanted)
    if found is None:
        return wanted
    _, _, first, last = found
    if first > wanted:
        return wanted
    return first if first > start else last + 1
