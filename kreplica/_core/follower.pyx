"""A follower's partitions and its fetch session with one leader; what it takes natively, contract: follower.pxd."""

from libc.stdint cimport INT32_MAX, int32_t, int64_t

from kreplica._core.append_job cimport RunJob, go_on, take_back
from kreplica._core.disk_thread cimport DiskJob
from kreplica._core.fetch_frames cimport PartitionAnswer, SessionFetch
from kreplica._core.fields cimport (
    EPOCH_ENTRIES, LOG_ACTIVE, LOG_DURABLE, LOG_EPOCHS, LOG_LEADER_EPOCH, LOG_LOCK, LOG_PLAIN, LOG_PRODUCERS, LOG_STATE,
    PLAIN_KEYED_EPOCH, QUEUE_ASIDE, QUEUE_DISK, QUEUE_IN_FLIGHT, QUEUE_LANE, QUEUE_LOG, QUEUE_RETURNED, QUEUE_WAITING,
)
from kreplica._core.follower_append cimport has_transactions
from kreplica._core.leader_state cimport LeaderState, Term
from kreplica._core.log_lock cimport LogLock
from kreplica._core.log_state cimport LogState
from kreplica._core.producer_table cimport ProducerTable
from kreplica._core.region cimport kr_load_acquire
from kreplica._core.status cimport OK

# The names of the reasons to decline a partition's answer, in the order of follower.pxd.
PARTITIONS_DECLINED = (
    "role", "log end", "standstill", "quota", "durability", "busy", "log start", "epoch", "core",
)
assert len(PARTITIONS_DECLINED) == FOLLOWER_DECLINES

cdef enum:
    # Session id 0: no session. Epoch 0 asks for a new session.
    NO_SESSION = 0
    INITIAL_EPOCH = 0


cdef class FollowedPartition:
    """The state of one partition that a fetcher copies.

    `fetch_offset`: where its next fetch begins. `last_fetched_epoch`: of the record before that, -1 if the log does not
    know it. `delayed_until_ms`: when it may be fetched again after an error; 0 for now. `is_truncating`: the fetcher is
    to find where the logs diverge before it fetches. `is_appending`: records of the last answer are not in the log yet.
    `standstill`: what its fetcher notes about failures, or None. After a change call `Follower.put`.
    """

    def __init__(self, topic_partition not None, topic_id not None, int64_t fetch_offset, int32_t leader_epoch, *,
                 int32_t last_fetched_epoch=-1, bint is_truncating=False):
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.id = (topic_id.raw, topic_partition.partition)
        self.fetch_offset = fetch_offset
        self.leader_epoch = leader_epoch
        self.last_fetched_epoch = last_fetched_epoch
        self.is_truncating = is_truncating
        self.known_lag = -1

    @property
    def lag(self):
        """How many messages it is behind the leader's high watermark; None before the first answer."""
        return None if self.known_lag < 0 else self.known_lag

    @lag.setter
    def lag(self, int64_t lag):
        self.known_lag = lag

    @property
    def is_in_sync(self):
        """Whether it had all committed records at the last answer."""
        return self.known_lag == 0

    def __repr__(self):
        return f"FollowedPartition({self.topic_partition}, offset {self.fetch_offset}, epoch {self.leader_epoch})"


cdef int keep(dict those, FollowedPartition state, bint belongs) except -1:
    if belongs:
        those[state] = None
    elif those:
        those.pop(state, None)
    return 0


