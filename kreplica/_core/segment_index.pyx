"""The indexes of a segment, in Kafka's formats: from an offset to a position, from a timestamp to an offset.

Searches look first at the last 8 KiB, because most reads are near the end and those pages are warm, then at the rest,
as Kafka's do. Contract, ownership and threads: segment_index.pxd.
"""

from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t

from kreplica._core.big_endian cimport load32, load64, store32, store64
from kreplica._core.region cimport Region, ensure_writable, kr_guard_call, load_length, publish_length
from kreplica._core.status cimport BAD_INDEX, FULL, OK, OUT_OF_RANGE, check


cdef struct Search:
    void *index
    int64_t target
    bint by_offset
    IndexEntry *found


cdef int _guarded_entry(void *argument) noexcept nogil:
    cdef Search *search = <Search *> argument
    return (<SegmentIndex> search.index).entry(search.target, search.found)


cdef int _guarded_lookup(void *argument) noexcept nogil:
    cdef Search *search = <Search *> argument
    return (<SegmentIndex> search.index).lookup(search.target, search.found)


cdef int _guarded_rank(void *argument) noexcept nogil:
    cdef Search *search = <Search *> argument
    cdef int status
    search.found.value = (<SegmentIndex> search.index).rank(search.target, search.by_offset, &status)
    return status


cdef class SegmentIndex:
    """What both indexes of a segment share; each is over the Region of its file.

    `base_offset`: the segment's. `max_bytes`: segment.index.bytes, rounded down to whole entries; the region's
    capacity limits it, too. The region's length determines the number of valid entries.
    """

    def __cinit__(self, Region region not None, int64_t base_offset, int64_t max_bytes):
        self.region = region
        self.base_offset = base_offset
        self.entry_size = TIME_ENTRY_SIZE if isinstance(self, TimeIndex) else OFFSET_ENTRY_SIZE
        self.max_entries = min(max_bytes, region.r.capacity) // self.entry_size
        self.last_known = False

    cdef int64_t count(self) noexcept nogil:
        return load_length(&self.region.r) // self.entry_size

    cdef int entry(self, int64_t slot, IndexEntry *found) noexcept nogil:
        cdef uint8_t copied[TIME_ENTRY_SIZE]
        cdef const uint8_t *raw = self.region.r.base
        cdef int status
        if raw != NULL:
            raw += slot * self.entry_size
        else:
            status = self.region.copy_out(slot * self.entry_size, self.entry_size, copied)
            if status != OK:
                return status
            raw = copied
        if self.entry_size == TIME_ENTRY_SIZE:
            found.key = load64(raw)
            found.value = self.base_offset + <uint32_t> load32(raw + 8)
        else:
            found.key = self.base_offset + <uint32_t> load32(raw)
            found.value = <uint32_t> load32(raw + 4)
        return OK

    cdef int prepare(self, bint closing) noexcept nogil:
        cdef int64_t entries = self.count() + 1
        if entries > self.max_entries - (0 if closing else self.reserved):
            return FULL
        return ensure_writable(self.region, entries * self.entry_size)

    cdef void put(self, int64_t key, int64_t value) noexcept nogil:
        # Overwrite part of an entry at the end of the file, if there is one.
        cdef int64_t entries = self.count()
        cdef uint8_t *slot = self.region.r.base + entries * self.entry_size
        cdef IndexEntry last
        if not self.last_known:
            self.last_key = -1
            if entries and self.entry(entries - 1, &last) == OK:
                self.last_key = last.key
            self.last_known = True
        if key <= self.last_key:
            return
        if self.entry_size == TIME_ENTRY_SIZE:
            store64(slot, key)
            store32(slot + 8, <int> (value - self.base_offset))
        else:
            store32(slot, <int> (key - self.base_offset))
            store32(slot + 4, <int> value)
        self.last_key = key
        publish_length(&self.region.r, (entries + 1) * self.entry_size)

    cdef int64_t _offset_of(self, const IndexEntry *entry) noexcept nogil:
        return entry.value if self.entry_size == TIME_ENTRY_SIZE else entry.key

    cdef int64_t rank(self, int64_t target, bint by_offset, int *status) noexcept nogil:
        # Binary search in [low, high): entries before `low` are at most the target, those from `high` on are above it.
        cdef int64_t low = 0, high = self.count(), middle
        cdef IndexEntry found
        middle = high - 1 - WARM_BYTES // self.entry_size
        if middle < 0:
            middle = high >> 1
        status[0] = OK
        while low < high:
            status[0] = self.entry(middle, &found)
            if status[0] != OK:
                return 0
            if (self._offset_of(&found) if by_offset else found.key) <= target:
                low = middle + 1
            else:
                high = middle
            middle = (low + high) >> 1
        return low

    cdef int lookup(self, int64_t target, IndexEntry *found) noexcept nogil:
        cdef int status
        cdef int64_t below = self.rank(target, False, &status)
        found[0] = self.before
        if status != OK or below == 0:
            return status
        return self.entry(below - 1, found)

    # ---- the Python edge --------------------------------------------------------------------------------

    cdef int _entry(self, int64_t slot, IndexEntry *found) except -1:
        cdef Search search = Search(<void *> self, slot, False, found)
        return check(kr_guard_call(_guarded_entry, &search), "reading an index", slot)

    cdef int _find(self, int64_t target, IndexEntry *found) except -1:
        cdef Search search = Search(<void *> self, target, False, found)
        return check(kr_guard_call(_guarded_lookup, &search), "searching an index", target)

    cdef int _add(self, int64_t key, int64_t value, int64_t offset, bint closing) except -1:
        if offset < self.base_offset or offset - self.base_offset > 0x7FFFFFFF or not 0 <= value - (
                self.base_offset if self.entry_size == TIME_ENTRY_SIZE else 0) <= 0x7FFFFFFF:
            check(OUT_OF_RANGE, "adding to an index", offset)
        cdef int status = self.prepare(closing)
        if status == FULL and closing:
            return 0
        check(BAD_INDEX if status == FULL else status, "adding to an index", offset)
        self.put(key, value)
        return 0

    def __len__(self):
        return self.count()

    def __getitem__(self, int64_t slot):
        """Return entry `slot`: (offset, position) or (timestamp in ms, offset)."""
        cdef IndexEntry found
        if slot < 0 or slot >= self.count():
            raise IndexError(slot)
        self._entry(slot, &found)
        return found.key, found.value

    @property
    def is_full(self):
        """Whether no slot is left, but for the one reserved for the roll."""
        return self.count() >= self.max_entries - self.reserved

    def find(self, int64_t target):
        """Return the last entry whose first number is at most `target`.

        Without one: (base offset, 0), and of a time index (-1, base offset).
        """
        cdef IndexEntry found
        self._find(target, &found)
        return found.key, found.value

    def truncate_to(self, int64_t offset):
        """Drop the entries for `offset` and above."""
        cdef IndexEntry kept
        cdef Search search = Search(<void *> self, offset - 1, True, &kept)
        check(kr_guard_call(_guarded_rank, &search), "truncating an index", offset)
        self.last_known = False
        self.region.truncate(kept.value * self.entry_size)

    def reset(self):
        """Drop all entries, for a rebuild."""
        self.last_known = False
        self.region.truncate(0)

    def forget_padding(self):
        """Exclude the zeros that a crash left after the last entry, because an index is allocated ahead."""
        cdef int64_t low = 0, high = self.count(), middle
        cdef IndexEntry found
        while low < high:
            middle = (low + high) >> 1
            self._entry(middle, &found)
            if found.key == self.padding.key and found.value == self.padding.value:
                high = middle
            else:
                low = middle + 1
        self.last_known = False
        publish_length(&self.region.r, low * self.entry_size)


