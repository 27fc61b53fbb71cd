"""What a leader knows of its followers, and what is committed; contract and thread rule: leader_state.pxd."""

from libc.stdint cimport int64_t

from kreplica._core.append_job cimport publish_soon
from kreplica._core.fields cimport (
    CONFIG_MIN_ISR, LOG_CONFIG, LOG_DURABLE, LOG_LOCK, LOG_PRODUCERS, LOG_STATE, STATE_ISR, STATE_MAXIMAL_ISR,
)
from kreplica._core.log_lock cimport LogLock
from kreplica._core.log_state cimport LogState
from kreplica._core.open_transactions cimport OpenTransactions
from kreplica._core.purgatory cimport Watermark
from kreplica._core.region cimport kr_load_acquire

UNKNOWN_BROKER_EPOCH = -1
# Lower than any reading of a monotonic clock, which may start at 0.
NEVER_MS = -(1 << 62)

cdef int64_t NEVER = NEVER_MS
cdef int64_t NO_OFFSET = -1


cdef class FetchClock:
    """The times of a follower's fetches in one session, in ms on the monotonic clock.

    An incremental fetch names only partitions that changed (KIP-227); the others are fetched at their last offset
    too. So that an idle partition costs nothing, its Replica holds the session's clock and reads it when the log
    advances. The session's owner replaces the clock with the session.
    """

    def __init__(self, int64_t last_fetch_time_ms=NEVER):
        self.last_fetch_time_ms = last_fetch_time_ms
        self.previous_fetch_time_ms = NEVER

    def fetched(self, int64_t now_ms):
        """Record a fetch of the session."""
        if now_ms > self.last_fetch_time_ms:
            self.previous_fetch_time_ms = self.last_fetch_time_ms
            self.last_fetch_time_ms = now_ms


