from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeAlias, TypeVar, final

from kreplica._core.record import Record
from kreplica._core.record_columns import RecordColumns

_Bytes: TypeAlias = bytes | bytearray | memoryview | None
_Headers: TypeAlias = Sequence[tuple[str, _Bytes]] | None
_RecordLike: TypeAlias = (
    _Bytes
    | tuple[_Bytes, _Bytes]
    | tuple[_Bytes, _Bytes, _Headers]
    | tuple[_Bytes, _Bytes, _Headers, int | datetime | None]
    | Record
)
_T_co = TypeVar("_T_co", covariant=True)

class _ListOf(Protocol[_T_co]):
    """A list or a similar sequence, but not a tuple, which has no copy()."""

    def __iter__(self) -> Iterator[_T_co]: ...
    def __len__(self) -> int: ...
    def copy(self) -> Any: ...

_RecordList: TypeAlias = _ListOf[_RecordLike]
_Records: TypeAlias = _RecordList | RecordColumns

def require_list(records: object) -> int: ...

@final
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
    limit: str
    def __new__(cls) -> BatchBuilder: ...
    def build(
        self,
        records: Iterable[_RecordLike] | RecordColumns,
        *,
        base_offset: int = 0,
        leader_epoch: int = -1,
        now_ms: int = -1,
    ) -> bytes: ...
