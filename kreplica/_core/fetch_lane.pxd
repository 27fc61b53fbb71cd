# FetchLane: the native way of Fetch requests, from the frame to the bytes of the answer.
#
# A consumer's request outside of sessions takes this way if it is answered at once: its partitions have no error, and
# enough records. It is read and answered before `take` returns.
#
# A follower's request takes this way if it is an incremental fetch of its session (KIP-227) that names only partitions
# of the session. All else is declined before anything has changed, by the first of the reasons below; Python then
# handles the request. A request that was taken becomes a LaneFetch. It reads the session's ready partitions natively
# while each is a plain case: this broker leads it in the follower's epoch, the follower is in sync, and its log ends
# where the leader's log has the same epoch. As soon as one is not, the LaneFetch hands itself over to Python, which
# reads all ready partitions again (FetchManager.resume). Sessions, their partitions and the followers' states are
# Python's own objects, so nothing has to be carried over.
#
#     frame --take--> LaneFetch --look--> answer: header, pinned slice, header, pinned slice ..., end
#                        |   ^
#                        |   +--try_complete, expire: something moved, or the time is up
#                        +--> parked at its session, with its deadline in the purgatory of fetches
#
# Ownership: a waiting LaneFetch belongs to its session, as a DelayedFetch does; its answer's slices stay pinned until
# they are sent. Thread rule: as FetchManager: any thread. The partition's leader_isr_update_lock guards what a fetch
# says about the follower; for the session see fetch_session.pxd.

from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t

from kreplica._core.client_account cimport ClientAccount
from kreplica._core.delayed_operations cimport DelayedOperations
from kreplica._core.fetch_session cimport CachedPartition, FetchSession
from kreplica._core.grants cimport Grants
from kreplica._core.leader_state cimport LeaderState, Replica, Term
from kreplica._core.purgatory cimport Purgatory

cdef enum:
    # FETCHES_DECLINED in fetch_lane.pyx has the names, in this order.
    FETCH_VERSION                 # a version before 12 or after 17, or a follower's that is not 17, which nodes send
    FETCH_LAYOUT                  # it has unknown fields, more than MOST_PARTITIONS, or cannot be read
    FETCH_CONSUMER                # a consumer's in a session, with a rack, or without partitions
    FETCH_FULL                    # it begins or ends a session, or has none
    FETCH_FORGETS                 # it takes partitions out of the session
    FETCH_MIN_BYTES               # it waits for more than one byte
    FETCH_SESSION                 # its session is unknown, at another epoch, or lacks a named partition
    FETCH_BUSY                    # another fetch of the session waits, or a partition has to be named again
    FETCH_QUOTA                   # replication is throttled, or a quota makes a consumer wait, or may do so
    FETCH_PARTITION               # a ready partition is no plain case
    FETCH_WAIT                    # a consumer's for which there are too few records now
    FETCH_RIGHTS                  # its client has not been allowed yet what it names
    FETCH_DECLINES                # the number of reasons


cdef enum:
    MOST_PARTITIONS = 512         # the most that one step answers, since heartbeats wait for it


cdef struct asked_t:
    const uint8_t *topic          # its id, or its name with the size before
    int32_t topic_size
    const uint8_t *at             # the partition in the request


cdef struct fetch_t:
    int32_t correlation_id
    int32_t max_wait_ms
    int32_t min_bytes
    int32_t max_bytes
    int8_t isolation
    int32_t session_id
    int32_t session_epoch
    int32_t replica_id
    int64_t replica_epoch
    bint has_ids                  # topics are named by their ids
    int32_t asked_count
    asked_t asked[MOST_PARTITIONS]


cdef class LaneFetch


cdef class FetchLane:
    cdef readonly int64_t taken
    cdef int64_t declines[FETCH_DECLINES]
    cdef object owner
    cdef object kind              # the class of the requests
    cdef object monotonic_ns      # of the clock
    cdef object quota             # the ReplicationQuotaManager of what a leader sends
    cdef object timer             # the DelayedOperationPurgatory of fetches ...
    cdef Purgatory purgatory      # ... and its native part
    cdef DelayedOperations delayed  # completes what waits for a high watermark that a follower has moved
    cdef object bytes_out         # the Meter of what was sent to followers
    cdef int64_t most_bytes       # of records in an answer
    cdef int64_t linger_ms
    cdef int64_t watches          # counts the waits in the purgatory

    cdef int64_t now_ms(self) except -1
    # Let the fetch expire after `wait_ms`; return the handle.
    cdef int64_t watch(self, LaneFetch fetch, int64_t wait_ms) except -1
    # Read what a consumer's request names into the buffers of the answer, and charge its account. Returns as `begin`.
    cdef int read(self, const fetch_t *request, Grants grants, ClientAccount account, int64_t began_ns,
                  list buffers) except -32
    # Take over what the request names into the session. Returns 0 or the reason to decline, negated and less 1.
    cdef int begin(self, const fetch_t *request, FetchSession session) except -32


cdef class LaneFetch:
    cdef FetchLane lane
    cdef readonly int32_t correlation_id
    cdef readonly int32_t replica_id
    cdef readonly int64_t replica_epoch
    cdef readonly int32_t max_bytes
    cdef int32_t max_wait_ms
    cdef object answered          # takes the answer; None once it has been called
    cdef readonly FetchSession session
    cdef int64_t deadline_ms      # when it is answered at the latest, or earlier if it lingers
    # Handles in the purgatory: of the deadline, and of the end of lingering; 0 if not registered.
    cdef int64_t handle
    cdef int64_t lingering
    cdef bint has_marks           # what was read is only new offsets
    cdef list too_little          # partitions that were read and had something, but not enough
    cdef bint has_looked          # for the follower's registration, in the present look
    cdef bint is_in_epoch         # the follower is registered in the epoch of the fetch
    cdef object resumed           # the future of the fetch that Python makes instead, or None

    cdef int end_wait(self) except -1
    cdef int look(self, bint at_all) except -1
    cdef int park(self) except -1
    cdef int hand_over(self, bint at_all) except -1
    cdef bint is_registered(self, LeaderState partition) except -1
    cdef object read(self, CachedPartition cached, Term term, int64_t max_bytes, bint is_first)
    cpdef bint is_plain(self, CachedPartition cached) except -1
    cdef bint note(self, CachedPartition cached, LeaderState partition, Term term, int64_t end) except -1
    cdef int deliver(self, list result, int64_t size) except -1
