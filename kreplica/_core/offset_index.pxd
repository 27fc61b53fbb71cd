# OffsetIndex: the sparse map from offset to file position that lies beside each segment (.index).
#
# An entry is 8 bytes, big-endian: offset - base offset (4), position (4). Entries ascend in both. The index is a
# hint: whoever uses an answer checks the batch it points at, so a lost or lying index costs a scan, never a
# wrong record. Ownership and threads: as its Region; one writer under the log's lock, any number of readers.

from libc.stdint cimport int32_t, int64_t, uint8_t

from kreplica._core.region cimport Region, kr_guarded

cdef enum:
    OFFSET_ENTRY_SIZE = 8
    WARM_BYTES = 8192             # the end of an index that is searched first, since readers mostly ask for it

cdef struct OffsetPosition:
    int64_t offset
    int64_t position


cdef class OffsetIndex:
    cdef readonly Region region
    cdef readonly int64_t base_offset
    cdef readonly int64_t max_entries
    cdef int64_t _last_offset

    # Backing for one more entry. FULL when there is no slot left; else as Region.reserve.
    cdef int prepare(self) noexcept nogil
    # Add an entry; the caller has called prepare() and holds the guard. An offset that does not ascend is ignored.
    cdef void put(self, int64_t offset, int64_t position) noexcept nogil
    # The three below touch mapped memory: call them under the guard.
    # The greatest entry with offset <= target; (base offset, 0) when there is none.
    cdef int lookup(self, int64_t target, OffsetPosition *found) noexcept nogil
    cdef int entry(self, int64_t slot, OffsetPosition *found) noexcept nogil
    cdef int64_t count(self) noexcept nogil
    # The number of entries with an offset below `offset`.
    cdef int64_t rank(self, int64_t offset, int *status) noexcept nogil
    cdef int _guarded(self, kr_guarded step, int64_t target, OffsetPosition *found, str what) except -1
