"""Finishing what a crash in the middle of a segment's replacement left behind.

A cleaned or split segment replaces older ones in three steps: its files are written as `.cleaned`, renamed to
`.swap` (from then on the replacement is complete and wins), the older files are removed, and `.swap` is taken
off. So a `.cleaned` file is thrown away, and a `.swap` file is put in place, with the older segments of its
range removed.
"""

from __future__ import annotations

from kreplica._core.log_segment import LogSegment
from kreplica._core.offset_index import OffsetIndex
from kreplica._core.time_index import TimeIndex
from kreplica.log.file_names import LOG_SUFFIX, SEGMENT_SUFFIXES, SWAP_SUFFIX, file_name, parse_file_name
from kreplica.log.local_log import LocalLog, empty_region


def complete(local: LocalLog, names: list[str]) -> None:
    """Put every complete `.swap` segment in place; `names`: what lies in the directory.

    Files of an index without its log are removed: an index is rebuilt, never trusted.
    """
    storage, directory = local.storage, local.directory
    replaced = _replaced(local, names)
    for base in sorted(replaced):
        for old in replaced[base]:
            for suffix in SEGMENT_SUFFIXES:
                storage.remove(f"{directory}/{file_name(old, suffix)}")
        for suffix in reversed(SEGMENT_SUFFIXES):
            path = f"{directory}/{file_name(base, suffix)}"
            if storage.exists(path + SWAP_SUFFIX):
                storage.rename(path + SWAP_SUFFIX, path)
    for name in names:
        if name.endswith(SWAP_SUFFIX) and storage.exists(f"{directory}/{name}"):
            storage.remove(f"{directory}/{name}")
    storage.sync_directory(directory)


def _replaced(local: LocalLog, names: list[str]) -> dict[int, list[int]]:
    # For each swapped segment, the older ones whose base offsets lie in its range.
    replaced: dict[int, list[int]] = {}
    bases = [found[0] for found in map(parse_file_name, names) if found and found[1] == LOG_SUFFIX]
    for name in names:
        found = parse_file_name(name.removesuffix(SWAP_SUFFIX)) if name.endswith(SWAP_SUFFIX) else None
        if found and found[1] == LOG_SUFFIX:
            end = _end_of_swap(local, found[0])
            replaced[found[0]] = [base for base in bases if found[0] <= base < end]
    return replaced


def _end_of_swap(local: LocalLog, base_offset: int) -> int:
    # The offset after the last batch of a segment whose files still carry the suffix .swap.
    path = local.path(base_offset, LOG_SUFFIX) + SWAP_SUFFIX
    region = local.storage.open_region(path, local.storage.size(path), writable=False)
    try:
        segment = LogSegment(
            region,
            OffsetIndex(empty_region(path), base_offset, 0),
            TimeIndex(empty_region(path), base_offset, 0),
            base_offset,
        )
        end = segment.next_offset()
        return base_offset if end is None else end
    finally:
        region.close()
