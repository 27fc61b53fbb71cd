from collections.abc import Iterable, Sequence
from typing import TypeAlias

from kreplica._core.record import Record

Bytes: TypeAlias = bytes | bytearray | memoryview | None
Headers: TypeAlias = Sequence[tuple[str, Bytes]] | None
RecordLike: TypeAlias = (
    Bytes
    | tuple[Bytes, Bytes]
    | tuple[Bytes, Bytes, Headers]
    | tuple[Bytes, Bytes, Headers, int | None]
    | Record
)

class BatchBuilder:
    codec: str
    level: int | None
    log_append_time: bool
    transactional: bool
    control: bool
    producer_id: int
    producer_epoch: int
    base_sequence: int
    delete_horizon_ms: int
    max_size: int
    def __new__(cls) -> BatchBuilder: ...
    def build(
        self,
        records: Iterable[RecordLike],
        *,
        base_offset: int = 0,
        leader_epoch: int = -1,
        now_ms: int = -1,
    ) -> bytes: ...
