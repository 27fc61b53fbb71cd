# OffsetIndex and TimeIndex: the sparse maps beside each segment (.index and .timeindex).
#
# An entry of an offset index is 8 bytes, big-endian: offset - base offset (4), position in the segment (4). Entries
# ascend in both.
# An entry of a time index is 12 bytes: timestamp in ms since 1970 (8), offset - base offset (4). It means that the
# greatest timestamp up to that offset is this one. Entries strictly ascend in timestamp, so a clock that goes back adds
# nothing. The last slot is reserved for the entry that a roll or a close adds.
# Both are hints: callers check the batch that an answer refers to, so a lost or wrong index costs a scan, never a wrong
# record. Ownership and threads: as for their Region; one writer under the log's lock, any number of readers.

from libc.stdint cimport int64_t

from kreplica._core.region cimport Region

cdef enum:
    OFFSET_ENTRY_SIZE = 8
    TIME_ENTRY_SIZE = 12
    WARM_BYTES = 8192             # the end of an index, which is searched first because most reads need it

cdef struct IndexEntry:
    int64_t key                   # an offset; in a time index, a timestamp
    int64_t value                 # a position; in a time index, an offset


cdef class SegmentIndex:
    cdef readonly Region region
    cdef readonly int64_t base_offset
    cdef readonly int64_t max_entries
    cdef int64_t entry_size
    cdef int64_t reserved         # slots at the end that only a closing entry takes
    cdef IndexEntry before        # what lookup finds below the first entry
    cdef IndexEntry padding       # what an entry of zeros reads as
    cdef int64_t last_key         # of the last entry, -1 without entries; valid if last_known
    cdef bint last_known

    # Reserve space for one more entry. FULL if no slot is left (`closing`: a reserved one may be used); else as
    # Region.reserve.
    cdef int prepare(self, bint closing) noexcept nogil
    # Add an entry; the caller has called prepare() and is under the guard. A key that does not ascend is ignored.
    cdef void put(self, int64_t key, int64_t value) noexcept nogil
    cdef int64_t count(self) noexcept nogil
    # The next three touch mapped memory: call them under the guard.
    # Find the last entry with key <= target, else `before`.
    cdef int lookup(self, int64_t target, IndexEntry *found) noexcept nogil
    cdef int entry(self, int64_t slot, IndexEntry *found) noexcept nogil
    # Return the number of entries whose key (`by_offset`: whose offset) is at most `target`.
    cdef int64_t rank(self, int64_t target, bint by_offset, int *status) noexcept nogil
    cdef int64_t _offset_of(self, const IndexEntry *entry) noexcept nogil
    cdef int _find(self, int64_t target, IndexEntry *found) except -1
    cdef int _entry(self, int64_t slot, IndexEntry *found) except -1
    cdef int _add(self, int64_t key, int64_t value, int64_t offset, bint closing) except -1


cdef class OffsetIndex(SegmentIndex):
    pass


cdef class TimeIndex(SegmentIndex):
    pass
