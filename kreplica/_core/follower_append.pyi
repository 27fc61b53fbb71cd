from kreplica._core.log_segment import LogAppendInfo, LogSegment
from kreplica._core.log_state import LogState
from kreplica._core.records import BatchIterator

def append_run(
    segment: LogSegment, fetched: BatchIterator, state: LogState, leader_epoch: int
) -> LogAppendInfo | None: ...
