# LogAppendInfo: the result of an append; native code creates it without __init__.

from libc.stdint cimport int32_t, int64_t


cdef class LogAppendInfo:
    cdef readonly int64_t base_offset
    cdef readonly int64_t last_offset
    cdef readonly int32_t leader_epoch
    cdef readonly int64_t max_timestamp
    cdef readonly int64_t log_append_time
    cdef readonly int64_t log_start_offset
    cdef readonly int32_t record_count
    cdef readonly int64_t size
    cdef readonly int64_t position
    cdef public bint duplicate
