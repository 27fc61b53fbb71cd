"""Walks over the batches of a segment for the cleaner, checking each before use, in steps that the caller bounds.

`Stop` gives the reason why a walk returned. Contract, ownership and thread rule: batch_walk.pxd.
"""

from enum import IntEnum

from libc.stdint cimport int64_t

from kreplica._core.big_endian cimport load32
from kreplica._core.log_segment cimport MAX_RELATIVE_OFFSET, LogSegment
from kreplica._core.record_batch cimport (
    COMPRESSED, HEADER_SIZE, LOG_OVERHEAD, check_crc, check_fields, parse_header,
)
from kreplica._core.records cimport RecordBatch, wrap
from kreplica._core.region cimport Slice, kr_guard_call, load_length
from kreplica._core.status cimport (
    END, FULL, NEEDS_GROWTH, NEEDS_LOOK, NEEDS_ROLL, OFFSET_OVERFLOW, OFFSET_REGRESSION, OK, OUT_OF_RANGE, check,
)

cdef enum:
    WINDOW_BYTES = 8388608


class Stop(IntEnum):
    """The reason why a walk returned."""

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


cdef int _guarded(void *argument) noexcept nogil:
    return (<BatchWalk> argument).go()


cdef class BatchWalk:
    """The walk and its counters, shared by OffsetMap and RecordFilter."""

    cdef int take(self) noexcept nogil:
        return OK

    cdef int take_decoded(self, RecordBatch batch) except? -128:
        return OK

    cdef int make_room(self) except? -128:
        return OK

    cdef void passed(self) noexcept nogil:
        self.position += self.h.size
        self.bytes_read += self.h.size
        self.records_read += self.h.record_count
        self.batches_read += 1
        self.next_offset = self.h.base_offset + self.h.last_offset_delta + 1

    cdef int examine(self) noexcept nogil:
        # Check that there is a whole, valid batch at the position. END if the window ends too early to tell.
        cdef int64_t left = self.window_end - self.position
        cdef int status
        self.batch = self.window + (self.position - self.window_start)
        if self.window_end < self.limit:
            self.need = HEADER_SIZE
            if left >= HEADER_SIZE:
                self.need = LOG_OVERHEAD + <int64_t> load32(self.batch + 8)
            if left < self.need <= self.limit - self.position:
                return END
        status = parse_header(self.batch, left, &self.h)
        if status == OK:
            status = check_fields(&self.h)
        if status == OK:
            status = check_crc(self.batch, &self.h)
        if status != OK:
            return status
        if self.h.base_offset < self.next_offset or self.h.base_offset < self.base_offset:
            return OFFSET_REGRESSION
        if self.h.base_offset + self.h.last_offset_delta - self.base_offset > MAX_RELATIVE_OFFSET:
            return OFFSET_OVERFLOW
        return OK

    cdef int go(self) noexcept nogil:
        # Walk through the window; END if a larger or later window is needed.
        cdef int status
        while self.position < self.stop_at:
            if self.position >= self.window_end:
                return END
            status = self.examine()
            if status == OK:
                status = self.take()
            if status != OK:
                return status
            self.passed()
        return OK

    cdef tuple walk(self, LogSegment segment, int64_t position, int64_t limit, int64_t max_bytes):
        cdef Slice held = None
        cdef int status = END
        if not 0 <= position <= limit <= load_length(&segment.region.r):
            check(OUT_OF_RANGE, f"cleaning up to {limit}", position)
        self.position = position
        self.limit = limit
        self.stop_at = position + min(max(max_bytes, 1), limit - position)
        self.base_offset = segment.base_offset
        self.need = 0
        while self.position < self.stop_at:
            if status == END:
                held = segment.region.pin(self.position, min(max(self.need, WINDOW_BYTES), limit - self.position))
                self.window = held.data
                self.window_start = self.position
                self.window_end = self.position + held.size
                self.need = 0
            with nogil:
                status = kr_guard_call(_guarded, <void *> self)
            if status == COMPRESSED:
                status = self.take_decoded(wrap(held, self.batch, self.h.size, True))
                if status == OK:
                    self.passed()
            if status == NEEDS_GROWTH:
                status = self.make_room()
            if status == NEEDS_LOOK:
                return Stop.DECISION, self.position, wrap(held, self.batch, self.h.size, True)
            if status == NEEDS_ROLL:
                return Stop.TARGET_FULL, self.position, None
            if status == FULL:
                return Stop.MAP_FULL, self.position, None
            check(status, f"cleaning {segment.region.path}", self.position)
        return Stop.MORE if self.position < limit else Stop.DONE, self.position, None
