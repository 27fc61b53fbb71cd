# Scratch: memory that grows and is reused. Its owner frees `data` or passes it on.

from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport realloc

from kreplica._core.status cimport NO_MEMORY, OK

cdef struct Scratch:
    uint8_t *data
    int64_t size
    int64_t capacity


cdef inline int grow(Scratch *s, int64_t more) noexcept nogil:
    # Make room for `more` bytes after the first `size`: OK or NO_MEMORY.
    cdef int64_t capacity = s.size + more
    cdef void *data
    if capacity <= s.capacity:
        return OK
    if capacity < 2 * s.capacity:
        capacity = 2 * s.capacity
    if capacity < 256:
        capacity = 256
    data = realloc(s.data, <size_t>capacity)
    if data == NULL:
        return NO_MEMORY
    s.data = <uint8_t *>data
    s.capacity = capacity
    return OK


cdef inline int reserve(Scratch *s, int64_t more) except -1:
    # Do the same, but raise MemoryError on failure.
    if grow(s, more) != OK:
        raise MemoryError(f"no memory for {s.size + more} bytes")
    return 0
