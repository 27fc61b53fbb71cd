"""Reading a segment through: is every batch whole, and where does the good part end?

Recovery, verification and repair stand on these two: `scan` goes from batch to batch and checks each, `resync` finds
the next whole batch behind a bad one. Both run without the GIL, window by window, under the guard. Ownership and
thread rule: as log_segment.pxd; `scan` with `rebuild` changes the segment and belongs to its one writer.
"""

from libc.stdint cimport int64_t, uint8_t

from kreplica._core.log_segment cimport MAX_RELATIVE_OFFSET, Locate, LogSegment, Walk
from kreplica._core.record_batch cimport (
    CONTROL, HEADER_SIZE, BatchHeader, check_crc, check_fields, parse_header,
)
from kreplica._core.region cimport Slice, kr_guard_call, load_length, publish_length
from kreplica._core.status cimport (
    BAD_BATCH_LENGTH, END, EPOCH_REGRESSION, NEEDS_LOOK, OFFSET_OVERFLOW, OFFSET_REGRESSION, OK, SHORT_INPUT, check,
)

cdef enum:
    SCAN_WINDOW_BYTES = 8388608


cdef struct Window:
    const uint8_t *data
    int64_t start
    int64_t end
    Scan *scan
    void *segment
    bint rebuild


cdef int _scan_guarded(void *argument) noexcept nogil:
    # Check batch after batch within the window; END at the window's end or when a batch does not end within
    # it.
    cdef Window *window = <Window *> argument
    cdef Scan *s = window.scan
    cdef BatchHeader *h = &s.header
    cdef const uint8_t *p
    cdef int status
    while s.position < window.end:
        p = window.data + (s.position - window.start)
        status = parse_header(p, window.end - s.position, h)
        if status != OK:
            return status
        status = check_fields(h)
        if status == OK:
            status = check_crc(p, h)
        if status != OK:
            return status
        if h.base_offset < s.next_offset:
            return OFFSET_REGRESSION
        if h.base_offset + h.last_offset_delta - (<LogSegment> window.segment).base_offset > MAX_RELATIVE_OFFSET:
            return OFFSET_OVERFLOW
        if h.leader_epoch < s.leader_epoch:
            return EPOCH_REGRESSION
        if window.rebuild:
            status = (<LogSegment> window.segment).fed(s.position, h)
            if status != OK:
                return status
        s.position += h.size
        s.next_offset = h.base_offset + h.last_offset_delta + 1
        if h.producer_id >= 0 or h.leader_epoch != s.leader_epoch or h.attributes & CONTROL:
            s.leader_epoch = h.leader_epoch
            return NEEDS_LOOK
    return END


cdef int _resync_guarded(void *argument) noexcept nogil:
    # From scan.position up to scan.limit, byte by byte: OK at a whole batch, END when there is none.
    cdef Window *window = <Window *> argument
    cdef Scan *s = window.scan
    cdef const uint8_t *p
    while s.position < s.limit:
        p = window.data + (s.position - window.start)
        if window.end - s.position >= HEADER_SIZE and p[16] == 2:
            if (parse_header(p, window.end - s.position, &s.header) == OK and s.header.base_offset >= s.next_offset
                    and check_fields(&s.header) == OK and check_crc(p, &s.header) == OK):
                return OK
        s.position += 1
    return END


