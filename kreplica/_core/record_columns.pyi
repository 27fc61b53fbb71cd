from typing import TypeAlias, final

from typing_extensions import Buffer

_Column: TypeAlias = tuple[int, Buffer | None, Buffer, Buffer | None]
_Numbers: TypeAlias = tuple[int, Buffer | None, Buffer]
_Headers: TypeAlias = tuple[int, Buffer | None, Buffer, int, _Column, _Column]

@final
class RecordColumns:
    rows: int
    def __new__(
        cls,
        rows: int,
        value: _Column,
        key: _Column | None = None,
        timestamp: _Numbers | None = None,
        headers: _Headers | None = None,
    ) -> RecordColumns: ...
    def __len__(self) -> int: ...
