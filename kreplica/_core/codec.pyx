"""The core's access to compression: two functions that kreplica.record.compression installs when it is imported."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from kreplica._core.status cimport SHORT_INPUT, UNKNOWN_CODEC, check
from kreplica._core.varint cimport read_varint

cdef enum:
    # Bytes of a record's body: attributes, two deltas, two lengths, a count of headers.
    SMALLEST_RECORD = 6

cdef object _compress = None
cdef object _decompress = None


def install(compress, decompress):
    """Use `compress(codec, data, level)` and `decompress(codec, data, max_size, record_count)` from now on.

    Both return an object with the buffer protocol, which must not be changed afterwards.
    """
    global _compress, _decompress
    _compress = compress
    _decompress = decompress


cdef object compress(int codec, object data, object level):
    if _compress is None:
        check(UNKNOWN_CODEC, "compressing without kreplica.record.compression", codec)
    return _compress(codec, data, level)


cdef int64_t _least_size(const uint8_t *p, int64_t size, int64_t record_count) noexcept nogil:
    cdef int64_t at = 0
    cdef int32_t length = 0
    cdef int used
    while at < size and record_count > 0:
        used = read_varint(p + at, size - at, &length)
        if used == SHORT_INPUT:
            return size
        if used < 0 or length < SMALLEST_RECORD:
            return -1
        at += used + length
        record_count -= 1
    # After the last record there must be nothing.
    return at + record_count * (SMALLEST_RECORD + 1) if at >= size else -1


def least_size(const uint8_t[::1] data, int64_t record_count):
    """Return the minimum size of `record_count` records that begin with `data`, by their lengths; -1 if impossible.

    With this, decompression of a batch that is too large, or not made of records, is given up early.
    """
    cdef const uint8_t *p = &data[0] if data.shape[0] else NULL
    cdef int64_t found
    with nogil:
        found = _least_size(p, data.shape[0], record_count)
    return found


cdef object decompress(int codec, object data, int64_t max_size, int64_t record_count):
    if _decompress is None:
        check(UNKNOWN_CODEC, "decompressing without kreplica.record.compression", codec)
    return _decompress(codec, data, max_size, record_count)
