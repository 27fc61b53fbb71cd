"""ColumnReader: reads a log's records as columns, a piece at a time, for Arrow and other bulk readers.

The native core reads chunks directly from the mapped segments, and creates no Python object per record or
batch. One piece of columns bounds the memory. Damage raises an error with its offset, or is skipped and
recorded in `skipped`. Thread rule: one thread per reader.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kreplica._core.arrow import Columns, to_arrow
from kreplica._core.columns import ColumnBuilder
from kreplica.common.errors import CorruptMessage, DamagedLog, LogClosed, OffsetOutOfRange
from kreplica.common.types import INT64_MAX
from kreplica.log.damage import Damage
from kreplica.log.log_walk import UNKNOWN_END, LogWalk
from kreplica.log.unified_log import UnifiedLog

if TYPE_CHECKING:
    from pyarrow import RecordBatch as ArrowRecordBatch

COLUMNS = ("offset", "timestamp", "timestamp_type", "key", "value", "headers", "leader_epoch", "producer_id")
# A piece ends at the first of these limits. It holds whole batches, so it may be larger.
PIECE_ROWS = 1 << 16
PIECE_BYTES = 64 << 20


class ColumnReader:
    """Iterates once over the records with offsets in [start, stop), in pieces of columns.

    `columns`: a selection of COLUMNS. `isolation`: as for Log.read.
    `from_time`, `to_time`: return only records with from_time <= timestamp < to_time (ms since 1970).
    `skip_damaged`: skip damaged ranges instead of raising.
    `own`: the log was opened read-only for this reader alone. The reader then also looks for rot behind the
    end of a log that Kafka wrote.
    `views`: see ColumnBuilder.
    `piece_rows`, `piece_bytes`: the limits of a piece, by default PIECE_ROWS and PIECE_BYTES.
    `owner`: an object to keep alive as long as the reader, so that the log is not closed early.

    `rows` and `bytes` count what was read. `next_offset` is the position of the reader. `skipped` lists what
    is lost. Raises OffsetOutOfRange, DamagedLog with the offset, InvalidFile if a transaction index has
    rotted, KafkaStorageError.
    """

    def __init__(
        self,
        log: UnifiedLog,
        columns: Sequence[str] = COLUMNS,
        *,
        start: int | None = None,
        stop: int | None = None,
        isolation: str = "log_end",
        from_time: int | None = None,
        to_time: int | None = None,
        skip_damaged: bool = False,
        own: bool = False,
        views: bool = False,
        piece_rows: int | None = None,
        piece_bytes: int | None = None,
        owner: object = None,
    ) -> None:
        require_names(columns)
        self._log = log
        self._owner = owner
        self._piece_rows = PIECE_ROWS if piece_rows is None else piece_rows
        self._piece_bytes = PIECE_BYTES if piece_bytes is None else piece_bytes
        self._walk = LogWalk(log, own=own)
        self._isolation = isolation
        self._bound = log.upper_bound(isolation)
        if isolation == "log_end":
            self._bound = self._walk.end_offset
        self.stop = min(self._bound, UNKNOWN_END if stop is None else stop)
        self._wanted_stop = stop
        self._skip_damaged = skip_damaged
        self._builder = ColumnBuilder(columns, views=views)
        if from_time is not None:
            self._builder.from_time = from_time
        if to_time is not None:
            self._builder.to_time = to_time
        self._hidden_to = -1
        self._told = 0
        self.start = self._start(start, from_time)
        self.next_offset = self.start
        self.rows = 0
        self.bytes = 0

    @property
    def skipped(self) -> list[Damage]:
        """The lost ranges met so far. They include quarantined ranges, which never raise."""
        taken = [
            damage
            for damage in self._walk.quarantined
            if damage.stop_offset > self.start and damage.first_offset < self.next_offset
        ]
        return sorted({*self._lost(), *taken}, key=lambda damage: damage.first_offset)

    def _lost(self) -> list[Damage]:
        taken = self._walk.quarantined
        return [each for each in self._walk.lost if each.first_offset < self.stop and each not in taken]

    def _start(self, start: int | None, from_time: int | None) -> int:
        log = self._log
        if log.closed:
            raise LogClosed(f"{log.topic_partition}: the log is closed")
        first = log.log_start_offset if start is None else start
        begin, end = log.log_start_offset, self._walk.end_offset
        if not begin <= first <= end:
            raise OffsetOutOfRange(
                f"{log.topic_partition}: offset {first} is not in [{begin}, {end}]", where=first
            )
        if from_time is None:
            return first
        try:
            found = self._log.offset_for_timestamp(from_time)
        except CorruptMessage:
            return first  # rot lies before it; the walk meets it, and checks each record's timestamp
        offset = self._log.log_end_offset if found is None else found.offset
        log.note_gaps(self._walk.segments, first, offset)
        # Begin at a damaged range that the search skipped: its records may be in the time range.
        passed = [damage.first_offset for damage in self._log.damages if damage.stop_offset > first]
        return max(first, min([offset, *passed]))

    def __iter__(self) -> Iterator[Columns]:
        if self.start < self.stop:
            self._walk.seek(self.start)
            while self._read():
                if len(self._builder) >= self._piece_rows or self._builder.data_bytes >= self._piece_bytes:
                    yield self._finish()
        if len(self._builder):
            yield self._finish()
        self._see_end()
        self._refuse_lost()
        self.next_offset = max(self.next_offset, min(self.stop, self._walk.next_offset))

    def _finish(self) -> Columns:
        self.rows += len(self._builder)
        self.next_offset = min(self.stop, self._walk.next_offset)
        return self._builder.finish()

    def _read(self) -> bool:
        """Read a chunk, or the part of it that completes a piece.

        Returns False at the end, and before a lost range that must not be skipped.
        """
        walk, builder = self._walk, self._builder
        chunk = walk.chunk() if walk.next_offset < self.stop else None
        if chunk is None or self._has_lost():
            return False
        self._hide_aborted()
        builder.next_offset = walk.next_offset
        reaches_end = walk.position + len(chunk) >= walk.segment.size
        try:
            builder.extend(
                chunk,
                first=self.start,
                stop=self.stop,
                max_rows=self._piece_rows,
                max_bytes=self._piece_bytes,
                following=walk.following if reaches_end else INT64_MAX,
            )
        except CorruptMessage as error:
            # A chunk may end within a batch. The next chunk then begins with that batch.
            if builder.position == 0:
                walk.skip_bad(str(error))
                return not self._has_lost()
        walk.advance(builder.position, builder.next_offset)
        self.bytes += builder.position
        return True

    def _hide_aborted(self) -> None:
        # Look up the aborted transactions once per segment.
        if self._isolation != "txn_committed" or self._walk.next_offset < self._hidden_to:
            return
        walk = self._walk
        self._hidden_to = min(self.stop, walk.following)
        self._builder.hide_aborted(
            self._log.aborted_transactions(walk.segments, walk.next_offset, self._hidden_to)
        )

    def _see_end(self) -> None:
        # Behind damage at which recovery stopped, no offset is known to be stable or replicated. So reads of
        # committed records end before it.
        self._walk.note_cut_end()
        damage = self._log.stopped_at
        if damage is None or self._isolation == "log_end" or self._walk.lost_at(damage.first_offset):
            return
        if self._wanted_stop is None or self._wanted_stop > damage.first_offset:
            self._walk.lost.append(damage)
            self.stop = max(self.stop, damage.first_offset + 1)

    def _has_lost(self) -> bool:
        return bool(self._lost()) and not self._skip_damaged

    def _refuse_lost(self) -> None:
        if self._has_lost():
            damage = self._lost()[0]
            raise DamagedLog(
                f"{self._log.topic_partition}: damaged records, {damage}", where=damage.first_offset
            )


def require_names(columns: Sequence[str]) -> None:
    """Raise TypeError for a single name, which Python would take for a sequence of letters."""
    if isinstance(columns, str):
        raise TypeError(f"columns must be a list of names: [{columns!r}], not {columns!r}")


def arrow_batches(reader: ColumnReader, columns: Sequence[str]) -> Iterator[ArrowRecordBatch]:
    """Yield the reader's records as pyarrow.RecordBatches of at most PIECE_ROWS rows.

    The batches have the columns in the given order. Raises ImportError without pyarrow, and like the reader.
    """
    for piece in reader:
        batch = to_arrow(piece).select(list(columns))
        for start in range(0, batch.num_rows, PIECE_ROWS):
            yield batch.slice(start, PIECE_ROWS)