def scan(LogSegment segment not None, int64_t position, int64_t limit, int64_t next_offset, int64_t leader_epoch, *,
         bint rebuild=False):
    """Check the batches of [position, limit): header, CRC, offsets and epochs that do not go back.

    Goes on until a batch that a log must look at (a producer's, a control batch, one of another epoch), a
    bad one, or `limit`. `rebuild`: feed the indexes and timestamps on the way. Returns (status, position
    after the last good batch, next offset, header): status 0 at the limit, 1 after a batch to look at
    (then `header` is (base offset, last offset, leader epoch, max timestamp, producer id, producer epoch,
    base sequence, attributes, record count, size), else it is empty), negative for a bad batch at that position.
    """
    cdef Scan s
    cdef Window window
    cdef Slice held
    cdef int64_t size = SCAN_WINDOW_BYTES
    cdef int status
    s.position = position
    s.limit = limit
    s.next_offset = next_offset
    s.leader_epoch = leader_epoch
    while s.position < limit:
        size = min(size, limit - s.position)
        held = segment.region.pin(s.position, size)
        window.data = held.data
        window.start = s.position
        window.end = s.position + size
        window.scan = &s
        window.segment = <void *> segment
        window.rebuild = rebuild
        with nogil:
            status = kr_guard_call(_scan_guarded, &window)
        if status == NEEDS_LOOK:
            h = s.header
            return 1, s.position, s.next_offset, (
                h.base_offset, h.base_offset + h.last_offset_delta, h.leader_epoch, h.max_timestamp,
                h.producer_id, h.producer_epoch, h.base_sequence, h.attributes, h.record_count, h.size)
        if status != END:
            if status in (BAD_BATCH_LENGTH, SHORT_INPUT) and window.end < limit:
                # Perhaps the batch only does not end within the window: look again from its start,
                # farther.
                size = SCAN_WINDOW_BYTES if s.position > window.start else min(size * 4, limit - s.position)
                continue
            return status, s.position, s.next_offset, ()
        size = SCAN_WINDOW_BYTES
    return 0, s.position, s.next_offset, ()


def resync(LogSegment segment not None, int64_t position, int64_t next_offset):
    """Behind a bad batch at `position`: (base offset, position) of the next batch that is whole, or None.

    A batch counts when its header is plausible, its offsets do not lie below `next_offset` and its CRC
    fits.
    """
    cdef Scan s
    cdef Window window
    cdef Slice held
    cdef int64_t start = position + 1, limit = load_length(&segment.region.r), size
    cdef int status
    while limit - start > HEADER_SIZE:
        size = min(<int64_t> SCAN_WINDOW_BYTES, limit - start)
        held = segment.region.pin(start, limit - start if segment.region.r.base != NULL else size)
        s.position = start
        s.limit = start + size
        s.next_offset = next_offset
        window.data = held.data
        window.start = start
        window.end = start + held.size
        window.scan = &s
        window.segment = <void *> segment
        with nogil:
            status = kr_guard_call(_resync_guarded, &window)
        check(status, "looking for the next whole batch", s.position)
        if status == OK:
            return s.header.base_offset, s.position
        start += size
    return None


def check_indexes(LogSegment segment not None):
    """For a reader, who cannot rebuild: leave out an index's padding, and the whole of one that does not
    fit."""
    segment.offset_index.forget_padding()
    segment.time_index.forget_padding()
    if not segment.offset_index.is_plausible(load_length(&segment.region.r)):
        publish_length(&segment.offset_index.region.r, 0)
    if not segment.time_index.is_plausible():
        publish_length(&segment.time_index.region.r, 0)


cdef int _by_time_guarded(void *argument) noexcept nogil:
    # From the batch at walk on, the first one whose max timestamp is at least target.
    cdef Locate *c = <Locate *> argument
    cdef Walk *w = c.walk
    cdef int status = OK
    while status == OK and w.max_timestamp < c.target:
        status = (<LogSegment> c.segment).next_at(c.limit, w)
    return status


def position_by_time(LogSegment segment not None, int64_t timestamp, int64_t start_offset):
    """(position, size, base offset, last offset) of the first batch at or above `start_offset` with a
    record of at least `timestamp` (ms), or None."""
    cdef Walk w
    cdef int64_t limit = load_length(&segment.region.r)
    cdef int64_t hint = segment.hint_by_time(segment.time_index.find(timestamp), limit, &w)
    if check(segment.reach(max(hint, start_offset), &w), "searching by time", timestamp) == END:
        return None
    if check(segment._guarded(_by_time_guarded, timestamp, limit, &w), "searching by time", timestamp) == END:
        return None
    return w.position, w.size, w.base_offset, w.last_offset
