from collections.abc import Iterable
from enum import IntEnum

from kreplica._core.batch_walk import BatchWalk, Stop
from kreplica._core.log_segment import LogSegment
from kreplica._core.offset_map import OffsetMap
from kreplica._core.records import RecordBatch

class Fate(IntEnum):
    DROPPED = 0
    EMPTIED = 1
    KEPT = 2
    TARGET_FULL = 3

class RecordFilter(BatchWalk):
    offset_map: OffsetMap
    now_ms: int
    delete_retention_ms: int
    bytes_written: int
    records_written: int
    batches_written: int
    keyless_dropped: int
    def __new__(
        cls,
        offset_map: OffsetMap,
        now_ms: int,
        delete_retention_ms: int,
        retained_offsets: Iterable[int] = (),
        *,
        max_decompressed: int = ...,
    ) -> RecordFilter: ...
    def filter_batches(
        self,
        source: LogSegment,
        position: int,
        limit: int,
        max_bytes: int,
        target: LogSegment,
        *,
        keep_last: bool = False,
    ) -> tuple[Stop, int, RecordBatch | None]: ...
    def filter_batch(
        self,
        batch: RecordBatch,
        target: LogSegment,
        *,
        discard: bool = False,
        set_horizon: bool = False,
        keep_empty: bool = False,
    ) -> Fate: ...
