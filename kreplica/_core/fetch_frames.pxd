# A follower's Fetch requests and answers; the functions are in fetch_frames.pyx.

from libc.stdint cimport int32_t, int64_t


cdef class PartitionAnswer:
    cdef readonly int64_t high_watermark
    cdef readonly int64_t log_start_offset
    cdef readonly object records       # a slice of the frame, or None


cdef class FetchAnswer:
    cdef readonly int32_t session_id
    cdef readonly list partitions      # of (topic id, partition, PartitionAnswer)


cdef class FetchSettings:
    cdef readonly int32_t max_wait_ms
    cdef readonly int32_t min_bytes
    cdef readonly int32_t max_bytes
    cdef readonly int32_t partition_max_bytes
    cdef readonly int32_t replica_id
    cdef readonly int64_t replica_epoch


cdef class SessionFetch:
    cdef readonly int32_t session_id
    cdef readonly int32_t session_epoch
    cdef readonly dict asked
    cdef readonly dict forgotten


cdef class FetchFrames:
    cdef readonly SessionFetch fetch
    cdef readonly FetchSettings settings
    cdef object declined               # counts the answers that were declined, by the reason

    cdef object as_message(self, object why, object frame)
