from kreplica._core.log_segment import LogSegment

def scan(
    segment: LogSegment,
    position: int,
    limit: int,
    next_offset: int,
    leader_epoch: int,
    *,
    rebuild: bool = False,
) -> tuple[int, int, int, tuple[int, ...]]: ...
def resync(segment: LogSegment, position: int, next_offset: int) -> tuple[int, int] | None: ...
def check_indexes(segment: LogSegment) -> None: ...
def position_by_time(
    segment: LogSegment, timestamp: int, start_offset: int
) -> tuple[int, int, int, int] | None: ...
