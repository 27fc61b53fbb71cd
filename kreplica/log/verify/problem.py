"""What a verification reports."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    `kind`: a name that programs may rely on; a wrong batch has that of its error. `offset`: of the record or
    batch that it is about. `position`: the byte in the file at `path`.
    """

    path: str
    kind: str
    text: str
    offset: int | None = None
    position: int | None = None
