"""The names that a segment's replacement goes through, and what a crash in the middle of it has left.

Segments replace older ones in four steps: their files are written as `.cleaned`; renamed to `.swap`, the
highest base offset first and the lowest one's log last; the older ones' files are renamed to `.deleted`; and
`.swap` is taken off. Each step is on disk before the next one begins. So as long as a `.cleaned` is there,
the replacement counts for nothing, and without one it counts and is finished. Kafka's cleaner leaves the
same.
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
    """What lies in a log's directory.

    `all`: the names. `bases`: the base offsets of the segments in place; `complete`: of those that stand for
    older ones already, though they are not in place yet, sorted.
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
        """(base offset, suffix) of the segments' files that bear the ending."""
        found = (parse_file_name(name.removesuffix(ending)) for name in self.all if name.endswith(ending))
        return [file for file in found if file is not None]

    @property
    def bound(self) -> int:
        """A replacement at this base offset or above had begun and was not complete."""
        return min((base for base, _ in self.marked(CLEANED_SUFFIX)), default=1 << 63)

    def logs(self, up_to: int) -> set[str]:
        """The segments' logs with base offsets of at most `up_to`, under the names they have."""
        return {
            file_name(base, suffix) + ending
            for ending in ("", SWAP_SUFFIX, CLEANED_SUFFIX)
            for base, suffix in self.marked(ending)
            if suffix == LOG_SUFFIX and base <= up_to
        }


def replaced_by(base_offset: int, bases: Collection[int], end_of_swap: EndOfSwap) -> set[int]:
    """Return those of `bases` whose segments the `.swap` at `base_offset` replaces."""
    end = max(end_of_swap(base_offset), base_offset + 1)
    return {base for base in bases if base_offset <= base < end}


def finish(storage: Storage, directory: str, names: Listing, end_of_swap: EndOfSwap) -> None:
    """Drop the replacements that were not complete and put the others in place.

    `names`: the files in the directory.
    """
    bound, swapped = names.bound, names.marked(SWAP_SUFFIX)
    for base, suffix in swapped:
        if base >= bound:
            storage.remove(f"{directory}/{file_name(base, suffix)}{SWAP_SUFFIX}")
    # Without a .cleaned beside it a .swap would count.
    storage.sync_directory(directory)
    for base, suffix in names.marked(CLEANED_SUFFIX):
        storage.remove(f"{directory}/{file_name(base, suffix)}{CLEANED_SUFFIX}")
    for base in names.complete:
        for old in replaced_by(base, names.bases, end_of_swap):
            for suffix in reversed(SEGMENT_SUFFIXES):
                storage.remove(f"{directory}/{file_name(old, suffix)}")
    # A power cut must not bring one of them back beside what stands for it.
    storage.sync_directory(directory)
    left = [file for file in swapped if file[0] < bound]
    for base, suffix in sorted(left, key=lambda file: (file[0], -SEGMENT_SUFFIXES.index(file[1]))):
        path = f"{directory}/{file_name(base, suffix)}"
        storage.rename(path + SWAP_SUFFIX, path)
    storage.sync_directory(directory)
