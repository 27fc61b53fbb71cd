"""Walks over the batches of a segment: judges each batch, and stops where the caller has to decide.

- `SegmentWalk` is for recovery, scrubbing, repair and comparison. `skip` runs over sound batches without the GIL and
  stops at the next that is not sound or needs a look.
- `PlainWalk` is verify's: it also checks records and index entries, and stops at anything unusual.
- `OffsetMap` and `RecordFilter` are the cleaner's; `Stop` gives the reason why their walk returned.
- `resync` finds the next sound batch behind a bad one.

Contract, ownership and thread rule: batch_walk.pxd.
"""

from enum import IntEnum

from libc.stdint cimport INT32_MAX, INT64_MAX, int64_t, uint8_t

from kreplica._core.big_endian cimport load32, load64
from kreplica._core.log_segment cimport MAX_RELATIVE_OFFSET, LogSegment
from kreplica._core.record_batch cimport (
    CODEC_MASK, COMPRESSED, CONTROL, DELETE_HORIZON, HEADER_SIZE, LOG_OVERHEAD, MAGIC, TRANSACTIONAL, BatchHeader,
    RecordScan, check_crc, check_fields, check_sound, parse_header, scan_records,
)
from kreplica._core.records cimport RecordBatch, wrap
from kreplica._core.region cimport Region, kr_guard_call, kr_guarded, load_length
from kreplica._core.status cimport (
    BAD_BATCH_LENGTH, BAD_MAGIC, END, EPOCH_REGRESSION, FULL, NEEDS_GROWTH, NEEDS_LOOK, NEEDS_ROLL, OFFSET_OVERFLOW,
    OFFSET_REGRESSION, OK, OUT_OF_RANGE, PAGE_FAULT, SHORT_INPUT, STORAGE_FULL, check,
)

cdef enum:
    WINDOW_BYTES = 8388608
    LOOK_BYTES = 65536            # the window of a look at a single batch
    OFFSET_ENTRY_BYTES = 8        # relative offset, position
    TIME_ENTRY_BYTES = 12         # timestamp, relative offset
    NOT_PLAIN = TRANSACTIONAL | CONTROL | DELETE_HORIZON | CODEC_MASK

# What `skip` and `look` return besides the negative status of a bad batch: at the end, or in front of a sound batch.
cdef enum:
    _AT_END = 0
    _SOUND = 1
AT_END = _AT_END
SOUND = _SOUND


class Stop(IntEnum):
    """The reason why a walk of the cleaner returned."""

    DONE = 0
    """The limit was reached."""
    MORE = 1
    """The requested number of bytes was read."""
    TARGET_FULL = 2
    """The batch at the position does not fit into the target: continue there with a new target."""
    MAP_FULL = 3
    """The map is full, or an offset is out of its range; its latest_offset shows how far it reaches."""
    DECISION = 4
    """The batch at the position is transactional or a control batch, and is returned."""


cdef int _walk_guarded(void *argument) noexcept nogil:
    return (<BatchWalk> argument).go_on()


cdef int _search_guarded(void *argument) noexcept nogil:
    return (<BatchWalk> argument).search_on()


