"""BatchAccumulator: records that a leader was given and that its loop has not appended yet.

Whoever schedules records gets their offset at once: the accumulator alone gives them out in its epoch, in the
order of the calls. The records of one call stand in one batch, so that all or none of them are committed;
calls that come while a batch waits share it as far as it is large enough. Offsets that were given out are
used: `drain` gives every batch once, and after `close` nothing is taken any more.

Thread rule: any thread may append; the loop drains. `_lock` guards all fields; records are encoded before it
is taken, and built into their batch under it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kreplica._core.batch_builder import BatchBuilder
from kreplica.common.errors import (
    BufferExhausted,
    InvalidRequest,
    NotLeader,
    RecordListTooLarge,
    UnexpectedBaseOffset,
    UnexpectedEpoch,
)
from kreplica.common.locks import Lock
from kreplica.common.ports import Clock
from kreplica.metadata.control_records import ControlMessage
from kreplica.metadata.records import MetadataRecord
from kreplica.metadata.serde import ApiMessageAndVersion, encode
from kreplica.raft.control_batches import build_control_batch

MAX_BATCH_SIZE_BYTES = 8 << 20
MAX_BUFFERED_BYTES = 5 * MAX_BATCH_SIZE_BYTES
# What a batch and a record in it take at most beside the value.
BATCH_OVERHEAD_BYTES = 61
RECORD_OVERHEAD_BYTES = 32
NANOSECONDS_PER_MILLISECOND = 1_000_000

Record = ApiMessageAndVersion[MetadataRecord]


class CompletedBatch(NamedTuple):
    """A batch to be appended as it is; `records` is empty for one of control records."""

    base_offset: int
    last_offset: int
    epoch: int
    append_timestamp: int
    records: Sequence[Record]
    control_records: Sequence[ControlMessage]
    data: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.data)


class _OpenBatch:
    """The batch that the next records join."""

    __slots__ = ("began_ns", "records", "size_bytes", "values")

    def __init__(self, began_ns: int) -> None:
        self.began_ns = began_ns
        self.records: list[Record] = []
        self.values: list[bytes] = []
        self.size_bytes = BATCH_OVERHEAD_BYTES


class BatchAccumulator:
    """For a leader of `epoch` whose next record gets `base_offset`.

    `linger_ms`: how long a batch waits for company where somebody else's is under way; see
    `time_until_drain_ms`.
    """

    __slots__ = (
        "_buffered_bytes",
        "_clock",
        "_closed",
        "_completed",
        "_drain_now",
        "_linger_ms",
        "_lock",
        "_max_batch_size_bytes",
        "_max_buffered_bytes",
        "_next_offset",
        "_open",
        "epoch",
    )

    def __init__(
        self,
        epoch: int,
        base_offset: int,
        *,
        clock: Clock,
        linger_ms: int = 0,
        max_batch_size_bytes: int = MAX_BATCH_SIZE_BYTES,
        max_buffered_bytes: int = MAX_BUFFERED_BYTES,
    ) -> None:
        self.epoch = epoch
        self._clock = clock
        self._linger_ms = linger_ms
        self._max_batch_size_bytes = max_batch_size_bytes
        self._max_buffered_bytes = max_buffered_bytes
        self._lock = Lock()
        # Guarded by _lock:
        self._next_offset = base_offset
        self._open: _OpenBatch | None = None
        self._completed: list[CompletedBatch] = []
        self._buffered_bytes = 0
        self._drain_now = False
        self._closed = False

    @property
    def next_offset(self) -> int:
        """What the next record would get."""
        return self._next_offset

    @property
    def buffered_bytes(self) -> int:
        """About how much waits to be drained."""
        return self._buffered_bytes

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to drain."""
        return self._open is None and not self._completed

    def append(
        self,
        epoch: int,
        records: Sequence[Record],
        *,
        expected_base_offset: int | None = None,
        is_atomic: bool = True,
    ) -> int:
        """The offset of the last of the records, which will all be in one batch.

        Not `is_atomic`: they may take several, of which only the first may be committed in the end.

        Raises NotLeader for an epoch that is over, UnexpectedEpoch for one to come, InvalidRequest for no
        records, InvalidRecord and UnsupportedVersion for those that cannot be written, RecordListTooLarge
        where they do not fit a batch, BufferExhausted where too much waits already, UnexpectedBaseOffset
        where the first would not get that offset. Nothing is taken then.
        """
        if not records:
            raise InvalidRequest("no records to append")
        self._require_epoch(epoch)
        values = [encode(record.message, record.version) for record in records]
        sizes = [len(value) + RECORD_OVERHEAD_BYTES for value in values]
        size_bytes = sum(sizes)
        least_bytes = BATCH_OVERHEAD_BYTES + (size_bytes if is_atomic else max(sizes))
        if least_bytes > self._max_batch_size_bytes:
            raise RecordListTooLarge(
                f"{len(values)} records of {size_bytes} bytes; a batch has {self._max_batch_size_bytes}"
            )
        is_split = size_bytes + BATCH_OVERHEAD_BYTES > self._max_batch_size_bytes
        with self._lock:
            self._require_epoch(epoch)
            self._require_base_offset(expected_base_offset)
            self._require_room(size_bytes)
            if is_split:
                for record, value, size in zip(records, values, sizes, strict=True):
                    self._add([record], [value], size)
            else:
                self._add(records, values, size_bytes)
            return self._next_offset - 1

    def append_control_messages(self, messages: Sequence[ControlMessage]) -> int:
        """The offset of the last of the messages, which are a batch of their own, to be drained at once.

        Raises NotLeader, InvalidRequest, InvalidRecord, UnsupportedVersion.
        """
        if not messages:
            raise InvalidRequest("no control records to append")
        with self._lock:
            self._require_epoch(self.epoch)
            now_ms, base = self._clock.time_ms(), self._next_offset
            data = build_control_batch(messages, base_offset=base, epoch=self.epoch, timestamp_ms=now_ms)
            self._complete_open()
            last = base + len(messages) - 1
            self._completed.append(CompletedBatch(base, last, self.epoch, now_ms, (), tuple(messages), data))
            self._buffered_bytes += len(data)
            self._next_offset = last + 1
            self._drain_now = True
            return last

    # ---- the loop's side ----------------------------------------------------------------------------------

    def time_until_drain_ms(self, *, in_flight: bool = False) -> int | None:
        """After how many milliseconds `drain` is due; None where nothing waits.

        At once where a batch is full or of control records, and where nothing is `in_flight` whose end could
        take more along; else when the oldest record has lingered long enough.
        """
        with self._lock:
            if self._completed or self._drain_now:
                return 0
            if self._open is None:
                return None
            if not in_flight:
                return 0
            waited_ms = (self._clock.monotonic_ns() - self._open.began_ns) // NANOSECONDS_PER_MILLISECOND
            return max(0, self._linger_ms - waited_ms)

    def drain(self) -> list[CompletedBatch]:
        """All that waits, in order, as batches to append; it is the caller's from now on."""
        with self._lock:
            self._complete_open()
            drained, self._completed = self._completed, []
            self._buffered_bytes = 0
            self._drain_now = False
            return drained

    def close(self) -> list[CompletedBatch]:
        """Take nothing any more; what was given offsets and not drained, which nobody appends now."""
        with self._lock:
            self._closed = True
            self._complete_open()
            dropped, self._completed = self._completed, []
            return dropped

    # ---- under the lock -----------------------------------------------------------------------------------

    def _require_epoch(self, epoch: int) -> None:
        if epoch < self.epoch or self._closed:
            raise NotLeader(f"epoch {epoch} is over; this accumulator was of epoch {self.epoch}")
        if epoch > self.epoch:
            raise UnexpectedEpoch(f"epoch {epoch} has not begun; the leader's is {self.epoch}")

    def _require_base_offset(self, expected: int | None) -> None:
        if expected is not None and expected != self._next_offset:
            raise UnexpectedBaseOffset(
                f"the first record would get offset {self._next_offset}, not {expected}",
                where=self._next_offset,
            )

    def _require_room(self, size_bytes: int) -> None:
        # One call always fits, so that whoever waits for the others gets on.
        if self._buffered_bytes and self._buffered_bytes + size_bytes > self._max_buffered_bytes:
            raise BufferExhausted(
                f"{self._buffered_bytes} bytes of records wait; {self._max_buffered_bytes} may"
            )

    def _batch_with_room_for(self, size_bytes: int) -> _OpenBatch:
        if self._open is not None and self._open.size_bytes + size_bytes > self._max_batch_size_bytes:
            self._complete_open()
        if self._open is None:
            self._open = _OpenBatch(self._clock.monotonic_ns())
        return self._open

    def _add(self, records: Sequence[Record], values: list[bytes], size_bytes: int) -> None:
        batch = self._batch_with_room_for(size_bytes)
        batch.records += records
        batch.values += values
        batch.size_bytes += size_bytes
        self._buffered_bytes += size_bytes
        self._next_offset += len(values)

    def _complete_open(self) -> None:
        batch, self._open = self._open, None
        if batch is None:
            return
        last = self._next_offset - 1
        base, now_ms = last - len(batch.values) + 1, self._clock.time_ms()
        builder = BatchBuilder()
        data = builder.build(batch.values, base_offset=base, leader_epoch=self.epoch, now_ms=now_ms)
        self._completed.append(CompletedBatch(base, last, self.epoch, now_ms, batch.records, (), data))
