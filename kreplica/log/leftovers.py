"""What a crash left in a log's directory: of a deletion, a cleaning, or a file that was being written.

Only the log's writer tidies, before it opens a segment.
"""

from __future__ import annotations

from collections.abc import Container

from kreplica.common.errors import InvalidFile
from kreplica.log import swap_files
from kreplica.log.file_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    STATE_FILE,
    SWAP_SUFFIX,
    TEMPORARY_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    parse_file_name,
)
from kreplica.log.local_log import LocalLog


def tidied(local: LocalLog, names: list[str]) -> list[str]:
    """Finish or drop what was left half done; `names`: what lies in the directory. Returns what lies there
    then."""
    gone = [n for n in names if n.endswith((DELETED_SUFFIX, TEMPORARY_SUFFIX)) and n != STATE_FILE]
    for name in gone:
        local.storage.remove(f"{local.directory}/{name}")
    if any(name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX)) for name in names):
        swap_files.finish(local, swap_files.Listing(names))
        return local.storage.list_directory(local.directory)
    return [name for name in names if name not in gone]


def remove_orphans(local: LocalLog, names: list[str], bases: set[int]) -> None:
    """Remove the indexes of segments that are not there; `bases`: the base offsets of those that are."""
    for name in names:
        found = parse_file_name(name)
        if (
            found
            and found[0] not in bases
            and found[1] in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
        ):
            local.storage.remove(f"{local.directory}/{name}")


def first_torn(local: LocalLog, first: int, bases: Container[int], unreadable: list[str]) -> int:
    """The segment to scan from: `first`, or one before it whose transaction index has to be made anew.

    `bases`: the base offsets of segments that have one. Why it has to be goes to `unreadable`.
    """
    for index, segment in enumerate(list(local.segments)[:first]):
        if segment.base_offset in bases and not local.read_only:
            try:
                local.transaction_index(segment).sanity_check()
            except InvalidFile as error:
                unreadable.append(str(error))
                return index
    return first
