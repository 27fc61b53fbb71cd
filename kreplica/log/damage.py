"""Damage: a range of a log that rotted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Damage:
    """A range of a log whose bytes rotted: neither read nor thrown away.

    Offsets: [`first_offset`, `next_offset`), where `next_offset` is None if nothing valid follows. `path` and
    the byte positions [`position`, `end_position`) say where; `reason` is what the first bad batch failed.
    """

    first_offset: int
    next_offset: int | None
    path: str
    position: int
    end_position: int
    reason: str
