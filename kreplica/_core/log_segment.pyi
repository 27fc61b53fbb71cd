from typing import Any

from typing_extensions import Buffer

from kreplica._core.batch_builder import BatchBuilder, _Records
from kreplica._core.log_state import LogState
from kreplica._core.region import Region, Slice
from kreplica._core.segment_index import OffsetIndex, TimeIndex

class LogAppendInfo:
    base_offset: int
    last_offset: int
    leader_epoch: int
    max_timestamp: int
    log_append_time: int
    log_start_offset: int
    record_count: int
    size: int
    position: int
    duplicate: bool
    def __init__(
        self,
        base_offset: int = -1,
        last_offset: int = -1,
        leader_epoch: int = -1,
        max_timestamp: int = -1,
        log_append_time: int = -1,
        log_start_offset: int = -1,
        record_count: int = 0,
        size: int = 0,
        position: int = -1,
        duplicate: bool = False,
    ) -> None: ...

class LogSegment:
    region: Region
    offset_index: OffsetIndex
    time_index: TimeIndex
    base_offset: int
    max_bytes: int
    max_age_ms: int
    index_interval_bytes: int
    first_timestamp: int
    max_timestamp: int
    offset_of_max_timestamp: int
    transaction_index: Any
    def __new__(
        cls,
        region: Region,
        offset_index: OffsetIndex,
        time_index: TimeIndex,
        base_offset: int,
        *,
        max_bytes: int = ...,
        max_age_ms: int = ...,
        index_interval_bytes: int = 4096,
    ) -> LogSegment: ...
    def append_plain(
        self, data: Buffer, state: LogState, leader_epoch: int, latest: int, max_bytes: int
    ) -> LogAppendInfo | None: ...
    def append(
        self,
        data: Buffer,
        state: LogState,
        *,
        leader_epoch: int = 0,
        as_leader: bool = True,
        check_records: bool = True,
        may_roll: bool = False,
        append_time: int = -1,
    ) -> LogAppendInfo | None: ...
    def append_records(
        self,
        builder: BatchBuilder,
        records: _Records,
        now_ms: int,
        state: LogState,
        leader_epoch: int,
        latest: int,
    ) -> LogAppendInfo | None: ...
    def position_of(self, offset: int, *, behind: int = 0) -> tuple[int, int, int, int] | None: ...
    def position_by_time(self, timestamp: int, start_offset: int) -> tuple[int, int, int, int] | None: ...
    def read(
        self, offset: int, max_bytes: int, *, limit: int = -1, at_least_one: bool = True, behind: int = 0
    ) -> Slice | None: ...
    def count_records(self, position: int, limit: int = -1) -> tuple[int, int]: ...
    def limit_to(self, position: int) -> None: ...
    def check_indexes(self) -> None: ...
    def forget(self) -> None: ...
    def know(self) -> None: ...
    def learn(self) -> None: ...
    def seal(self) -> None: ...
    def truncate_to(self, offset: int, position: int = -1, head: bytes = b"") -> int: ...
    def regions(self) -> tuple[Region, Region, Region]: ...
    def flush(self) -> None: ...
    def idle(self) -> None: ...
    def close(self) -> None: ...
    def largest_timestamp(self) -> int: ...
    def next_offset(self) -> int | None: ...
    @property
    def size(self) -> int: ...
