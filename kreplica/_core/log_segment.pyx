"""A segment of a log: batches in a mapped file, two indexes, and the append that updates all three.

`append` takes an encoded batch, `append_records` builds one from Python values directly in the mapping. Both handle
the common case in one call and return None if their caller must decide something (a roll, a producer's state, a
codec). Contract, ownership and thread rule: log_segment.pxd.
"""

from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memcmp, memcpy, memset

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer

from kreplica._core.batch_builder cimport BatchBuilder
from kreplica._core.big_endian cimport load32, load64, publish32, store32, store64
from kreplica._core.crc32c cimport crc32c, crc32c_copy
from kreplica._core.log_state cimport LogState
from kreplica._core.record_batch cimport (
    CODEC_MASK, CONTROL, HEADER_SIZE, LOG_OVERHEAD, MAGIC, TRANSACTIONAL, BatchHeader, RecordScan,
    check_fields, check_produced_fields, parse_header, scan_records, stamp_log_append_time, stamp_max_timestamp,
)
from kreplica._core.region cimport Region, ensure_writable, kr_guard_call, kr_guarded, load_length, publish_length
from kreplica._core.segment_index cimport IndexEntry, OffsetIndex, TimeIndex
from kreplica._core.status cimport (
    BAD_BATCH_LENGTH, BAD_CRC, BAD_MAGIC, BAD_OFFSET_DELTA, BAD_RECORD_COUNT, END, FULL, NEEDS_LOOK, NEEDS_ROLL,
    OFFSET_OVERFLOW, OFFSET_REGRESSION, OK, PAGE_FAULT, SHORT_INPUT, TRAILING_BYTES, check,
)

cdef extern from *:
    void prefetch "__builtin_prefetch"(const void *p) nogil

cdef int64_t MAX_OFFSET = 1 << 62         # above any offset of a segment

cdef enum:
    # For smaller batches a call costs as much as the page faults.
    LEAST_BODY_BYTES = 65536
    CRC_FROM = 21
    # Headers that count_records reads in one call: some ms at most if they are in memory.
    COUNTED_BATCHES = 4096


# ---- the body of a large batch ----------------------------------------------------------------------------
#
# The kernel clears a page that is first touched through a mapping, but not one that is written whole by a call. So a
# thread that may wait for the disk writes a large batch's records past the mapping. The page cache is shared: readers
# of the mapping see them. The header is written last, through the mapping as always; until its length is there,
# readers do not take the bytes after it for a batch.


cdef int _check_source(void *argument) noexcept nogil:
    # Check everything before writing: what _copy_batch would reject or change.
    cdef Append *a = <Append *> argument
    cdef RecordScan found
    cdef int status
    if crc32c(a.data + CRC_FROM, a.header.size - CRC_FROM) != a.header.crc:
        return BAD_CRC
    if a.flags & CHECK_RECORDS and a.header.attributes & CODEC_MASK == 0:
        status = scan_records(a.data + HEADER_SIZE, a.header.size - HEADER_SIZE, &a.header, True, &found)
        if status != OK:
            return status
        if found.max_timestamp != a.header.max_timestamp:
            return NEEDS_LOOK
    return OK


cdef void _write_body(Region region, Append *a) noexcept nogil:
    # If WRITES_BODY requests it and the batch is large and complete, write its records at the end of the region, where
    # space is reserved, and set BODY_WRITTEN. After a failure the batch is written through the mapping instead.
    a.flags &= ~BODY_WRITTEN
    if not a.flags & WRITES_BODY or a.header.size < LEAST_BODY_BYTES or a.append_time >= 0:
        return
    if kr_guard_call(_check_source, a) != OK:
        return
    if region.write_aside(load_length(&region.r) + HEADER_SIZE, a.header.size - HEADER_SIZE, a.data + HEADER_SIZE) == 0:
        a.flags = (a.flags | BODY_WRITTEN) & ~CHECK_RECORDS


cdef bint _copy_body(uint8_t *target, const Append *a) noexcept nogil:
    # Copy the unwritten part of the batch from its CRC's range on, under the guard; return whether its CRC is valid.
    if a.flags & BODY_WRITTEN:
        memcpy(target + CRC_FROM, a.data + CRC_FROM, HEADER_SIZE - CRC_FROM)
        return True
    return crc32c_copy(target + CRC_FROM, a.data + CRC_FROM, a.header.size - CRC_FROM) == a.header.crc


