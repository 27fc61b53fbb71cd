# ProduceLane: the native way of a Produce request, from its frame to the jobs that append its batches, and from there
# to the bytes of its answer.
#
# A request takes this way if its layout is known and its partitions are on this broker. If a transaction begins with
# it, the coordinator is asked before its batches are appended.
# Everything else is declined, before anything has changed; Python then handles the request. A batch that the broker
# itself appends, a coordinator's records or the end of a transaction, takes this way as well. Each batch of a request
# that was taken is appended in one native call, a job of the Disk. If that needs a decision, only this batch is handed
# over to Python, in its place in the log's AppendQueue: at once, or when the core declines the job (a roll, a bad
# checksum). A batch behind others that wait for their turn waits in the queue, too.
#
#     frame --take--> LaneRequest --for each batch--> LaneAppend --Disk--> finish --acks=all--> Purgatory
#                         ^                             |   |                |                     |
#                         |                             |   |                +---acks=1----+       |
#                         |          AppendQueue <------+   |                              |       |
#                         |      (waits for its turn)       +--needs a decision--> Python  |       |
#     `answered` <--respond-- after the last result <--------------------------------------+-------+
#
# A LaneAppend is everything about its batch in one object: the job, an entry of the AppendQueue, the token in the
# purgatory, and the result. Ownership: a LaneRequest keeps the frame until its batches are in their logs or handed
# over, and its appends until it is answered. Thread rule: as AppendManager: with a disk thread only the node's loop,
# else any thread. An append holds the partition's leader_isr_update_lock and the log's offsets_lock as Python's do; it
# is handed over if one of them is not free.

from cpython.buffer cimport Py_buffer
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from kreplica._core.append_job cimport AppendJob
from kreplica._core.client_account cimport ClientAccount
from kreplica._core.delayed_operations cimport DelayedOperations
from kreplica._core.grants cimport Grants
from kreplica._core.leader_state cimport LeaderState, Term
from kreplica._core.log_lock cimport LogLock
from kreplica._core.producer_append_info cimport ProducerAppendInfo, Verification
from kreplica._core.producer_table cimport PendingProducers
from kreplica._core.purgatory cimport Purgatory, Watermark

cdef enum:
    # The whole request. DECLINED in produce_lane.pyx has the names, in this order.
    VERSION                       # a version before 9 or after 11
    LAYOUT                        # it has unknown fields, or cannot be read
    TRANSACTION                   # it mixes batches of a transaction with others, or no coordinator is known here
    ACKS                          # acks is neither 1 nor -1
    PARTITIONS                    # it names no partition, one of them twice, or more than MOST_APPENDS
    UNKNOWN_PARTITION             # this broker does not have one of them, or only brokers may write to it
    STOPPED                       # the broker stops
    BEHIND                        # earlier requests have batches that are not submitted yet
    RIGHTS                        # its client has not been allowed yet what it names
    QUOTA                         # a quota makes its client wait, or its account is not known yet
    # One of its batches.
    NOT_LEADER                    # this broker does not lead the partition
    TOO_FEW_IN_SYNC               # acks=all with fewer replicas in sync than min.insync.replicas
    BUSY                          # another thread holds a lock
    DURABILITY                    # an append waits for a flush
    SETTINGS                      # the topic's settings change or check each batch
    BATCH                         # its header is invalid, it is a control batch, or the records are no one batch
    COMPRESSED                    # it is large or invalid, decompressed, or its header has to be corrected
    SEQUENCE                      # its producer's sequence needs a decision
    CORE                          # the core declines it: a roll, a bad checksum, a full disk ...
    DECLINES                      # the number of reasons


cdef enum:
    MOST_APPENDS = 512            # the most that one step submits, since heartbeats wait for it


cdef struct part_t:
    int64_t topic                 # position of the topic's name
    int32_t topic_size
    int32_t count                 # of the topic's partitions, in its first one; else 0
    int64_t number                # position of the partition's number
    int64_t records
    int64_t records_size


cdef struct produce_t:
    int32_t correlation_id
    int16_t version
    int16_t acks
    int32_t timeout_ms
    int32_t topics
    int64_t transactional_id      # its position
    int32_t transactional_id_size  # -1: it is null
    int32_t count                 # of the partitions
    part_t parts[MOST_APPENDS]


