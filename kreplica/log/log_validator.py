"""LogValidator: what a leader checks, corrects and recompresses in a producer's batches before it appends
them.

This is the careful path, for batches that the core's one call leaves to it: compressed ones, idempotent and
transactional producers, compacted topics, LogAppendTime, recompression.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kreplica._core.record_batch import correct_max_timestamp
from kreplica._core.records import RecordBatch, batches, validate_for_append
from kreplica.common.config import LogConfig
from kreplica.common.errors import InvalidRecord, InvalidTimestamp, MessageTooLarge
from kreplica.common.types import AppendOrigin

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Who may send control batches, and several batches at once.
TRUSTED_ORIGINS = (AppendOrigin.COORDINATOR, AppendOrigin.RAFT_LEADER)
INT64_MAX = (1 << 63) - 1


class ValidBatch(NamedTuple):
    """A batch that may be appended: its header's view, its bytes, and the LogAppendTime to stamp (-1:
    none)."""

    batch: RecordBatch
    data: Buffer
    append_time: int


class LogValidator:
    """The checks that one configuration asks for."""

    __slots__ = ("_after_ms", "_before_ms", "_codec", "_compact", "_level", "_log_append_time", "max_bytes")

    def __init__(self, config: LogConfig) -> None:
        self.max_bytes = min(config.max_message_bytes, config.segment_bytes)
        self._compact = config.compact
        self._log_append_time = config.log_append_time
        self._before_ms = config.message_timestamp_before_max_ms
        self._after_ms = config.message_timestamp_after_max_ms
        # The codec that batches are stored in; None: the producer's.
        self._codec = {"producer": None, "uncompressed": "none"}.get(
            config.compression_type, config.compression_type
        )
        self._level = {
            "gzip": config.compression_gzip_level,
            "lz4": config.compression_lz4_level,
            "zstd": config.compression_zstd_level,
        }.get(self._codec or "")

    def latest(self, now_ms: int) -> int:
        """The latest create time (ms) that is accepted at `now_ms`."""
        return min(now_ms + self._after_ms, INT64_MAX)

    def validate(self, records: Buffer, now_ms: int, origin: AppendOrigin) -> list[ValidBatch]:
        """Every batch in `records`, checked whole; raises for the first that may not be appended.

        Raises CorruptMessage and its kinds, MessageTooLarge, InvalidTimestamp, and InvalidRecord (no key in a
        compacted topic, a control batch from a client, several batches from a client, none at all).
        """
        found = [self._valid(batch, now_ms, origin) for batch in batches(records)]
        if not found:
            raise InvalidRecord("no record batch to append")
        if len(found) > 1 and origin not in TRUSTED_ORIGINS:
            raise InvalidRecord(f"{len(found)} record batches; a producer sends one at a time")
        return found

    def _valid(self, batch: RecordBatch, now_ms: int, origin: AppendOrigin) -> ValidBatch:
        data: Buffer = memoryview(batch)
        largest, _ = validate_for_append(data, allow_control=origin in TRUSTED_ORIGINS)
        if batch.is_control:
            return ValidBatch(batch, data, -1)
        if self._compact and any(record.key is None for record in batch):
            raise InvalidRecord("a record without a key in a compacted topic")
        self._check_timestamps(batch, largest, now_ms)
        changed = self._stored(batch, largest)
        if changed is not None:
            data, batch = changed, RecordBatch(changed)
        if batch.size > self.max_bytes:
            raise MessageTooLarge(f"a batch of {batch.size} bytes; max.message.bytes is {self.max_bytes}")
        return ValidBatch(batch, data, now_ms if self._log_append_time else -1)

    def _check_timestamps(self, batch: RecordBatch, largest: int, now_ms: int) -> None:
        if self._log_append_time or largest < 0:
            return
        if largest > self.latest(now_ms):
            raise InvalidTimestamp(
                f"timestamp {largest} is more than message.timestamp.after.max.ms "
                f"({self._after_ms}) past now, {now_ms}"
            )
        if self._before_ms < INT64_MAX and batch.base_timestamp < now_ms - self._before_ms:
            raise InvalidTimestamp(
                f"timestamp {batch.base_timestamp} is more than message.timestamp.before.max.ms "
                f"({self._before_ms}) before now, {now_ms}"
            )

    def _stored(self, batch: RecordBatch, largest: int) -> bytearray | bytes | None:
        """The batch as it is to be stored where that differs from what came."""
        if self._codec is not None and batch.codec != self._codec:
            from kreplica.record.recompression import recompress

            return recompress(batch, self._codec, self._level)
        if batch.max_timestamp != largest:
            # The header said otherwise: a reader that searches by time would miss the record.
            corrected = bytearray(memoryview(batch))
            correct_max_timestamp(corrected, largest)
            return corrected
        return None
