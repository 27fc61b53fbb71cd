from collections.abc import Iterable
from typing import final

from typing_extensions import Buffer

from kreplica._core.arrow import Columns

@final
class ColumnBuffer:
    size: int
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class ColumnBuilder:
    views: bool
    max_decompressed: int
    from_time: int
    to_time: int
    next_offset: int
    position: int
    def __new__(cls, columns: Iterable[str] | None = None, *, views: bool = False) -> ColumnBuilder: ...
    def __len__(self) -> int: ...
    @property
    def data_bytes(self) -> int: ...
    def hide_aborted(self, transactions: Iterable[tuple[int, ...]]) -> None: ...
    def extend(
        self,
        data: Buffer,
        position: int = 0,
        *,
        first: int = 0,
        stop: int = ...,
        max_rows: int = ...,
        max_bytes: int = ...,
        following: int = ...,
        checked: bool = False,
    ) -> int: ...
    def finish(self) -> Columns: ...
