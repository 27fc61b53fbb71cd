# FrameMemory: the memory of one large frame, which returns to a pool when it is no longer referenced.

from libc.stdint cimport int64_t, uint8_t


cdef class FrameMemory:
    cdef uint8_t *_data
    cdef int64_t _capacity
    cdef readonly int64_t size