cdef class Replica:
    """A leader's view of one follower, from the follower's fetches.

    Times are in ms on the monotonic clock, or NEVER_MS; offsets are exclusive ends. `log_end_offset`,
    `log_start_offset`: the follower's, NO_OFFSET until it has fetched from this leader. `last_caught_up_time_ms`: the
    latest time at which it had everything that the leader had then. `broker_epoch`: of its last fetch, or
    UNKNOWN_BROKER_EPOCH. `fetched_in_epoch`: whether it has fetched in the current leader epoch. `diverged`: its last
    fetch was answered with a diverging epoch, so its content is unknown. `damaged`: it lacks a range of its log.
    `last_sent_high_watermark`: what was last sent to it outside of any session; a session remembers that itself.

    A reader without the partition's lock may see a fetch half recorded.
    """

    def __init__(self, int64_t broker_id):
        self.broker_id = broker_id
        self.log_end_offset = self.log_start_offset = NO_OFFSET
        self.last_fetch_leader_log_end_offset = NO_OFFSET
        self.last_fetch_time_ms = self.previous_fetch_time_ms = self.last_caught_up_time_ms = NEVER
        self.broker_epoch = UNKNOWN_BROKER_EPOCH
        self.last_sent_high_watermark = NO_OFFSET

    def reset_replica_state(self, int64_t now_ms, int64_t leader_end_offset, *, bint is_new_leader, bint is_in_sync):
        """Start a leader epoch at `leader_end_offset`.

        A leader keeps what it knew in earlier epochs of its own; a new leader knows nothing. An in-sync follower
        counts as caught up now, so that it has the whole lag time to fetch.
        """
        self.fetched_in_epoch = False
        self.diverged = False
        # The follower may have dropped the answer with the high watermark while its role changed.
        self.last_sent_high_watermark = NO_OFFSET
        self.last_caught_up_time_ms = now_ms if is_in_sync else NEVER
        self.previous_fetch_time_ms = NEVER
        if is_new_leader:
            self.log_end_offset = self.log_start_offset = NO_OFFSET
            self.last_fetch_leader_log_end_offset = NO_OFFSET
            self.last_fetch_time_ms = NEVER
            self.broker_epoch = UNKNOWN_BROKER_EPOCH
            self.damaged = False
            self.fetch_clock = None
        else:
            self.last_fetch_leader_log_end_offset = leader_end_offset
            self.last_fetch_time_ms = now_ms if is_in_sync else NEVER

    cpdef object update_fetch_state(self, int64_t fetch_offset, int64_t log_start_offset, int64_t now_ms,
                                    int64_t leader_end_offset, int64_t broker_epoch):
        """Record a fetch from `fetch_offset` at `now_ms`, when the leader's log ended at `leader_end_offset`.

        The follower is caught up as of now if it has all of that, or as of its previous fetch if it has what the
        leader had then (KIP-16, KAFKA-1546).
        """
        if fetch_offset >= leader_end_offset:
            if now_ms > self.last_caught_up_time_ms:
                self.last_caught_up_time_ms = now_ms
        elif (fetch_offset >= self.last_fetch_leader_log_end_offset
              and self.last_fetch_time_ms > self.last_caught_up_time_ms):
            self.last_caught_up_time_ms = self.last_fetch_time_ms
        if broker_epoch != self.broker_epoch:
            # A follower that has restarted reports again what it lacks.
            self.damaged = False
        self.log_end_offset = fetch_offset
        self.log_start_offset = log_start_offset
        if leader_end_offset > self.last_fetch_leader_log_end_offset:
            self.last_fetch_leader_log_end_offset = leader_end_offset
        if now_ms > self.last_fetch_time_ms:
            self.previous_fetch_time_ms = self.last_fetch_time_ms
            self.last_fetch_time_ms = now_ms
        self.broker_epoch = broker_epoch
        self.fetched_in_epoch = True
        self.diverged = False

    cpdef object leader_moved_on(self):
        """Count the session's fetches that did not name the partition. Call it before the leader's log end advances.

        Those fetches were at `log_end_offset`, where the leader's log ended, so nothing was missing.
        """
        cdef FetchClock clock = self.fetch_clock
        if clock is not None and clock.last_fetch_time_ms > self.last_fetch_time_ms:
            self.last_fetch_time_ms = clock.last_fetch_time_ms
            self.last_fetch_leader_log_end_offset = self.log_end_offset
            if self.last_fetch_time_ms > self.last_caught_up_time_ms:
                self.last_caught_up_time_ms = self.last_fetch_time_ms

    @property
    def last_heard_time_ms(self):
        """When the follower last fetched, including fetches of its session that did not name the partition."""
        if self.fetch_clock is None:
            return self.last_fetch_time_ms
        return max(self.last_fetch_time_ms, self.fetch_clock.last_fetch_time_ms)

    def is_heard(self, int64_t now_ms, int64_t silence_ms):
        """Return whether it has fetched recently.

        Fetches of its session that did not name the partition count. One fetch after a silence is not enough: it may
        have been sent before the silence. The next one follows this leader's answer.
        """
        cdef int64_t last_ms = self.last_fetch_time_ms
        cdef int64_t previous_ms = self.previous_fetch_time_ms
        if self.fetch_clock is not None:
            last_ms = self.fetch_clock.last_fetch_time_ms
            previous_ms = self.fetch_clock.previous_fetch_time_ms
        # The times are at least NEVER_MS, so that the differences stay in 64 bits.
        return max(now_ms - last_ms, last_ms - previous_ms) <= silence_ms

    cpdef bint asks_again(self, int64_t fetch_offset) except -1:
        """Return whether its previous fetch was from the same offset, although there were records to take."""
        return self.log_end_offset == fetch_offset < self.last_fetch_leader_log_end_offset

    def is_caught_up(self, int64_t leader_end_offset, int64_t now_ms, int64_t max_lag_ms):
        """Return whether it has everything that the leader has, or had it at most `max_lag_ms` ago."""
        return self.log_end_offset == leader_end_offset or now_ms - self.last_caught_up_time_ms <= max_lag_ms

    def __repr__(self):
        return f"Replica({self.broker_id}, log end {self.log_end_offset})"


cdef class Term:
    """One role of this broker in a partition. Only its watermark changes.

    `leads`: whether this broker is the leader. `epoch_start_offset`: where the leader epoch begins, None if it follows.
    `watermark`: what waiting produce requests watch; closed when this broker's leadership ends.
    """

    def __init__(self, int64_t leader, int64_t leader_epoch, *, log=None, epoch_start_offset=None,
                 Watermark watermark=None):
        self.leader = leader
        self.leader_epoch = leader_epoch
        self.leads = watermark is not None
        self.log = log
        self.epoch_start_offset = epoch_start_offset
        if watermark is None:
            watermark = Watermark()
            watermark.closed = True
        self.watermark = watermark


