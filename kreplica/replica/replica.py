"""Replica: a follower of a partition, as its leader knows it from the follower's fetches.

Owned by one Partition, which changes it under its `leader_isr_update_lock`; a look without the lock may see
one fetch half noted. Times are in ms on the monotonic clock, offsets are exclusive ends. A time that
has not come is NEVER_MS.
"""

from __future__ import annotations

from kreplica.common.types import NO_OFFSET

UNKNOWN_BROKER_EPOCH = -1
# Before every reading of a monotonic clock, which may begin at 0.
NEVER_MS = -(1 << 62)


class FetchClock:
    """When a follower's fetch session last fetched.

    An incremental fetch names only partitions that changed (KIP-227); those that it does not name are fetched
    at their last offset all the same. So that an idle partition costs nothing, its Replica holds the
    session's clock, and asks it when the log moves on. The session's owner replaces the clock with the
    session.
    """

    __slots__ = ("last_fetch_time_ms", "previous_fetch_time_ms")

    def __init__(self, last_fetch_time_ms: int = NEVER_MS) -> None:
        self.last_fetch_time_ms = last_fetch_time_ms
        self.previous_fetch_time_ms = NEVER_MS

    def fetched(self, now_ms: int) -> None:
        """The session fetches."""
        if now_ms > self.last_fetch_time_ms:
            self.previous_fetch_time_ms, self.last_fetch_time_ms = self.last_fetch_time_ms, now_ms


