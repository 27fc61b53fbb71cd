"""CRC-32C, the checksum of record batches.

At import the fastest implementation for the machine is chosen. `select` is for tests and benchmarks. Thread rule: call
`select` only while no thread computes a checksum.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t


cdef extern from "crc32c.h" nogil:
    void kr_crc32c_init()
    uint32_t kr_crc32c_extend(uint32_t crc, const uint8_t *p, size_t n)
    uint32_t kr_crc32c_copy_extend(uint32_t crc, uint8_t *target, const uint8_t *p, size_t n)
    uint32_t kr_crc32c_combine(uint32_t crc_a, uint32_t crc_b, size_t size_b)
    const char *kr_crc32c_name(int i)
    int kr_crc32c_available(int i)
    int kr_crc32c_selected()
    void kr_crc32c_select(int i)


kr_crc32c_init()


cdef uint32_t crc32c(const uint8_t *p, int64_t size) noexcept nogil:
    return kr_crc32c_extend(0, p, <size_t>size)


cdef uint32_t crc32c_extend(uint32_t crc, const uint8_t *p, int64_t size) noexcept nogil:
    return kr_crc32c_extend(crc, p, <size_t>size)


cdef uint32_t crc32c_copy(uint8_t *target, const uint8_t *p, int64_t size) noexcept nogil:
    return kr_crc32c_copy_extend(0, target, p, <size_t>size)


cdef uint32_t crc32c_copy_extend(uint32_t crc, uint8_t *target, const uint8_t *p,
                                 int64_t size) noexcept nogil:
    return kr_crc32c_copy_extend(crc, target, p, <size_t>size)


cdef uint32_t crc32c_combine(uint32_t crc_a, uint32_t crc_b, int64_t size_b) noexcept nogil:
    return kr_crc32c_combine(crc_a, crc_b, <size_t>size_b)


def checksum(const uint8_t[::1] data not None, uint32_t crc=0):
    """Return the CRC-32C of `data`, continuing from `crc`, the checksum of the data before it."""
    return kr_crc32c_extend(crc, &data[0], data.shape[0]) if data.shape[0] else crc


def checksum_behind(bytes before not None, bytes data not None, int64_t position):
    """Return the CRC-32C of `before` followed by data[position:]. Raises ValueError for a position out of range."""
    cdef uint32_t crc
    if not 0 <= position <= len(data):
        raise ValueError(f"position {position} is out of range: there are {len(data)} bytes")
    crc = kr_crc32c_extend(0, <const uint8_t *>before, <size_t>len(before))
    return kr_crc32c_extend(crc, <const uint8_t *>data + position, <size_t>(len(data) - position))


def copy(uint8_t[::1] target not None, const uint8_t[::1] data not None, uint32_t crc=0):
    """Copy `data` to the start of `target` and return its CRC-32C. Raises ValueError if it does not fit."""
    if target.shape[0] < data.shape[0]:
        raise ValueError(f"{data.shape[0]} bytes do not fit into {target.shape[0]}")
    return kr_crc32c_copy_extend(crc, &target[0], &data[0], data.shape[0]) if data.shape[0] else crc


def combine(uint32_t crc_a, uint32_t crc_b, int64_t size_b):
    """Return the CRC-32C of a followed by b, from their checksums and the size of b in bytes."""
    if size_b < 0:
        raise ValueError("size_b is negative")
    return kr_crc32c_combine(crc_a, crc_b, <size_t>size_b)


def implementations():
    """Return the names of the implementations that this machine supports, fastest first."""
    names = []
    cdef int i = 0
    while kr_crc32c_name(i) != NULL:
        if kr_crc32c_available(i):
            names.append(kr_crc32c_name(i).decode())
        i += 1
    return names


def selected():
    """Return the name of the implementation in use."""
    return kr_crc32c_name(kr_crc32c_selected()).decode()


def select(str name not None):
    """Use the implementation `name` from now on. Raises ValueError if the machine does not support it."""
    cdef int i = 0
    while kr_crc32c_name(i) != NULL:
        if kr_crc32c_name(i).decode() == name and kr_crc32c_available(i):
            kr_crc32c_select(i)
            return
        i += 1
    raise ValueError(f"unknown CRC-32C implementation {name!r}: this machine has {implementations()}")
