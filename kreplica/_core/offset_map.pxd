# OffsetMap: the latest offset of each key in a range of a log, in bounded memory, for the cleaner.
#
# It takes 16 bytes per key at a load factor of 0.9 (native/offset_map.h has the table). A key is identified by 96 bits
# of a keyed hash: among ten million keys, two collide with a probability of 1 to 10**15, and without the hash key
# collisions cannot be searched for. Ownership: the memory is the map's. Thread rule: one thread at a time.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from kreplica._core.batch_walk cimport BatchWalk
from kreplica._core.record_batch cimport BatchHeader
from kreplica._core.records cimport RecordBatch

cdef extern from "offset_map.h" nogil:
    ctypedef struct kr_offset_entry:
        uint64_t place
        uint32_t check
        uint32_t mark
    ctypedef struct kr_offset_map:
        int64_t slots
        int64_t capacity
        int64_t reserved_slots
        int64_t size
    int kr_offset_map_open(kr_offset_map *map, int64_t slots, int64_t capacity, const uint8_t *key)
    void kr_offset_map_close(kr_offset_map *map)
    void kr_offset_map_clear(kr_offset_map *map, int64_t keys)
    bint kr_offset_map_put(kr_offset_map *map, const kr_offset_entry *entry)
    kr_offset_entry kr_offset_map_entry(const kr_offset_map *map, const uint8_t *key, int64_t size)
    uint32_t kr_offset_map_find(const kr_offset_map *map, uint64_t place, uint32_t check)

cdef enum:
    # Number of keys to hash, and slots to prefetch, before the first slot is accessed.
    OFFSET_MAP_GROUP = 24
    # Maximum distance of an offset from a pass's first one: 2**32 - 2, since a mark of 0 means an empty slot.
    MAX_OFFSET_DISTANCE = 0xFFFFFFFE


cdef class OffsetMap(BatchWalk):
    cdef kr_offset_map map
    cdef readonly int64_t first_offset
    cdef readonly int64_t latest_offset

    # Put the keys of the records of h's batch. Returns OK; FULL, with latest_offset just below the first record that
    # did not fit; or an error.
    cdef int put_section(self, const BatchHeader *h, const uint8_t *records, int64_t size) noexcept nogil
    cdef int put_group(self, const kr_offset_entry *group, int64_t count) noexcept nogil
    cdef int _count(self, RecordBatch batch) except -1
    cdef kr_offset_entry _entry(self, const uint8_t[::1] key)