cdef class Follower:
    """The partitions of `owner`, a ReplicaFetcher, which guards them with `lock`; and their fetch session.

    `hosted(topic_partition)`: returns the Partition, or None. `inline`: the disk that makes appends in the caller's
    turn.

    `by_partition` is ordered by the time of the last `put`, oldest first, so that no partition starves. `truncating`,
    `out_of_range`, `delayed`, `held_back`: ordered sets of states, which are not fetched. `moved`: partitions whose log
    or high watermark has moved; the owner takes them away. `appending`: how many appends are not finished.

    The cost of a fetch depends on the changes, not on the number of partitions.
    """

    def __init__(self, owner, lock, hosted, inline):
        self.owner = owner
        self.lock = lock
        self.hosted = hosted
        self.inline = inline
        self.by_partition = {}
        self.by_id = {}
        self.changed = {}
        self.truncating = {}
        self.out_of_range = {}
        self.delayed = {}
        self.held_back = {}
        self.gone = {}
        self.moved = []
        self.session_id = NO_SESSION
        self.session_epoch = INITIAL_EPOCH

    def __len__(self):
        return len(self.by_partition)

    def declined(self, int reason):
        """Return how many partitions' answers were declined for a reason, an index into PARTITIONS_DECLINED."""
        if not 0 <= reason < FOLLOWER_DECLINES:
            raise IndexError(reason)
        return self.declines[reason]

    # ---- the partitions ---------------------------------------------------------------------------------------

    def add(self, FollowedPartition state not None):
        """Copy the partition, from now on in this state."""
        cdef FollowedPartition former
        self.forget(state.topic_partition)
        former = self.gone.pop(state.id, None)
        if former is not None:
            state.is_sent, state.is_named_again = True, former.is_named_again
            state.sent_offset, state.sent_log_start = former.sent_offset, former.sent_log_start
            state.sent_leader_epoch, state.sent_last_epoch = former.sent_leader_epoch, former.sent_last_epoch
        self.by_id[state.id] = state
        self.put(state)

    cpdef object put(self, FollowedPartition state):
        """Take over a change of the partition's state."""
        self.by_partition.pop(state.topic_partition, None)
        self.by_partition[state.topic_partition] = state
        self.changed[state] = None
        keep(self.truncating, state, state.is_truncating)
        keep(self.delayed, state, state.delayed_until_ms > 0)

    def forget(self, topic_partition):
        """Stop copying the partition. Return its state, or None if it was unknown."""
        cdef FollowedPartition state = self.by_partition.pop(topic_partition, None)
        if state is None:
            return None
        for those in (self.changed, self.truncating, self.out_of_range, self.delayed, self.held_back):
            those.pop(state, None)
        del self.by_id[state.id]
        if state.is_sent:
            self.gone[state.id] = state
        return state

    def end_delays(self, int64_t now_ms):
        """Resume the partitions whose delay has passed."""
        cdef FollowedPartition state
        for state in list(self.delayed):
            if state.delayed_until_ms <= now_ms:
                state.delayed_until_ms = 0
                self.put(state)

    def first_delay_ends_ms(self):
        """Return when the next delay ends. There must be one."""
        return min([state.delayed_until_ms for state in self.delayed])

    def hold_back(self, quota):
        """Record which throttled partitions that are out of sync must wait now (KIP-73)."""
        cdef FollowedPartition state
        for state in list(self.held_back):
            if not quota.holds_back(state.topic_partition, is_in_sync=state.is_in_sync):
                del self.held_back[state]
                self.changed[state] = None
        if quota.is_active:
            for state in self.by_partition.values():
                if quota.holds_back(state.topic_partition, is_in_sync=state.is_in_sync):
                    self.held_back[state] = None

    cdef LeaderState partition_of(self, FollowedPartition state):
        cdef LeaderState partition = state.partition
        if partition is None or partition.term.log is None:
            partition = state.partition = self.hosted(state.topic_partition)
        return partition

    # ---- fetches ----------------------------------------------------------------------------------------------

    def next_fetch(self):
        """Return the next fetch, a SessionFetch, which names what has changed; None if there is nothing to fetch.

        The leader has the returned changes from now on, unless `failed` is called.
        """
        cdef dict out = self.left_out()
        cdef dict asked = {}
        cdef dict forgotten = {}
        cdef FollowedPartition state
        cdef bint is_new = self.session_epoch == INITIAL_EPOCH
        if len(out) >= len(self.by_partition):
            return None
        if is_new:
            self.gone.clear()
            for state in self.by_partition.values():
                state.is_sent = state.is_named_again = False
        for state in (self.by_partition.values() if is_new else self.changed):
            if state not in out:
                self.name(state, asked)
        for state in (*self.gone.values(), *out):
            if state.is_sent:
                state.is_sent = False
                forgotten.setdefault(state.id[0], []).append(state.id[1])
        self.changed.clear()
        self.gone.clear()
        return SessionFetch(self.session_id, self.session_epoch, asked, forgotten)

    cdef dict left_out(self):
        # The partitions that cannot be fetched now.
        if not (self.truncating or self.out_of_range or self.delayed or self.held_back):
            return {}
        return {**self.truncating, **self.out_of_range, **self.delayed, **self.held_back}

    cdef int name(self, FollowedPartition state, dict asked) except -1:
        # Add the partition to `asked` if the leader does not have its state.
        cdef LeaderState partition = self.partition_of(state)
        cdef LogState log_state
        cdef int64_t log_start
        if partition is None or partition.term.log is None:
            return 0
        log_state = partition.term.log.state
        log_start = log_state.now.log_start_offset
        if (state.is_sent and not state.is_named_again and state.sent_offset == state.fetch_offset
                and state.sent_log_start == log_start and state.sent_leader_epoch == state.leader_epoch
                and state.sent_last_epoch == state.last_fetched_epoch):
            return 0
        state.is_sent = True
        state.is_named_again = False
        state.sent_offset = state.fetch_offset
        state.sent_log_start = log_start
        state.sent_leader_epoch = state.leader_epoch
        state.sent_last_epoch = state.last_fetched_epoch
        asked.setdefault(state.id[0], []).append(
            (state.id[1], state.fetch_offset, log_start, state.leader_epoch, state.last_fetched_epoch))
        return 0

    def name_again(self, FollowedPartition state not None):
        """Name the partition in the next fetch even if it has not changed.

        The leader's answer could not be used, and the leader would not send it again otherwise.
        """
        state.is_named_again = True

    def answered(self, int32_t session_id):
        """Take over the session of the leader's answer; 0 if the leader has given none."""
        if session_id == NO_SESSION:
            self.session_id, self.session_epoch = NO_SESSION, INITIAL_EPOCH
        elif session_id != self.session_id:
            self.session_id, self.session_epoch = session_id, 1
        else:
            self.session_epoch = 1 if self.session_epoch == INT32_MAX else self.session_epoch + 1

    def failed(self, *, bint is_unknown):
        """Start a new session: the fetch was lost or rejected, so the leader's state is unknown.

        `is_unknown`: the leader does not know the session. Otherwise the next request ends it.
        """
        if is_unknown:
            self.session_id = NO_SESSION
        self.session_epoch = INITIAL_EPOCH

    # ---- answers ----------------------------------------------------------------------------------------------

    def take(self, list answers not None, int64_t begin, int64_t most):
        """Apply up to `most` answers from answers[begin] on; return where the others begin.

        An answer is (bytes of the topic id, partition, PartitionAnswer or a message). Those that need a decision are
        passed to `owner.decide(state, answer)`, errors to `owner.handle(state, error)`.
        """
        cdef int64_t end = min(begin + most, <int64_t> len(answers))
        cdef int64_t index
        cdef FollowedPartition state
        for index in range(max(begin, 0), end):
            topic_id, number, answer = answers[index]
            self.lock.acquire()
            try:
                state = self.by_id.get((topic_id, number))
                if state is not None:
                    self.take_answer(state, answer)
            finally:
                self.lock.release()
        return end

    cpdef bint is_current(self, FollowedPartition state) except -1:
        """Return whether the partition has not changed since the fetch was sent, so that its answer can be used."""
        return (state.sent_offset == state.fetch_offset and state.sent_leader_epoch == state.leader_epoch
                and not state.is_appending)

    cdef int take_answer(self, FollowedPartition state, object answer) except -1:
        cdef int reason
        if not state.is_sent or state.delayed_until_ms or state.is_truncating:
            # The partition is no longer in the session, or leaves it with the next fetch.
            return 0
        if not self.is_current(state):
            # The leader assumes that its answer was used, and would not send the high watermark or the log start again
            # in this session.
            self.failed(is_unknown=False)
            return 0
        if type(answer) is not PartitionAnswer:
            self.owner.decide(state, answer)
            return 0
        try:
            reason = self.apply(state, <PartitionAnswer> answer)
        except Exception as error:
            self.owner.handle(state, error)
            return 0
        if reason >= 0:
            self.declines[reason] += 1
            if reason != BY_CORE:
                self.owner.decide(state, answer)
        return 0

    cdef int apply(self, FollowedPartition state, PartitionAnswer answer) except -2:
        cdef LeaderState partition = self.partition_of(state)
        cdef LogState log_state
        cdef FollowedAppend append
        cdef Term term
        cdef int reason
        if partition is None:
            return BY_ROLE
        term = partition.term
        if term.leads or term.log is None or term.leader_epoch != state.leader_epoch:
            return BY_ROLE
        log_state = LOG_STATE.of(term.log)
        if kr_load_acquire(&log_state.now.log_end_offset) != state.fetch_offset:
            return BY_LOG_END
        if state.standstill is not None:
            return BY_STANDSTILL
        if answer.records is None:
            self.take_offsets(state, partition, answer, False)
            return -1
        if self.owner.quota.is_active:
            return BY_QUOTA
        append = FollowedAppend.__new__(FollowedAppend)
        append.follower, append.state_of_fetch, append.answer = self, state, answer
        if not partition.leader_isr_update_lock.acquire(False):
            return BY_BUSY
        try:
            reason = self.append(append, partition, term)
        finally:
            partition.leader_isr_update_lock.release()
        if reason >= 0:
            return reason
        self.owner.metrics.byte_rate.count += append.run.size
        if append.job is not None:
            self.appending += 1
            state.is_appending = True
        elif append.cell.job.status == OK:
            self.take_offsets(state, partition, answer, True)
        else:
            self.owner.append_rest(append)
            return BY_CORE
        return -1

    cdef int append(self, FollowedAppend append, LeaderState partition, Term term) except -2:
        # Give the records to the disk; the partition's lock is held. Returns -1, or the reason to decline them.
        cdef FollowedPartition state = append.state_of_fetch
        cdef object log = term.log
        cdef object queue = partition.queue
        cdef object epoch
        cdef ProducerTable producers
        cdef LogLock lock
        if partition.term is not term or queue is None or QUEUE_LOG.of(queue) is not log:
            return BY_ROLE
        if LOG_DURABLE.of(log):
            return BY_DURABILITY
        if QUEUE_WAITING.of(queue) or QUEUE_RETURNED.of(queue) or QUEUE_ASIDE.of(queue) is not None:
            return BY_BUSY
        if state.fetch_offset <= append.answer.log_start_offset and log.size:
            return BY_LOG_START
        epoch = LOG_LEADER_EPOCH.of(log)
        if epoch > state.leader_epoch or (
                PLAIN_KEYED_EPOCH.of(LOG_PLAIN.of(log)) != epoch and not log.may_append(epoch)):
            return BY_EPOCH
        lock = LOG_LOCK.of(log)
        if not lock.try_take():
            return BY_BUSY
        try:
            producers = LOG_PRODUCERS.of(log)
            append.begin(append.answer.records, LOG_ACTIVE.of(log), LOG_STATE.of(log), epoch, not producers.ongoing)
            append.partition, append.log, append.queue = partition, log, queue
            if producers.ongoing or has_transactions(append.run.data, append.run.size):
                if queue.in_flight:
                    return BY_BUSY
                append.prepare(producers)
            self.submit(append, lock)
        finally:
            lock.give()
        return -1

    cdef int submit(self, FollowedAppend append, LogLock lock) except -1:
        cdef object queue = append.queue
        cdef object disk = QUEUE_DISK.of(queue)
        queue.end = None
        # As in log_lock.pxd: only an exception from outside leaves the step open.
        lock.steps += 1
        if disk is self.inline:
            (<DiskJob> append).run()
            append.note(queue, append)
        else:
            append.job = append
            disk.submit(append, append.job_done, QUEUE_LANE.of(queue))
            QUEUE_IN_FLIGHT.of(queue).append(append)
        lock.steps -= 1
        return 0

    cdef int take_offsets(self, FollowedPartition state, LeaderState partition, PartitionAnswer answer,
                          bint has_moved) except -1:
        cdef LogState log_state
        cdef object entries
        cdef int64_t end, lag
        cdef bint has_started
        if partition.update_follower_high_watermark(answer.high_watermark, state.leader_epoch):
            has_moved = True
        log_state = LOG_STATE.of(partition.term.log)
        has_started = (answer.log_start_offset > log_state.now.log_start_offset
                       and partition.maybe_increment_log_start_offset(answer.log_start_offset, state.leader_epoch))
        if has_moved and partition.fetch_waiters:
            self.moved.append(partition)
        end = kr_load_acquire(&log_state.now.log_end_offset)
        lag = answer.high_watermark - end if answer.high_watermark > end else 0
        if end != state.fetch_offset or has_started or lag != state.known_lag:
            entries = EPOCH_ENTRIES.of(LOG_EPOCHS.of(partition.term.log))
            state.fetch_offset, state.known_lag = end, lag
            state.last_fetched_epoch = entries[len(entries) - 1].epoch if entries else -1
            self.put(state)
        return 0

    cdef int appended(self, FollowedAppend append) except -1:
        # Continue after the disk thread has made an append.
        cdef FollowedPartition state = append.state_of_fetch
        self.appending -= 1
        self.lock.acquire()
        try:
            state.is_appending = False
            if self.by_partition.get(state.topic_partition) is state:
                self.take_offsets(state, append.partition, append.answer, True)
        except Exception as error:
            self.owner.handle(state, error)
        finally:
            self.lock.release()
        self.owner.resume()
        return 0