cdef class BatchWalk:
    """The base of all walks: judges batch after batch, and counts them. A subclass starts it."""

    cdef int take(self) noexcept nogil:
        return OK

    cdef int take_decoded(self, RecordBatch batch) except? -128:
        return OK

    cdef int make_room(self) except? -128:
        return OK

    cdef void passed(self) noexcept nogil:
        self.last_position = self.position
        self.last_due = self.next_offset
        self.position += self.h.size
        self.bytes_read += self.h.size
        self.records_read += self.h.record_count
        self.batches_read += 1
        self.next_offset = self.h.base_offset + self.h.last_offset_delta + 1
        self.leader_epoch = self.h.leader_epoch

    cdef int judge(self) noexcept nogil:
        cdef int64_t left = self.window_end - self.position
        cdef int status
        self.batch = self.window + (self.position - self.window_start)
        if self.window_end < self.limit:
            self.need = HEADER_SIZE
            if left >= HEADER_SIZE and self.batch[16] == MAGIC:
                self.need = LOG_OVERHEAD + <int64_t> load32(self.batch + 8)
            if left < self.need <= self.limit - self.position:
                return END
        status = check_sound(self.batch, left, &self.h)
        if status != OK or self.judges_alone:
            return status
        if self.h.base_offset < self.next_offset:
            return OFFSET_REGRESSION
        if (self.h.base_offset + self.h.last_offset_delta - self.base_offset > MAX_RELATIVE_OFFSET
                or self.h.base_offset >= self.following - self.h.last_offset_delta):
            return OFFSET_OVERFLOW
        if self.epochs_ascend and self.h.leader_epoch < self.leader_epoch:
            return EPOCH_REGRESSION
        return OK

    cdef int go_on(self) noexcept nogil:
        # Walk through the window; END if a larger or later window is needed.
        cdef int status
        while self.position < self.stop_at:
            if self.position >= self.window_end:
                return END
            status = self.judge()
            if status == OK:
                status = self.take()
            if status != OK:
                return status
            self.passed()
        return OK

    cdef int search_on(self) noexcept nogil:
        # Move byte by byte to a sound batch in the window: NEEDS_LOOK if there is one. END as for go_on.
        cdef const uint8_t *p
        while self.position < self.stop_at:
            p = self.window + (self.position - self.window_start)
            if self.window_end - self.position < HEADER_SIZE:
                self.need = HEADER_SIZE
                return END
            if p[16] == MAGIC and parse_header(p, self.limit - self.position, &self.h) == OK:
                if self.h.base_offset >= self.next_offset and check_fields(&self.h) == OK:
                    self.need = self.h.size
                    if self.need > self.window_end - self.position:
                        return END
                    if check_crc(p, &self.h) == OK:
                        return NEEDS_LOOK
            self.position += 1
        return OK

    cdef int run(self, int64_t stop_at, int64_t window_bytes, kr_guarded step) except? -128:
        cdef int64_t size
        cdef int status = END
        self.stop_at = min(stop_at, self.limit)
        self.need = 0
        while status == END:
            if self.position >= self.stop_at:
                status = OK
                break
            if self.held is None or not self.window_start <= self.position < self.window_end or (
                    self.need > self.window_end - self.position):
                size = max(self.need, min(window_bytes, self.stop_at - self.position) if self.aside else window_bytes)
                size = min(size, self.limit - self.position)
                self.held = None  # a copy's memory is used again
                # A range larger than a window, which is one batch that gives this size itself, is never copied.
                self.held = self.region.pin(self.position, size, self.aside and size <= WINDOW_BYTES)
                self.window = self.held.data
                self.window_start = self.position
                self.window_end = self.position + size
            self.need = 0
            with nogil:
                status = kr_guard_call(step, <void *> self)
        return status

    cdef RecordBatch wrapped(self, bint checked):
        return wrap(self.held, self.batch, self.h.size, checked)

    cdef tuple walk(self, LogSegment segment, int64_t position, int64_t limit, int64_t max_bytes):
        if not 0 <= position <= limit <= load_length(&segment.region.r):
            check(OUT_OF_RANGE, f"cleaning up to {limit}", position)
        self.region = segment.region
        self.base_offset = segment.base_offset
        self.next_offset = max(self.next_offset, segment.base_offset)
        self.following = INT64_MAX
        self.position = position
        self.limit = limit
        try:
            return self._steps(position + min(max(max_bytes, 1), limit - position))
        finally:
            self.held = None

    def _steps(self, int64_t stop_at):
        cdef int status
        while self.position < stop_at:
            status = self.run(stop_at, WINDOW_BYTES, _walk_guarded)
            if status == COMPRESSED:
                status = self.take_decoded(self.wrapped(True))
                if status == OK:
                    self.passed()
            if status == NEEDS_GROWTH:
                status = self.make_room()
            if status == NEEDS_LOOK:
                return Stop.DECISION, self.position, self.wrapped(True)
            if status == NEEDS_ROLL:
                return Stop.TARGET_FULL, self.position, None
            if status == FULL:
                return Stop.MAP_FULL, self.position, None
            check(status, f"cleaning {self.region.path}", self.position)
        return Stop.MORE if self.position < self.limit else Stop.DONE, self.position, None


