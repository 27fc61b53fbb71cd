from libc.stdint cimport int64_t, uint8_t, uint32_t

cdef uint32_t hash_of(const uint8_t *p, int64_t size) noexcept nogil
