from kreplica._core.log_segment import LogSegment
from kreplica._core.region import Slice

def scan(
    segment: LogSegment,
    position: int,
    limit: int,
    next_offset: int,
    leader_epoch: int,
    *,
    rebuild: bool = False,
    stop_offset: int = -1,
) -> tuple[int, int, int, tuple[int, ...]]: ...
def examine(
    segment: LogSegment,
    position: int,
    limit: int,
    next_offset: int,
    *,
    following: int,
    leader_epoch: int = -1,
    epoch_end: int = ...,
    aside: bool = False,
) -> tuple[int, int, int, int, int]: ...
def resync(
    segment: LogSegment, position: int, next_offset: int, *, stop: int = ..., aside: bool = False
) -> tuple[int, int] | None: ...
def position_behind(segment: LogSegment, start: int, offset: int) -> tuple[int, int, int, int] | None: ...
def read_behind(
    segment: LogSegment,
    start: int,
    offset: int,
    max_bytes: int,
    *,
    limit: int = -1,
    at_least_one: bool = True,
) -> Slice | None: ...
def check_indexes(segment: LogSegment) -> None: ...
def position_by_time(
    segment: LogSegment, timestamp: int, start_offset: int
) -> tuple[int, int, int, int] | None: ...
