"""Fetch sessions on the leader's side; contract and thread rule: fetch_session.pxd."""

from cpython.dict cimport PyDict_Update
from libc.stdint cimport int32_t, int64_t

from kreplica._core.leader_state cimport FetchClock, LeaderState

cdef bytes ZERO_ID = bytes(16)
cdef int64_t NO_OFFSET = -1

cdef enum:
    NO_SESSION = 0                     # the id of a session that lasts for one fetch
    FIRST_EPOCH = 1                    # the epoch of the first incremental fetch


def wire_id(bytes topic_id not None, int32_t partition):
    """Return the bytes of a request that name one partition: the topic's id, an array's size of 1, the number."""
    return topic_id + b"\x02" + partition.to_bytes(4, "big", signed=True)


def session_key(topic_partition not None, topic_id not None):
    """Return what names a partition in its session: its `wire_id`, or `topic_partition` if the topic has no id."""
    cdef bytes raw = topic_id.raw
    return topic_partition if raw == ZERO_ID else wire_id(raw, topic_partition.partition)


cdef class CachedPartition:
    """One partition of a session: what its fetcher last asked for and what was last sent.

    `partition`: the partition that the session listens to; None if this broker did not have it when it was last looked
    up. `is_unanswered`: named by a request since its last answer. `is_being_noted`: the effects of its fetch are being
    acted on; the offsets are read again after that.
    """

    def __init__(self, topic_partition not None, topic_id not None, *, int64_t fetch_offset, int64_t max_bytes,
                 int64_t current_leader_epoch=-1, int64_t last_fetched_epoch=-1, int64_t log_start_offset=NO_OFFSET):
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.key = session_key(topic_partition, topic_id)
        self.fetch_offset = fetch_offset
        self.max_bytes = max_bytes
        self.current_leader_epoch = current_leader_epoch
        self.last_fetched_epoch = last_fetched_epoch
        self.log_start_offset = log_start_offset
        self.high_watermark_sent = self.log_start_sent = NO_OFFSET
        self.is_unanswered = True

    def update(self, CachedPartition newer not None):
        """Take over a newer request for the partition."""
        self.topic_partition = newer.topic_partition
        self.topic_id = newer.topic_id
        self.fetch_offset = newer.fetch_offset
        self.max_bytes = newer.max_bytes
        if newer.current_leader_epoch != self.current_leader_epoch:
            self.begin_epoch(newer.current_leader_epoch)
        self.last_fetched_epoch = newer.last_fetched_epoch
        self.log_start_offset = newer.log_start_offset
        self.is_unanswered = True

    cpdef object begin_epoch(self, int64_t leader_epoch):
        """Set the leader epoch that the fetcher uses from now on, and send the offsets again.

        An earlier answer may have come while the fetcher's role changed, when it did not have the partition.
        """
        self.current_leader_epoch = leader_epoch
        self.forget_sent()

    cpdef object forget_sent(self):
        """Send the offsets again, even if they are unchanged."""
        self.high_watermark_sent = self.log_start_sent = NO_OFFSET

    def listen(self, LeaderState partition):
        """Listen to moves of `partition`, and of no other."""
        if partition is self.partition:
            return
        if self.partition is not None:
            self.partition.fetch_waiters.pop(self, None)
        self.partition = partition
        if partition is not None:
            partition.fetch_waiters[self] = None
            if self.session is None:
                partition.fetch_waiters.pop(self, None)

    cpdef object notify(self):
        """Mark the partition as ready. Return the fetch that waits for it, which the caller must try."""
        return None if self.session is None else self.session.mark(self)

    def __repr__(self):
        return f"CachedPartition({self.topic_partition}, {self.fetch_offset})"


