"""Quarantine: a damaged range that was taken out of a log, and the files beside the log that describe it.

`kreplica repair` writes two files for each range. `<base offset>.log.<position>.rot` keeps the bytes as they
were found; it is missing if the bytes were gone. The same name with `.json`, the note, describes the range.
In the log, an empty batch replaces the range, so readers see a gap as after compaction. Only the note
distinguishes it from an ordinary gap. The files are never changed; the note is removed when another replica
fills the range again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kreplica.common import json_file
from kreplica.common.dataclass import dataclass, fields
from kreplica.common.errors import InvalidFile
from kreplica.common.types import INT64_MAX
from kreplica.log.file_names import LOG_SUFFIX, ROT_SUFFIX, file_name

if TYPE_CHECKING:
    from kreplica.common.ports import Storage

VERSION = 0
_NAME = re.compile(r"(\d{20})\.log\.(\d+)(\.\d+)?\.rot\.json", re.ASCII)


@dataclass(frozen=True, slots=True)
class Quarantine:
    """A range that was taken out of the segment at `base_offset`.

    Its bytes were [`position`, `end_position`) of that file. The file `kept_in` in the same directory keeps
    them; None if there were none. The lost offsets are [`first_offset`, `next_offset`).
    """

    base_offset: int
    position: int
    end_position: int
    first_offset: int
    next_offset: int
    reason: str
    kept_in: str | None

    def covers(self, base_offset: int, last_offset: int) -> bool:
        return self.first_offset <= base_offset and last_offset < self.next_offset


def is_note(name: str) -> bool:
    """Return whether this is the name of a quarantine's note."""
    return _NAME.fullmatch(name) is not None


def file_stem(found: Quarantine, number: int) -> str:
    """Return the name of the file with the bytes; `number` distinguishes ranges at the same position."""
    several = f".{number}" if number else ""
    return f"{file_name(found.base_offset, LOG_SUFFIX)}.{found.position}{several}{ROT_SUFFIX}"


def format_note(found: Quarantine) -> bytes:
    noted = {each.name: getattr(found, each.name) for each in fields(found)}
    return json.dumps({"version": VERSION, **noted}, indent=1).encode() + b"\n"


def parse_note(data: bytes, path: str) -> Quarantine:
    """Parse a `.rot.json` file. Raises InvalidFile."""
    fields = json_file.parse_object(data, path)
    json_file.integer(fields, "version", VERSION, VERSION, path)

    def number(name: str) -> int:
        return json_file.integer(fields, name, 0, INT64_MAX, path)

    found = Quarantine(
        number("base_offset"),
        number("position"),
        number("end_position"),
        number("first_offset"),
        number("next_offset"),
        json_file.string(fields, "reason", path),
        None if fields.get("kept_in") is None else json_file.string(fields, "kept_in", path),
    )
    if (
        found.position > found.end_position
        or not found.base_offset <= found.first_offset <= found.next_offset
    ):
        raise InvalidFile(
            f"{path}: impossible range: bytes {found.position} to {found.end_position}, offsets"
            f" {found.first_offset} to {found.next_offset} in the segment at {found.base_offset}"
        )
    return found


def read_all(storage: Storage, directory: str, names: Iterable[str]) -> dict[str, Quarantine]:
    """Read all quarantines of a partition; return them by note name, in the order of their offsets.

    `names`: the files in its directory. Raises InvalidFile.
    """
    found = {}
    for name in names:
        if is_note(name):
            path = f"{directory}/{name}"
            found[name] = parse_note(storage.read_file(path, 1 << 16), path)
    return dict(sorted(found.items(), key=lambda item: item[1].first_offset))
