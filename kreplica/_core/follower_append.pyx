"""Appends what a follower fetched: a run of plain batches in one call.

A batch is plain here if nothing must be decided before its append or recorded after it: it has no producer id and no
transaction, has the log's leader epoch, and the segment has space for it. In a FetchedRun the caller may have decided
more (`with_producers`, `decided`). `append_run` stops at a batch that is not
plain or cannot be appended, without saying why: the caller handles that one individually. Owns and keeps nothing.
Thread rule: the log's lock is held; a long run releases the GIL.
"""

from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t

from kreplica._core.log_segment cimport MAY_ROLL, RELEASE_GIL_BYTES, Append, LogSegment
from kreplica._core.log_state cimport LogState
from kreplica._core.record_batch cimport CONTROL, TRANSACTIONAL, BatchHeader, parse_header
from kreplica._core.records cimport BatchIterator
from kreplica._core.status cimport OK


cdef bint has_transactions(const uint8_t *p, int64_t size) noexcept nogil:
    cdef BatchHeader h
    while parse_header(p, size, &h) == OK:
        if h.attributes & (CONTROL | TRANSACTIONAL):
            return True
        p += h.size
        size -= h.size
    return False


cdef void append_batches(LogSegment segment, LogState state, FetchedRun *run) noexcept nogil:
    cdef Append next = run.last
    cdef BatchHeader h
    while parse_header(run.data + run.used, run.size - run.used, &h) == OK:
        if h.leader_epoch != next.leader_epoch:
            return
        if run.used >= run.decided:
            if h.attributes & (CONTROL | TRANSACTIONAL) or (h.producer_id >= 0 and not run.with_producers):
                return
        next.data = run.data + run.used
        next.size = h.size
        next.base_offset = state.now.log_end_offset
        if segment.append_native(&next, state) != OK:
            return
        run.last = next
        run.has_producers = run.has_producers or h.producer_id >= 0
        run.used += h.size


def append_run(LogSegment segment not None, BatchIterator fetched not None, LogState state not None,
               int32_t leader_epoch):
    """Append the next plain batches of `fetched` at the log end of `state`, and advance `fetched` past them.

    They keep their offsets. `leader_epoch`: the log's. Returns the LogAppendInfo of the last one, or None if the first
    one is not plain or cannot be appended.
    """
    cdef FetchedRun run
    cdef BatchHeader *h = &run.last.header
    segment.know()
    run.data = <const uint8_t *> fetched.view.buf + fetched.position
    run.size = fetched.view.len - fetched.position
    run.used = 0
    run.with_producers = False
    run.has_producers = False
    run.decided = 0
    run.last.leader_epoch = leader_epoch
    run.last.append_time = -1
    run.last.latest = INT64_MAX
    run.last.flags = MAY_ROLL
    if run.size >= RELEASE_GIL_BYTES:
        with nogil:
            append_batches(segment, state, &run)
    else:
        append_batches(segment, state, &run)
    if run.used == 0:
        return None
    fetched.position += run.used
    return segment._info(h.base_offset, h.base_offset + h.last_offset_delta, h.leader_epoch, h.max_timestamp, -1,
                         h.record_count, h.size, run.last.position, state)
