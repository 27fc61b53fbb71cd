"""Columns of records as numpy arrays, over the memory in which the core has put them.

A piece's numbers are not copied; pieces that are joined are. numpy is imported on first use, and pyarrow for
keys and values. Thread rule: as the reader's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from kreplica._core.arrow import Columns, to_arrow
from kreplica.log.column_reader import require_names

if TYPE_CHECKING:
    from numpy.typing import NDArray

NUMBERS = {
    "offset": "int64",
    "timestamp": "datetime64[ms]",
    "timestamp_type": "int8",
    "leader_epoch": "int32",
    "producer_id": "int64",
}
OBJECTS = ("key", "value")


def check(columns: Sequence[str]) -> None:
    """Raise ValueError if there are no columns, or one cannot be an array; TypeError for a single name."""
    require_names(columns)
    known = (*NUMBERS, *OBJECTS)
    for name in columns:
        if name not in known:
            raise ValueError(f"column {name!r} cannot be an array: use {', '.join(known)}")
    if not columns or len(set(columns)) < len(columns):
        raise ValueError(f"columns are empty or repeated: {', '.join(columns)}")


def arrays(piece: Columns, columns: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return the columns of a piece; those of numbers are read-only views of its memory."""
    import numpy

    objects = {} if set(columns) <= NUMBERS.keys() else _objects(piece)
    return {
        name: objects[name] if name in objects else numpy.frombuffer(getattr(piece, name), NUMBERS[name])
        for name in columns
    }


def _objects(piece: Columns) -> dict[str, NDArray[Any]]:
    batch = to_arrow(piece)
    names = [name for name in OBJECTS if name in batch.schema.names]
    return {name: batch.column(name).to_numpy(zero_copy_only=False) for name in names}


def joined(pieces: Iterable[Columns], columns: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return the columns of all pieces, one array each."""
    import numpy

    parts = [arrays(piece, columns) for piece in pieces]
    if len(parts) == 1:
        return parts[0]
    empty = {name: numpy.empty(0, NUMBERS.get(name, "object")) for name in columns}
    return {name: numpy.concatenate([part[name] for part in parts] or [empty[name]]) for name in columns}
