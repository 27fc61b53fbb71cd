"""What a crash left in a log's directory: of a deletion, a cleaning, or a file that was being written.

Only the log's writer tidies, before it opens a segment.
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
    """Finish or drop what was left half done; `names`: what lies in the directory. Returns what lies there
    then."""
    gone = [n for n in names if n.endswith((DELETED_SUFFIX, TEMPORARY_SUFFIX)) and n != STATE_FILE]
    for name in gone:
        local.storage.remove(f"{local.directory}/{name}")
    if any(name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX)) for name in names):
        swap_files.finish(local.storage, local.directory, swap_files.Listing(names), local.end_of_swap)
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


def drop_strays(local: LocalLog, tail: LogTail, standing: LogStanding | None, *, is_current: bool) -> None:
    """Take segments out of the log that were begun below its end, and never became part of it.

    A roll that failed, or another program, leaves such files. Where the log ends is told by the records
    before them; to believe the files would cost those. `standing`: where the log's writer said that it
    stands; `is_current`: no power cut has come in between. Then a stray that has bytes is known, too, and
    they are kept aside.
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
    """Whether the records of these segments go on above `base`, and up to `following` if that is given."""
    filled = next((segment for segment in reversed(segments) if segment.size), None)
    try:
        end = None if filled is None else filled.next_offset()
    except CorruptMessage:
        return False
    return end is not None and end > base and (following is None or end >= following)


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