# ---- steps under the guard --------------------------------------------------------------------------------


cdef int _copy_batch(void *argument) noexcept nogil:
    # Body and CRC first; the header's first twelve bytes last. If the process is killed in between, the batch length
    # stays zero, which every reader takes for the end of the log.
    cdef Landing *to = <Landing *> argument
    cdef Append *a = to.append
    cdef uint8_t *target = to.target
    cdef int64_t size = a.header.size
    cdef RecordScan found
    cdef int status
    if not _copy_body(target, a):
        return BAD_CRC
    store32(target + 12, a.leader_epoch if a.flags & AS_LEADER else a.header.leader_epoch)
    target[16] = 2
    store32(target + 17, <int32_t> a.header.crc)
    if a.flags & CHECK_RECORDS and a.header.attributes & CODEC_MASK == 0:
        status = scan_records(target + HEADER_SIZE, size - HEADER_SIZE, &a.header, True, &found)
        if status != OK:
            return status
        if found.max_timestamp != a.header.max_timestamp:
            # The header's timestamp is wrong, and searches by time would rely on it: a leader corrects it.
            if found.max_timestamp > a.latest:
                return END
            a.header.max_timestamp = to.max_timestamp = found.max_timestamp
            stamp_max_timestamp(target, size, found.max_timestamp)
    if a.append_time >= 0:
        stamp_log_append_time(target, size, a.append_time)
    store64(target, a.base_offset if a.flags & AS_LEADER else a.header.base_offset)
    publish32(target + 8, <int32_t> (size - LOG_OVERHEAD))
    (<LogSegment> to.segment).land(to)
    return OK


cdef int _write_batch(void *argument) noexcept nogil:
    cdef Landing *to = <Landing *> argument
    cdef int status = (<BatchBuilder> to.builder).write(to.target, to.append.base_offset, to.append.leader_epoch)
    if status == OK:
        (<LogSegment> to.segment).land(to)
    return status


cdef int _erase(void *argument) noexcept nogil:
    cdef Landing *to = <Landing *> argument
    memset(to.target, 0, to.append.header.size)
    return OK


cdef int _locate_guarded(void *argument) noexcept nogil:
    cdef Locate *c = <Locate *> argument
    return (<LogSegment> c.segment).locate(c.target, c.behind, c.walk)


cdef int _span_guarded(void *argument) noexcept nogil:
    # Walk over whole batches above walk.last_offset, from walk.position, that end at or before target.
    cdef Locate *c = <Locate *> argument
    cdef Walk *w = c.walk
    cdef int status
    cdef int64_t last_offset = w.last_offset
    while w.position < c.target:
        status = (<LogSegment> c.segment).peek_at(w.position, c.limit, w)
        if status != OK:
            return OK if status == END else status
        if w.base_offset <= last_offset:
            return OFFSET_REGRESSION
        if w.position + w.size > c.target:
            return OK
        last_offset = w.last_offset
        w.position += w.size
    return OK


cdef int _learn_guarded(void *argument) noexcept nogil:
    # From the batch at walk on, find the greatest timestamp and the last offset of its batch.
    cdef Locate *c = <Locate *> argument
    cdef Walk *w = c.walk
    cdef int status = OK
    while status == OK:
        if w.max_timestamp > (<LogSegment> c.segment).max_timestamp:
            (<LogSegment> c.segment).max_timestamp = w.max_timestamp
            (<LogSegment> c.segment).offset_of_max_timestamp = w.last_offset
        status = (<LogSegment> c.segment).next_at(c.limit, w)
    return status


cdef int _by_time_guarded(void *argument) noexcept nogil:
    # Find the first batch, from the one at walk on, whose max timestamp is at least target.
    cdef Locate *c = <Locate *> argument
    cdef Walk *w = c.walk
    cdef int status = OK
    while status == OK and w.max_timestamp < c.target:
        status = (<LogSegment> c.segment).next_at(c.limit, w)
    return status


