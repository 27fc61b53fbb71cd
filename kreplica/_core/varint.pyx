"""Variable-length integers of Kafka's records and flexible messages; the C functions are in varint.pxd.

These are the Python functions, for tools and tests. `decode_*` return (value, bytes used) and raise TruncatedInput or
InvalidRecordLength.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kreplica._core.status cimport check


def encode_varint(int32_t value):
    """Return the zigzag encoding of a 32-bit number, 1 to 5 bytes."""
    cdef uint8_t buffer[10]
    return buffer[:write_varint(buffer, value)]


def encode_varlong(int64_t value):
    """Return the zigzag encoding of a 64-bit number, 1 to 10 bytes."""
    cdef uint8_t buffer[10]
    return buffer[:write_varlong(buffer, value)]


def encode_unsigned_varint(uint32_t value):
    """Return the encoding of an unsigned 32-bit number, 1 to 5 bytes."""
    cdef uint8_t buffer[10]
    return buffer[:write_unsigned_varint(buffer, value)]


def encode_unsigned_varlong(uint64_t value):
    """Return the encoding of an unsigned 64-bit number, 1 to 10 bytes."""
    cdef uint8_t buffer[10]
    return buffer[:write_unsigned_varlong(buffer, value)]


cdef inline const uint8_t *_start(const uint8_t[::1] data) noexcept:
    return &data[0] if data.shape[0] else NULL


def decode_varint(const uint8_t[::1] data not None):
    """Return the zigzag-encoded 32-bit number at the start of `data`, and its size in bytes."""
    cdef int32_t value = 0
    used = check(read_varint(_start(data), data.shape[0], &value), "reading a varint", 0)
    return value, used


def decode_varlong(const uint8_t[::1] data not None):
    """Return the zigzag-encoded 64-bit number at the start of `data`, and its size in bytes."""
    cdef int64_t value = 0
    used = check(read_varlong(_start(data), data.shape[0], &value), "reading a varlong", 0)
    return value, used


def decode_unsigned_varint(const uint8_t[::1] data not None):
    """Return the unsigned 32-bit number at the start of `data`, and its size in bytes."""
    cdef uint32_t value = 0
    used = check(read_unsigned_varint(_start(data), data.shape[0], &value), "reading an unsigned varint", 0)
    return value, used


def decode_unsigned_varlong(const uint8_t[::1] data not None):
    """Return the unsigned 64-bit number at the start of `data`, and its size in bytes."""
    cdef uint64_t value = 0
    used = check(read_unsigned_varlong(_start(data), data.shape[0], &value), "reading an unsigned varlong", 0)
    return value, used


def sizes(int64_t value):
    """Return the sizes of `value` in bytes as {"varint" (None beyond 32 bits), "varlong", "unsigned_..."}."""
    return {
        "varint": size_of_varint(<int32_t>value) if -(1 << 31) <= value < (1 << 31) else None,
        "varlong": size_of_varlong(value),
        "unsigned_varint": size_of_unsigned_varint(<uint32_t>value) if 0 <= value < (1 << 32) else None,
        "unsigned_varlong": size_of_unsigned_varlong(<uint64_t>value) if value >= 0 else None,
    }
