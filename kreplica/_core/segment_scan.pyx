"""Scan a segment: check that every batch is intact, and find where the valid part ends.

Recovery, verification, scrubbing and repair use these functions. `scan` goes from batch to batch and checks each,
`examine` does so for a closed segment, `resync` finds the next intact batch after a bad one, and `read_behind` reads
without touching what lies before. All run without the GIL, window by window, under the guard. Ownership and thread
rule: those of log_segment.pxd; `scan` with `rebuild` changes the segment and is reserved to its only writer.
"""

from libc.stdint cimport INT64_MAX, int64_t, uint8_t

from kreplica._core.big_endian cimport load32
from kreplica._core.log_segment cimport MAX_RELATIVE_OFFSET, Locate, LogSegment, Walk
from kreplica._core.record_batch cimport (
    CONTROL, HEADER_SIZE, LOG_OVERHEAD, BatchHeader, check_crc, check_fields, parse_header,
)
from kreplica._core.region cimport Slice, kr_guard_call, load_length, publish_length
from kreplica._core.status cimport (
    BAD_BATCH_LENGTH, END, EPOCH_MISMATCH, EPOCH_REGRESSION, NEEDS_LOOK, OFFSET_OVERFLOW, OFFSET_REGRESSION, OK,
    PAGE_FAULT, SHORT_INPUT, STORAGE_FULL, check,
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
    int64_t stop_offset           # -1: a batch of another epoch is checked when it is read
    bint is_in_front              # NEEDS_LOOK is for the batch at scan.position, not for the previous one
    int64_t file_end


cdef struct Examination:
    const uint8_t *data
    int64_t start
    int64_t end
    int64_t position
    int64_t next_offset
    int64_t following
    int64_t leader_epoch
    int64_t epoch_end
    int64_t last_position
    int64_t last_expected
    int64_t wanted                # the size in the header of a batch that does not end within the window


cdef struct Behind:
    void *segment
    int64_t start
    int64_t offset
    int64_t max_bytes
    int64_t limit
    int64_t stop
    int64_t found_end
    Walk walk


cdef int _scan_guarded(void *argument) noexcept nogil:
    # Check batch after batch within the window; return END at the window's end or if a batch does not end within it.
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
        if window.stop_offset >= 0 and (h.leader_epoch != s.leader_epoch
                                        or h.base_offset + h.last_offset_delta >= window.stop_offset):
            window.is_in_front = True
            return NEEDS_LOOK
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


cdef int64_t _size_at(const uint8_t *p, int64_t left) noexcept nogil:
    # Return the size in this batch's header, or that of a header if not even the size is there.
    return LOG_OVERHEAD + load32(p + 8) if left >= LOG_OVERHEAD else HEADER_SIZE


cdef int _examine_guarded(void *argument) noexcept nogil:
    # Like _scan_guarded, for batches that a log has already: all are of the known epoch and below the limits. Returns
    # NEEDS_LOOK before a batch of the next epoch.
    cdef Examination *x = <Examination *> argument
    cdef BatchHeader h
    cdef const uint8_t *p
    cdef int status
    while x.position < x.end:
        p = x.data + (x.position - x.start)
        status = parse_header(p, x.end - x.position, &h)
        if status == OK:
            status = check_fields(&h)
        else:
            x.wanted = _size_at(p, x.end - x.position)
        if status == OK:
            status = check_crc(p, &h)
        if status != OK:
            return status
        if h.base_offset < x.next_offset:
            return OFFSET_REGRESSION
        if h.base_offset >= x.following - h.last_offset_delta:
            return OFFSET_OVERFLOW
        if h.base_offset >= x.epoch_end:
            return NEEDS_LOOK
        if x.leader_epoch >= 0 and h.leader_epoch != x.leader_epoch:
            return EPOCH_MISMATCH
        x.last_position = x.position
        x.last_expected = x.next_offset
        x.position += h.size
        x.next_offset = h.base_offset + h.last_offset_delta + 1
    return END


cdef int _resync_guarded(void *argument) noexcept nogil:
    # Search from scan.position up to scan.limit, byte by byte. Returns OK at an intact batch, END if there is none,
    # and NEEDS_LOOK if a possible batch extends beyond the window.
    cdef Window *window = <Window *> argument
    cdef Scan *s = window.scan
    cdef const uint8_t *p
    while s.position < s.limit:
        p = window.data + (s.position - window.start)
        if p[16] == 2 and parse_header(p, window.file_end - s.position, &s.header) == OK:
            if s.header.base_offset >= s.next_offset and check_fields(&s.header) == OK:
                if s.header.size > window.end - s.position:
                    return NEEDS_LOOK
                if check_crc(p, &s.header) == OK:
                    return OK
        s.position += 1
    return END


def scan(LogSegment segment not None, int64_t position, int64_t limit, int64_t next_offset, int64_t leader_epoch, *,
         bint rebuild=False, int64_t stop_offset=-1):
    """Check the batches in [position, limit): header, CRC, and offsets and epochs that never decrease.

    Stops at `limit`, at an invalid batch, or at a batch that the log must look at: a producer's, a control batch or
    one of another epoch. `rebuild`: feed the indexes and timestamps on the way. `stop_offset`: stop before the first
    batch that reaches that offset or has an epoch other than `leader_epoch`; -1: before none.

    Returns (status, position after the last valid batch, next offset, header). The status is 0 at the limit, 1 after a
    batch to look at, 2 before one (see `stop_offset`), and negative for an invalid batch at that position. With 1 and
    2 `header` is (base offset, last offset, leader epoch, max timestamp, producer id, producer epoch, base sequence,
    attributes, record count, size), else it is empty. Raises StorageFull or another KafkaStorageError if an index
    cannot grow.
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
        window.stop_offset = stop_offset
        window.is_in_front = False
        with nogil:
            status = kr_guard_call(_scan_guarded, &window)
        if status == NEEDS_LOOK:
            h = s.header
            return 2 if window.is_in_front else 1, s.position, s.next_offset, (
                h.base_offset, h.base_offset + h.last_offset_delta, h.leader_epoch, h.max_timestamp,
                h.producer_id, h.producer_epoch, h.base_sequence, h.attributes, h.record_count, h.size)
        if status != END:
            if status in (BAD_BATCH_LENGTH, SHORT_INPUT) and window.end < limit:
                # The batch may only extend beyond the window: look again from its start, with a larger window.
                size = SCAN_WINDOW_BYTES if s.position > window.start else min(size * 4, limit - s.position)
                continue
            if status <= STORAGE_FULL and status != PAGE_FAULT:
                # The error is an index's, which could not grow. The batch is valid.
                check(status, f"indexing {segment.region.path}", s.position)
            return status, s.position, s.next_offset, ()
        size = SCAN_WINDOW_BYTES
    return 0, s.position, s.next_offset, ()


def examine(LogSegment segment not None, int64_t position, int64_t limit, int64_t next_offset, *,
            int64_t following, int64_t leader_epoch=-1, int64_t epoch_end=INT64_MAX, bint aside=False):
    """Check the batches in [position, limit) again, in a segment that no longer receives appends.

    Like `scan`, but the offsets must be below `following`, the next segment's base offset, and the leader epochs must
    be `leader_epoch` (-1: any). Stops with status 1 before a batch at or above `epoch_end`, where the caller knows of
    another epoch. `aside`: reading leaves no trace in the page cache. A batch that begins below `limit` is read to its
    end.

    Returns (status, position after the last valid batch, next offset, position of the last valid batch, the lowest
    offset it could have had); the last two are -1 if there is none.
    """
    cdef Examination x
    cdef Slice held
    cdef int64_t file_end = load_length(&segment.region.r), size
    cdef int status = END
    x.position = position
    x.next_offset = next_offset
    x.following = following
    x.leader_epoch = leader_epoch
    x.epoch_end = epoch_end
    x.last_position = x.last_expected = -1
    limit = min(limit, file_end)
    size = min(<int64_t> SCAN_WINDOW_BYTES, limit - position)
    while status == END and x.position < limit:
        x.start = x.position
        x.end = min(x.start + size, file_end)
        held = _window(segment, x.start, x.end - x.start, aside)
        x.data = held.data
        with nogil:
            status = kr_guard_call(_examine_guarded, &x)
        size = min(<int64_t> SCAN_WINDOW_BYTES, limit - x.position)
        if status in (BAD_BATCH_LENGTH, SHORT_INPUT):
            # The batch may only extend beyond the window.
            size = x.wanted
            if x.end - x.position < size <= file_end - x.position:
                status = END
    if status <= STORAGE_FULL:
        check(status, f"examining {segment.region.path}", x.position)
    status = 0 if status == END else 1 if status == NEEDS_LOOK else status
    return status, x.position, x.next_offset, x.last_position, x.last_expected


cdef Slice _window(LogSegment segment, int64_t start, int64_t size, bint aside):
    # A range larger than a window, which is one batch that gives this size itself, is never copied.
    return segment.region.pin(start, size, aside and size <= SCAN_WINDOW_BYTES)


def resync(LogSegment segment not None, int64_t position, int64_t next_offset, *, int64_t stop=INT64_MAX,
           bint aside=False):
    """Find the next intact batch after a bad one at `position`; return (base offset, position), or None.

    A batch is intact if its header is plausible, its offsets are not below `next_offset` and its CRC matches. A batch
    that begins at or after `stop` is not searched for.
    """
    cdef Scan s
    cdef Window window
    cdef Slice held
    cdef int64_t start = position + 1, limit = load_length(&segment.region.r)
    cdef int64_t last = min(limit - HEADER_SIZE + 1, stop), size = SCAN_WINDOW_BYTES
    cdef int status
    while start < last:
        size = min(size, limit - start)
        held = _window(segment, start, limit - start if segment.region.r.base != NULL and not aside else size, aside)
        s.position = start
        s.limit = min(start + size - HEADER_SIZE + 1, last)
        s.next_offset = next_offset
        window.data = held.data
        window.start = start
        window.end = start + held.size
        window.file_end = limit
        window.scan = &s
        with nogil:
            status = kr_guard_call(_resync_guarded, &window)
        check(status, "looking for the next whole batch", s.position)
        if status == OK:
            return s.header.base_offset, s.position
        start = s.position
        # A batch that may begin here is read on its own; if it is not one, the search continues after it.
        size = max(<int64_t> SCAN_WINDOW_BYTES, s.header.size) if status == NEEDS_LOOK else SCAN_WINDOW_BYTES
    return None


cdef int _behind_guarded(void *argument) noexcept nogil:
    # Find, from byte start on, the first batch whose last offset is at least `offset`, and those that follow it.
    cdef Behind *c = <Behind *> argument
    cdef Walk w
    cdef int64_t hint = (<LogSegment> c.segment).hinted_at(c.offset, c.limit, &w)
    cdef int status = (<LogSegment> c.segment).peek_at(max(hint, c.start), c.limit, &w)
    while status == OK and w.last_offset < c.offset:
        status = (<LogSegment> c.segment).next_at(c.limit, &w)
    if status != OK:
        return status
    c.walk = w
    c.found_end = w.position + w.size
    while c.found_end < c.stop and (<LogSegment> c.segment).next_at(c.limit, &w) == OK:
        if w.position + w.size > min(c.stop, c.walk.position + c.max_bytes):
            break
        c.found_end = w.position + w.size
    return OK


cdef int _find_behind(LogSegment segment, Behind *c) except? -128:
    c.segment = <void *> segment
    segment.region.ready(False)
    segment.offset_index.region.ready(False)
    return check(kr_guard_call(_behind_guarded, c), "reading behind damage", c.offset)


def position_behind(LogSegment segment not None, int64_t start, int64_t offset):
    """Like LogSegment.position_of, but without reading anything below byte `start`, where a batch begins."""
    cdef Behind c
    c.start = start
    c.offset = offset
    c.max_bytes = c.stop = 0
    c.limit = load_length(&segment.region.r)
    if _find_behind(segment, &c) == END:
        return None
    return c.walk.position, c.walk.size, c.walk.base_offset, c.walk.last_offset


def read_behind(LogSegment segment not None, int64_t start, int64_t offset, int64_t max_bytes, *, int64_t limit=-1,
                bint at_least_one=True):
    """Like LogSegment.read, but without reading anything below byte `start`, where a batch begins.

    So the batches after damaged bytes can be read without a walk through the damage.
    """
    cdef Behind c
    c.start = start
    c.offset = offset
    c.max_bytes = max_bytes
    c.limit = load_length(&segment.region.r)
    c.stop = min(limit, c.limit) if limit >= 0 else c.limit
    if start >= c.stop or _find_behind(segment, &c) == END or c.found_end > c.stop:
        return None
    if c.walk.size > max_bytes and not at_least_one:
        return None
    return segment.region.pin(c.walk.position, c.found_end - c.walk.position)


def check_indexes(LogSegment segment not None):
    """Leave out an index's padding, or a whole index that does not fit, for a reader, which cannot rebuild it."""
    segment.offset_index.forget_padding()
    segment.time_index.forget_padding()
    if not segment.offset_index.is_plausible(load_length(&segment.region.r)):
        publish_length(&segment.offset_index.region.r, 0)
    if not segment.time_index.is_plausible():
        publish_length(&segment.time_index.region.r, 0)


cdef int _by_time_guarded(void *argument) noexcept nogil:
    # Find the first batch, from the one at walk on, whose max timestamp is at least target.
    cdef Locate *c = <Locate *> argument
    cdef Walk *w = c.walk
    cdef int status = OK
    while status == OK and w.max_timestamp < c.target:
        status = (<LogSegment> c.segment).next_at(c.limit, w)
    return status


def position_by_time(LogSegment segment not None, int64_t timestamp, int64_t start_offset):
    """Find the first batch at or above `start_offset` with a record of at least `timestamp` (ms).

    Returns (position, size, base offset, last offset), or None if there is none.
    """
    cdef Walk w
    cdef int64_t limit = load_length(&segment.region.r)
    cdef int64_t hint = segment.hint_by_time(segment.time_index.find(timestamp), limit, &w)
    if check(segment.reach(max(hint, start_offset), &w), "searching by time", timestamp) == END:
        return None
    if check(segment._guarded(_by_time_guarded, timestamp, limit, &w), "searching by time", timestamp) == END:
        return None
    return w.position, w.size, w.base_offset, w.last_offset
