"""The time index of a segment: from a timestamp to an offset where a search may begin.

Kafka's file format (`<base offset>.timeindex`). Contract, ownership and thread rule: time_index.pxd.
"""

from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t

from kreplica._core.big_endian cimport load32, load64, store32, store64
from kreplica._core.region cimport (
    Region, ensure_writable, kr_guard_call, kr_guarded, load_length, publish_length,
)
from kreplica._core.status cimport BAD_INDEX, FULL, OK, OUT_OF_RANGE, check


cdef struct Search:
    void *index
    int64_t target
    TimestampOffset *found


cdef int _guarded_entry(void *argument) noexcept nogil:
    cdef Search *search = <Search *> argument
    return (<TimeIndex> search.index).entry(search.target, search.found)


cdef int _guarded_lookup(void *argument) noexcept nogil:
    cdef Search *search = <Search *> argument
    return (<TimeIndex> search.index).lookup(search.target, search.found)


cdef class TimeIndex:
    """The time index of one segment in the Region of its file; takes the arguments of OffsetIndex."""

    def __cinit__(self, Region region not None, int64_t base_offset, int64_t max_bytes):
        self.region = region
        self.base_offset = base_offset
        self.max_entries = min(max_bytes, region.r.capacity) // TIME_ENTRY_SIZE
        self._last_known = False

    cdef int64_t count(self) noexcept nogil:
        return load_length(&self.region.r) // TIME_ENTRY_SIZE

    cdef int entry(self, int64_t slot, TimestampOffset *found) noexcept nogil:
        cdef uint8_t copied[TIME_ENTRY_SIZE]
        cdef const uint8_t *raw = self.region.r.base
        cdef int status
        if raw != NULL:
            raw += slot * TIME_ENTRY_SIZE
        else:
            status = self.region.copy_out(slot * TIME_ENTRY_SIZE, TIME_ENTRY_SIZE, copied)
            if status != OK:
                return status
            raw = copied
        found.timestamp = load64(raw)
        found.offset = self.base_offset + <uint32_t> load32(raw + 8)
        return OK

    cdef int prepare(self, bint closing) noexcept nogil:
        cdef int64_t entries = self.count() + 1
        if entries > self.max_entries - (0 if closing else 1):
            return FULL
        return ensure_writable(self.region, entries * TIME_ENTRY_SIZE)

    cdef void put(self, int64_t timestamp, int64_t offset) noexcept nogil:
        # An incomplete entry at the file's end is overwritten.
        cdef int64_t length = self.count() * TIME_ENTRY_SIZE
        cdef uint8_t *slot = self.region.r.base + length
        if not self._last_known:
            self._last_timestamp = load64(slot - TIME_ENTRY_SIZE) if length else -1
            self._last_known = True
        if timestamp <= self._last_timestamp:
            return
        store64(slot, timestamp)
        store32(slot + 8, <int32_t> (offset - self.base_offset))
        self._last_timestamp = timestamp
        publish_length(&self.region.r, length + TIME_ENTRY_SIZE)

    cdef int lookup(self, int64_t target, TimestampOffset *found) noexcept nogil:
        cdef int64_t low = 0, high = self.count(), middle
        cdef int status
        cdef TimestampOffset probe
        found.timestamp = -1
        found.offset = self.base_offset
        while low < high:
            middle = (low + high) >> 1
            status = self.entry(middle, &probe)
            if status != OK:
                return status
            if probe.timestamp <= target:
                found[0] = probe
                low = middle + 1
            else:
                high = middle
        return OK

    # ---- the Python edge --------------------------------------------------------------------------------

    cdef int _guarded(self, kr_guarded step, int64_t target, TimestampOffset *found, str what) except -1:
        cdef Search search
        search.index = <void *> self
        search.target = target
        search.found = found
        return check(kr_guard_call(step, &search), what, target)

    def __len__(self):
        return self.count()

    def __getitem__(self, int64_t slot):
        """Return (timestamp in ms, offset) of entry `slot`."""
        cdef TimestampOffset found
        if slot < 0 or slot >= self.count():
            raise IndexError(slot)
        self._guarded(_guarded_entry, slot, &found, "reading a time index")
        return found.timestamp, found.offset

    @property
    def is_full(self):
        """Whether only the slot reserved for the roll is left."""
        return self.count() >= self.max_entries - 1

    def append(self, int64_t timestamp, int64_t offset, *, bint closing=False):
        """Add (timestamp, offset) if the timestamp is above the last one's.

        `closing`: may use the slot reserved for the roll. Raises InvalidFile if there is no slot left.
        """
        cdef int status
        if offset < self.base_offset or offset - self.base_offset > 0x7FFFFFFF:
            check(OUT_OF_RANGE, "adding to a time index", offset)
        status = self.prepare(closing)
        if status == FULL:
            if not closing:
                check(BAD_INDEX, "adding to a time index", offset)
            return
        check(status, "adding to a time index", offset)
        self.put(timestamp, offset)

    def find(self, int64_t target):
        """Return the last entry (timestamp, offset) at or below `target`, else (-1, base offset)."""
        cdef TimestampOffset found
        self._guarded(_guarded_lookup, target, &found, "searching a time index")
        return found.timestamp, found.offset

    def truncate_to(self, int64_t offset):
        """Drop the entries at or above `offset`."""
        cdef int64_t low = 0, high = self.count(), middle
        cdef TimestampOffset found
        while low < high:
            middle = (low + high) >> 1
            self._guarded(_guarded_entry, middle, &found, "truncating a time index")
            if found.offset < offset:
                low = middle + 1
            else:
                high = middle
        self._last_known = False
        self.region.truncate(low * TIME_ENTRY_SIZE)

    def reset(self):
        """Drop all entries, so that the index can be rebuilt."""
        self._last_known = False
        self.region.truncate(0)

    def forget_padding(self):
        """Leave out the zeros that a crash left after the last entry, because an index is allocated ahead."""
        cdef int64_t low = 0, high = self.count(), middle
        cdef TimestampOffset found
        while low < high:
            middle = (low + high) >> 1
            self._guarded(_guarded_entry, middle, &found, "reading a time index")
            if found.timestamp == 0 and found.offset == self.base_offset:
                high = middle
            else:
                low = middle + 1
        self._last_known = False
        publish_length(&self.region.r, low * TIME_ENTRY_SIZE)

    def is_plausible(self, int64_t log_end_offset=INT64_MAX):
        """Return whether the first and last entries fit a log that ends at `log_end_offset`."""
        cdef TimestampOffset first, last
        cdef int64_t entries = self.count()
        if self.region.length % TIME_ENTRY_SIZE:
            return False
        if entries == 0:
            return True
        self._guarded(_guarded_entry, 0, &first, "reading a time index")
        self._guarded(_guarded_entry, entries - 1, &last, "reading a time index")
        if not self.base_offset <= last.offset < log_end_offset:
            return False
        return entries == 1 or (last.timestamp > first.timestamp and last.offset > first.offset)
