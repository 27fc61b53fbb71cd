"""The offset index of a segment: maps an offset to the position of a batch at or before it.

Kafka's file format (`<base offset>.index`) and search order: first the last 8 KiB, because most reads are near the
end and those pages are warm, then the rest. Contract, ownership and threads: offset_index.pxd.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from kreplica._core.big_endian cimport load32, store32
from kreplica._core.region cimport (
    Region, kr_guard_call, kr_guarded, load_length, publish_length, ensure_writable,
)
from kreplica._core.status cimport (
    BAD_INDEX, FULL, OK, OUT_OF_RANGE, check,
)


cdef struct Search:
    void *index
    int64_t target
    OffsetPosition *found


cdef int _guarded_entry(void *argument) noexcept nogil:
    cdef Search *search = <Search *> argument
    return (<OffsetIndex> search.index).entry(search.target, search.found)


cdef int _guarded_lookup(void *argument) noexcept nogil:
    cdef Search *search = <Search *> argument
    return (<OffsetIndex> search.index).lookup(search.target, search.found)


cdef int _guarded_rank(void *argument) noexcept nogil:
    cdef Search *search = <Search *> argument
    cdef int status
    search.found.position = (<OffsetIndex> search.index).rank(search.target, &status)
    return status


cdef class OffsetIndex:
    """The index of one segment over the Region of its file.

    `base_offset`: the segment's. `max_bytes`: segment.index.bytes, rounded down to whole entries; the region's
    capacity limits it, too. The region's length determines the number of valid entries.
    """

    def __cinit__(self, Region region not None, int64_t base_offset, int64_t max_bytes):
        self.region = region
        self.base_offset = base_offset
        self.max_entries = min(max_bytes, region.r.capacity) // OFFSET_ENTRY_SIZE
        self._last_offset = -1

    cdef int64_t count(self) noexcept nogil:
        return load_length(&self.region.r) // OFFSET_ENTRY_SIZE

    cdef int entry(self, int64_t slot, OffsetPosition *found) noexcept nogil:
        cdef uint8_t copied[OFFSET_ENTRY_SIZE]
        cdef const uint8_t *raw = self.region.r.base
        cdef int status
        if raw != NULL:
            raw += slot * OFFSET_ENTRY_SIZE
        else:
            status = self.region.copy_out(slot * OFFSET_ENTRY_SIZE, OFFSET_ENTRY_SIZE, copied)
            if status != OK:
                return status
            raw = copied
        found.offset = self.base_offset + <uint32_t> load32(raw)
        found.position = <uint32_t> load32(raw + 4)
        return OK

    cdef int prepare(self) noexcept nogil:
        cdef int64_t need = (self.count() + 1) * OFFSET_ENTRY_SIZE
        if need > self.max_entries * OFFSET_ENTRY_SIZE:
            return FULL
        return ensure_writable(self.region, need)

    cdef void put(self, int64_t offset, int64_t position) noexcept nogil:
        # Overwrite half an entry at the end of the file, if there is one.
        cdef int64_t length = self.count() * OFFSET_ENTRY_SIZE
        cdef uint8_t *slot = self.region.r.base + length
        cdef int64_t last = self._last_offset
        if last < 0 and length >= OFFSET_ENTRY_SIZE:
            last = self.base_offset + <uint32_t> load32(slot - OFFSET_ENTRY_SIZE)
        if length > 0 and offset <= last:
            return
        store32(slot, <int32_t> (offset - self.base_offset))
        store32(slot + 4, <int32_t> position)
        self._last_offset = offset
        publish_length(&self.region.r, length + OFFSET_ENTRY_SIZE)

    cdef int64_t rank(self, int64_t offset, int *status) noexcept nogil:
        # Binary search in [low, high): entries before `low` are < offset, those from `high` on are not.
        cdef int64_t low = 0, high = self.count(), hot, middle
        cdef OffsetPosition found
        status[0] = OK
        hot = high - 1 - WARM_BYTES // OFFSET_ENTRY_SIZE
        if hot > 0:
            status[0] = self.entry(hot, &found)
            if status[0] != OK:
                return 0
            if found.offset < offset:
                low = hot + 1
            else:
                high = hot
        while low < high:
            middle = (low + high) >> 1
            status[0] = self.entry(middle, &found)
            if status[0] != OK:
                return 0
            if found.offset < offset:
                low = middle + 1
            else:
                high = middle
        return low

    cdef int lookup(self, int64_t target, OffsetPosition *found) noexcept nogil:
        cdef int status
        cdef int64_t below = self.rank(target + 1, &status)
        found.offset = self.base_offset
        found.position = 0
        if status != OK or below == 0:
            return status
        return self.entry(below - 1, found)

    # ---- the Python edge --------------------------------------------------------------------------------

    cdef int _guarded(self, kr_guarded step, int64_t target, OffsetPosition *found, str what) except -1:
        cdef Search search
        search.index = <void *> self
        search.target = target
        search.found = found
        return check(kr_guard_call(step, &search), what, target)

    def __len__(self):
        return self.count()

    def __getitem__(self, int64_t slot):
        """Return entry `slot` as (offset, position)."""
        cdef OffsetPosition found
        if slot < 0 or slot >= self.count():
            raise IndexError(slot)
        self._guarded(_guarded_entry, slot, &found, "reading an offset index")
        return found.offset, found.position

    @property
    def is_full(self):
        return self.count() >= self.max_entries

    def append(self, int64_t offset, int64_t position):
        """Add (offset, position). Raises InvalidFile if no slot is left or the entry is out of range."""
        cdef int status
        if offset < self.base_offset or offset - self.base_offset > 0x7FFFFFFF or not 0 <= position <= 0x7FFFFFFF:
            check(OUT_OF_RANGE, "adding to an offset index", offset)
        status = self.prepare()
        if status == FULL:
            status = BAD_INDEX
        check(status, "adding to an offset index", offset)
        self.put(offset, position)

    def find(self, int64_t target):
        """Return the greatest entry (offset, position) at or below `target`, else (base offset, 0)."""
        cdef OffsetPosition found
        self._guarded(_guarded_lookup, target, &found, "searching an offset index")
        return found.offset, found.position

    def truncate_to(self, int64_t offset):
        """Drop the entries for `offset` and above."""
        cdef OffsetPosition kept
        self._guarded(_guarded_rank, offset, &kept, "truncating an offset index")
        self._last_offset = -1
        self.region.truncate(kept.position * OFFSET_ENTRY_SIZE)

    def reset(self):
        """Drop all entries, for a rebuild."""
        self._last_offset = -1
        self.region.truncate(0)

    def forget_padding(self):
        """Exclude the zeros that a crash left after the last entry, because an index is allocated ahead."""
        cdef int64_t low = 0, high = self.count(), middle
        cdef OffsetPosition found
        while low < high:
            middle = (low + high) >> 1
            self._guarded(_guarded_entry, middle, &found, "reading an offset index")
            if found.offset == self.base_offset and found.position == 0:
                high = middle
            else:
                low = middle + 1
        publish_length(&self.region.r, low * OFFSET_ENTRY_SIZE)

    def is_plausible(self, int64_t log_length):
        """Whether the entries fit a segment of `log_length` bytes, judging by the last one."""
        cdef OffsetPosition found
        cdef int64_t entries = self.count()
        if self.region.length % OFFSET_ENTRY_SIZE:
            return False
        if entries == 0:
            return True
        self._guarded(_guarded_entry, entries - 1, &found, "reading an offset index")
        return found.offset > self.base_offset and found.position < log_length