class Replica:
    """One follower.

    `log_end_offset`, `log_start_offset`: its own, NO_OFFSET until it has fetched from this leader.
    `last_caught_up_time_ms`: the latest moment at which it is known to have had all that the leader had then.
    `broker_epoch`: of its last fetch, or UNKNOWN_BROKER_EPOCH if that told none. `fetched_in_epoch`: whether
    it has fetched in the present leader epoch. `diverged`: its last fetch was answered with a diverging
    epoch, so what it has is not known. `damaged`: it is known to miss a range of its log.
    `last_sent_high_watermark`: what it was told outside of any session; a session knows by itself.
    """

    __slots__ = (
        "broker_epoch",
        "broker_id",
        "damaged",
        "diverged",
        "fetch_clock",
        "fetched_in_epoch",
        "last_caught_up_time_ms",
        "last_fetch_leader_log_end_offset",
        "last_fetch_time_ms",
        "last_sent_high_watermark",
        "log_end_offset",
        "log_start_offset",
        "previous_fetch_time_ms",
    )

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.log_end_offset = NO_OFFSET
        self.log_start_offset = NO_OFFSET
        self.last_fetch_leader_log_end_offset = NO_OFFSET
        self.last_fetch_time_ms = NEVER_MS
        self.previous_fetch_time_ms = NEVER_MS
        self.last_caught_up_time_ms = NEVER_MS
        self.broker_epoch = UNKNOWN_BROKER_EPOCH
        self.last_sent_high_watermark = NO_OFFSET
        self.fetched_in_epoch = False
        self.diverged = False
        self.damaged = False
        self.fetch_clock: FetchClock | None = None

    def reset_replica_state(
        self, now_ms: int, leader_end_offset: int, *, is_new_leader: bool, is_in_sync: bool
    ) -> None:
        """A leader epoch begins at `leader_end_offset`.

        What a broker knew of it as the leader before it keeps; one that has just become the leader knows
        nothing. An in-sync follower counts as caught up now, so that it has the whole lag to show itself.
        """
        self.fetched_in_epoch = False
        self.diverged = False
        # The follower may have dropped the answer that told it, while its role changed.
        self.last_sent_high_watermark = NO_OFFSET
        self.last_caught_up_time_ms = now_ms if is_in_sync else NEVER_MS
        self.previous_fetch_time_ms = NEVER_MS
        if is_new_leader:
            self.log_end_offset = NO_OFFSET
            self.log_start_offset = NO_OFFSET
            self.last_fetch_leader_log_end_offset = NO_OFFSET
            self.last_fetch_time_ms = NEVER_MS
            self.broker_epoch = UNKNOWN_BROKER_EPOCH
            self.damaged = False
            self.fetch_clock = None
        else:
            self.last_fetch_leader_log_end_offset = leader_end_offset
            self.last_fetch_time_ms = now_ms if is_in_sync else NEVER_MS

    def update_fetch_state(
        self,
        fetch_offset: int,
        log_start_offset: int,
        now_ms: int,
        leader_end_offset: int,
        broker_epoch: int,
    ) -> None:
        """The follower fetched from `fetch_offset` at `now_ms`, when the leader's log ended at
        `leader_end_offset`.

        It is caught up as of now if it has all of that; as of its fetch before if it has what the leader had
        then (KIP-16, KAFKA-1546).
        """
        if fetch_offset >= leader_end_offset:
            if now_ms > self.last_caught_up_time_ms:
                self.last_caught_up_time_ms = now_ms
        elif (
            fetch_offset >= self.last_fetch_leader_log_end_offset
            and self.last_fetch_time_ms > self.last_caught_up_time_ms
        ):
            self.last_caught_up_time_ms = self.last_fetch_time_ms
        if broker_epoch != self.broker_epoch:
            # One that was restarted tells anew of what it lacks.
            self.damaged = False
        self.log_end_offset = fetch_offset
        self.log_start_offset = log_start_offset
        if leader_end_offset > self.last_fetch_leader_log_end_offset:
            self.last_fetch_leader_log_end_offset = leader_end_offset
        if now_ms > self.last_fetch_time_ms:
            self.previous_fetch_time_ms, self.last_fetch_time_ms = self.last_fetch_time_ms, now_ms
        self.broker_epoch = broker_epoch
        self.fetched_in_epoch = True
        self.diverged = False

    def leader_moved_on(self) -> None:
        """The leader's log has ended at `log_end_offset` until now: the fetches that the session did not
        spell out were made at that offset, and found nothing missing."""
        clock = self.fetch_clock
        if clock is not None and clock.last_fetch_time_ms > self.last_fetch_time_ms:
            self.last_fetch_time_ms = clock.last_fetch_time_ms
            self.last_fetch_leader_log_end_offset = self.log_end_offset
            if self.last_fetch_time_ms > self.last_caught_up_time_ms:
                self.last_caught_up_time_ms = self.last_fetch_time_ms

    @property
    def last_heard_time_ms(self) -> int:
        """When the follower last fetched, counting fetches of its session that did not name the partition."""
        session = self.fetch_clock
        if session is None:
            return self.last_fetch_time_ms
        return max(self.last_fetch_time_ms, session.last_fetch_time_ms)

    def is_heard(self, now_ms: int, silence_ms: int) -> bool:
        """Whether it has fetched of late, whether its session spelled that out or not.

        One fetch after a silence is not enough: it may have been on its way since before the silence. The
        next one follows on this leader's answer.
        """
        fetches = self if self.fetch_clock is None else self.fetch_clock
        last_ms = fetches.last_fetch_time_ms
        return max(now_ms - last_ms, last_ms - fetches.previous_fetch_time_ms) <= silence_ms

    def asks_again(self, fetch_offset: int) -> bool:
        """Whether its fetch before was from there, too, and there were records for it to take."""
        return self.log_end_offset == fetch_offset < self.last_fetch_leader_log_end_offset

    def is_caught_up(self, leader_end_offset: int, now_ms: int, max_lag_ms: int) -> bool:
        """Whether it has all that the leader has, or had it no longer than `max_lag_ms` ago."""
        return self.log_end_offset == leader_end_offset or now_ms - self.last_caught_up_time_ms <= max_lag_ms

    def __repr__(self) -> str:
        return f"Replica({self.broker_id}, log end {self.log_end_offset})"
