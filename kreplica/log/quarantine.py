"""Ranges of a log that rotted and were taken out of it, and the files beside it that know of them.

`kreplica repair` writes two files for each: `<base offset>.log.<position>.rot` has the bytes as they were
found (none for a range whose bytes are gone), and the same name with `.json` says which range that was. In
the log an empty batch stands for the range: its offsets are a gap as compaction leaves them, and readers pass
over it. The note is what tells such a gap from any other. The files are never changed; the note goes when the
range is filled again from another replica.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from kreplica.common import json_file
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

    Its bytes stood at [`position`, `end_position`) of that file; they are in `kept_in`, a name in the same
    directory, or None where there were none. [`first_offset`, `next_offset`) are the offsets that are lost.
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
    """Whether a file of this name says what a quarantine is."""
    return _NAME.fullmatch(name) is not None


def file_stem(found: Quarantine, number: int) -> str:
    """The name of the file with the bytes; `number` tells ranges apart that stood at the same place."""
    several = f".{number}" if number else ""
    return f"{file_name(found.base_offset, LOG_SUFFIX)}.{found.position}{several}{ROT_SUFFIX}"


def format_note(found: Quarantine) -> bytes:
    return json.dumps({"version": VERSION, **asdict(found)}, indent=1).encode() + b"\n"


def parse_note(data: bytes, path: str) -> Quarantine:
    """What a `.rot.json` file says. Raises InvalidFile."""
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
        raise InvalidFile(f"{path}: an impossible range")
    return found


def read_all(storage: Storage, directory: str, names: Iterable[str]) -> dict[str, Quarantine]:
    """The quarantines of a partition by the names of their notes, in the order of their offsets.

    `names`: what lies in its directory. Raises InvalidFile.
    """
    found = {}
    for name in names:
        if is_note(name):
            path = f"{directory}/{name}"
            found[name] = parse_note(storage.read_file(path, 1 << 16), path)
    return dict(sorted(found.items(), key=lambda item: item[1].first_offset))
