"""Decides how a producer's batches are appended: PlainPath, in one call of the core, or LogValidator, which
checks, corrects and recompresses them first.

The validator is for compressed batches, idempotent and transactional producers, compacted topics,
LogAppendTime, and recompression.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from kreplica._core.append_job import AppendJob
from kreplica._core.batch_builder import BatchBuilder
from kreplica._core.record_batch import correct_max_timestamp
from kreplica._core.records import RecordBatch, batches, validate_for_append
from kreplica.common.config import LogConfig
from kreplica.common.errors import (
    DecompressionTooLarge,
    InvalidRecord,
    InvalidTimestamp,
    KreplicaError,
    MessageTooLarge,
    RecordError,
)
from kreplica.common.types import INT64_MAX, AppendOrigin
from kreplica.record.compression import MAX_DECOMPRESSED, recompress

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kreplica._core.log_segment import LogSegment
    from kreplica._core.log_state import LogState

# The origins that may send control batches, and several batches at once.
TRUSTED_ORIGINS = (AppendOrigin.COORDINATOR, AppendOrigin.COORDINATOR_TV2, AppendOrigin.RAFT_LEADER)
# The maximum number of records in an error; a batch may have a hundred thousand.
MOST_RECORD_ERRORS = 1_000
# The limit of a decompressed batch, as a multiple of the compressed limit. Uniform text compresses to a
# tenth, rarely to a hundredth; a decompression bomb to a thousandth.
MOST_TIMES_LARGER = 32
# The most bytes to decompress, scan or compress while other work waits; this takes about 100 us.
BRIEF_BYTES = 256 << 10
# A value that no leader epoch has.
NO_EPOCH = -2


class PlainPath:
    """Decides which batches the core may append in one call, without a LogValidator. Nearly all qualify.

    Such a batch is stored as it was sent, in the log's current leader epoch, and its create times are valid.
    Only its offset and epoch remain to be set. The log's lock guards everything.

    `epoch`: the leader epoch whose batches may take this path, or NO_EPOCH. `keyed_epoch`: the same for
    batches in which all records have keys.
    `ahead_ms`: how far in the future a create time may lie.
    `latest_ms`: the latest valid create time when the clock was last read. A batch with a later one takes the
    careful path, which reads the clock again. So the plain path never reads the clock.
    `max_decompressed`: the limit of a compressed batch, decompressed, that is checked while other work waits;
    0 if no compressed batch is stored as it is.
    """

    __slots__ = (
        "_takes_any",
        "_takes_keyed",
        "ahead_ms",
        "builder",
        "epoch",
        "keyed_epoch",
        "latest_ms",
        "max_bytes",
        "max_decompressed",
    )

    def __init__(self, config: LogConfig, now_ms: int) -> None:
        self._takes_keyed = (
            not config.log_append_time
            and config.message_timestamp_before_max_ms == INT64_MAX
            and config.compression_type in ("producer", "uncompressed")
        )
        self._takes_any = self._takes_keyed and not config.compact
        self.epoch = self.keyed_epoch = NO_EPOCH
        # Bounded so that the sum stays in 64 bits.
        self.ahead_ms = min(config.message_timestamp_after_max_ms, 1 << 61)
        limit, self.max_bytes = max_batch_size(config)
        keeps_codec = config.compression_type == "producer"
        self.max_decompressed = min(BRIEF_BYTES, MOST_TIMES_LARGER * self.max_bytes) if keeps_codec else 0
        self.builder = BatchBuilder()
        self.builder.limit, self.builder.max_size = limit, self.max_bytes
        self.set_time(now_ms)

    def choose(self, leader_epoch: int, *, is_ready: bool) -> None:
        """Set the log's leader epoch. `is_ready`: whether the log takes batches without further checks."""
        self.epoch = leader_epoch if self._takes_any and is_ready else NO_EPOCH
        self.keyed_epoch = leader_epoch if self._takes_keyed and is_ready else NO_EPOCH

    def set_time(self, now_ms: int) -> None:
        """Update `latest_ms` after a reading of the clock."""
        self.latest_ms = now_ms + self.ahead_ms

    def job(
        self, records: Buffer, leader_epoch: int, active: LogSegment, state: LogState
    ) -> AppendJob | None:
        """Return the job that appends this batch, or None if it has to take the careful path."""
        if leader_epoch != self.epoch:
            return None
        job = AppendJob(records, active, state, leader_epoch, latest=self.latest_ms, max_bytes=self.max_bytes)
        return job if job.is_plain else None


