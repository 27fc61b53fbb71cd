from enum import IntEnum

from typing_extensions import Buffer

from kreplica._core.log_segment import LogSegment
from kreplica._core.records import RecordBatch
from kreplica._core.region import Region

AT_END: int
SOUND: int

class Stop(IntEnum):
    DONE = 0
    MORE = 1
    TARGET_FULL = 2
    MAP_FULL = 3
    DECISION = 4

class BatchWalk:
    region: Region
    position: int
    limit: int
    base_offset: int
    next_offset: int
    following: int
    leader_epoch: int
    epochs_ascend: bool
    last_position: int
    last_due: int
    bytes_read: int
    records_read: int
    batches_read: int

class SegmentWalk(BatchWalk):
    verdict: int
    stop_offset: int
    def __new__(
        cls,
        region: Region,
        base_offset: int = 0,
        *,
        position: int = 0,
        limit: int = -1,
        next_offset: int = 0,
        following: int = ...,
        leader_epoch: int = -1,
        epochs_ascend: bool = True,
        looks_at_producers: bool = False,
        looks_at_epochs: bool = False,
        stop_offset: int = ...,
        judges_alone: bool = False,
        feeds: LogSegment | None = None,
        aside: bool = False,
    ) -> SegmentWalk: ...
    def skip(self, stop: int = ...) -> int: ...
    def look(self) -> int: ...
    def accept(self) -> None: ...
    def go(self, position: int, next_offset: int) -> None: ...
    @property
    def is_framed(self) -> bool: ...
    def batch(self) -> RecordBatch: ...
    def base_offset_there(self) -> int: ...
    def size_there(self) -> int: ...
    def last_is_wrong(self, base_offset: int) -> bool: ...

class PlainWalk(SegmentWalk):
    offset_at: int
    open_at: int
    time_at: int
    greatest: int
    def __new__(
        cls,
        region: Region,
        base_offset: int = 0,
        *,
        limit: int = -1,
        offsets: Buffer = b"",
        times: Buffer = b"",
    ) -> PlainWalk: ...
    def go_to_entries(self, offset_at: int, open_at: int, time_at: int, greatest: int) -> None: ...

def resync(
    segment: LogSegment, position: int, next_offset: int, *, stop: int = ..., aside: bool = False
) -> tuple[int, int] | None: ...
def ascending_entries(data: Buffer, is_time_index: bool) -> int: ...
