"""Compare two histories of leader epochs, as a follower and its leader do before the follower truncates."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from kreplica.log.checkpoint import EpochEntry
from kreplica.log.diff.report import EpochHistory
from kreplica.log.leader_epoch_file_cache import UNDEFINED, LeaderEpochFileCache

Known = tuple[LeaderEpochFileCache, int]


def compare_epochs(left: Known, right: Known, first_offset: int, end_offset: int) -> EpochHistory:
    """Compare two histories, each given as a cache and its log end, within [first_offset, end_offset).

    If a side has no entries, there is nothing to compare.
    """
    if not left[0].entries or not right[0].entries:
        return EpochHistory(None, None, None)
    agreed = _agreed(left, right)
    for a, b in zip_longest(*(_within(known[0], first_offset, end_offset) for known in (left, right))):
        if a != b:
            return EpochHistory(agreed, a, b)
    return EpochHistory(agreed, None, None)


def _agreed(left: Known, right: Known) -> EpochEntry | None:
    # The protocol of KIP-279: ask each side in turn for its greatest epoch not above the other's answer. The
    # epoch decreases until both agree.
    latest = [known[0].latest_epoch for known in (left, right)]
    epoch = min(each for each in latest if each is not None)
    asked, other = left, right
    while True:
        found, end = asked[0].end_offset_for(epoch, asked[1])
        if found == UNDEFINED.epoch:
            return None
        confirmed, other_end = other[0].end_offset_for(found, other[1])
        if confirmed == found:
            if asked[0].entry_for(found) is None or other[0].entry_for(found) is None:
                return None
            return EpochEntry(found, min(end, other_end))
        epoch, asked, other = confirmed, other, asked
        if epoch == UNDEFINED.epoch:
            return None


def _within(cache: LeaderEpochFileCache, first_offset: int, end_offset: int) -> Iterator[EpochEntry]:
    """Yield the entries of the offsets in [first_offset, end_offset), the first one clipped."""
    entries = cache.entries
    for index, entry in enumerate(entries):
        end = entries[index + 1].start_offset if index + 1 < len(entries) else end_offset
        if entry.start_offset < end_offset and end > first_offset:
            yield EpochEntry(entry.epoch, max(entry.start_offset, first_offset))
