"""XXH3, a hash of bytes with 64 bits (native/xxh3.h). It is no protection against chosen input.

Thread rule: stateless.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t


cdef extern from "xxh3.h" nogil:
    uint64_t kr_xxh3(const uint8_t *p, size_t size)


def xxh3_64(const uint8_t[::1] data not None):
    """Return the XXH3 of `data` as a signed number of 64 bits."""
    cdef const uint8_t *start = &data[0] if data.shape[0] else NULL
    return <int64_t>kr_xxh3(start, <size_t>data.shape[0])
