from typing import Any

from typing_extensions import Buffer

from kreplica._core.log_segment import LogAppendInfo, LogSegment
from kreplica._core.log_state import LogState
from kreplica._core.records import BatchIterator

def append_run(
    segment: LogSegment, fetched: BatchIterator, state: LogState, leader_epoch: int
) -> LogAppendInfo | None: ...
def producers_of_run(data: Buffer, most: int) -> dict[int, Any]: ...