cdef class LeaderState:
    """The native part of a Partition: its role, its followers, and its high watermark.

    A subclass has `is_about_to_join(replica, now_ms)`, and `follower_log(leader_epoch)`, which raises the error of a
    broker that does not follow in that epoch.
    """

    cpdef int64_t least_in_sync(self) except -1:
        """Return min.insync.replicas, or the number of replicas if that is smaller; 0 unless this broker leads."""
        # Read the term once: the role may end at any moment.
        cdef Term term = self.term
        if not term.leads or term.log is None:
            return 0
        return min(<int64_t> CONFIG_MIN_ISR.of(LOG_CONFIG.of(term.log)), <int64_t> len(self.remote_replicas) + 1)

    @property
    def has_enough_in_sync(self):
        """Whether what is committed now is on min.insync.replicas replicas, including one that is about to join.

        It then survives the end of this broker's leadership.
        """
        return len(STATE_MAXIMAL_ISR.of(self.state)) >= self.least_in_sync()

    @property
    def is_under_min_isr(self):
        """Whether this broker leads with fewer replicas in sync than min.insync.replicas."""
        return len(STATE_ISR.of(self.state)) < self.least_in_sync()

    @property
    def is_at_min_isr(self):
        """Whether this broker leads with as many replicas in sync as min.insync.replicas."""
        return self.term.leads and len(STATE_ISR.of(self.state)) == self.least_in_sync()

    cpdef bint appended(self, object log, int64_t former_end) except -1:
        """Record that the log, which ended at `former_end`, has grown. Return whether the high watermark moved."""
        cdef Replica replica
        # Followers that had the whole log were in sync until this moment.
        for replica in self.remote_replicas:
            if replica.log_end_offset == former_end and replica.fetch_clock is not None:
                replica.leader_moved_on()
        return self.increment_high_watermark(log, None)

    cpdef bint increment_high_watermark(self, object log, object now_ms) except -1:
        """Move the high watermark to what all replicas that count have. Return whether it moved.

        `now_ms`: the time, None to read the clock if needed.
        """
        cdef LogState state = LOG_STATE.of(log)
        cdef int64_t offset = state.now.log_end_offset
        cdef Replica replica
        if LOG_DURABLE.of(log) and LOG_CONFIG.of(log).durability != "page_cache":
            # What the leader could lose in a power cut is not committed.
            offset = state.now.flush_offset
        for replica in self.watched_replicas:
            if replica.log_end_offset < offset:
                offset = replica.log_end_offset
        if offset <= state.now.high_watermark:
            return False
        for replica in self.unwatched_replicas:
            if replica.log_end_offset < offset and self.is_about_to_join(replica, now_ms):
                offset = replica.log_end_offset
        # It stands still below min.insync.replicas, for earlier appends too (KAFKA-15583).
        if offset <= state.now.high_watermark or self.is_under_min_isr:
            return False
        self.advance_high_watermark(log, offset)
        if not self.term.watermark.closed and offset > self.term.watermark.value:
            self.term.watermark.value = offset
        return True

    cpdef bint advance_high_watermark(self, object log, int64_t offset) except -1:
        """Move the log's high watermark up to `offset`. Return whether it moved."""
        cdef LogState state = LOG_STATE.of(log)
        cdef LogLock lock = LOG_LOCK.of(log)
        lock.enter()
        try:
            if offset <= state.now.high_watermark:
                return False
            if offset > kr_load_acquire(&state.now.log_end_offset):
                log.maybe_increment_high_watermark(offset)
            elif state.stable:
                # The usual case: no transaction is open, or completed and not replicated yet.
                state.advance(offset, offset)
            else:
                (<OpenTransactions?> LOG_PRODUCERS.of(log)).advance(state, offset)
        finally:
            lock.give()
        if state.unpublished:
            publish_soon(self.queue)
        return True

    cpdef bint update_follower_high_watermark(self, int64_t leader_high_watermark, int64_t leader_epoch) except -1:
        """Take over the leader's high watermark, up to the end of this log. Return whether it moved.

        It never goes back: a new leader may know of less, but what was committed stays committed.
        """
        cdef LogState state
        cdef Term term
        cdef int64_t end
        self.leader_isr_update_lock.acquire()
        try:
            term = self.term
            if term.leads or term.log is None or term.leader_epoch != leader_epoch:
                self.follower_log(leader_epoch)
            state = LOG_STATE.of(term.log)
            end = kr_load_acquire(&state.now.log_end_offset)
            return self.advance_high_watermark(term.log, min(leader_high_watermark, end))
        finally:
            self.leader_isr_update_lock.release()
