"""VoterSetHistory: which voters hold from which offset of the log on (KIP-853).

A set of voters holds from the moment its record is in the log, committed or not; a cut of the log brings the
former one back. Thread rule: the client's loop changes it; the last value may be read from any thread.
"""

from __future__ import annotations

from typing import NamedTuple

from kreplica.common.errors import InvalidRecord
from kreplica.raft.voter_set import VoterSet

# Where a set stands that no record has brought: the configured one.
BEFORE_THE_LOG = -1


class VotersAt(NamedTuple):
    """A set of voters, and where the batch with its record begins."""

    offset: int
    voters: VoterSet | None


class VoterSetHistory:
    """`configured`: the set that holds where the log has none."""

    def __init__(self, configured: VoterSet | None) -> None:
        self._entries = [VotersAt(BEFORE_THE_LOG, configured)]

    @property
    def last(self) -> VotersAt:
        """The set that holds now."""
        return self._entries[-1]

    def at(self, offset: int) -> VotersAt:
        """The set that holds at `offset`."""
        return next(entry for entry in reversed(self._entries) if entry.offset <= offset)

    def since(self, offset: int) -> list[VoterSet]:
        """The set that holds at `offset`, and all later ones."""
        committed = self.at(offset).offset
        return [
            entry.voters for entry in self._entries if entry.offset >= committed and entry.voters is not None
        ]

    def add_at(self, offset: int, voters: VoterSet) -> None:
        """A record at `offset` brings other voters.

        Raises InvalidRecord where a majority of the former ones and one of these need not have a voter in
        common: two leaders could be elected.
        """
        former = self.last
        if former.offset >= offset:
            raise InvalidRecord(f"voters at {offset}, though some were set at {former.offset}")
        before = former.voters if former.offset > BEFORE_THE_LOG else None
        if before is not None and not before.has_overlapping_majority(voters):
            raise InvalidRecord(f"voters at {offset}: {voters!r} has too little of {former.voters!r}")
        self._entries.append(VotersAt(offset, voters))

    def begin_anew(self, offset: int, voters: VoterSet | None) -> None:
        """A snapshot that ends behind `offset` takes the place of all before; None where it has no voters."""
        del self._entries[1:]
        if voters is not None and offset == BEFORE_THE_LOG:
            self._entries[0] = VotersAt(offset, voters)
        elif voters is not None:
            self._entries.append(VotersAt(offset, voters))

    def truncate_new_entries(self, end_offset: int) -> None:
        """The log is cut: what stood at `end_offset` or later never was."""
        while self._entries[-1].offset >= end_offset > BEFORE_THE_LOG and len(self._entries) > 1:
            self._entries.pop()