cdef class FollowedAppend(RunJob):
    """The append of the records for one partition on its native way.

    For its log's AppendQueue it is like a QueuedAppend, and its own `job`.
    """

    cdef int prepare(self, ProducerTable producers) except -1:
        # Decide what batches with producers change, so that they can be appended like all others.
        self.prepared = producers.prepare_run(self.answer.records)
        producers.begin_run(self.prepared, self.state)
        self.run.with_producers = False
        self.run.decided = self.prepared.size
        return 0

    # ---- what the AppendQueue needs ---------------------------------------------------------------------------

    @property
    def check(self):
        """Always None: no other thread checks the batches."""
        return None

    def note(self, queue, _job):
        """Record the effects of the job, as QueuedAppend.note."""
        cdef ProducerTable producers = LOG_PRODUCERS.of(QUEUE_LOG.of(queue))
        cdef int64_t end
        if self.run.used:
            end = self.run.last.header.base_offset + self.run.last.header.last_offset_delta + 1
            if producers.map_end_offset < end:
                producers.map_end_offset = end
            if self.run.has_producers and self.prepared is None:
                producers.take_over_run(memoryview(self.answer.records)[:self.run.used])
        if self.prepared is not None:
            producers.end_run(self.prepared, self.run.used, self.state)
            self.prepared = None

    def come_back(self, bint is_declined):
        """Return the append that takes this one's place in the queue, since its job was not done."""
        cdef ProducerTable producers
        if is_declined:
            self.follower.declines[BY_CORE] += 1
        if self.prepared is not None:
            # The disk thread has not begun it.
            producers = LOG_PRODUCERS.of(QUEUE_LOG.of(self.queue))
            producers.end_run(self.prepared, 0, self.state)
            self.prepared = None
        append = self.follower.owner.take_over(self)
        append.is_declined = is_declined
        return append

    # ---- its end ----------------------------------------------------------------------------------------------

    def job_done(self, _job):
        """Go on after the disk thread has done the job, or held it back."""
        cdef object queue = self.queue
        if take_back(self, queue, LOG_LOCK.of(self.log)):
            self.finish()
            go_on(self, queue, self.state)
        else:
            queue.job_done(self)

    @property
    def rest(self):
        """The records that are not in the log."""
        return memoryview(self.answer.records)[self.run.used:]

    def finish(self):
        """Take over the leader's offsets: the records are in the log."""
        if LOG_DURABLE.of(self.log):
            # The topic's durability has changed meanwhile.
            append = self.follower.owner.take_over(self)
            self.partition.made(append)
            self.follower.owner.finished(append)
        else:
            self.follower.appended(self)

    def fail(self, error):
        """Give the append up because of `error`."""
        append = self.follower.owner.take_over(self)
        append.error = error
        self.follower.owner.finished(append)
