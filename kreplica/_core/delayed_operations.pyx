"""What completes requests that wait for a partition to move; contract and thread rule: delayed_operations.pxd."""

from kreplica._core.fetch_session cimport CachedPartition, FetchSession
from kreplica._core.future_state cimport FutureState
from kreplica._core.leader_state cimport LeaderState
from kreplica._core.purgatory cimport Purgatory


cdef class DelayedOperations:
    """Completes what waits for partitions of one broker to move.

    `produces`: the waiting produces, under the `key` of their partition. `not_enough_replicas(partition)`: returns the
    error for an append that is committed with too few replicas in sync. Call the methods while holding no lock.
    """

    def __init__(self, Purgatory produces not None, not_enough_replicas not None):
        self.produces = produces
        self.not_enough_replicas = not_enough_replicas

    cpdef object appended(self, LeaderState partition, bint has_moved):
        """Try what waits for records: some were appended. `has_moved`: so has the high watermark."""
        cdef object waiter
        cdef FetchSession session
        if has_moved:
            self.high_watermark_moved(partition)
        if partition.fetch_waiters:
            for waiter in list(partition.fetch_waiters):
                session = session_of_follower(waiter)
                if session is not None:
                    try_fetch(session.mark(waiter))

    cpdef object high_watermark_moved(self, LeaderState partition):
        """Complete the produces that the current high watermark covers, and try the fetches that wait for it."""
        cdef object token, waiter, fetch
        cdef FetchSession session
        # Producers first: they wait for nothing else. Followers get the high watermark with the next records.
        for token in self.produces.complete_to(partition.key, partition.term.watermark.value):
            if not isinstance(token, FutureState):
                token.complete()
            elif partition.has_enough_in_sync:
                token.finish()
            else:
                token.set_exception(self.not_enough_replicas(partition))
        if partition.fetch_waiters:
            for waiter in list(partition.fetch_waiters):
                session = session_of_follower(waiter)
                if session is None:
                    try_fetch(waiter.notify())
                elif not (<CachedPartition> waiter).is_being_noted:
                    fetch = session.mark(waiter)
                    if fetch is not None and not fetch.linger_handle:
                        fetch.linger()

    cpdef object moved(self, LeaderState partition):
        """Try all fetches that wait at the partition: its log start or its role has changed."""
        cdef object waiter
        for waiter in list(partition.fetch_waiters):
            try_fetch(waiter.notify())


# Return the session of a follower's partition, None for any other waiter.
cdef FetchSession session_of_follower(object waiter):
    cdef FetchSession session
    if not isinstance(waiter, CachedPartition):
        return None
    session = (<CachedPartition> waiter).session
    return session if session is not None and session.is_privileged else None


cdef int try_fetch(object fetch) except -1:
    if fetch is not None and not fetch.try_complete() and fetch.may_linger and not fetch.linger_handle:
        fetch.linger()
    return 0
