# Follower: a follower's side of its fetch session with one leader: the partitions it copies, and what was sent of them.
#
# An answer that needs no decision takes a native way, partition by partition: the records are appended in one job, the
# log's end, the high watermark and the leader's log start are taken over, and the next fetch names the partition. What
# has to be decided is declined, by the first of the reasons below, before anything has changed; Python then handles the
# answer for that partition (ReplicaFetcher.decide). Only the reason `core` comes when batches may have been appended;
# Python then appends the rest.
#
#     FetchAnswer --take--> apply --+--records--> FollowedAppend --disk--> finish --+--> take_offsets --> put
#                                   +--none-----------------------------------------+                     |
#                                                                              next_fetch <----changed----+
#
# Ownership: the ReplicaFetcher owns its Follower, which owns the states. A FollowedAppend keeps the answer's frame
# until its records are in the log. Thread rule: the fetcher's lock guards everything. The session and `appending` are
# used only in the fetcher's loop.

from libc.stdint cimport int32_t, int64_t

from kreplica._core.append_job cimport RunJob
from kreplica._core.fetch_frames cimport PartitionAnswer
from kreplica._core.leader_state cimport LeaderState, Term
from kreplica._core.log_lock cimport LogLock
from kreplica._core.producer_table cimport PreparedRun, ProducerTable

cdef enum:
    # PARTITIONS_DECLINED in follower.pyx has the names, in this order.
    BY_ROLE                       # this broker does not follow the leader in the epoch of the fetch, or has no replica
    BY_LOG_END                    # the log does not end where the fetch began
    BY_STANDSTILL                 # fetches from there have failed
    BY_QUOTA                      # replication is throttled
    BY_DURABILITY                 # the append waits for a flush
    BY_BUSY                       # earlier appends wait, or another thread holds a lock
    BY_LOG_START                  # the leader's log begins at this log's end or above
    BY_EPOCH                      # the log has a later leader epoch, or takes no appends
    BY_CORE                       # needs a roll, has another epoch or a bad checksum, finds a full disk
    FOLLOWER_DECLINES             # the number of reasons


cdef class FollowedPartition:
    cdef readonly object topic_partition
    cdef readonly object topic_id           # a Uuid
    cdef tuple id                           # the bytes of the topic's id, and the partition's number
    cdef LeaderState partition              # the Partition, or None if it is not known yet
    cdef public int64_t fetch_offset
    cdef readonly int32_t leader_epoch
    cdef public int32_t last_fetched_epoch
    cdef int64_t known_lag                  # -1 before the first answer
    cdef public int64_t delayed_until_ms
    cdef public bint is_truncating
    cdef public bint is_appending
    cdef public object standstill
    # What the leader's session has.
    cdef readonly bint is_sent
    cdef bint is_named_again
    cdef int64_t sent_offset
    cdef int64_t sent_log_start
    cdef int32_t sent_leader_epoch
    cdef int32_t sent_last_epoch


cdef class Follower:
    cdef object owner                       # the ReplicaFetcher
    cdef object lock                        # ... and its lock
    cdef object hosted                      # returns the Partition of a TopicPartition, or None
    cdef object inline                      # the disk that makes an append in the caller's turn
    cdef readonly dict by_partition
    cdef dict by_id
    # Ordered sets of states.
    cdef dict changed
    cdef readonly dict truncating
    cdef readonly dict out_of_range
    cdef readonly dict delayed
    cdef readonly dict held_back
    cdef readonly dict gone                 # by id: states that have left, which the leader still has
    cdef readonly list moved
    cdef public int64_t appending
    cdef int32_t session_id
    cdef int32_t session_epoch
    cdef int64_t declines[FOLLOWER_DECLINES]

    cpdef object put(self, FollowedPartition state)
    cpdef bint is_current(self, FollowedPartition state) except -1
    cdef LeaderState partition_of(self, FollowedPartition state)
    cdef dict left_out(self)
    cdef int name(self, FollowedPartition state, dict asked) except -1
    cdef int take_answer(self, FollowedPartition state, object answer) except -1
    # Apply a plain answer. Returns -1, or the reason to decline it.
    cdef int apply(self, FollowedPartition state, PartitionAnswer answer) except -2
    cdef int append(self, FollowedAppend append, LeaderState partition, Term term) except -2
    cdef int submit(self, FollowedAppend append, LogLock lock) except -1
    # Take over the leader's offsets. `has_moved`: the log has grown.
    cdef int take_offsets(self, FollowedPartition state, LeaderState partition, PartitionAnswer answer,
                          bint has_moved) except -1
    cdef int appended(self, FollowedAppend append) except -1


cdef class FollowedAppend(RunJob):
    cdef readonly Follower follower
    cdef readonly FollowedPartition state_of_fetch
    cdef readonly PartitionAnswer answer
    cdef readonly LeaderState partition
    cdef readonly object log
    cdef object queue
    cdef PreparedRun prepared     # of batches with producers, or None
    # As in QueuedAppend, for the AppendQueue. `job` is the append itself while it is in flight.
    cdef public object job
    cdef public bint is_given_up
    cdef public object error

    cdef int prepare(self, ProducerTable producers) except -1
