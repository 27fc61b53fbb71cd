"""Finishing what a crash in the middle of a segment's replacement left behind.

A cleaned or split segment replaces older ones in three steps: its files are written as `.cleaned`, renamed to
`.swap` (from then on the replacement is complete and wins), the older files are removed, and `.swap` is taken
off. So a `.cleaned` file is thrown away, and a `.swap` file is put in place, with the older segments of its
range removed.
"""

from __future__ import annotations

from kreplica.common.ports import Storage
from kreplica.log.file_names import LOG_SUFFIX, SEGMENT_SUFFIXES, SWAP_SUFFIX, file_name, parse_file_name


def complete(storage: Storage, directory: str, names: list[str], replaced: dict[int, list[int]]) -> None:
    """Put every complete `.swap` segment in place.

    `replaced` tells, for the base offset of a swapped segment, the base offsets of the segments it stands
    for. Files of an index without its log are removed: an index is rebuilt, never trusted.
    """
    swapped = {
        found[0]
        for found in (
            parse_file_name(name.removesuffix(SWAP_SUFFIX)) for name in names if name.endswith(SWAP_SUFFIX)
        )
        if found and found[1] == LOG_SUFFIX
    }
    for base in sorted(swapped):
        for old in replaced.get(base, []):
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
