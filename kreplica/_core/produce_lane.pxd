# ProduceLane: the native way of a Produce request, from its frame to the job that appends its batch, and from there to
# the bytes of its answer.
#
# A request takes this way if nothing about it has to be decided: it names one partition that this broker leads, its
# batch can be appended in one native call, and nothing that came before it still waits. Everything else is declined,
# by the first of the reasons below, before anything has changed; Python then handles the request. A request that
# was taken and whose job the core declines (a roll, a bad checksum) is handed over to Python in its place in the log's
# AppendQueue.
#
#     frame --take--> LaneAppend --Disk--> finish --acks=all--> Purgatory --complete--> respond --> `answered`
#                        |                   |                                             ^
#                        |                   +--acks=1-------------------------------------+
#                        +--declined by the core--> AppendManager.take_over, a ProducerAppend
#
# A LaneAppend is everything about its request in one object: the job, an entry of the AppendQueue, the token in the
# purgatory, and what is cancelled when the client is gone. Ownership: it keeps the frame until the batch is in the log.
# Thread rule: as AppendManager: with a disk thread only the node's loop, else any thread. `take` and `finish` hold the
# partition's leader_isr_update_lock and the log's offsets_lock as Python's appends do; `take` declines if one of them
# is not free.

from libc.stdint cimport int16_t, int32_t, int64_t

from kreplica._core.append_job cimport AppendJob
from kreplica._core.leader_state cimport LeaderState
from kreplica._core.log_lock cimport LogLock
from kreplica._core.purgatory cimport Watermark

cdef enum:
    # The request. DECLINED in produce_lane.pyx has the names, in this order.
    VERSION                       # a version before 9 or after 11
    LAYOUT                        # it has unknown fields, or cannot be read
    TRANSACTIONAL_ID              # it belongs to a transaction
    ACKS                          # acks is neither 1 nor -1
    SEVERAL_PARTITIONS            # it does not name exactly one partition
    # The partition.
    UNKNOWN_PARTITION             # this broker does not have it, or only brokers may write to it
    NOT_LEADER                    # this broker does not lead it
    TOO_FEW_IN_SYNC               # acks=all with fewer replicas in sync than min.insync.replicas
    BUSY                          # earlier appends wait, or another thread holds a lock
    DURABILITY                    # an append waits for a flush
    SETTINGS                      # the topic's settings change or check each batch
    # The batch.
    BATCH                         # its header is invalid, it is a control batch, or the records are no one batch
    COMPRESSED                    # its records have to be decompressed and checked
    SEQUENCE                      # its producer's sequence needs a decision
    CORE                          # the core declines it: a roll, a bad checksum, a full disk ...
    DECLINES                      # the number of reasons


cdef struct request_t:
    int16_t version
    int32_t correlation_id
    int16_t acks
    int32_t timeout_ms
    int64_t name                  # position of the topic's name, which ends with the partition's number
    int64_t name_size
    int64_t records
    int64_t records_size


cdef class ProduceLane:
    cdef readonly int64_t taken
    cdef int64_t declines[DECLINES]
    cdef dict partitions          # by wire name, see wire_name
    cdef object owner
    cdef object bytes_in
    cdef object messages_in
    cdef object await_commit
    cdef object inline            # the disk that makes an append in the caller's turn

    cdef LaneAppend start(self, object frame, const request_t *request, object answered, object connection)
    cdef int submit(self, LaneAppend append) except -2
    cdef int submit_locked(self, LaneAppend append, object queue, LogLock lock) except -2


cdef class LaneAppend(AppendJob):
    cdef ProduceLane lane
    cdef object frame             # the request; None once the batch is in the log
    cdef request_t request
    cdef bytes name               # the partition's wire name
    cdef readonly LeaderState partition
    cdef object log
    cdef object queue
    cdef Watermark mark
    cdef object producer          # a ProducerAppendInfo, or None
    cdef object answered          # takes the answer; None once it has been called
    cdef readonly object connection
    # As in QueuedAppend, for the AppendQueue. `job` is the append itself while it is in flight.
    cdef public object job
    cdef public bint is_given_up
    cdef public object error

    cdef int succeed(self) except -1
    # Answer: an error code or 0, offsets and times or -1, the error's message or None, the errors of records.
    cdef int respond(self, int16_t code, int64_t base_offset, int64_t append_time, int64_t log_start_offset,
                     str message, object record_errors) except -1
