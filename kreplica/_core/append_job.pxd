# Appends as jobs of a disk thread: a leader's batch, a follower's run, and the publication of a log's state.
#
# Ownership: a job keeps its segment, its state and its source buffer alive. Thread rule: while a job of a log is in
# progress, the disk thread is the writer of its segment; therefore these jobs go through the log's lane. See LogState
# for what the two threads share.

from libc.stdint cimport int32_t, int64_t, uint8_t

from cpython.buffer cimport Py_buffer

from kreplica._core.disk_thread cimport DiskJob
from kreplica._core.follower_append cimport FetchedRun
from kreplica._core.log_lock cimport LogLock
from kreplica._core.log_segment cimport Append, LogSegment
from kreplica._core.log_state cimport LogState

# Take a native append, which is its own job, back from its log's AppendQueue if it is the first and done, and no other
# waits behind it; as AppendQueue.take_back. Return whether it is finished; if not, the queue has to decide.
cdef bint take_back(DiskJob append, object queue, LogLock lock) except -1
# Let the queue go on once a native append is finished.
cdef int go_on(DiskJob append, object queue, LogState state) except -1
# Return a view of the buffer, which `let_go` releases.
cdef Py_buffer *view_of(data) except NULL
cdef void let_go(Py_buffer *view)


cdef class AppendJob(DiskJob):
    cdef LogSegment segment
    cdef LogState state
    cdef Py_buffer *view          # the data to append, NULL before
    cdef Append append
    cdef int64_t expected         # the offset that the batch must get; -1: any

    # Initialize the append of the batch at data[0:size], which must be plain, and stay there until the job is done.
    cdef int begin(self, LogSegment segment, LogState state, const uint8_t *data, int64_t size,
                   int32_t leader_epoch) except -1
    # Accept batches that were checked before, in which nothing is left to decide. Call after `begin`.
    cdef void take_as_checked(self) noexcept


cdef class RunJob(DiskJob):
    cdef LogSegment segment
    cdef LogState state
    cdef Py_buffer *view          # the data to append, NULL before
    cdef FetchedRun run

    # Initialize the append of the batches in `data`.
    cdef int begin(self, data, LogSegment segment, LogState state, int32_t leader_epoch,
                   bint with_producers) except -1


cdef class PublishJob(DiskJob):
    cdef LogState state
    cdef object queue             # the AppendQueue, if `publish_soon` has made the job


cpdef int publish_soon(object queue) except -1
