from typing import Any

from typing_extensions import Buffer

from kreplica._core.disk_thread import DiskJob
from kreplica._core.log_segment import LogAppendInfo, LogSegment
from kreplica._core.log_state import LogState

class AppendJob(DiskJob):
    def __init__(
        self,
        data: Buffer,
        segment: LogSegment,
        state: LogState,
        leader_epoch: int,
        *,
        latest: int = ...,
        max_bytes: int = ...,
        checked: bool = False,
        append_time: int = -1,
        expected: int = -1,
    ) -> None: ...
    @property
    def producer_id(self) -> int: ...
    @property
    def is_plain(self) -> bool: ...
    @property
    def offset_count(self) -> int: ...
    def expect(self, offset: int) -> None: ...
    def info(self) -> LogAppendInfo: ...

class RunJob(DiskJob):
    def __init__(
        self,
        data: Buffer,
        segment: LogSegment,
        state: LogState,
        leader_epoch: int,
        *,
        with_producers: bool = False,
    ) -> None: ...
    @property
    def bytes_used(self) -> int: ...
    @property
    def has_producers(self) -> bool: ...
    def info(self) -> LogAppendInfo | None: ...

class PublishJob(DiskJob):
    def __init__(self, state: LogState) -> None: ...
    def published(self, _job: Any) -> None: ...

def publish_soon(queue: Any) -> int: ...
