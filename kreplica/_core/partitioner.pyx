"""Which partition a key belongs to: Kafka's murmur2, so that all clients agree.

The hash is Austin Appleby's MurmurHash2, 32 bits, with the seed that Kafka's clients use. No state; any
thread.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

cdef uint32_t SEED = 0x9747B28C
cdef uint32_t MULTIPLIER = 0x5BD1E995


cdef uint32_t _little_endian(const uint8_t *p) noexcept nogil:
    return p[0] | (<uint32_t>p[1] << 8) | (<uint32_t>p[2] << 16) | (<uint32_t>p[3] << 24)


cdef uint32_t hash_of(const uint8_t *p, int64_t size) noexcept nogil:
    """The hash of `size` bytes; Kafka takes the length's lower 32 bits."""
    cdef uint32_t h = SEED ^ <uint32_t>size
    cdef uint32_t k
    cdef int64_t i = 0
    while i + 4 <= size:
        k = _little_endian(p + i) * MULTIPLIER
        k = (k ^ (k >> 24)) * MULTIPLIER
        h = (h * MULTIPLIER) ^ k
        i += 4
    if size - i == 3:
        h ^= <uint32_t>p[i + 2] << 16
    if size - i >= 2:
        h ^= <uint32_t>p[i + 1] << 8
    if size - i >= 1:
        h = (h ^ p[i]) * MULTIPLIER
    h = (h ^ (h >> 13)) * MULTIPLIER
    return h ^ (h >> 15)


cdef int32_t _partition(uint32_t h, int32_t partitions) noexcept nogil:
    return <int32_t>(h & 0x7FFFFFFF) % partitions


def murmur2(const uint8_t[::1] data not None):
    """The hash of `data` as a signed number of 32 bits."""
    return <int32_t>hash_of(&data[0] if data.shape[0] else NULL, data.shape[0])


def partition_of(bytes key not None, int partitions):
    """The partition that `key` belongs to among so many. Raises ValueError unless there is one."""
    _require(partitions)
    return _partition(hash_of(<const uint8_t *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)), partitions)


def partitions_of(list keys not None, int partitions, int without_key):
    """The partition of each key; `without_key` for those that are None.

    Raises ValueError unless there is a partition, TypeError for a key that is neither bytes nor None.
    """
    _require(partitions)
    cdef list found = []
    for key in keys:
        if key is None:
            found.append(without_key)
            continue
        if not isinstance(key, bytes):
            raise TypeError(f"a key is bytes or None, not {type(key).__name__}")
        found.append(
            _partition(hash_of(<const uint8_t *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)), partitions)
        )
    return found


cdef int _require(int partitions) except -1:
    if partitions < 1:
        raise ValueError(f"{partitions} partitions")
    return 0
