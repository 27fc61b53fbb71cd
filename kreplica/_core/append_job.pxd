# Appends as jobs of a disk thread: a leader's batch, a follower's run, and the publication of where a log stands.
#
# Ownership: a job keeps its segment, its state and the buffer it appends from until it is let go. Thread rule: the
# segment's writer is the disk thread while a job of its log is under way, which is why these jobs go through the log's
# lane; see LogState for what the two threads share.

from libc.stdint cimport int64_t

from cpython.buffer cimport Py_buffer

from kreplica._core.disk_thread cimport DiskJob
from kreplica._core.follower_append cimport FetchedRun
from kreplica._core.log_segment cimport Append, LogSegment
from kreplica._core.log_state cimport LogState


cdef class AppendJob(DiskJob):
    cdef LogSegment segment
    cdef LogState state
    cdef Py_buffer *view          # of what it appends, NULL before
    cdef Append append
    cdef int64_t expected         # the offset that the batch has to get; -1: any


cdef class RunJob(DiskJob):
    cdef LogSegment segment
    cdef LogState state
    cdef Py_buffer *view          # of what it appends, NULL before
    cdef FetchedRun run


cdef class PublishJob(DiskJob):
    cdef LogState state