cdef int _count_guarded(void *argument) noexcept nogil:
    # Add up in walk.counted the records of at most `target` batches, from walk.position on. Sets walk.position behind
    # the last one. END if there are no more.
    cdef Locate *c = <Locate *> argument
    cdef Walk *w = c.walk
    cdef int64_t _batch
    cdef int status = (<LogSegment> c.segment).peek_at(w.position, c.limit, w)
    for _batch in range(c.target):
        if status != OK:
            return status
        if w.record_count < 0 or w.record_count > w.last_offset - w.base_offset + 1:
            return BAD_RECORD_COUNT
        if not w.is_control:
            w.counted += w.record_count
        (<LogSegment> c.segment).foresee(w, c.limit)
        status = (<LogSegment> c.segment).next_at(c.limit, w)
        if status != OK:
            w.position += w.size
    return status


cdef class LogAppendInfo:
    """The result of an append: offsets, timestamps in ms, sizes in bytes.

    `log_append_time` is -1 if the records keep their create time. `position` is -1 for an append of several batches.
    `duplicate`: the batch was appended before, and the offsets are those it got then.
    """

    def __init__(self, base_offset=-1, last_offset=-1, leader_epoch=-1, max_timestamp=-1, log_append_time=-1,
                 log_start_offset=-1, record_count=0, size=0, position=-1, duplicate=False):
        self.base_offset = base_offset
        self.last_offset = last_offset
        self.leader_epoch = leader_epoch
        self.max_timestamp = max_timestamp
        self.log_append_time = log_append_time
        self.log_start_offset = log_start_offset
        self.record_count = record_count
        self.size = size
        self.position = position
        self.duplicate = duplicate

    def __repr__(self):
        return (f"LogAppendInfo(base_offset={self.base_offset}, last_offset={self.last_offset}, "
                f"leader_epoch={self.leader_epoch}, record_count={self.record_count}, size={self.size})")


