# OffsetIndex: the sparse map from offsets to file positions of a segment (.index).
#
# An entry is 8 bytes, big-endian: offset - base offset (4), position (4). Entries ascend in both. The index is a hint:
# callers check the batch that an answer refers to, so a lost or wrong index costs a scan, never a wrong record.
# Ownership and threads: as for its Region; one writer under the log's lock, any number of readers.

from libc.stdint cimport int32_t, int64_t, uint8_t

from kreplica._core.region cimport Region, kr_guarded

cdef enum:
    OFFSET_ENTRY_SIZE = 8
    WARM_BYTES = 8192             # the end of an index, which is searched first because most reads need it

cdef struct OffsetPosition:
    int64_t offset
    int64_t position


cdef class OffsetIndex:
    cdef readonly Region region
    cdef readonly int64_t base_offset
    cdef readonly int64_t max_entries
    cdef int64_t _last_offset

    # Reserve space for one more entry. FULL if no slot is left; else as Region.reserve.
    cdef int prepare(self) noexcept nogil
    # Add an entry; the caller has called prepare() and is under the guard. An offset that does not ascend is ignored.
    cdef void put(self, int64_t offset, int64_t position) noexcept nogil
    # The next three touch mapped memory: call them under the guard.
    # Find the greatest entry with offset <= target, else (base offset, 0).
    cdef int lookup(self, int64_t target, OffsetPosition *found) noexcept nogil
    cdef int entry(self, int64_t slot, OffsetPosition *found) noexcept nogil
    cdef int64_t count(self) noexcept nogil
    # Return the number of entries with an offset below `offset`.
    cdef int64_t rank(self, int64_t offset, int *status) noexcept nogil
    cdef int _guarded(self, kr_guarded step, int64_t target, OffsetPosition *found, str what) except -1
