"""Checks runs of plain batches, in which a verification finds nothing to report.

A batch is plain if it is not compressed or transactional, and follows the batch before it without a gap and in the
same leader epoch. It is valid if its CRC, header, all records and the index entries that refer to it are.
`check_plain` stops at a batch that is not both, without saying why: the caller examines that one individually. It runs
without the GIL, window by window, under the guard; it owns and keeps nothing.
"""

from libc.stdint cimport INT32_MAX, int64_t, uint8_t

from kreplica._core.big_endian cimport load32, load64
from kreplica._core.record_batch cimport (
    CODEC_MASK, CONTROL, DELETE_HORIZON, HEADER_SIZE, TRANSACTIONAL, BatchHeader, RecordScan, check_crc, check_fields,
    parse_header, scan_records,
)
from kreplica._core.region cimport Region, Slice, kr_guard_call
from kreplica._core.status cimport BAD_BATCH_LENGTH, END, NEEDS_LOOK, OK, SHORT_INPUT

cdef enum:
    RUN_WINDOW_BYTES = 8388608
    OFFSET_ENTRY_SIZE = 8         # relative offset, position
    TIME_ENTRY_SIZE = 12          # timestamp, relative offset
    NOT_PLAIN = TRANSACTIONAL | CONTROL | DELETE_HORIZON | CODEC_MASK


cdef struct RunWindow:
    const uint8_t *data
    int64_t start
    int64_t end
    PlainRun *run


cdef bint _fits_offsets(PlainRun *r, const BatchHeader *h) noexcept nogil:
    # Called for each batch. Entries that refer to an earlier batch, or whose offset no batch has, are wrong.
    cdef const uint8_t *entry
    cdef int64_t position
    if r.offset_at < r.offset_count:
        entry = r.offsets + r.offset_at * OFFSET_ENTRY_SIZE
        position = load32(entry + 4)
        if position < r.position or (position == r.position and r.open_at >= 0):
            return False
        if position == r.position:
            r.open_at = r.offset_at
            r.offset_at += 1
    if r.open_at >= 0:
        entry = r.offsets + r.open_at * OFFSET_ENTRY_SIZE
        if r.base_offset + load32(entry) == h.base_offset + h.last_offset_delta:
            r.open_at = -1
    return True


cdef bint _fits_times(PlainRun *r, const BatchHeader *h) noexcept nogil:
    cdef const uint8_t *entry
    cdef int64_t offset, timestamp
    if r.time_at < r.time_count:
        entry = r.times + r.time_at * TIME_ENTRY_SIZE
        timestamp = load64(entry)
        offset = r.base_offset + load32(entry + 8)
        if offset <= h.base_offset + h.last_offset_delta:
            if r.greatest > timestamp or offset < h.base_offset or timestamp != h.max_timestamp:
                return False
            r.time_at += 1
            # A second entry for the same batch would need another timestamp.
            if r.time_at < r.time_count:
                entry += TIME_ENTRY_SIZE
                if r.base_offset + load32(entry + 8) <= h.base_offset + h.last_offset_delta:
                    r.time_at -= 1
                    return False
    return True


cdef int _run_guarded(void *argument) noexcept nogil:
    cdef RunWindow *window = <RunWindow *> argument
    cdef PlainRun *r = window.run
    cdef PlainRun before
    cdef BatchHeader h
    cdef RecordScan found
    cdef const uint8_t *p
    cdef int status
    while r.position < window.end:
        p = window.data + (r.position - window.start)
        status = parse_header(p, window.end - r.position, &h)
        if status != OK:
            return status
        if (h.attributes & NOT_PLAIN or h.base_offset != r.next_offset or h.leader_epoch != r.leader_epoch
                or h.base_offset >= r.stop_offset or h.record_count <= 0
                or h.last_offset_delta != h.record_count - 1
                or h.base_offset + h.last_offset_delta - r.base_offset > INT32_MAX):
            return NEEDS_LOOK
        if check_fields(&h) != OK or check_crc(p, &h) != OK:
            return NEEDS_LOOK
        if scan_records(p + HEADER_SIZE, h.size - HEADER_SIZE, &h, True, &found) != OK:
            return NEEDS_LOOK
        before = r[0]
        if not _fits_offsets(r, &h) or not _fits_times(r, &h):
            r[0] = before
            return NEEDS_LOOK
        if h.max_timestamp > r.greatest:
            r.greatest = h.max_timestamp
        r.position += h.size
        r.next_offset = h.base_offset + h.record_count
    return END


def check_plain(Region region not None, int64_t position, int64_t end, int64_t base_offset, int64_t next_offset,
                int64_t leader_epoch, int64_t stop_offset, const uint8_t[::1] offsets not None, int64_t offset_at,
                int64_t open_at, const uint8_t[::1] times not None, int64_t time_at, int64_t greatest):
    """Check a segment's batches from `position` to byte `end`, or to the first that is not plain and valid.

    `offsets`, `times`: the bytes of both indexes' entries, ascending; see PlainRun for the other arguments. Returns
    (position, next offset, offset_at, open_at, time_at, greatest) as of the batch before which it stopped. Raises
    ValueError for an entry that does not exist.
    """
    cdef PlainRun run
    cdef RunWindow window
    cdef Slice held
    cdef int64_t size = RUN_WINDOW_BYTES
    cdef int status
    run.base_offset = base_offset
    run.leader_epoch = leader_epoch
    run.stop_offset = stop_offset
    run.offset_count = offsets.shape[0] // OFFSET_ENTRY_SIZE
    run.time_count = times.shape[0] // TIME_ENTRY_SIZE
    run.offsets = &offsets[0] if run.offset_count else NULL
    run.times = &times[0] if run.time_count else NULL
    run.position = position
    run.next_offset = next_offset
    run.offset_at = offset_at
    run.open_at = open_at
    run.time_at = time_at
    run.greatest = greatest
    if offset_at < 0 or offset_at > run.offset_count or open_at >= offset_at:
        raise ValueError(f"entry {offset_at} does not exist: there are {run.offset_count}")
    if time_at < 0 or time_at > run.time_count:
        raise ValueError(f"entry {time_at} does not exist: there are {run.time_count}")
    while run.position < end:
        size = min(size, end - run.position)
        held = region.pin(run.position, size)
        window.data = held.data
        window.start = run.position
        window.end = run.position + size
        window.run = &run
        with nogil:
            status = kr_guard_call(_run_guarded, &window)
        if status == END:
            size = RUN_WINDOW_BYTES
        elif status in (BAD_BATCH_LENGTH, SHORT_INPUT) and window.end < end:
            # The batch may only extend past the window: look again from its start with a larger one.
            size = RUN_WINDOW_BYTES if run.position > window.start else min(size * 4, end - run.position)
        else:
            break
    return run.position, run.next_offset, run.offset_at, run.open_at, run.time_at, run.greatest


def ascending_entries(const uint8_t[::1] data not None, bint is_time_index):
    """Return how many of an index's first entries ascend in both numbers."""
    cdef int64_t size = TIME_ENTRY_SIZE if is_time_index else OFFSET_ENTRY_SIZE
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
