"""Damage: the damaged ranges of a log, and the file in which a running log remembers them.

Thread rule: a `Damages` is immutable; a log replaces it as a whole, so readers need no lock. The log's only
writer writes the file `kreplica.damage.json` under the log's lock.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

from kreplica.common.dataclass import dataclass
from kreplica.common.errors import InvalidFile
from kreplica.common.json_file import integer, parse_object, string
from kreplica.common.types import INT64_MAX
from kreplica.log.file_names import DAMAGE_FILE, LOG_SUFFIX, parse_file_name
from kreplica.log.small_file import SmallFile

VERSION = 1
# The limit for a damage file; a file with more ranges is invalid.
MAX_RANGES = 100_000
# The reason of a range whose bytes are missing from the end of a file.
CUT_SHORT = "the file is cut short"


@dataclass(frozen=True, slots=True)
class Damage:
    """A range of a log whose bytes have rotted. It is neither read nor discarded.

    The offsets are [`first_offset`, `next_offset`); `next_offset` is None if nothing valid follows.
    The bytes are [`position`, `end_position`) of the file `path`.
    `reason`: the check that the first bad batch failed.
    """

    first_offset: int
    next_offset: int | None
    path: str
    position: int
    end_position: int
    reason: str

    @property
    def stop_offset(self) -> int:
        """The end of the range, exclusive; INT64_MAX if nothing valid follows."""
        return INT64_MAX if self.next_offset is None else self.next_offset

    def __str__(self) -> str:
        last = "the end" if self.next_offset is None else self.next_offset - 1
        return (
            f"offsets {self.first_offset} to {last} "
            f"({self.path}, bytes {self.position} to {self.end_position}: {self.reason})"
        )


class Damages:
    """The damaged ranges of one log, by offset; no two overlap."""

    __slots__ = ("_firsts", "_ranges", "is_empty")

    def __init__(self, ranges: Iterable[Damage] = ()) -> None:
        self._ranges = tuple(sorted(ranges, key=lambda damage: damage.first_offset))
        self.is_empty = not self._ranges
        self._firsts = [damage.first_offset for damage in self._ranges]

    def __iter__(self) -> Iterator[Damage]:
        return iter(self._ranges)

    def __len__(self) -> int:
        return len(self._ranges)

    def __getitem__(self, index: int) -> Damage:
        return self._ranges[index]

    def at(self, offset: int) -> Damage | None:
        """Return the range that contains `offset`, or None."""
        before = self.before(offset)
        return before if before is not None and offset < before.stop_offset else None

    def before(self, offset: int) -> Damage | None:
        """Return the last range that begins at or below `offset`, or None."""
        index = bisect_right(self._firsts, offset)
        return self._ranges[index - 1] if index else None

    def before_in(self, path: str, offset: int) -> Damage | None:
        """Return the last range in the file `path` that begins at or below `offset`, or None."""
        index = bisect_right(self._firsts, offset) - 1
        while index >= 0 and self._ranges[index].path != path:
            index -= 1
        return self._ranges[index] if index >= 0 else None

    def after(self, offset: int) -> Damage | None:
        """Return the first range that begins above `offset`, or None."""
        index = bisect_right(self._firsts, offset)
        return self._ranges[index] if index < len(self._ranges) else None

    def with_added(self, new: Damage) -> Damages:
        """Return these ranges with `new` added in place of those that it overlaps."""
        apart = [
            known
            for known in self._ranges
            if known.stop_offset <= new.first_offset or new.stop_offset <= known.first_offset
        ]
        return Damages([*apart, new])

    def only(self, keep: Callable[[Damage], bool]) -> Damages:
        """Return the ranges for which `keep` is true; `self` if that is all of them."""
        kept = [damage for damage in self._ranges if keep(damage)]
        return self if len(kept) == len(self._ranges) else Damages(kept)


NO_DAMAGE = Damages()


class DamageFile(SmallFile[Damages]):
    """The file `kreplica.damage.json` in a partition's directory, which exists only if the log is damaged.

    docs/FORMATS.md describes it.
    """

    NAME = DAMAGE_FILE

    def read(self) -> Damages:
        """Read the ranges; none if there is no file. Raises InvalidFile, KafkaStorageError."""
        return super().read() or NO_DAMAGE

    def content(self) -> bytes | None:
        """Return the file's bytes, or None if it does not exist. Raises KafkaStorageError, InvalidFile."""
        return self._storage.read_file(self.path) if self.exists() else None

    def write(self, content: Damages, *, flush_name: bool = True) -> None:
        """Replace the file durably, or remove it if there is no damage."""
        if content:
            super().write(content, flush_name=flush_name)
        elif self.exists():
            self._storage.remove(self.path)
            self._storage.sync_directory(self.directory)

    @staticmethod
    def format(content: Damages) -> bytes:
        rows = [
            {
                "firstOffset": damage.first_offset,
                "nextOffset": damage.next_offset,
                "file": damage.path.rpartition("/")[2],
                "position": damage.position,
                "endPosition": damage.end_position,
                "reason": damage.reason,
            }
            for damage in content
        ]
        return json.dumps({"version": VERSION, "damages": rows}, indent=1).encode() + b"\n"

    @staticmethod
    def parse(data: bytes, path: str) -> Damages:
        directory = path.rpartition("/")[0]
        fields = parse_object(data, path)
        if integer(fields, "version", 0, INT64_MAX, path) != VERSION:
            raise InvalidFile(f"{path}: version {fields['version']}, not {VERSION}")
        rows = fields.get("damages")
        if not isinstance(rows, list) or len(rows) > MAX_RANGES:
            raise InvalidFile(f"{path}: damages must be a list of at most {MAX_RANGES} ranges")
        ranges = sorted((_range(row, directory, path) for row in rows), key=lambda each: each.first_offset)
        for one, following in pairwise(ranges):
            if following.first_offset < one.stop_offset:
                raise InvalidFile(f"{path}: the ranges at {one.first_offset} and the next overlap")
        return Damages(ranges)


def _range(row: object, directory: str, path: str) -> Damage:
    if not isinstance(row, dict):
        raise InvalidFile(f"{path}: a range must be an object, not {str(row)[:80]!r}")
    name = string(row, "file", path)
    found = parse_file_name(name)
    if found is None or found[1] != LOG_SUFFIX:
        raise InvalidFile(f"{path}: {name[:80]!r} is not the name of a segment")
    first = integer(row, "firstOffset", 0, INT64_MAX, path)
    last = row.get("nextOffset")
    position = integer(row, "position", 0, INT64_MAX, path)
    return Damage(
        first,
        None if last is None else integer(row, "nextOffset", first + 1, INT64_MAX, path),
        f"{directory}/{name}",
        position,
        integer(row, "endPosition", position, INT64_MAX, path),
        string(row, "reason", path),
    )