# ---- recovery, scrubbing, repair, comparison ---------------------------------------------------------------


cdef class SegmentWalk(BatchWalk):
    """A walk over the batches in [position, limit) of a segment's region, driven by `skip`, `look` and `accept`.

    `base_offset`: the segment's. `next_offset`: the least base offset of the next batch. `following`: offsets must be
    below. `leader_epoch`: that of the batch before. `limit`: -1 for the region's length.
    `judges_alone`: each batch is judged without its place. `epochs_ascend`: a lower leader epoch is wrong.
    `looks_at_producers`, `looks_at_epochs`: a producer's batch, or one of another epoch than the batch before, needs a
    look; so does the first that reaches `stop_offset`.
    `feeds`: a segment whose indexes and timestamps are rebuilt from the batches that are passed; only its writer may.
    `aside`: reading leaves no trace in the page cache.
    """

    def __cinit__(self, Region region not None, int64_t base_offset=0, *, int64_t position=0, int64_t limit=-1,
                  int64_t next_offset=0, int64_t following=INT64_MAX, int64_t leader_epoch=-1, bint epochs_ascend=True,
                  bint looks_at_producers=False, bint looks_at_epochs=False, int64_t stop_offset=INT64_MAX,
                  bint judges_alone=False, LogSegment feeds=None, bint aside=False, **_more):
        self.region = region
        self.base_offset = base_offset
        self.next_offset = next_offset
        self.following = following
        self.leader_epoch = leader_epoch
        self.epochs_ascend = epochs_ascend
        self.position = position
        self.limit = load_length(&region.r) if limit < 0 else min(limit, load_length(&region.r))
        self.last_position = self.last_due = -1
        self.looks_at_producers = looks_at_producers
        self.looks_at_epochs = looks_at_epochs
        self.stop_offset = stop_offset
        self.judges_alone = judges_alone
        self.feeds = feeds
        self.aside = aside

    cdef int take(self) noexcept nogil:
        if (self.looks_at_all or self.looks_at_producers and self.h.producer_id >= 0
                or self.looks_at_epochs and self.h.leader_epoch != self.leader_epoch
                or self.h.base_offset + self.h.last_offset_delta >= self.stop_offset):
            return NEEDS_LOOK
        return self.feed()

    cdef int feed(self) noexcept nogil:
        return OK if self.feeds is None else self.feeds.fed(self.position, &self.h)

    cdef int settled(self, int status) except? -128:
        # Mapped memory is not pinned between calls: its file may be cut. A private copy may stay.
        if self.held is not None and (self.held.mapped or self.aside):
            self.held = None
        if status <= STORAGE_FULL and status != PAGE_FAULT:
            # The error is an index's, which could not grow. The batch is sound.
            check(status, f"indexing {self.region.path}", self.position)
        self.verdict = _SOUND if status == NEEDS_LOOK else _AT_END if status == OK else status
        return self.verdict

    def skip(self, int64_t stop=INT64_MAX):
        """Pass over the batches that begin below byte `stop` and are sound and need no look; return why it stopped.

        AT_END: at `stop` or at the end. SOUND: in front of a batch that needs a look; `accept` passes it. Negative:
        what is wrong with the batch at `position`; PAGE_FAULT if a page was lost. Raises StorageFull or another
        KafkaStorageError if an index cannot grow.
        """
        return self.settled(self.run(stop, WINDOW_BYTES, _walk_guarded))

    def look(self):
        """Judge the batch at `position` only: AT_END, SOUND or a negative status, as for `skip`."""
        cdef int status
        self.looks_at_all = True
        try:
            status = self.run(self.position + 1, LOOK_BYTES, _walk_guarded)
        finally:
            self.looks_at_all = False
        return self.settled(status)

    def accept(self):
        """Pass over the sound batch at which `skip` or `look` stopped."""
        if self.verdict != _SOUND:
            raise ValueError(f"the batch at byte {self.position} of {self.region.path} was not found sound")
        check(kr_guard_call(_feed_guarded, <void *> self), f"indexing {self.region.path}", self.position)
        self.passed()
        self.verdict = _AT_END

    def go(self, int64_t position, int64_t next_offset):
        """Continue at `position`, where offset `next_offset` is due."""
        self.position = position
        self.next_offset = next_offset
        self.last_position = self.last_due = -1
        self.verdict = _AT_END

    @property
    def is_framed(self):
        """Whether the batch at which `skip` or `look` stopped has a valid frame, so that `batch` gives it."""
        return self.verdict == _SOUND or (
            self.verdict < 0 and self.verdict not in (SHORT_INPUT, BAD_BATCH_LENGTH, BAD_MAGIC, PAGE_FAULT))

    def batch(self):
        """Return the batch at which `skip` or `look` stopped, as a view of its pinned bytes."""
        if not self.is_framed:
            raise ValueError(f"there is no batch at byte {self.position} of {self.region.path}")
        held = self.region.pin(self.position, self.h.size)
        return wrap(held, held.data, self.h.size, self.verdict == _SOUND)

    def base_offset_there(self):
        """Return the base offset in the header at `position`, whether the batch is sound or not."""
        return int.from_bytes(self.region.read(self.position, 8), "big", signed=True)

    def size_there(self):
        """Return the batch size in the header at `position`, which may be any number if the batch is not sound.

        It is more than what is left before `limit` if the header ends before the size.
        """
        cdef int64_t left = self.limit - self.position
        if left < LOG_OVERHEAD:
            return left + 1
        return LOG_OVERHEAD + int.from_bytes(self.region.read(self.position + 8, 4), "big", signed=True)

    def last_is_wrong(self, int64_t base_offset):
        """Return whether the batch that was passed last has a wrong offset, and not the next one.

        The next one begins at `base_offset`, below the end of the last one. Either may be wrong, since the CRC does
        not cover offsets. If the next one would fit behind the batch before the last one, the last one is wrong.
        """
        if self.last_position < 0 or not self.last_due <= base_offset < self.next_offset:
            return False
        return int.from_bytes(self.region.read(self.last_position, 8), "big", signed=True) != self.last_due