cdef class LogSegment:
    """One segment and its three files.

    `region`: the .log file. `base_offset`: the offset in the file's name. `max_bytes`: segment.bytes. `max_age_ms`:
    segment.ms less the jitter. `index_interval_bytes`: Kafka's setting.
    """

    def __cinit__(self, Region region not None, OffsetIndex offset_index not None, TimeIndex time_index not None,
                  int64_t base_offset, *, int64_t max_bytes=1 << 30, int64_t max_age_ms=7 * 86_400_000,
                  int64_t index_interval_bytes=4096):
        self.region = region
        self.offset_index = offset_index
        self.time_index = time_index
        self.base_offset = base_offset
        self.max_bytes = max_bytes
        self.max_age_ms = max_age_ms
        self.index_interval_bytes = index_interval_bytes
        self.first_timestamp = -1
        self.max_timestamp = -1
        self.offset_of_max_timestamp = -1
        self.known = load_length(&region.r) == 0

    # ---- append -----------------------------------------------------------------------------------------

    cdef int should_roll(self, int64_t size, int64_t timestamp, int64_t last_offset) noexcept nogil:
        cdef int64_t length = load_length(&self.region.r)
        if length == 0:
            return OK if last_offset - self.base_offset <= MAX_RELATIVE_OFFSET else NEEDS_ROLL
        if length > self.max_bytes - size:
            return NEEDS_ROLL
        if self.first_timestamp >= 0 and timestamp - self.first_timestamp > self.max_age_ms:
            return NEEDS_ROLL
        if (self.offset_index.count() >= self.offset_index.max_entries
                or self.time_index.count() >= self.time_index.max_entries - 1):
            return NEEDS_ROLL
        return OK if last_offset - self.base_offset <= MAX_RELATIVE_OFFSET else NEEDS_ROLL

    cdef int prepare(self, int64_t size) noexcept nogil:
        # Reserve space, which may fail, before a byte is written.
        cdef int status = OK
        if size > 0:
            status = ensure_writable(self.region, load_length(&self.region.r) + size)
        if status == OK and self.bytes_since_index > self.index_interval_bytes:
            status = self.offset_index.prepare(False)
            if status == OK or status == FULL:
                status = self.time_index.prepare(False)
            if status == FULL:
                status = OK
        return status

    cdef void committed(self, int64_t position, int64_t size, int64_t last_offset,
                        int64_t max_timestamp) noexcept nogil:
        if position == 0:
            self.first_timestamp = max_timestamp
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.offset_of_max_timestamp = last_offset
        if self.bytes_since_index > self.index_interval_bytes:
            if self.offset_index.prepare(False) == OK:
                self.offset_index.put(last_offset, position)
            if self.time_index.prepare(False) == OK:
                self.time_index.put(self.max_timestamp, self.offset_of_max_timestamp)
            self.bytes_since_index = 0
        self.bytes_since_index += size

    cdef int fed(self, int64_t position, const BatchHeader *h) noexcept nogil:
        # Index a batch that a rebuild has checked.
        cdef int status = self.prepare(0)
        if status == OK:
            self.committed(position, h.size, h.base_offset + h.last_offset_delta, timestamp_of_records(h))
        return status

    cdef int append_native(self, Append *a, LogState state) noexcept nogil:
        cdef BatchHeader *h = &a.header
        cdef Landing landing
        cdef int64_t last_offset
        cdef int status = parse_header(a.data, a.size, h)
        if status != OK:
            return SHORT_INPUT if status == END else status
        if h.size != a.size:
            return END if a.flags & ONLY_PLAIN else TRAILING_BYTES
        status = check_fields(h)
        if status != OK:
            return status
        if a.flags & ONLY_PLAIN:
            if ((h.producer_id >= 0 and not a.flags & WITH_PRODUCER)
                    or h.attributes & (CODEC_MASK | CONTROL)
                    or (h.attributes & TRANSACTIONAL and not a.flags & WITH_TRANSACTION)):
                return END
            if h.max_timestamp > a.latest or h.size > a.max_size:
                return END
            status = check_produced_fields(h, False)
            if status != OK:
                return status
        if not a.flags & AS_LEADER:
            if h.base_offset < a.base_offset:
                return OFFSET_REGRESSION
            last_offset = h.base_offset + h.last_offset_delta
        else:
            last_offset = a.base_offset + h.last_offset_delta
        if last_offset < 0:
            return OFFSET_OVERFLOW
        status = self.should_roll(h.size, a.append_time if a.append_time >= 0 else h.max_timestamp, last_offset)
        if status != OK and (a.flags & MAY_ROLL or last_offset - self.base_offset > MAX_RELATIVE_OFFSET):
            return NEEDS_ROLL
        status = self.prepare(h.size)
        if status != OK:
            return status
        landing.append = a
        landing.state = <void *> state
        landing.last_offset = last_offset
        landing.max_timestamp = a.append_time if a.append_time >= 0 else timestamp_of_records(h)
        _write_body(self.region, a)
        return self.guarded_append(_copy_batch, &landing)

    cdef int guarded_append(self, kr_guarded step, Landing *to) noexcept nogil:
        # Space is reserved; from here on only a lost page can interrupt.
        cdef int status
        to.segment = <void *> self
        to.append.position = load_length(&self.region.r)
        to.target = self.region.r.base + to.append.position
        to.publishes = not (<LogState> to.state).shared and (<LogState> to.state).can_publish()
        to.landed = False
        status = kr_guard_call(step, to)
        if to.landed:
            if (<LogState> to.state).shared:
                (<LogState> to.state).appended_aside(to.last_offset + 1, to.append.position + to.append.header.size,
                                                     epoch_of(to.append))
            # A lost page of an index or of the state only costs longer searches, not the append: the index is rebuilt
            # at the next open.
            if not to.append.flags & BODY_WRITTEN:
                self.region.advanced()
            return OK
        if status != PAGE_FAULT:
            kr_guard_call(_erase, to)
        return status

    cdef void land(self, Landing *to) noexcept nogil:
        # The batch is written: make it part of the log.
        cdef int64_t size = to.append.header.size
        publish_length(&self.region.r, to.append.position + size)
        to.landed = True
        self.committed(to.append.position, size, to.last_offset, to.max_timestamp)
        if not (<LogState> to.state).shared:
            (<LogState> to.state).appended(to.last_offset + 1, to.append.position + size, epoch_of(to.append),
                                           to.publishes)

    cdef LogAppendInfo _info(self, int64_t base_offset, int64_t last_offset, int32_t leader_epoch,
                             int64_t max_timestamp, int64_t append_time, int32_t count, int64_t size,
                             int64_t position, LogState state):
        cdef LogAppendInfo info = LogAppendInfo.__new__(LogAppendInfo)
        info.base_offset = base_offset
        info.last_offset = last_offset
        info.leader_epoch = leader_epoch
        info.max_timestamp = max_timestamp
        info.log_append_time = append_time
        info.log_start_offset = state.now.log_start_offset
        info.record_count = count
        info.size = size
        info.position = position
        return info

    cdef LogAppendInfo _append(self, object data, Append *a, LogState state):
        cdef Py_buffer view
        cdef int64_t base
        cdef int status
        self.know()
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        a.data = <const uint8_t *> view.buf
        a.size = view.len
        a.base_offset = state.now.log_end_offset
        if view.len >= RELEASE_GIL_BYTES:
            with nogil:
                status = self.append_native(a, state)
        else:
            status = self.append_native(a, state)
        PyBuffer_Release(&view)
        if status != OK:
            check(status, "appending a batch", a.base_offset)
            return None
        base = a.base_offset if a.flags & AS_LEADER else a.header.base_offset
        return self._info(
            base, base + a.header.last_offset_delta,
            a.leader_epoch if a.flags & AS_LEADER else a.header.leader_epoch,
            a.append_time if a.append_time >= 0 else a.header.max_timestamp, a.append_time, a.header.record_count,
            a.header.size, a.position, state)

    def append_plain(self, data, LogState state not None, int32_t leader_epoch, int64_t latest, int64_t max_bytes):
        """Append one encoded batch as a leader: the common case in one call.

        The batch gets the log end offset of `state`, and `leader_epoch`, and the new end is published. Returns a
        LogAppendInfo, or None if the batch needs a decision: a producer id, a codec, several batches, a timestamp
        above `latest` (ms), a size above `max_bytes`, or a segment that should be rolled. Raises CorruptMessage and
        its subclasses, StorageFull, KafkaStorageError; nothing is appended then.
        """
        cdef Append a
        a.leader_epoch = leader_epoch
        a.append_time = -1
        a.latest = latest
        a.max_size = max_bytes
        a.flags = AS_LEADER | ONLY_PLAIN | CHECK_RECORDS | MAY_ROLL
        return self._append(data, &a, state)

    def append(self, data, LogState state not None, *, int32_t leader_epoch=0, bint as_leader=True,
               bint check_records=True, bint may_roll=False, int64_t append_time=-1):
        """Append one encoded batch at the log end offset of `state`, and publish the new end.

        `as_leader`: the batch gets the next offset and `leader_epoch`; otherwise it keeps its own offset, which must
        not be below the log end. `append_time`: stamp LogAppendTime (ms). Returns a LogAppendInfo, or None if
        `may_roll` is set and the segment should be rolled. Raises what `append_plain` does.
        """
        cdef Append a
        a.leader_epoch = leader_epoch
        a.append_time = append_time
        a.latest = INT64_MAX
        a.flags = ((AS_LEADER if as_leader else 0) | (CHECK_RECORDS if check_records else 0)
                   | (MAY_ROLL if may_roll else 0))
        return self._append(data, &a, state)

    def append_records(self, BatchBuilder builder not None, records, int64_t now_ms, LogState state not None,
                       int32_t leader_epoch, int64_t latest):
        """Build one batch from `records` (see BatchBuilder) directly in the mapping, and publish the new end.

        Returns and raises what `append_plain` does; None if the segment should be rolled first, if a timestamp is
        above `latest`, or if the batch has a producer id.
        """
        cdef Append a
        cdef Landing landing
        cdef int64_t size, base = state.now.log_end_offset
        cdef int status
        self.know()
        size = builder.measure(records, now_ms)
        a.header = builder.h
        a.header.size = size
        a.base_offset = base
        a.leader_epoch = leader_epoch
        a.flags = AS_LEADER
        landing.append = &a
        landing.state = <void *> state
        landing.builder = <void *> builder
        landing.last_offset = base + a.header.record_count - 1
        landing.max_timestamp = a.header.max_timestamp
        if (a.header.producer_id >= 0 or landing.max_timestamp > latest
                or self.should_roll(size, landing.max_timestamp, landing.last_offset) != OK):
            builder.release()
            return None
        status = self.prepare(size)
        if status == OK:
            status = self.guarded_append(_write_batch, &landing)
        builder.release()
        check(status, "appending records", base)
        return self._info(
            base, landing.last_offset, leader_epoch, landing.max_timestamp,
            landing.max_timestamp if builder.log_append_time else -1, a.header.record_count, size, a.position, state)

    # ---- search and read --------------------------------------------------------------------------------

    cdef int peek_at(self, int64_t position, int64_t limit, Walk *w) noexcept nogil:
        # Read the header at `position` of a file that is valid up to `limit`. END at the limit, else checks the
        # length.
        cdef uint8_t copied[HEADER_SIZE]
        cdef const uint8_t *p = self.region.r.base
        cdef int64_t length, delta, base, left = limit - position
        cdef int status
        if left <= 0:
            return END
        if left < HEADER_SIZE:
            return SHORT_INPUT
        if p != NULL:
            p += position
        else:
            status = self.region.copy_out(position, HEADER_SIZE, copied)
            if status != OK:
                return status
            p = copied
        length = load32(p + 8)
        if length < HEADER_SIZE - LOG_OVERHEAD or length + LOG_OVERHEAD > left:
            # Zeros are space allocated ahead of the writer; a zero length followed by anything else is damage.
            return END if p[0] == 0 and memcmp(p, p + 1, HEADER_SIZE - 1) == 0 else BAD_BATCH_LENGTH
        delta = load32(p + 23)
        base = load64(p)
        if p[16] != MAGIC:
            return BAD_MAGIC
        if base < self.base_offset:
            return OFFSET_REGRESSION
        if delta < 0 or base - self.base_offset > MAX_RELATIVE_OFFSET - delta:
            return BAD_OFFSET_DELTA if delta < 0 else OFFSET_OVERFLOW
        w.position = position
        w.size = length + LOG_OVERHEAD
        w.base_offset = base
        w.last_offset = base + delta
        w.max_timestamp = load64(p + 35)
        w.record_count = load32(p + 57)
        w.is_control = p[22] & CONTROL != 0
        return OK

    cdef int next_at(self, int64_t limit, Walk *w) noexcept nogil:
        # Go to the next batch, whose offsets must be higher.
        cdef int64_t last_offset = w.last_offset
        cdef int status = self.peek_at(w.position + w.size, limit, w)
        return OFFSET_REGRESSION if status == OK and w.base_offset <= last_offset else status

    cdef int64_t hinted_at(self, int64_t offset, int64_t limit, Walk *w) noexcept nogil:
        # Where to start a search for `offset`; 0 if the index entry is wrong. An entry names the last offset of a
        # batch or, in Kafka's files, of a batch appended together with it.
        cdef IndexEntry hint
        cdef int status = self.offset_index.lookup(offset, &hint)
        if status != OK or not 0 < hint.value < limit:
            return 0
        status = self.peek_at(hint.value, limit, w)
        while status == OK and w.last_offset < hint.key:
            status = self.next_at(limit, w)
        return hint.value if status == OK and w.last_offset == hint.key else 0

    cdef int locate(self, int64_t offset, int64_t behind, Walk *w) noexcept nogil:
        cdef int64_t limit = load_length(&self.region.r)
        cdef int64_t hint = self.hinted_at(offset, limit, w)
        cdef int status = self.peek_at(max(hint, behind), limit, w)
        if status == OK and w.last_offset < offset:
            self.foresee(w, limit)
        while status == OK and w.last_offset < offset:
            status = self.next_at(limit, w)
        return status

    cdef void foresee(self, const Walk *w, int64_t limit) noexcept nogil:
        # Batches often have equal sizes: prefetch the next headers' cache lines before the walk reaches them.
        cdef const uint8_t *base = self.region.r.base
        cdef int64_t _step, position = w.position
        if base == NULL:
            return
        for _step in range(4):
            position += w.size
            if position + HEADER_SIZE > limit:
                return
            prefetch(base + position)
            prefetch(base + position + HEADER_SIZE - 1)

    cdef int _guarded(self, kr_guarded step, int64_t target, int64_t behind, int64_t limit, Walk *w) except? -128:
        # The GIL is held, so nothing is unmapped meanwhile. A region that cannot be mapped is read header by header.
        cdef Locate c
        c.segment = <void *> self
        c.target = target
        c.behind = behind
        c.limit = limit
        c.walk = w
        self.region.ready(False)
        self.offset_index.region.ready(False)
        return kr_guard_call(step, &c)

    cdef int reach(self, int64_t offset, int64_t behind, Walk *w) except? -128:
        return self._guarded(_locate_guarded, offset, behind, 0, w)

    def position_of(self, int64_t offset, *, int64_t behind=0):
        """Find the first batch that reaches `offset`.

        `behind`: the byte where a batch begins behind damage; nothing below it is read. Returns (position, size in
        bytes, base offset, last offset), or None if no batch reaches it. Raises CorruptMessage if a header on the way
        is invalid.
        """
        cdef Walk w
        if check(self.reach(offset, behind, &w), "looking for an offset", offset) == END:
            return None
        return w.position, w.size, w.base_offset, w.last_offset

    def read(self, int64_t offset, int64_t max_bytes, *, int64_t limit=-1, bint at_least_one=True, int64_t behind=0):
        """Return a pinned Slice of whole batches, from the one that holds `offset` on, or None past the end.

        It has at most `max_bytes`, but the whole first batch if `at_least_one`. It ends at `limit` at most (a
        position; -1: the valid length). `behind`: as for `position_of`.
        """
        return self.slice_of(offset, max_bytes, limit, at_least_one, behind)

    cdef Slice read_below(self, int64_t offset, int64_t stop_offset, int64_t max_bytes, bint at_least_one):
        cdef Walk w
        cdef int64_t limit = -1
        if check(self.reach(stop_offset, 0, &w), "looking for an offset", stop_offset) != END:
            limit = w.position + (w.size if w.base_offset < stop_offset else 0)
        return self.slice_of(offset, max_bytes, limit, at_least_one, 0)

    cdef Slice slice_of(self, int64_t offset, int64_t max_bytes, int64_t limit, bint at_least_one, int64_t behind):
        cdef Walk w
        cdef int64_t start, end, length = load_length(&self.region.r)
        if limit < 0 or limit > length:
            limit = length
        if check(self.reach(offset, behind, &w), "reading at an offset", offset) == END or w.position >= limit:
            return None
        start = w.position
        end = start + w.size
        if end > limit or (w.size > max_bytes and not at_least_one):
            return None
        if w.size < max_bytes:
            w.position = end
            check(self._guarded(_span_guarded, min(start + max_bytes, limit), 0, limit, &w), "reading", offset)
            end = w.position
        return self.region.pin(start, end - start)

    cdef int64_t hint_by_time(self, entry, int64_t limit, Walk *w) except? -1:
        # The offset in a time index entry; the base offset if the entry is wrong, which its batch's timestamp shows.
        timestamp, offset = entry
        if timestamp < 0 or self._guarded(_locate_guarded, offset, 0, limit, w) != OK:
            return self.base_offset
        return offset if w.max_timestamp == timestamp else self.base_offset

    def position_by_time(self, int64_t timestamp, int64_t start_offset):
        """Find the first batch at or above `start_offset` with a record of at least `timestamp` (ms).

        Returns and raises what `position_of` does.
        """
        cdef Walk w
        cdef int64_t limit = load_length(&self.region.r)
        cdef int64_t hint = self.hint_by_time(self.time_index.find(timestamp), limit, &w)
        if check(self.reach(max(hint, start_offset), 0, &w), "searching by time", timestamp) == END:
            return None
        if check(self._guarded(_by_time_guarded, timestamp, 0, limit, &w), "searching by time", timestamp) == END:
            return None
        return w.position, w.size, w.base_offset, w.last_offset

    def count_records(self, int64_t position, int64_t limit=-1):
        """Add up the records of the batches between two positions, by their headers; markers do not count.

        `position`: a batch begins there. `limit` -1: the valid length. Reads at most COUNTED_BATCHES headers, so that
        other threads run between two calls. Returns (records, the position for the next call or -1 at the end). Raises
        CorruptMessage if a header is invalid; no CRC is checked.
        """
        cdef Walk w
        cdef int status
        if limit < 0 or limit > load_length(&self.region.r):
            limit = load_length(&self.region.r)
        w.position = position
        w.counted = 0
        status = check(self._guarded(_count_guarded, COUNTED_BATCHES, 0, limit, &w), "counting records", position)
        return w.counted, -1 if status == END else w.position

    # ---- recovery and change ----------------------------------------------------------------------------

    def limit_to(self, int64_t position):
        """Let a reader's view of the file end at `position`; the file on disk is unchanged."""
        publish_length(&self.region.r, min(position, self.region.r.capacity))
        self.known = False

    def check_indexes(self):
        """Leave out an index's padding, or a whole index that does not fit, for a reader, which cannot rebuild it."""
        self.offset_index.forget_padding()
        self.time_index.forget_padding()
        if not self.offset_index.is_plausible(load_length(&self.region.r)):
            publish_length(&self.offset_index.region.r, 0)
        if not self.time_index.is_plausible():
            publish_length(&self.time_index.region.r, 0)

    def forget(self):
        """Empty both indexes and forget the timestamps, before a rebuild."""
        self.offset_index.reset()
        self.time_index.reset()
        self.first_timestamp = self.max_timestamp = self.offset_of_max_timestamp = -1
        self.bytes_since_index = 0
        self.known = True

    def know(self):
        """Learn the timestamps if that has not been done since the open: a clean open reads no batch."""
        if not self.known:
            self.learn()

    def learn(self):
        """Read the timestamps from the time index and the readable batches after its last entry."""
        cdef Walk w
        cdef int64_t limit = load_length(&self.region.r), entries = len(self.time_index)
        cdef int64_t hint = self.base_offset
        self.max_timestamp = self.offset_of_max_timestamp = self.first_timestamp = -1
        self.bytes_since_index = 0
        self.known = True
        if limit == 0:
            return
        self.bytes_since_index = max(0, limit - self.offset_index.find(MAX_OFFSET)[1])
        w.position = 0
        w.last_offset = self.base_offset - 1
        if self._guarded(_span_guarded, 1, 0, limit, &w) == OK:
            self.first_timestamp = w.max_timestamp
        if entries:
            hint = self.hint_by_time(self.time_index[entries - 1], limit, &w)
        if self._guarded(_locate_guarded, hint, 0, limit, &w) == OK:
            self._guarded(_learn_guarded, 0, 0, limit, &w)

    def seal(self):
        """Close the segment for appends: add the last time index entry, and trim every file to its length."""
        if self.max_timestamp >= 0:
            self.time_index.append(self.max_timestamp, self.offset_of_max_timestamp, closing=True)
        for region in self.regions():
            region.trim()

    def truncate_to(self, int64_t offset, int64_t position=-1, head=b""):
        """Drop the batch that holds `offset` and everything after it; return the number of bytes dropped.

        `position`: that of the batch, if known. `head`: a batch to put in its place.
        """
        cdef int64_t before = self.region.length
        found = self.position_of(offset) if position < 0 else (position,)
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        if found is None or found[0] >= before:
            return 0
        self.region.truncate(found[0], head or None)
        self.learn()
        return before - found[0]

    def regions(self):
        """Return the regions of the log and its indexes, in the order in which they are flushed."""
        return self.region, self.offset_index.region, self.time_index.region

    def flush(self):
        """Flush all three files to disk. Raises KafkaStorageError; never retry a failed flush."""
        for region in self.regions():
            region.flush()

    def idle(self):
        """Release mappings, descriptors and unused disk space until the next use."""
        for region in self.regions():
            region.idle()

    def close(self):
        for region in self.regions():
            region.close()

    def largest_timestamp(self):
        """Return the greatest timestamp (ms) of the segment's batches, or -1."""
        self.know()
        return self.max_timestamp

    def next_offset(self):
        """Return the offset after the segment's last batch, from its headers; None if it holds no batch."""
        cdef Walk w
        if load_length(&self.region.r) == 0:
            return None
        check(self.reach(MAX_OFFSET, 0, &w), "looking for a segment's end", self.base_offset)
        return w.last_offset + 1

    @property
    def size(self):
        """The number of valid bytes."""
        return load_length(&self.region.r)

    def __repr__(self):
        return f"LogSegment(base_offset={self.base_offset}, size={self.size})"