cdef class ProduceLane:
    cdef readonly int64_t taken
    cdef int64_t declines[DECLINES]
    cdef dict partitions          # by wire name, see wire_name
    cdef object owner
    cdef object client            # the AppendOrigin of clients
    cdef object open_already      # the Verification of a batch whose transaction is open
    cdef object bytes_in
    cdef object messages_in
    cdef object delayed           # the DelayedRequests ...
    cdef DelayedOperations operations  # ... its native part
    cdef object timer             # ... the DelayedOperationPurgatory of produces
    cdef Purgatory purgatory      # ... and that one's native part
    cdef object inline            # the disk that makes an append in the caller's turn

    # Let appends wait for the high watermark. Call it before `operations` is notified of them, so that no move of the
    # high watermark is missed.
    cpdef object await_commits(self, list appends)
    # Make the request's appends. Return OK, or the reason to decline it, negated and less 1.
    cdef int prepare(self, LaneRequest request, const produce_t *asked, Grants grants) except -64
    cdef bint is_granted(self, LaneRequest request, const produce_t *asked, Grants grants) except -1
    # Return whether all batches are of one producer's transactions.
    cdef bint is_of_one_producer(self, LaneRequest request) except -1
    # Return whether all batches continue a transaction that is open on their partitions.
    cdef bint continues(self, LaneRequest request) except -1
    cdef int start(self, LaneRequest request) except -1
    cdef int submit_all(self, list appends) except -1
    # Give the append to its disk or to its queue. Return the reason to hand it over, or -1. `in_turn`: the queue has
    # returned it.
    cdef int submit(self, LaneAppend append, bint in_turn) except -2
    cdef int submit_as_leader(self, LaneAppend append, Term term, bint in_turn) except -2
    cdef int submit_locked(self, LaneAppend append, PendingProducers queue, LogLock lock) except -2
    # Return what becomes of the batch's producer; None if that needs a decision.
    cdef ProducerAppendInfo producer_of(self, LaneAppend append, PendingProducers queue)


cdef class LaneRequest:
    cdef object frame             # None once no append needs it
    cdef Py_buffer *view          # of the frame
    cdef readonly object connection
    cdef object answered          # takes the answer; None once it has been called
    cdef int32_t correlation_id
    cdef int32_t topics
    cdef readonly int16_t required_acks
    cdef readonly bint is_transactional  # its batches belong to a transaction
    cdef int32_t timeout
    cdef readonly object origin   # an AppendOrigin
    cdef bint is_own              # the broker itself appends a batch
    cdef str transactional_id     # whose coordinator has to be asked first; else None
    cdef readonly int16_t version  # of the request
    cdef object marker            # the EndTransactionMarker of the batch, or None
    cdef int64_t in_epoch         # the leader epoch in which the partition must be led; -1: any
    cdef list appends             # None once the request is answered
    cdef ClientAccount account    # charged for the time of the answer; None if no quota applies
    cdef int32_t readers          # the number of appends that need the frame
    cdef int32_t undecided        # ... without a result

    cdef int release(self) except -1
    cdef int decided(self) except -1
    cdef bytes answer_frame(self)


cdef class LaneAppend(AppendJob):
    cdef ProduceLane lane
    cdef readonly LaneRequest request
    cdef const uint8_t *data      # the batch, in the request's frame
    cdef int64_t size
    cdef bytes name               # the partition's wire name
    cdef int32_t count            # of the topic's partitions, in its first one; else 0
    cdef readonly LeaderState partition
    cdef object log
    cdef object queue
    cdef Watermark mark
    cdef ProducerAppendInfo producer  # what becomes of its producer, or None
    cdef readonly Verification verification  # of a transaction's batch; None to check none
    cdef int64_t begins_at        # the offset at which a transaction begins with the batch, -1 if none does
    cdef bint is_checked          # the records of a compressed batch are valid
    cdef bint is_in_log
    cdef bint waits               # for the high watermark, since the batch is in the log
    # The result.
    cdef bint is_decided
    cdef int16_t code             # of an error, or 0
    cdef int64_t result_offset
    cdef int64_t append_time
    cdef int64_t log_start_offset
    cdef bytes text               # the error's message
    cdef bytes record_errors      # those of single records, as they are sent
    cdef object refusal           # the error, or None
    # As in QueuedAppend, for the AppendQueue. `job` is the append itself while it is in flight.
    cdef public object job
    cdef public bint is_given_up
    cdef public object error

    cdef int64_t end(self) noexcept
    cdef bint check_records(self, object log) except -1
    # Let readers of committed data stop before the batch while it is appended, because a transaction begins with it.
    cdef int begin_transaction(self) except -1
    # ... before the next batch in flight with which one begins: this one is in the log.
    cdef int begin_next(self, object queue) except -1
    # ... no longer, because it was not appended.
    cdef int no_longer_begins(self) except -1
    cdef int finish_with_following(self) except -1
    # Wait in the purgatory for the high watermark; `complete` ends the wait. Return the deadline.
    cdef int64_t wait(self, Purgatory purgatory, int64_t now_ms) except -1
    cdef bint record(self) except -1
    cdef int succeed(self) except -1
    # Take the result: an error code or 0, offsets and times or -1, the error's message or None, the errors of records.
    cdef int decide(self, int16_t code, int64_t base_offset, int64_t append_time, int64_t log_start_offset,
                    str message, object record_errors) except -1
    cdef int64_t answer_size(self) noexcept
    cdef uint8_t *write_answer(self, uint8_t *p) noexcept
