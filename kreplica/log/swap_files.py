"""The file names used while segments are replaced, and how to finish a replacement that a crash interrupted.

New segments replace older ones in four steps:

1. Write their files as `.cleaned`.
2. Rename them to `.swap`: the highest base offset first, the .log of the lowest one last.
3. Rename the files of the older segments to `.deleted`.
4. Remove the ending `.swap`.

Each step is on disk before the next one begins. So while a `.cleaned` file exists, the replacement is
incomplete and is dropped; otherwise it is finished. Kafka's cleaner uses the same names and rules.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from kreplica.log.file_names import (
    CLEANED_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    file_name,
    parse_file_name,
)

if TYPE_CHECKING:
    from kreplica.common.ports import Storage

    # Returns the offset after the last batch of the `.swap` segment at a base offset.
    EndOfSwap = Callable[[int], int]


class Listing:
    """The files in a log's directory.

    `all`: the names. `bases`: the base offsets of the segments in place.
    `complete`: the base offsets of complete replacements that are not in place yet, sorted.
    """

    __slots__ = ("all", "bases", "complete")

    def __init__(self, names: Iterable[str]) -> None:
        self.all = frozenset(names)
        self.bases = {base for base, suffix in self.marked("") if suffix == LOG_SUFFIX}
        self.complete: list[int] = []
        if any(name.endswith(SWAP_SUFFIX) for name in self.all):
            bound = self.bound
            logs = (base for base, suffix in self.marked(SWAP_SUFFIX) if suffix == LOG_SUFFIX)
            self.complete = sorted(base for base in logs if base < bound)

    def marked(self, ending: str) -> list[tuple[int, str]]:
        """Return (base offset, suffix) of the segment files with this ending."""
        found = (parse_file_name(name.removesuffix(ending)) for name in self.all if name.endswith(ending))
        return [file for file in found if file is not None]

    @property
    def bound(self) -> int:
        """The least base offset of an incomplete replacement; those at or above it are dropped."""
        return min((base for base, _ in self.marked(CLEANED_SUFFIX)), default=1 << 63)

    def logs(self, up_to: int) -> set[str]:
        """Return the current names of the .log files whose base offset is at most `up_to`."""
        return {
            file_name(base, suffix) + ending
            for ending in ("", SWAP_SUFFIX, CLEANED_SUFFIX)
            for base, suffix in self.marked(ending)
            if suffix == LOG_SUFFIX and base <= up_to
        }


def replaced_by(base_offset: int, bases: Collection[int], end_of_swap: EndOfSwap) -> set[int]:
    """Return the base offsets in `bases` whose segments the `.swap` at `base_offset` replaces."""
    end = max(end_of_swap(base_offset), base_offset + 1)
    return {base for base in bases if base_offset <= base < end}


def finish(storage: Storage, directory: str, names: Listing, end_of_swap: EndOfSwap) -> None:
    """Drop the incomplete replacements and put the complete ones in place.

    `names`: the files in the directory.
    """
    bound, swapped = names.bound, names.marked(SWAP_SUFFIX)
    for base, suffix in swapped:
        if base >= bound:
            storage.remove(f"{directory}/{file_name(base, suffix)}{SWAP_SUFFIX}")
    # Flush before the .cleaned files go: without one, a remaining .swap would count as complete.
    storage.sync_directory(directory)
    for base, suffix in names.marked(CLEANED_SUFFIX):
        storage.remove(f"{directory}/{file_name(base, suffix)}{CLEANED_SUFFIX}")
    for base in names.complete:
        for old in replaced_by(base, names.bases, end_of_swap):
            for suffix in reversed(SEGMENT_SUFFIXES):
                storage.remove(f"{directory}/{file_name(old, suffix)}")
    # A power cut must not bring back a replaced segment beside its replacement.
    storage.sync_directory(directory)
    left = [file for file in swapped if file[0] < bound]
    for base, suffix in sorted(left, key=lambda file: (file[0], -SEGMENT_SUFFIXES.index(file[1]))):
        path = f"{directory}/{file_name(base, suffix)}"
        storage.rename(path + SWAP_SUFFIX, path)
    storage.sync_directory(directory)
