# DelayedOperations: completes what waits for partitions of one broker to move.
#
# Produces with acks=all wait in a purgatory for the high watermark. Fetches wait at their sessions, which partitions
# have among their `fetch_waiters`: those of followers wait for records, those of consumers for committed records, and
# the partitions of share groups for both.
#
#     the log's end has moved  --> fetches of followers
#     the high watermark has   --> produces, fetches of consumers, share partitions; followers learn of it soon
#     the log's start or role  --> all fetches
#
# Ownership: it owns nothing that waits. Thread rule: any thread. The caller has moved the partition and holds no lock.

from kreplica._core.leader_state cimport LeaderState
from kreplica._core.purgatory cimport Purgatory


cdef class DelayedOperations:
    cdef Purgatory produces
    cdef object not_enough_replicas  # returns the error for what is committed with too few replicas in sync

    cpdef object appended(self, LeaderState partition, bint has_moved)
    cpdef object high_watermark_moved(self, LeaderState partition)
    cpdef object moved(self, LeaderState partition)