class ValidBatch(NamedTuple):
    """A valid batch: a view of its header, its bytes, and the LogAppendTime to set (-1 for none)."""

    batch: RecordBatch
    data: Buffer
    append_time: int


def max_batch_size(config: LogConfig) -> tuple[str, int]:
    """Return the maximum size of a batch in bytes, after the name of the setting that limits it."""
    limits = ("max.message.bytes", config.max_message_bytes), ("segment.bytes", config.segment_bytes)
    return min(limits, key=lambda limit: limit[1])


class LogValidator:
    """Validates batches according to one log configuration."""

    __slots__ = (
        "_after_ms",
        "_ahead",
        "_before_ms",
        "_codec",
        "_compact",
        "_level",
        "_limit",
        "_log_append_time",
        "max_bytes",
        "max_decompressed",
    )

    def __init__(self, config: LogConfig) -> None:
        self._limit, self.max_bytes = max_batch_size(config)
        self.max_decompressed = min(MOST_TIMES_LARGER * self.max_bytes, MAX_DECOMPRESSED)
        # Records that were validated already, with the result.
        self._ahead: tuple[Buffer, list[ValidBatch]] | None = None
        self._compact = config.compact
        self._log_append_time = config.log_append_time
        self._before_ms = config.message_timestamp_before_max_ms
        self._after_ms = config.message_timestamp_after_max_ms
        # The codec for stored batches; None to keep the producer's.
        self._codec = {"producer": None, "uncompressed": "none"}.get(
            config.compression_type, config.compression_type
        )
        self._level = {
            "gzip": config.compression_gzip_level,
            "lz4": config.compression_lz4_level,
            "zstd": config.compression_zstd_level,
        }.get(self._codec or "")

    def latest(self, now_ms: int) -> int:
        """Return the latest valid create time (ms) at `now_ms`."""
        return min(now_ms + self._after_ms, INT64_MAX)

    def is_brief(self, records: Buffer) -> bool:
        """Return whether the records are few enough to validate while other work waits."""
        return memoryview(records).nbytes <= BRIEF_BYTES

    def expect(self, records: Buffer, found: list[ValidBatch]) -> None:
        """Keep a result, to be returned by the next `validate` if that gets the same `records` object."""
        self._ahead = (records, found)

    def validate(self, records: Buffer, now_ms: int, origin: AppendOrigin) -> list[ValidBatch]:
        """Check every batch in `records` and return them; raise for the first invalid one.

        Raises CorruptMessage and its subclasses, MessageTooLarge, InvalidTimestamp, and InvalidRecord
        (no key in a compacted topic, a control batch or several batches from a client, no batch).
        """
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] is records:
            return ahead[1]
        return self.validate_anew(records, now_ms, origin)

    def validate_anew(
        self, records: Buffer, now_ms: int, origin: AppendOrigin, max_decompressed: int | None = None
    ) -> list[ValidBatch]:
        """Validate without using a result kept by `expect`. Any thread may call this.

        `max_decompressed`: the limit of a decompressed batch in bytes; beyond it, DecompressionTooLarge is
        raised. By default the limit follows from the topic's max.message.bytes, and MessageTooLarge is
        raised.
        """
        most = self.max_decompressed if max_decompressed is None else max_decompressed
        try:
            found = [self._valid(batch, now_ms, origin, most) for batch in batches(records)]
        except DecompressionTooLarge as error:
            if max_decompressed is not None:
                raise
            # Producers react to this error with smaller batches. They would resend a corrupt batch.
            most_times = f"at most {MOST_TIMES_LARGER} times {self._limit}={self.max_bytes:,} bytes"
            raise MessageTooLarge(f"{error}; {most_times} are decompressed") from None
        if not found:
            raise InvalidRecord("no record batch to append")
        if len(found) > 1 and origin not in TRUSTED_ORIGINS:
            raise InvalidRecord(f"{len(found)} record batches; a producer sends one at a time")
        return found

    def _valid(self, batch: RecordBatch, now_ms: int, origin: AppendOrigin, most: int) -> ValidBatch:
        data: Buffer = memoryview(batch)
        if self._codec is None or self._codec == batch.codec:
            self._require_size(batch)  # before it is decompressed
        batch.max_decompressed = most
        largest, _ = validate_for_append(data, allow_control=origin in TRUSTED_ORIGINS, max_decompressed=most)
        if batch.is_control:
            return ValidBatch(batch, data, -1)
        if self._compact:
            keyless = (
                RecordError(index, "a compacted topic takes no record without a key")
                for index, record in enumerate(batch)
                if record.key is None
            )
            _refuse(InvalidRecord("a record without a key in a compacted topic"), keyless)
        self._check_timestamps(batch, largest, now_ms)
        changed = self._stored(batch, largest)
        if changed is not None:
            data, batch = changed, RecordBatch(changed)
        self._require_size(batch)
        return ValidBatch(batch, data, now_ms if self._log_append_time else -1)

    def _require_size(self, batch: RecordBatch) -> None:
        if batch.size > self.max_bytes:
            raise MessageTooLarge(
                f"a batch of {batch.size:,} bytes is above {self._limit}={self.max_bytes:,}"
            )

    def _check_timestamps(self, batch: RecordBatch, largest: int, now_ms: int) -> None:
        if self._log_append_time or largest < 0:
            return
        latest = self.latest(now_ms)
        earliest = now_ms - self._before_ms if self._before_ms < INT64_MAX else -INT64_MAX
        if largest <= latest and batch.base_timestamp >= earliest:
            return
        outside = (
            RecordError(index, self._why_refused(record.timestamp, now_ms))
            for index, record in enumerate(batch)
            if record.timestamp is not None and not earliest <= record.timestamp <= latest
        )
        timestamp = largest if largest > latest else batch.base_timestamp
        _refuse(InvalidTimestamp(self._why_refused(timestamp, now_ms)), outside)

    def _why_refused(self, timestamp: int, now_ms: int) -> str:
        if timestamp > now_ms:
            name, bound_ms, side = "after", self._after_ms, "past"
        else:
            name, bound_ms, side = "before", self._before_ms, "before"
        return (
            f"timestamp {timestamp} is more than message.timestamp.{name}.max.ms ({bound_ms}) {side} now,"
            f" {now_ms}"
        )

    def _stored(self, batch: RecordBatch, largest: int) -> bytearray | bytes | None:
        """Return the bytes to store, or None if they equal those of the batch."""
        if self._codec is not None and batch.codec != self._codec:
            return recompress(batch, self._codec, self._level)
        if batch.max_timestamp != largest:
            # The header has a wrong timestamp: a search by time would miss the record.
            corrected = bytearray(memoryview(batch))
            correct_max_timestamp(corrected, largest)
            return corrected
        return None


def _refuse(error: KreplicaError, records: Iterator[RecordError]) -> None:
    """Raise the error if there are any such records; attach the first ones, up to MOST_RECORD_ERRORS."""
    error.record_errors = tuple(islice(records, MOST_RECORD_ERRORS))
    if error.record_errors:
        raise error
