"""Replica: the leader's view of one follower of a partition, from the follower's fetches.

Owned by one Partition, which changes it under its `leader_isr_update_lock`. A reader without the lock may see
a fetch half recorded. Times are in ms on the monotonic clock, offsets are exclusive ends. NEVER_MS stands for
"never".
"""

from __future__ import annotations

from kreplica.common.types import NO_OFFSET

UNKNOWN_BROKER_EPOCH = -1
# Lower than any reading of a monotonic clock, which may start at 0.
NEVER_MS = -(1 << 62)


class FetchClock:
    """The times of a follower's fetches in one session.

    An incremental fetch names only partitions that changed (KIP-227); the others are fetched at their last
    offset too. So that an idle partition costs nothing, its Replica holds the session's clock and reads it
    when the log advances. The session's owner replaces the clock with the session.
    """

    __slots__ = ("last_fetch_time_ms", "previous_fetch_time_ms")

    def __init__(self, last_fetch_time_ms: int = NEVER_MS) -> None:
        self.last_fetch_time_ms = last_fetch_time_ms
        self.previous_fetch_time_ms = NEVER_MS

    def fetched(self, now_ms: int) -> None:
        """Record a fetch of the session."""
        if now_ms > self.last_fetch_time_ms:
            self.previous_fetch_time_ms, self.last_fetch_time_ms = self.last_fetch_time_ms, now_ms


class Replica:
    """One follower.

    `log_end_offset`, `log_start_offset`: the follower's, NO_OFFSET until it has fetched from this leader.
    `last_caught_up_time_ms`: the latest time at which it had everything that the leader had then.
    `broker_epoch`: of its last fetch, or UNKNOWN_BROKER_EPOCH. `fetched_in_epoch`: whether it has fetched in
    the current leader epoch. `diverged`: its last fetch was answered with a diverging epoch, so its content
    is unknown. `damaged`: it lacks a range of its log. `last_sent_high_watermark`: what was last sent to it
    outside of any session; a session remembers that itself.
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
        """Start a leader epoch at `leader_end_offset`.

        A leader keeps what it knew in earlier epochs of its own; a new leader knows nothing. An in-sync
        follower counts as caught up now, so that it has the whole lag time to fetch.
        """
        self.fetched_in_epoch = False
        self.diverged = False
        # The follower may have dropped the answer with the high watermark while its role changed.
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
        """Record a fetch from `fetch_offset` at `now_ms`, when the leader's log ended at `leader_end_offset`.

        The follower is caught up as of now if it has all of that, or as of its previous fetch if it has what
        the leader had then (KIP-16, KAFKA-1546).
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
            # A follower that has restarted reports again what it lacks.
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
        """Count the session's fetches that did not name the partition. Call it before the leader's log end
        advances.

        Those fetches were at `log_end_offset`, where the leader's log ended, so nothing was missing.
        """
        clock = self.fetch_clock
        if clock is not None and clock.last_fetch_time_ms > self.last_fetch_time_ms:
            self.last_fetch_time_ms = clock.last_fetch_time_ms
            self.last_fetch_leader_log_end_offset = self.log_end_offset
            if self.last_fetch_time_ms > self.last_caught_up_time_ms:
                self.last_caught_up_time_ms = self.last_fetch_time_ms

    @property
    def last_heard_time_ms(self) -> int:
        """When the follower last fetched, including fetches of its session that did not name the
        partition.
        """
        session = self.fetch_clock
        if session is None:
            return self.last_fetch_time_ms
        return max(self.last_fetch_time_ms, session.last_fetch_time_ms)

    def is_heard(self, now_ms: int, silence_ms: int) -> bool:
        """Return whether it has fetched recently.

        Fetches of its session that did not name the partition count. One fetch after a silence is not enough:
        it may have been sent before the silence. The next one follows this leader's answer.
        """
        fetches = self if self.fetch_clock is None else self.fetch_clock
        last_ms = fetches.last_fetch_time_ms
        return max(now_ms - last_ms, last_ms - fetches.previous_fetch_time_ms) <= silence_ms

    def asks_again(self, fetch_offset: int) -> bool:
        """Return whether its previous fetch was from the same offset, although there were records to take."""
        return self.log_end_offset == fetch_offset < self.last_fetch_leader_log_end_offset

    def is_caught_up(self, leader_end_offset: int, now_ms: int, max_lag_ms: int) -> bool:
        """Return whether it has everything that the leader has, or had it at most `max_lag_ms` ago."""
        return self.log_end_offset == leader_end_offset or now_ms - self.last_caught_up_time_ms <= max_lag_ms

    def __repr__(self) -> str:
        return f"Replica({self.broker_id}, log end {self.log_end_offset})"
