import enum
from typing import Any

from typing_extensions import Buffer

FETCH_VERSION: int

class Declined(enum.IntEnum):
    MALFORMED = 1
    REFUSED = 2
    PARTITION_REFUSED = 3
    TAGGED = 4
    TRANSACTIONS = 5

class PartitionAnswer:
    @property
    def high_watermark(self) -> int: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def records(self) -> memoryview | None: ...
    def __init__(self, high_watermark: int, log_start_offset: int, records: memoryview | None) -> None: ...

class FetchAnswer:
    @property
    def session_id(self) -> int: ...
    @property
    def partitions(self) -> list[tuple[bytes, int, PartitionAnswer]]: ...
    def __init__(self, session_id: int, partitions: list[tuple[bytes, int, PartitionAnswer]]) -> None: ...

class FetchSettings:
    @property
    def max_wait_ms(self) -> int: ...
    @property
    def min_bytes(self) -> int: ...
    @property
    def max_bytes(self) -> int: ...
    @property
    def partition_max_bytes(self) -> int: ...
    @property
    def replica_id(self) -> int: ...
    @property
    def replica_epoch(self) -> int: ...
    def __init__(
        self,
        replica_id: int,
        replica_epoch: int,
        *,
        max_wait_ms: int,
        min_bytes: int,
        max_bytes: int,
        partition_max_bytes: int,
    ) -> None: ...

def read_fetch_answer(frame: Buffer, position: int) -> FetchAnswer | Declined: ...
def read_fetch_buffers(buffers: list[Any], position: int) -> FetchAnswer | Declined: ...
def write_fetch_request(
    number: int,
    client_id: bytes,
    settings: FetchSettings,
    session_id: int,
    session_epoch: int,
    asked: dict[bytes, list[tuple[int, int, int, int, int]]],
    forgotten: dict[bytes, list[int]],
) -> bytes: ...
