# TimeIndex: the sparse map from timestamp to offset in the file next to each segment (.timeindex).
#
# An entry is 12 bytes, big-endian: timestamp in ms since 1970 (8), offset - base offset (4). It means that the
# greatest timestamp up to that offset is this one. Entries strictly ascend in timestamp, so a clock that goes back adds
# nothing. The last slot is reserved for the entry that a roll or a close adds. Ownership and thread rule: those of its
# Region.

from libc.stdint cimport int32_t, int64_t, uint8_t

from kreplica._core.region cimport Region, kr_guarded

cdef enum:
    TIME_ENTRY_SIZE = 12

cdef struct TimestampOffset:
    int64_t timestamp
    int64_t offset


cdef class TimeIndex:
    cdef readonly Region region
    cdef readonly int64_t base_offset
    cdef readonly int64_t max_entries
    cdef int64_t _last_timestamp
    cdef bint _last_known

    # Make room for one more entry; return FULL if there is no slot left (`closing`: the reserved one may be used).
    cdef int prepare(self, bint closing) noexcept nogil
    # Add an entry if its timestamp is above the last one's; call prepare() first and hold the guard.
    cdef void put(self, int64_t timestamp, int64_t offset) noexcept nogil
    # The two functions below access mapped memory, so call them under the guard.
    # Find the last entry with timestamp <= target, else (-1, base offset).
    cdef int lookup(self, int64_t target, TimestampOffset *found) noexcept nogil
    cdef int entry(self, int64_t slot, TimestampOffset *found) noexcept nogil
    cdef int64_t count(self) noexcept nogil
    cdef int _guarded(self, kr_guarded step, int64_t target, TimestampOffset *found, str what) except -1