cdef class OffsetIndex(SegmentIndex):
    """Maps an offset to the position of a batch at or before it (`<base offset>.index`)."""

    def __cinit__(self, Region region not None, int64_t base_offset, int64_t max_bytes):
        self.reserved = 0
        self.before = self.padding = IndexEntry(base_offset, 0)

    def append(self, int64_t offset, int64_t position):
        """Add (offset, position). Raises InvalidFile if no slot is left or the entry is out of range."""
        self._add(offset, position, offset, False)

    def is_plausible(self, int64_t log_length):
        """Return whether the entries fit a segment of `log_length` bytes, judging by the last one."""
        cdef IndexEntry found
        cdef int64_t entries = self.count()
        if self.region.length % OFFSET_ENTRY_SIZE:
            return False
        if entries == 0:
            return True
        self._entry(entries - 1, &found)
        return found.key > self.base_offset and found.value < log_length


cdef class TimeIndex(SegmentIndex):
    """Maps a timestamp to an offset where a search for it may begin (`<base offset>.timeindex`)."""

    def __cinit__(self, Region region not None, int64_t base_offset, int64_t max_bytes):
        self.reserved = 1
        self.before = IndexEntry(-1, base_offset)
        self.padding = IndexEntry(0, base_offset)

    def append(self, int64_t timestamp, int64_t offset, *, bint closing=False):
        """Add (timestamp, offset) if the timestamp is above the last one's.

        `closing`: may use the slot reserved for the roll, and adds nothing if that is taken, too. Otherwise raises
        InvalidFile if no slot is left.
        """
        self._add(timestamp, offset, offset, closing)

    def is_plausible(self, int64_t log_end_offset=INT64_MAX):
        """Return whether the first and last entries fit a log that ends at `log_end_offset`."""
        cdef IndexEntry first, last
        cdef int64_t entries = self.count()
        if self.region.length % TIME_ENTRY_SIZE:
            return False
        if entries == 0:
            return True
        self._entry(0, &first)
        self._entry(entries - 1, &last)
        if not self.base_offset <= last.value < log_end_offset:
            return False
        return entries == 1 or (last.key > first.key and last.value > first.value)