cdef class FetchSession:
    """A fetcher's partitions, in the order in which they are read.

    `is_privileged`: a follower's session, which is not evicted for a consumer's. A session without an id lasts for one
    fetch. `partitions`: by their `session_key`. `ready`: those that the next fetch reads.
    """

    def __init__(self, int64_t session_id=NO_SESSION, *, int64_t now_ms, bint is_privileged=False):
        self.id = session_id
        self.created_ms = self.last_used_ms = now_ms
        self.is_privileged = is_privileged
        self.clock = FetchClock()
        self.epoch = FIRST_EPOCH
        self.partitions = {}
        self.ready = {}
        self.to_name_again = {}

    @property
    def is_lasting(self):
        """Whether the session outlives its first fetch."""
        return self.id != NO_SESSION

    def __len__(self):
        return len(self.partitions)

    # ---- what a request asks for -----------------------------------------------------------------------------

    def ask(self, wanted, forgotten=()):
        """Take over the partitions that a request names, and drop those whose keys it forgets."""
        cdef list named = list(wanted)
        cdef list left = []
        cdef CachedPartition asked, known
        for known in list(self.to_name_again):
            if known.session is self:
                known.is_unanswered = True
                self.ready[known] = None
        self.to_name_again.clear()
        for key in list(forgotten):
            known = self.partitions.pop(key, None)
            if known is not None:
                self.ready.pop(known, None)
                left.append(known)
        for asked in named:
            known = self.partitions.get(asked.key)
            if known is None:
                known = self.partitions[asked.key] = asked
                known.session = self
            else:
                known.update(asked)
            self.ready[known] = None
        for known in left:
            self.leave(known)

    def ask_again(self, key, *, int64_t fetch_offset, int64_t max_bytes, int64_t current_leader_epoch,
                  int64_t last_fetched_epoch, int64_t log_start_offset):
        """Take over a request that names only one partition and forgets none, as after each new record.

        Return False if the session does not have the partition or there is more to take over.
        """
        cdef CachedPartition known = self.partitions.get(key)
        if known is None or self.to_name_again:
            return False
        known.fetch_offset = fetch_offset
        known.max_bytes = max_bytes
        if current_leader_epoch != known.current_leader_epoch:
            known.begin_epoch(current_leader_epoch)
        known.last_fetched_epoch = last_fetched_epoch
        known.log_start_offset = log_start_offset
        known.is_unanswered = True
        self.ready[known] = None
        return True

    def name_again(self, CachedPartition cached not None):
        """Treat the next fetch as if it named the partition, at its last offset."""
        if cached.session is self:
            self.to_name_again[cached] = None

    # ---- what is ready ---------------------------------------------------------------------------------------

    cdef object mark(self, CachedPartition cached):
        self.ready[cached] = None
        return self.parked

    cpdef list take_ready(self):
        """Return the ready partitions in their order, and clear the set."""
        cdef dict ready = self.ready
        if not ready:
            return []
        self.ready, ready = {}, self.ready
        return list(ready)

    cpdef object put_back(self, partitions):
        """Make the partitions ready again, before those that became ready meanwhile, so that each gets its turn."""
        cdef CachedPartition cached
        cdef dict ready = {}
        cdef dict later
        for cached in partitions:
            if cached.session is self:
                ready[cached] = None
        if ready:
            # Nothing is allocated that the garbage collector follows: another thread could take the set meanwhile.
            later = self.ready
            PyDict_Update(ready, later)
            self.ready = ready

    def keep_ready(self, partitions):
        """Make the partitions ready again, behind the others."""
        cdef CachedPartition cached
        for cached in partitions:
            if cached.session is self:
                self.ready[cached] = None

    # ---- the fetch that waits --------------------------------------------------------------------------------

    cpdef bint park(self, object fetch) except -1:
        """Let the fetch wait. Return False if another one waits, or a partition is ready."""
        if self.parked is not None or self.ready:
            return False
        self.parked = fetch
        return True

    cpdef bint unpark(self, object fetch) except -1:
        """Take the fetch from the session, if it waits there. The caller that gets it may work on it alone."""
        if self.parked is not fetch:
            return False
        self.parked = None
        return True

    # ---- the end ---------------------------------------------------------------------------------------------

    def end(self):
        """Stop listening to partitions, and answer a fetch that waits."""
        cdef CachedPartition cached
        cdef list partitions = list(self.partitions.values())
        self.partitions.clear()
        self.ready.clear()
        self.to_name_again.clear()
        parked, self.parked = self.parked, None
        for cached in partitions:
            self.leave(cached)
        if parked is not None:
            parked.abandon()

    cdef int leave(self, CachedPartition cached) except -1:
        if cached.partition is not None and self.id != NO_SESSION:
            cached.partition.detach_fetch_clock(self.clock)
        # In this order, since `listen` in another thread checks after it has registered whether it has a session.
        cached.session = None
        cached.listen(None)
        return 0
