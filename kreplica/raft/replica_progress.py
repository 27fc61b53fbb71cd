"""ReplicaProgress: what a leader knows of one replica, a voter or an observer. The client's loop owns it."""

from __future__ import annotations

from kreplica.raft.voter_set import ReplicaKey

NOT_KNOWN = -1


class ReplicaProgress:
    """`end_offset`: all below is on the replica's disk, as its last fetch said; -1 before the first one.

    Moments are in ms of the monotonic clock, `...date_ms` in ms since 1970; -1 for never.
    """

    __slots__ = (
        *("begin_due_ms", "caught_up_date_ms", "caught_up_ms", "end_offset", "fetch_date_ms", "fetch_ms"),
        *("has_acknowledged", "key", "leader_end_at_fetch", "told_high_watermark"),
    )

    def __init__(self, key: ReplicaKey) -> None:
        self.key = key
        self.end_offset = NOT_KNOWN
        self.fetch_ms = NOT_KNOWN
        self.fetch_date_ms = NOT_KNOWN
        self.caught_up_ms = NOT_KNOWN
        self.caught_up_date_ms = NOT_KNOWN
        # The leader's log end at the last fetch: who has reached it by the next one was caught up then.
        self.leader_end_at_fetch = NOT_KNOWN
        # Whether it knows who leads: it has answered BeginQuorumEpoch, or fetched.
        self.has_acknowledged = False
        # When it is to be told (again) who leads.
        self.begin_due_ms = 0
        self.told_high_watermark = NOT_KNOWN

    def note_fetch(self, offset: int, leader_end: int, now_ms: int, date_ms: int) -> None:
        """A fetch at `offset` has come. A lower one than before is believed: a wiped disk has less."""
        if offset >= leader_end:
            self.caught_up_ms, self.caught_up_date_ms = now_ms, date_ms
        elif self.leader_end_at_fetch != NOT_KNOWN and offset >= self.leader_end_at_fetch:
            self.caught_up_ms, self.caught_up_date_ms = self.fetch_ms, self.fetch_date_ms
        self.end_offset = offset
        self.note_contact(now_ms, date_ms)
        self.leader_end_at_fetch = leader_end

    def note_contact(self, now_ms: int, date_ms: int) -> None:
        """It has asked for something."""
        self.fetch_ms, self.fetch_date_ms = now_ms, date_ms
        self.has_acknowledged = True
