"""Computes the partition of a key by Kafka's murmur2 hash, so that all clients agree.

The hash is Austin Appleby's 32-bit MurmurHash2, with the seed of Kafka's clients. Stateless; any thread.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

cdef uint32_t SEED = 0x9747B28C
cdef uint32_t MULTIPLIER = 0x5BD1E995


cdef uint32_t _little_endian(const uint8_t *p) noexcept nogil:
    return p[0] | (<uint32_t>p[1] << 8) | (<uint32_t>p[2] << 16) | (<uint32_t>p[3] << 24)


cdef uint32_t hash_of(const uint8_t *p, int64_t size) noexcept nogil:
    """Return the hash of `size` bytes; like Kafka it uses the length's lower 32 bits."""
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
    """Return the hash of `data` as a signed 32-bit number."""
    return <int32_t>hash_of(&data[0] if data.shape[0] else NULL, data.shape[0])


def partition_of(bytes key not None, int partitions):
    """Return the partition of `key` among `partitions`. Raises ValueError if that is below 1."""
    _require(partitions)
    return _partition(hash_of(<const uint8_t *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)), partitions)


def partitions_of(list keys not None, int partitions, int without_key):
    """Return the partition of each key, and `without_key` for None.

    Raises ValueError for fewer than 1 partition, TypeError for a key that is neither bytes nor None.
    """
    _require(partitions)
    cdef list found = []
    for key in keys:
        if key is None:
            found.append(without_key)
            continue
        if not isinstance(key, bytes):
            raise TypeError(f"a key must be bytes or None, not {type(key).__name__}")
        found.append(
            _partition(hash_of(<const uint8_t *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)), partitions)
        )
    return found


cdef int _require(int partitions) except -1:
    if partitions < 1:
        raise ValueError(f"partitions={partitions} is below the minimum of 1")
    return 0
