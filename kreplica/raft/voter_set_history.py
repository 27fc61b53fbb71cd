"""VoterSetHistory: which voters hold from which log offset on (KIP-853).

A set of voters takes effect when its record is in the log, committed or not. Truncating the log restores the
set before. Thread rule: the client's loop changes it; any thread may read the last value.
"""

from __future__ import annotations

from typing import NamedTuple

from kreplica.common.errors import InvalidRecord
from kreplica.raft.voter_set import VoterSet

# The offset of the configured set, which no record contains.
BEFORE_THE_LOG = -1


class VotersAt(NamedTuple):
    """A set of voters and the base offset of the batch with its record."""

    offset: int
    voters: VoterSet | None


class VoterSetHistory:
    """`configured`: the set that holds while the log has none."""

    def __init__(self, configured: VoterSet | None) -> None:
        self._entries = [VotersAt(BEFORE_THE_LOG, configured)]

    @property
    def last(self) -> VotersAt:
        """The current set."""
        return self._entries[-1]

    def at(self, offset: int) -> VotersAt:
        """Return the set in force at `offset`."""
        return next(entry for entry in reversed(self._entries) if entry.offset <= offset)

    def since(self, offset: int) -> list[VoterSet]:
        """Return the set in force at `offset` and all later ones."""
        committed = self.at(offset).offset
        return [
            entry.voters for entry in self._entries if entry.offset >= committed and entry.voters is not None
        ]

    def add_at(self, offset: int, voters: VoterSet) -> None:
        """Add the set of a record at `offset`.

        Raises InvalidRecord if a majority of the previous set and one of the new set need not share a voter:
        two leaders could be elected.
        """
        former = self.last
        if former.offset >= offset:
            raise InvalidRecord(f"voters at offset {offset}, but a later set is at {former.offset}")
        before = former.voters if former.offset > BEFORE_THE_LOG else None
        if before is not None and not before.has_overlapping_majority(voters):
            raise InvalidRecord(
                f"voters at offset {offset}: {voters!r} shares too few voters with {former.voters!r}"
            )
        self._entries.append(VotersAt(offset, voters))

    def begin_anew(self, offset: int, voters: VoterSet | None) -> None:
        """Replace all sets by that of a snapshot which ends after `offset`; keep the configured one if it is
        None.
        """
        del self._entries[1:]
        if voters is not None and offset == BEFORE_THE_LOG:
            self._entries[0] = VotersAt(offset, voters)
        elif voters is not None:
            self._entries.append(VotersAt(offset, voters))

    def truncate_new_entries(self, end_offset: int) -> None:
        """Forget the sets at `end_offset` and later: the log was truncated there."""
        while self._entries[-1].offset >= end_offset > BEFORE_THE_LOG and len(self._entries) > 1:
            self._entries.pop()
