# Variable-length integers: seven bits in each byte, the lowest first, the high bit set on all but the last byte.
# Signed ones are zigzag-encoded: 0, -1, 1, -2 ... become 0, 1, 2, 3 ...
#
# A reader takes the number of bytes left, stores the value and returns the number of bytes it used (1 to 5, or 1 to 10
# for 64 bits), or a negative Status. SHORT_INPUT means that the number continues beyond the bytes left, BAD_VARINT
# that it continues beyond 5 (10) bytes or has more than 32 (64) bits; *value is then unchanged. A writer returns the
# number of bytes it wrote, which is what the size function returns.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kreplica._core.status cimport BAD_VARINT, SHORT_INPUT


cdef inline int read_unsigned_varint(const uint8_t *p, int64_t left, uint32_t *value) noexcept nogil:
    cdef uint32_t result = 0
    cdef int used
    if left > 0 and p[0] < 0x80:
        value[0] = p[0]
        return 1
    for used in range(5):
        if used >= left:
            return SHORT_INPUT
        result |= <uint32_t>(p[used] & 0x7F) << (7 * used)
        if p[used] < 0x80:
            if used == 4 and p[used] > 0x0F:
                return BAD_VARINT
            value[0] = result
            return used + 1
    return BAD_VARINT


cdef inline int read_unsigned_varlong(const uint8_t *p, int64_t left, uint64_t *value) noexcept nogil:
    cdef uint64_t result = 0
    cdef int used
    if left > 0 and p[0] < 0x80:
        value[0] = p[0]
        return 1
    for used in range(10):
        if used >= left:
            return SHORT_INPUT
        result |= <uint64_t>(p[used] & 0x7F) << (7 * used)
        if p[used] < 0x80:
            if used == 9 and p[used] > 0x01:
                return BAD_VARINT
            value[0] = result
            return used + 1
    return BAD_VARINT


cdef inline int read_varint(const uint8_t *p, int64_t left, int32_t *value) noexcept nogil:
    cdef uint32_t raw = 0
    cdef int used = read_unsigned_varint(p, left, &raw)
    if used > 0:
        value[0] = <int32_t>((raw >> 1) ^ (0 - (raw & 1)))
    return used


cdef inline int read_varlong(const uint8_t *p, int64_t left, int64_t *value) noexcept nogil:
    cdef uint64_t raw = 0
    cdef int used = read_unsigned_varlong(p, left, &raw)
    if used > 0:
        value[0] = <int64_t>((raw >> 1) ^ (0 - (raw & 1)))
    return used


cdef inline uint32_t zigzag32(int32_t value) noexcept nogil:
    return (<uint32_t>value << 1) ^ <uint32_t>(value >> 31)


cdef inline uint64_t zigzag64(int64_t value) noexcept nogil:
    return (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)


cdef inline int write_unsigned_varlong(uint8_t *p, uint64_t value) noexcept nogil:
    cdef int used = 0
    while value >= 0x80:
        p[used] = <uint8_t>(value | 0x80)
        value >>= 7
        used += 1
    p[used] = <uint8_t>value
    return used + 1


cdef inline int write_unsigned_varint(uint8_t *p, uint32_t value) noexcept nogil:
    return write_unsigned_varlong(p, value)


cdef inline int write_varint(uint8_t *p, int32_t value) noexcept nogil:
    return write_unsigned_varlong(p, zigzag32(value))


cdef inline int write_varlong(uint8_t *p, int64_t value) noexcept nogil:
    return write_unsigned_varlong(p, zigzag64(value))


cdef inline int size_of_unsigned_varlong(uint64_t value) noexcept nogil:
    cdef int size = 1
    while value >= 0x80:
        value >>= 7
        size += 1
    return size


cdef inline int size_of_unsigned_varint(uint32_t value) noexcept nogil:
    return size_of_unsigned_varlong(value)


cdef inline int size_of_varint(int32_t value) noexcept nogil:
    return size_of_unsigned_varlong(zigzag32(value))


cdef inline int size_of_varlong(int64_t value) noexcept nogil:
    return size_of_unsigned_varlong(zigzag64(value))
