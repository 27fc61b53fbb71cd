"""BatchAccumulator: the records that a leader has accepted and its loop has not yet appended.

`append` returns the offset of a record at once: in its epoch, only the accumulator assigns offsets, in the
order of the calls. The records of one call share a batch, so that all or none of them are committed. Calls
that arrive while a batch waits are added to it until it is full. An assigned offset is never reused: `drain`
returns every batch once, and after `close` the accumulator accepts no records.

Thread rule: any thread may append; the loop drains. `_lock` guards all fields. Records are encoded before the
lock is taken and built into their batch under it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
from kreplica.common.ports import NANOSECONDS_PER_MS, Clock
from kreplica.metadata.control_records import ControlMessage, encode_control
from kreplica.metadata.records import MetadataRecord
from kreplica.metadata.serde import ApiMessageAndVersion, encode
from kreplica.record.batch_header import HEADER_BYTES
from kreplica.record.control import control_key

MAX_BATCH_SIZE_BYTES = 8 << 20
MAX_BUFFERED_BYTES = 5 * MAX_BATCH_SIZE_BYTES
# The most bytes that a record without its value can take.
RECORD_OVERHEAD_BYTES = 32

Record = ApiMessageAndVersion[MetadataRecord]


class CompletedBatch(NamedTuple):
    """A batch to append as it is. `records` is empty if the batch holds control records."""

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
    """The batch that the next records are added to."""

    def __init__(self, began_ns: int) -> None:
        self.began_ns = began_ns
        self.records: list[Record] = []
        self.values: list[bytes] = []
        self.size_bytes = HEADER_BYTES


class BatchAccumulator:
    """Collects the records of the leader of `epoch`. The next record gets `base_offset`.

    `linger_ms`: how long a batch waits for more records while another append is in flight; see
    `time_until_drain_ms`.
    """

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
        """The offset that the next record will get."""
        return self._next_offset

    @property
    def buffered_bytes(self) -> int:
        """Approximate size of the records that wait to be drained."""
        return self._buffered_bytes

    @property
    def is_empty(self) -> bool:
        """Whether no record waits to be drained."""
        return self._open is None and not self._completed

    def append(
        self,
        epoch: int,
        records: Sequence[Record],
        *,
        expected_base_offset: int | None = None,
        is_atomic: bool = True,
    ) -> int:
        """Add the records to one batch and return the offset of the last of them.

        If not `is_atomic`, they may be split into several batches, and only the first of these may be
        committed.

        Raises NotLeader if the epoch is over, UnexpectedEpoch if it has not begun, InvalidRequest if there
        are no records, InvalidRecord or UnsupportedVersion if a record cannot be encoded, RecordListTooLarge
        if the records do not fit a batch, BufferExhausted if too many bytes already wait, and
        UnexpectedBaseOffset if the first record would not get `expected_base_offset`. Nothing is added then.
        """
        if not records:
            raise InvalidRequest("the list of records to append is empty")
        self._require_epoch(epoch)
        values = [encode(record.message, record.version) for record in records]
        sizes = [len(value) + RECORD_OVERHEAD_BYTES for value in values]
        size_bytes = sum(sizes)
        least_bytes = HEADER_BYTES + (size_bytes if is_atomic else max(sizes))
        if least_bytes > self._max_batch_size_bytes:
            raise RecordListTooLarge(
                f"{len(values)} records take {size_bytes} bytes; a batch holds at most"
                f" {self._max_batch_size_bytes}. Append fewer at a time"
            )
        is_split = size_bytes + HEADER_BYTES > self._max_batch_size_bytes
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
        """Add a batch of control records, due at once, and return the offset of the last of them.

        Raises NotLeader, InvalidRequest, InvalidRecord, UnsupportedVersion.
        """
        if not messages:
            raise InvalidRequest("the list of control records to append is empty")
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
        """Return in how many milliseconds `drain` is due; None if no record waits.

        It is due at once if a batch is full or holds control records, or if no append is `in_flight`.
        Otherwise it is due when the oldest record has waited for `linger_ms`.
        """
        with self._lock:
            if self._completed or self._drain_now:
                return 0
            if self._open is None:
                return None
            if not in_flight:
                return 0
            waited_ms = (self._clock.monotonic_ns() - self._open.began_ns) // NANOSECONDS_PER_MS
            return max(0, self._linger_ms - waited_ms)

    def drain(self) -> list[CompletedBatch]:
        """Return all waiting batches, in order, and forget them: the caller appends them now."""
        with self._lock:
            self._complete_open()
            drained, self._completed = self._completed, []
            self._buffered_bytes = 0
            self._drain_now = False
            return drained

    def close(self) -> list[CompletedBatch]:
        """Accept no further records. Returns the batches that were not drained; they will not be appended."""
        with self._lock:
            self._closed = True
            self._complete_open()
            dropped, self._completed = self._completed, []
            return dropped

    # ---- under the lock -----------------------------------------------------------------------------------

    def _require_epoch(self, epoch: int) -> None:
        if epoch < self.epoch or self._closed:
            raise NotLeader(f"epoch {epoch} is over; this accumulator belongs to epoch {self.epoch}")
        if epoch > self.epoch:
            raise UnexpectedEpoch(f"epoch {epoch} has not begun; the leader is in epoch {self.epoch}")

    def _require_base_offset(self, expected: int | None) -> None:
        if expected is not None and expected != self._next_offset:
            raise UnexpectedBaseOffset(
                f"the first record would get offset {self._next_offset}, not {expected}",
                where=self._next_offset,
            )

    def _require_room(self, size_bytes: int) -> None:
        # If nothing else waits, the records of one call are always accepted: their caller must make progress.
        if self._buffered_bytes and self._buffered_bytes + size_bytes > self._max_buffered_bytes:
            raise BufferExhausted(
                f"{self._buffered_bytes} bytes of records already wait to be appended; the limit is"
                f" {self._max_buffered_bytes}. Retry later"
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
        # Offsets have no gaps: batches are completed in the order in which their offsets were assigned.
        assert not self._completed or self._completed[-1].last_offset + 1 == base, (self._completed, base)
        builder = BatchBuilder()
        data = builder.build(batch.values, base_offset=base, leader_epoch=self.epoch, now_ms=now_ms)
        self._completed.append(CompletedBatch(base, last, self.epoch, now_ms, batch.records, (), data))


def build_control_batch(
    messages: Iterable[ControlMessage], *, base_offset: int, epoch: int, timestamp_ms: int
) -> bytes:
    """Return one batch that holds all messages. Raises InvalidRecord, UnsupportedVersion."""
    builder = BatchBuilder()
    builder.control = True
    return builder.build(
        [(control_key(message.TYPE), encode_control(message)) for message in messages],
        base_offset=base_offset,
        leader_epoch=epoch,
        now_ms=timestamp_ms,
    )
