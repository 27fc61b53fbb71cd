"""Replace bytes of a segment: write a new file beside the old one, and rename it over the old one.

A crash leaves either the old or the new file, complete, and no index of the wrong one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kreplica.common.dataclass import dataclass, replace
from kreplica.log.file_names import INDEX_SUFFIX, LOG_SUFFIX, TEMPORARY_SUFFIX, TIME_INDEX_SUFFIX, file_name
from kreplica.log.quarantine import Quarantine, file_stem, format_note

if TYPE_CHECKING:
    from kreplica._core.region import Region
    from kreplica.common.ports import Storage

COPY_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Piece:
    """Batches of another replica: bytes [`position`, `end_position`) of its segment at `base_offset`."""

    path: str
    base_offset: int
    position: int
    end_position: int

    @property
    def size(self) -> int:
        return self.end_position - self.position


@dataclass(frozen=True, slots=True)
class Edit:
    """Replaces the bytes [`position`, `end_position`) of a segment by `replacement`, then the `pieces`.

    `quarantine`: the description of the replaced bytes, if they are to be kept.
    """

    position: int
    end_position: int
    replacement: bytes
    quarantine: Quarantine | None = None
    pieces: tuple[Piece, ...] = ()


def set_aside(storage: Storage, directory: str, found: Quarantine, region: Region) -> None:
    """Write the two files of a quarantine durably.

    `region`: the segment as it was found. Equal files of an earlier, interrupted repair are reused.
    """
    number = 0
    while True:
        stem = f"{directory}/{file_stem(found, number)}"
        note = format_note(found)
        if not storage.exists(stem + ".json"):
            break
        if storage.read_file(stem + ".json") == note and _holds(storage, stem, found, region):
            return
        number += 1
        kept_in = None if found.kept_in is None else file_stem(found, number)
        found = replace(found, kept_in=kept_in)
    if found.kept_in is not None:
        write_aside(storage, stem, _pieces(region, found.position, found.end_position))
        storage.rename(stem + TEMPORARY_SUFFIX, stem)
    storage.write_file_atomically(stem + ".json", note)


def _holds(storage: Storage, path: str, found: Quarantine, region: Region) -> bool:
    size = found.end_position - found.position
    if found.kept_in is None:
        return True
    if not storage.exists(path) or storage.size(path) != size:
        return False
    with storage.open_region(path, max(1, size), writable=False) as kept:
        return all(
            kept.read(at, min(COPY_BYTES, size - at))
            == region.read(found.position + at, min(COPY_BYTES, size - at))
            for at in range(0, size, COPY_BYTES)
        )


def rewrite(storage: Storage, directory: str, base_offset: int, edits: Sequence[Edit]) -> None:
    """Make the edits, in the order of their positions, in the segment at `base_offset`.

    Its indexes are removed; opening the log rebuilds them.
    """
    path = f"{directory}/{file_name(base_offset, LOG_SUFFIX)}"
    with storage.open_region(path, max(1, storage.size(path)), writable=False) as region:
        for edit in edits:
            if edit.quarantine is not None:
                set_aside(storage, directory, edit.quarantine, region)
        write_aside(storage, path, _edited(storage, region, edits))
    _replace(storage, directory, base_offset)


def add(storage: Storage, directory: str, piece: Piece) -> None:
    """Add a segment file of another replica to the log."""
    write_aside(storage, f"{directory}/{file_name(piece.base_offset, LOG_SUFFIX)}", _taken(storage, piece))
    _replace(storage, directory, piece.base_offset)


def _replace(storage: Storage, directory: str, base_offset: int) -> None:
    """Replace the segment by the file that was written aside."""
    path = f"{directory}/{file_name(base_offset, LOG_SUFFIX)}"
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        storage.remove(f"{directory}/{file_name(base_offset, suffix)}")
    storage.sync_directory(directory)
    storage.rename(path + TEMPORARY_SUFFIX, path)
    storage.sync_directory(directory)


def write_aside(storage: Storage, path: str, pieces: Iterator[bytes]) -> None:
    """Write the pieces to `path` + '.tmp' and flush it."""
    temporary = path + TEMPORARY_SUFFIX
    storage.write_file(temporary, b"")
    position = 0
    for piece in pieces:
        storage.write_at(temporary, position, piece)
        position += len(piece)
    storage.sync_file(temporary)


def _taken(storage: Storage, piece: Piece) -> Iterator[bytes]:
    with storage.open_region(piece.path, storage.size(piece.path), writable=False) as region:
        yield from _pieces(region, piece.position, piece.end_position)


def _edited(storage: Storage, region: Region, edits: Sequence[Edit]) -> Iterator[bytes]:
    position = 0
    for edit in edits:
        yield from _pieces(region, position, edit.position)
        yield edit.replacement
        for piece in edit.pieces:
            yield from _taken(storage, piece)
        position = edit.end_position
    yield from _pieces(region, position, region.length)


def _pieces(region: Region, position: int, end: int) -> Iterator[bytes]:
    for at in range(position, end, COPY_BYTES):
        yield region.read(at, min(COPY_BYTES, end - at))
