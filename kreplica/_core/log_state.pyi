from typing import NamedTuple

from kreplica._core.region import Region

class LogStanding(NamedTuple):
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    log_end_offset: int
    active_base_offset: int
    valid_length: int
    flush_offset: int
    leader_epoch: int
    boot_id: str
    clean: bool
    cuts: int
    has_gaps: bool
    segments: int

class LogState:
    region: Region | None
    follows: bool
    stable: bool
    def __new__(cls, region: Region | None, boot_id: str, process_id: int = 0) -> LogState: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def last_stable_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def valid_length(self) -> int: ...
    @property
    def flush_offset(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    def update(
        self,
        *,
        log_start_offset: int | None = None,
        high_watermark: int | None = None,
        last_stable_offset: int | None = None,
        log_end_offset: int | None = None,
        active_base_offset: int | None = None,
        valid_length: int | None = None,
        flush_offset: int | None = None,
        leader_epoch: int | None = None,
    ) -> None: ...
    def take_over(self, standing: LogStanding) -> None: ...
    def advance(self, high_watermark: int, last_stable_offset: int) -> None: ...
    def share(self) -> None: ...
    shared: bool
    @property
    def is_unpublished(self) -> bool: ...
    @property
    def cuts(self) -> int: ...
    def count_cut(self, cuts: int = 1) -> None: ...
    def allow_gaps(self) -> None: ...
    @property
    def has_gaps(self) -> bool: ...
    def mark_clean(self, segments: int = 0) -> None: ...

def read_standing(image: bytes | bytearray | memoryview) -> LogStanding | None: ...