cdef int _feed_guarded(void *argument) noexcept nogil:
    return (<SegmentWalk> argument).feed()


def resync(LogSegment segment not None, int64_t position, int64_t next_offset, *, int64_t stop=INT64_MAX,
           bint aside=False):
    """Find the next sound batch behind a bad one at `position`; return (base offset, position), or None.

    Searches byte by byte for a batch whose offsets are not below `next_offset`. A batch that begins at or after `stop`
    is not searched for.
    """
    cdef SegmentWalk w = SegmentWalk(segment.region, position=position + 1, next_offset=next_offset, aside=aside)
    cdef int status = w.run(min(w.limit - HEADER_SIZE + 1, stop), WINDOW_BYTES, _search_guarded)
    check(status, "looking for the next whole batch", w.position)
    return (w.h.base_offset, w.position) if status == NEEDS_LOOK else None


# ---- verify ------------------------------------------------------------------------------------------------


cdef class PlainWalk(SegmentWalk):
    """A walk that passes over plain batches, in which a verification finds nothing to report.

    A batch is plain if it is not compressed or transactional, and follows the batch before it without a gap and in the
    same leader epoch. All its records and the index entries that refer to it must be valid. `skip` stops at any other
    batch, without saying why. `offsets`, `times`: the bytes of both indexes' entries, ascending.
    """

    def __cinit__(self, *_others, const uint8_t[::1] offsets not None=b"", const uint8_t[::1] times not None=b"",
                  **_more):
        self.judges_alone = True
        self.offsets = offsets
        self.times = times
        self.offset_count = offsets.shape[0] // OFFSET_ENTRY_BYTES
        self.time_count = times.shape[0] // TIME_ENTRY_BYTES
        self.open_at = self.greatest = -1

    def go_to_entries(self, int64_t offset_at, int64_t open_at, int64_t time_at, int64_t greatest):
        """Continue at these entries of the indexes. Raises ValueError for an entry that does not exist."""
        if not 0 <= offset_at <= self.offset_count or open_at >= offset_at:
            raise ValueError(f"entry {offset_at} does not exist: there are {self.offset_count}")
        if not 0 <= time_at <= self.time_count:
            raise ValueError(f"entry {time_at} does not exist: there are {self.time_count}")
        self.offset_at, self.open_at, self.time_at, self.greatest = offset_at, open_at, time_at, greatest

    cdef int take(self) noexcept nogil:
        cdef BatchHeader *h = &self.h
        cdef RecordScan found
        cdef int64_t last_offset = h.base_offset + h.last_offset_delta
        cdef int64_t offset_at = self.offset_at, open_at = self.open_at, time_at = self.time_at
        if (self.looks_at_all or h.attributes & NOT_PLAIN or h.base_offset != self.next_offset
                or h.leader_epoch != self.leader_epoch or last_offset >= self.stop_offset or h.record_count <= 0
                or h.last_offset_delta != h.record_count - 1 or last_offset - self.base_offset > INT32_MAX):
            return NEEDS_LOOK
        if scan_records(self.batch + HEADER_SIZE, h.size - HEADER_SIZE, h, True, &found) != OK:
            return NEEDS_LOOK
        if not self.fits_offsets() or not self.fits_times():
            self.offset_at, self.open_at, self.time_at = offset_at, open_at, time_at
            return NEEDS_LOOK
        self.greatest = max(self.greatest, h.max_timestamp)
        return OK

    cdef bint fits_offsets(self) noexcept nogil:
        # Entries that refer to an earlier batch, or whose offset no batch has, are wrong.
        cdef const uint8_t *entry
        cdef int64_t position
        if self.offset_at < self.offset_count:
            entry = &self.offsets[self.offset_at * OFFSET_ENTRY_BYTES]
            position = load32(entry + 4)
            if position < self.position or (position == self.position and self.open_at >= 0):
                return False
            if position == self.position:
                self.open_at = self.offset_at
                self.offset_at += 1
        if self.open_at >= 0:
            entry = &self.offsets[self.open_at * OFFSET_ENTRY_BYTES]
            if self.base_offset + load32(entry) == self.h.base_offset + self.h.last_offset_delta:
                self.open_at = -1
        return True

    cdef bint fits_times(self) noexcept nogil:
        cdef const uint8_t *entry
        cdef int64_t timestamp, offset, last_offset = self.h.base_offset + self.h.last_offset_delta
        if self.time_at < self.time_count:
            entry = &self.times[self.time_at * TIME_ENTRY_BYTES]
            timestamp = load64(entry)
            offset = self.base_offset + load32(entry + 8)
            if offset <= last_offset:
                if self.greatest > timestamp or offset < self.h.base_offset or timestamp != self.h.max_timestamp:
                    return False
                self.time_at += 1
                # A second entry for the same batch would need another timestamp.
                if self.time_at < self.time_count:
                    return self.base_offset + load32(entry + TIME_ENTRY_BYTES + 8) > last_offset
        return True


def ascending_entries(const uint8_t[::1] data not None, bint is_time_index):
    """Return how many of an index's first entries ascend in both numbers."""
    cdef int64_t size = TIME_ENTRY_BYTES if is_time_index else OFFSET_ENTRY_BYTES
    cdef int64_t count = data.shape[0] // size, at = 0
    cdef int64_t key, value, last_key = 0, last_value = 0
    cdef const uint8_t *entry
    while at < count:
        entry = &data[0] + at * size
        key = load64(entry) if is_time_index else <int64_t> load32(entry)
        value = load32(entry + size - 4)
        if at > 0 and (key <= last_key or value <= last_value):
            return at
        last_key = key
        last_value = value
        at += 1
    return count
