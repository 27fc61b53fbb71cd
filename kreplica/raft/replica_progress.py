"""ReplicaProgress: what a leader knows about one voter or observer. The client's loop owns it."""

from __future__ import annotations

from kreplica.raft.voter_set import ReplicaKey

NOT_KNOWN = -1


class ReplicaProgress:
    """`end_offset`: the replica has all records below on disk, according to its last fetch; -1 before the
    first.

    Times are in ms of the monotonic clock, `...date_ms` in ms since 1970; -1 for never.
    """

    __slots__ = (
        *("begin_due_ms", "caught_up_date_ms", "caught_up_ms", "end_offset", "fetch_date_ms", "fetch_ms"),
        *("has_acknowledged", "key", "leader_end_at_fetch", "sent_high_watermark"),
    )

    def __init__(self, key: ReplicaKey) -> None:
        self.key = key
        self.end_offset = NOT_KNOWN
        self.fetch_ms = NOT_KNOWN
        self.fetch_date_ms = NOT_KNOWN
        self.caught_up_ms = NOT_KNOWN
        self.caught_up_date_ms = NOT_KNOWN
        # The leader's log end at the last fetch. A replica that has reached it by the next fetch was caught
        # up then.
        self.leader_end_at_fetch = NOT_KNOWN
        # Whether the replica knows the leader: it has answered BeginQuorumEpoch or fetched.
        self.has_acknowledged = False
        # When the leader is next announced to the replica.
        self.begin_due_ms = 0
        self.sent_high_watermark = NOT_KNOWN

    def note_fetch(self, offset: int, leader_end: int, now_ms: int, date_ms: int) -> None:
        """Record a fetch at `offset`. A lower offset than before is accepted: a replaced disk has less."""
        if offset >= leader_end:
            self.caught_up_ms, self.caught_up_date_ms = now_ms, date_ms
        elif self.leader_end_at_fetch != NOT_KNOWN and offset >= self.leader_end_at_fetch:
            self.caught_up_ms, self.caught_up_date_ms = self.fetch_ms, self.fetch_date_ms
        self.end_offset = offset
        self.note_contact(now_ms, date_ms)
        self.leader_end_at_fetch = leader_end

    def note_contact(self, now_ms: int, date_ms: int) -> None:
        """Record a request from the replica."""
        self.fetch_ms, self.fetch_date_ms = now_ms, date_ms
        self.has_acknowledged = True
