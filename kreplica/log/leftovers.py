"""Clean up what a crash left in a log's directory: files of unfinished deletions, cleanings and writes.

Only the log's writer does so, before it opens a segment.
"""

from __future__ import annotations

from collections.abc import Container

from kreplica._core.log_segment import LogSegment
from kreplica._core.log_state import LogStanding
from kreplica.common.errors import CorruptMessage, InvalidFile
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
from kreplica.log.log_tail import LogTail, only_zeros


def tidied(local: LocalLog, names: list[str]) -> list[str]:
    """Finish or undo the interrupted changes among `names`, the files in the directory.

    Returns the files that are there afterwards.
    """
    gone = [n for n in names if n.endswith((DELETED_SUFFIX, TEMPORARY_SUFFIX)) and n != STATE_FILE]
    for name in gone:
        local.storage.remove(f"{local.directory}/{name}")
    if any(name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX)) for name in names):
        swap_files.finish(local.storage, local.directory, swap_files.Listing(names), local.end_of_swap)
        return local.storage.list_directory(local.directory)
    return [name for name in names if name not in gone]


def remove_orphans(local: LocalLog, names: list[str], bases: set[int]) -> None:
    """Remove indexes without a segment. `bases`: the base offsets of the existing segments."""
    for name in names:
        found = parse_file_name(name)
        if (
            found
            and found[0] not in bases
            and found[1] in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
        ):
            local.storage.remove(f"{local.directory}/{name}")


def drop_strays(local: LocalLog, tail: LogTail, standing: LogStanding | None, *, is_current: bool) -> None:
    """Remove stray segments: files that begin below the log end and never became part of the log.

    A failed roll, or another program, leaves such files. The records before them decide where the log ends;
    trusting the files would lose those records.

    `standing`: the state that the log's writer published.
    `is_current`: no power cut has come in between. Then even a stray with bytes can be recognized; its bytes
    are kept aside.
    """
    segments = list(local.segments)
    last_base = -1 if standing is None else standing.active_base_offset
    following: int | None = None
    for index in range(len(segments) - 1, 0, -1):
        segment = segments[index]
        base = segment.base_offset
        if standing is not None and is_current and last_base < base < standing.log_end_offset:
            tail.drop_from(segments[: index + 1], index, "the log's writer never began this segment")
        elif base != last_base and only_zeros(segment, 0) and _covers(segments[:index], base, following):
            tail.drop_from(segments[: index + 1], index, "begun below the end of the segment before")
        else:
            following = base


def _covers(segments: list[LogSegment], base: int, following: int | None) -> bool:
    """Return whether the records of these segments extend above `base`, and up to `following` if given."""
    filled = next((segment for segment in reversed(segments) if segment.size), None)
    try:
        end = None if filled is None else filled.next_offset()
    except CorruptMessage:
        return False
    return end is not None and end > base and (following is None or end >= following)


def first_torn(local: LocalLog, first: int, bases: Container[int], unreadable: list[str]) -> int:
    """Return the index of the segment to scan from: `first`, or an earlier one with a bad transaction index.

    The scan rebuilds that index. `bases`: the base offsets of segments with a transaction index. The reason
    is added to `unreadable`.
    """
    for index, segment in enumerate(list(local.segments)[:first]):
        if segment.base_offset in bases and not local.read_only:
            try:
                local.transaction_index(segment).sanity_check()
            except InvalidFile as error:
                unreadable.append(str(error))
                return index
    return first
