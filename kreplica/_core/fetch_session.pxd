# FetchSession and CachedPartition: what a fetcher has asked for before, so that it need not repeat it (KIP-227).
#
# A session holds the partitions that a fetcher wants, and which of them are ready: named by a request since they were
# last answered, moved since, or, for a consumer, last answered with records. An incremental fetch reads only the ready
# ones, so a session with a thousand idle partitions costs as much as its busy ones. A partition has the
# CachedPartition of each session that listens to it among its `fetch_waiters`; DelayedOperations notifies them.
#
#     LeaderState.fetch_waiters --> CachedPartition --session--> FetchSession: ready, parked (the fetch that waits)
#                                          ^                          |
#                                          +-------- partitions ------+
#
# Ownership: a session owns its partitions, and the fetch that is parked at it. Thread rule: the GIL is the lock, as for
# the purgatory. Between a check and the change that depends on it no method runs foreign code: keys are bytes or tuples
# of the interpreter's own types, and what the garbage collector follows is made before.

from libc.stdint cimport int64_t

from kreplica._core.leader_state cimport FetchClock, LeaderState


cdef class FetchSession


cdef class CachedPartition:
    cdef public object topic_partition
    cdef public object topic_id   # a Uuid
    cdef readonly object key      # names the partition in its session: see session_key
    cdef public int64_t fetch_offset
    cdef public int64_t max_bytes
    cdef public int64_t current_leader_epoch
    cdef public int64_t last_fetched_epoch
    cdef public int64_t log_start_offset
    cdef public int64_t high_watermark_sent
    cdef public int64_t log_start_sent
    cdef public bint is_unanswered
    cdef public bint is_being_noted
    cdef public LeaderState partition
    cdef public FetchSession session

    cpdef object begin_epoch(self, int64_t leader_epoch)
    cpdef object forget_sent(self)
    cpdef object notify(self)


cdef class FetchSession:
    cdef readonly int64_t id
    cdef readonly int64_t created_ms
    cdef public int64_t last_used_ms
    cdef readonly bint is_privileged
    cdef readonly FetchClock clock
    cdef public object holder     # the client that may use it, where clients need rights
    cdef public int64_t epoch
    cdef readonly dict partitions  # in the order in which they are read
    cdef readonly dict ready      # an ordered set: partitions that were read and have more go to the end
    cdef dict to_name_again
    cdef readonly object parked   # the DelayedFetch or LaneFetch that waits, or None

    # Mark the partition as ready. Return the fetch that waits.
    cdef object mark(self, CachedPartition cached)
    # Take the fetch from the session, if it waits there. The caller that gets it may work on it alone.
    cpdef bint unpark(self, object fetch) except -1
    # Let the fetch wait. Return False if another one waits, or a partition is ready.
    cpdef bint park(self, object fetch) except -1
    # Return the ready partitions in their order, and clear the set.
    cpdef list take_ready(self)
    # Make the partitions ready again, before those that became ready meanwhile, so that each gets its turn.
    cpdef object put_back(self, partitions)
    cdef int leave(self, CachedPartition cached) except -1
