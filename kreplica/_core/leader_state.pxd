# LeaderState: what a broker knows of a partition that it leads, and the rule that decides what is committed.
#
# This is the native part of a Partition (kreplica/replica/partition.py), which is its only subclass. Python and the
# native lanes of requests read and change these fields, so that the role, the followers' log ends and the high
# watermark exist once.
#
# Ownership: a Partition owns its Replicas; the Replicas of one fetch session share a FetchClock. Thread rule: the
# partition's leader_isr_update_lock guards every change. Each method runs under the GIL from its first read to its last
# change, unless it calls a method that Python has overridden; so a reader without the lock sees no half of a change.

from libc.stdint cimport int64_t

from kreplica._core.purgatory cimport Watermark


cdef class FetchClock:
    cdef public int64_t last_fetch_time_ms
    cdef public int64_t previous_fetch_time_ms


cdef class Replica:
    cdef public int64_t broker_id
    cdef public int64_t log_end_offset
    cdef public int64_t log_start_offset
    cdef public int64_t last_fetch_leader_log_end_offset
    cdef public int64_t last_fetch_time_ms
    cdef public int64_t previous_fetch_time_ms
    cdef public int64_t last_caught_up_time_ms
    cdef public int64_t broker_epoch
    cdef public int64_t last_sent_high_watermark
    cdef public bint fetched_in_epoch
    cdef public bint diverged
    cdef public bint damaged
    cdef public FetchClock fetch_clock

    cpdef object update_fetch_state(self, int64_t fetch_offset, int64_t log_start_offset, int64_t now_ms,
                                    int64_t leader_end_offset, int64_t broker_epoch)
    cpdef object leader_moved_on(self)
    # Return whether its previous fetch was from the same offset, although there were records to take.
    cpdef bint asks_again(self, int64_t fetch_offset) except -1


cdef class Term:
    cdef readonly int64_t leader
    cdef readonly int64_t leader_epoch
    cdef readonly bint leads
    cdef readonly object log
    cdef readonly object epoch_start_offset
    cdef readonly Watermark watermark


cdef class LeaderState:
    cdef public object leader_isr_update_lock  # an RLock
    cdef public object queue              # the AppendQueue of the log, or None
    cdef public dict refused_sequences    # the lowest sequence number that was refused, by producer id and epoch
    cdef public object alive_broker_epoch  # returns the epoch in which a broker is registered, or None
    # What waits for this partition to move, an ordered set: the CachedPartition of each session that listens to it, and
    # SharePartitionLeaders. They add and remove themselves.
    cdef public dict fetch_waiters
    cdef public int64_t low_watermark_waiters  # the number of waiting deletions, which keep it
    cdef public int64_t key               # the number under which operations wait for the partition
    cdef public Term term
    cdef public object state              # a PartitionState: the ISR, and the change of it that is in flight
    # The followers, all of them and divided by whether the high watermark must wait for them.
    cdef public dict replicas_by_id
    cdef public tuple remote_replicas
    cdef public tuple watched_replicas
    cdef public tuple unwatched_replicas

    # Return min.insync.replicas, or the number of replicas if that is smaller; 0 unless this broker leads.
    cpdef int64_t least_in_sync(self) except -1
    # Record that the log, which ended at `former_end`, has grown. Return whether the high watermark moved.
    cpdef bint appended(self, object log, int64_t former_end) except -1
    # Move the high watermark to what all replicas that count have. Return whether it moved.
    cpdef bint increment_high_watermark(self, object log, object now_ms) except -1
    # Move the log's high watermark up to `offset`. Return whether it moved.
    cpdef bint advance_high_watermark(self, object log, int64_t offset) except -1
    # Take over the leader's high watermark, up to the end of this log. Return whether it moved.
    cpdef bint update_follower_high_watermark(self, int64_t leader_high_watermark, int64_t leader_epoch) except -1
