"""A segment of a log: batches in a mapped file, an offset index, a time index, and the append that feeds all
three.

`append` takes a ready batch, `append_records` builds one from Python values straight in the mapping; both do
the whole of the common case in one call and answer None where a decision is needed that is not theirs (a
roll, a producer's state, a codec). Contract, ownership and thread rule: log_segment.pxd.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memset

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer

from kreplica._core.batch_builder cimport BatchBuilder
from kreplica._core.big_endian cimport load32, load64, publish32, store32, store64
from kreplica._core.crc32c cimport crc32c_copy
from kreplica._core.log_append_info cimport LogAppendInfo
from kreplica._core.log_state cimport LogState
from kreplica._core.offset_index cimport OffsetIndex, OffsetPosition
from kreplica._core.record_batch cimport (
    CODEC_MASK, CONTROL, HEADER_SIZE, LOG_OVERHEAD, TRANSACTIONAL, BatchHeader, check_fields,
    check_produced_fields, parse_header, stamp_log_append_time, validate_records,
)
from kreplica._core.region cimport (
    Region, ensure_writable, kr_guard_call, kr_guarded, load_length, publish_length,
)
from kreplica._core.status cimport (
    BAD_BATCH_LENGTH, BAD_CRC, END, FULL, NEEDS_ROLL,
    OFFSET_OVERFLOW, OFFSET_REGRESSION, OK, PAGE_FAULT, SHORT_INPUT, TRAILING_BYTES, check,
)
from kreplica._core.time_index cimport TimeIndex, TimestampOffset

cdef enum:
    # Appends of at least this many bytes release the GIL (measured with a busy thread beside:
    # docs/ARCHITECTURE).
    RELEASE_GIL_BYTES = 32768


cdef struct Copy:
    Append *append
    uint8_t *target


cdef int _copy_batch(void *argument) noexcept nogil:
    # Body first, with its CRC; the header's first twelve bytes last, so that a process killed in between
    # leaves a batch length of zero, which every reader takes for the end of the log.
    cdef Copy *c = <Copy *> argument
    cdef Append *a = c.append
    cdef uint8_t *target = c.target
    cdef const uint8_t *data = a.data
    cdef int64_t size = a.header.size
    cdef int status
    if crc32c_copy(target + 21, data + 21, size - 21) != a.header.crc:
        return BAD_CRC
    store32(target + 12, a.leader_epoch if a.flags & AS_LEADER else a.header.leader_epoch)
    target[16] = 2
    store32(target + 17, <int32_t> a.header.crc)
    if a.flags & CHECK_RECORDS and a.header.attributes & CODEC_MASK == 0:
        status = validate_records(target + HEADER_SIZE, size - HEADER_SIZE, &a.header, True)
        if status != OK:
            return status
    if a.append_time >= 0:
        stamp_log_append_time(target, size, a.append_time)
    store64(target, a.base_offset if a.flags & AS_LEADER else a.header.base_offset)
    publish32(target + 8, <int32_t> (size - LOG_OVERHEAD))
    return OK


cdef int _erase(void *argument) noexcept nogil:
    cdef Copy *c = <Copy *> argument
    memset(c.target, 0, c.append.header.size)
    return OK


cdef struct Emit:
    void *builder
    uint8_t *target
    int64_t base_offset
    int32_t leader_epoch


cdef int _emit_batch(void *argument) noexcept:
    cdef Emit *e = <Emit *> argument
    return (<BatchBuilder> e.builder).emit(e.target, e.base_offset, e.leader_epoch)


cdef struct Commit:
    void *segment
    int64_t position
    int64_t size
    int64_t last_offset
    int64_t max_timestamp


cdef int _commit_guarded(void *argument) noexcept nogil:
    cdef Commit *c = <Commit *> argument
    (<LogSegment> c.segment).committed(c.position, c.size, c.last_offset, c.max_timestamp)
    return OK


cdef struct Locate:
    void *segment
    int64_t target
    int64_t limit
    Walk *walk


cdef int _locate_guarded(void *argument) noexcept nogil:
    cdef Locate *c = <Locate *> argument
    return (<LogSegment> c.segment).locate(c.target, c.walk)


cdef int _span_guarded(void *argument) noexcept nogil:
    # Walk whole batches from walk.position while they end at or before target; walk.position gets the end.
    cdef Locate *c = <Locate *> argument
    cdef Walk *w = c.walk
    cdef int status
    while w.position < c.target:
        status = (<LogSegment> c.segment).peek_at(w.position, c.limit, w)
        if status != OK:
            return OK if status == END else status
        if w.position + w.size > c.target:
            return OK
        w.position += w.size
    return OK


cdef int _by_time_guarded(void *argument) noexcept nogil:
    # From walk.position on, the first batch whose max timestamp is at least target.
    cdef Locate *c = <Locate *> argument
    cdef Walk *w = c.walk
    cdef int status
    while True:
        status = (<LogSegment> c.segment).peek_at(w.position, c.limit, w)
        if status != OK or w.max_timestamp >= c.target:
            return status
        w.position += w.size


cdef class LogSegment:
    """One segment over its three files. `region`: of the .log file. `base_offset`: the offset in the file's name.
    `max_bytes`: segment.bytes. `max_age_ms`: segment.ms less the jitter. `index_interval_bytes`: as Kafka's setting.
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
        self.bytes_since_index = 0
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
        # What may fail for want of space is asked for before a byte is written.
        cdef int status = OK
        if size > 0:
            status = ensure_writable(self.region, load_length(&self.region.r) + size)
        if status == OK and self.bytes_since_index > self.index_interval_bytes:
            status = self.offset_index.prepare()
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
            if self.offset_index.prepare() == OK:
                self.offset_index.put(last_offset, position)
            if self.time_index.prepare(False) == OK:
                self.time_index.put(self.max_timestamp, self.offset_of_max_timestamp)
            self.bytes_since_index = 0
        self.bytes_since_index += size

    cdef int fed(self, int64_t position, const BatchHeader *h) noexcept nogil:
        # A batch that a rebuild has found good.
        cdef int status = self.prepare(0)
        if status == OK:
            self.committed(position, h.size, h.base_offset + h.last_offset_delta, h.max_timestamp)
        return status

    cdef int append_native(self, Append *a) noexcept nogil:
        cdef BatchHeader *h = &a.header
        cdef Copy copy
        cdef Commit commit
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
            if h.producer_id >= 0 or h.attributes & (CODEC_MASK | CONTROL | TRANSACTIONAL):
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
        a.position = load_length(&self.region.r)
        copy.append = a
        copy.target = self.region.r.base + a.position
        status = kr_guard_call(_copy_batch, &copy)
        if status != OK:
            if status != PAGE_FAULT:
                kr_guard_call(_erase, &copy)
            return status
        publish_length(&self.region.r, a.position + h.size)
        commit.segment = <void *> self
        commit.position = a.position
        commit.size = h.size
        commit.last_offset = last_offset
        commit.max_timestamp = a.append_time if a.append_time >= 0 else h.max_timestamp
        # A page of an index that is lost costs a longer search, not the append: the index is rebuilt at the
        # next open.
        kr_guard_call(_commit_guarded, &commit)
        self.region.advanced()
        return OK

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
        state.appended(last_offset + 1, position + size, leader_epoch)
        return info

    def append(self, data, LogState state not None, *, int32_t leader_epoch=0, bint as_leader=True,
               bint only_plain=False, bint check_records=True, bint may_roll=False, int64_t append_time=-1,
               int64_t latest=0x7FFFFFFFFFFFFFFF, int64_t max_bytes=0x7FFFFFFF):
        """Append one ready batch at the log's end, as `state` has it, and publish the new end.

        `as_leader`: the batch gets the next offset and `leader_epoch`; otherwise it keeps its own, which must
        not lie below the log's end. Returns a LogAppendInfo, or None when the batch needs a decision:
        `only_plain` met a producer id, a codec, several batches, a timestamp above `latest` or a size above
        `max_bytes`, or `may_roll` met a segment that should be rolled. Raises CorruptMessage and its kinds,
        StorageFull, KafkaStorageError; nothing is appended then.
        """
        cdef Py_buffer view
        cdef Append a
        cdef int status
        cdef int64_t base
        self.know()
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            a.data = <const uint8_t *> view.buf
            a.size = view.len
            a.base_offset = state.now.log_end_offset
            a.leader_epoch = leader_epoch
            a.append_time = append_time
            a.latest = latest
            a.max_size = max_bytes
            a.flags = ((AS_LEADER if as_leader else 0) | (ONLY_PLAIN if only_plain else 0)
                       | (CHECK_RECORDS if check_records else 0) | (MAY_ROLL if may_roll else 0))
            if view.len >= RELEASE_GIL_BYTES:
                with nogil:
                    status = self.append_native(&a)
            else:
                status = self.append_native(&a)
        finally:
            PyBuffer_Release(&view)
        if status != OK:
            check(status, "appending a batch", a.base_offset)
            return None
        base = a.base_offset if as_leader else a.header.base_offset
        return self._info(
            base, base + a.header.last_offset_delta, leader_epoch if as_leader else a.header.leader_epoch,
            append_time if append_time >= 0 else a.header.max_timestamp, append_time, a.header.record_count,
            a.header.size, a.position, state)

    def append_records(self, BatchBuilder builder not None, records, int64_t now_ms, LogState state not None, *,
                       int32_t leader_epoch=0, bint may_roll=False, int64_t latest=0x7FFFFFFFFFFFFFFF):
        """Build one batch from `records` (see BatchBuilder) straight in the mapping and publish the new end.

        Returns and raises as `append`; None where the segment should be rolled first, where a timestamp lies
        above `latest`, or where the batch is one for a producer's state.
        """
        cdef int64_t base = state.now.log_end_offset
        cdef int64_t position = load_length(&self.region.r)
        cdef int64_t size, max_timestamp
        cdef int32_t count
        cdef Emit emit
        cdef Commit commit
        cdef int status
        self.know()
        size = builder.measure(records, now_ms)
        count = builder.h.record_count
        max_timestamp = builder.h.max_timestamp
        status = self.should_roll(size, max_timestamp, base + count - 1)
        if (status != OK and may_roll) or max_timestamp > latest or builder.h.producer_id >= 0:
            builder.release()
            return None
        check(self.prepare(size), "appending records", base)
        emit.builder = <void *> builder
        emit.target = self.region.r.base + position
        emit.base_offset = base
        emit.leader_epoch = leader_epoch
        check(kr_guard_call(<kr_guarded> <void *> _emit_batch, &emit), "appending records", base)
        publish_length(&self.region.r, position + size)
        commit.segment = <void *> self
        commit.position = position
        commit.size = size
        commit.last_offset = base + count - 1
        commit.max_timestamp = max_timestamp
        kr_guard_call(_commit_guarded, &commit)
        self.region.advanced()
        return self._info(base, commit.last_offset, leader_epoch, max_timestamp,
                          max_timestamp if builder.log_append_time else -1, count, size, position, state)

    # ---- search and read --------------------------------------------------------------------------------

    cdef int peek_at(self, int64_t position, int64_t limit, Walk *w) noexcept nogil:
        # The header at `position` of a file valid up to `limit`: END there, else whole-batch checks.
        cdef uint8_t copied[HEADER_SIZE]
        cdef const uint8_t *p = self.region.r.base
        cdef int64_t left = limit - position
        cdef int64_t length
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
            return END if length == 0 else BAD_BATCH_LENGTH
        w.position = position
        w.size = length + LOG_OVERHEAD
        w.base_offset = load64(p)
        w.last_offset = w.base_offset + load32(p + 23)
        w.max_timestamp = load64(p + 35)
        return OK

    cdef int locate(self, int64_t offset, Walk *w) noexcept nogil:
        # The first batch whose last offset is at least `offset`. The index's answer is checked: a batch that
        # starts past what is looked for, or no batch at all, means that it lies, and the walk begins at the
        # file's start.
        cdef OffsetPosition hint
        cdef int64_t limit = load_length(&self.region.r)
        cdef int status = self.offset_index.lookup(offset, &hint)
        if status != OK or hint.position >= limit:
            hint.position = 0
        status = self.peek_at(hint.position, limit, w)
        if hint.position > 0 and (status != OK or w.base_offset > offset or w.base_offset < self.base_offset):
            status = self.peek_at(0, limit, w)
        while status == OK and w.last_offset < offset:
            status = self.peek_at(w.position + w.size, limit, w)
        return status

    cdef int _guarded(self, kr_guarded step, int64_t target, int64_t limit, Walk *w) except? -128:
        # The GIL is held, so nobody unmaps meanwhile. A region that cannot be mapped is read header by
        # header.
        cdef Locate c
        c.segment = <void *> self
        c.target = target
        c.limit = limit
        c.walk = w
        self.region.ready(False)
        self.offset_index.region.ready(False)
        return kr_guard_call(step, &c)

    def position_of(self, int64_t offset):
        """(position, size, base offset, last offset) of the first batch that reaches `offset`, or None.

        Positions and sizes in bytes. Raises CorruptMessage where the headers on the way are broken.
        """
        cdef Walk w
        if check(self._guarded(_locate_guarded, offset, 0, &w), "looking for an offset", offset) == END:
            return None
        return w.position, w.size, w.base_offset, w.last_offset

    def read(self, int64_t offset, int64_t max_bytes, *, int64_t limit=-1, bint at_least_one=True):
        """A pinned Slice of whole batches from the one that holds `offset`, or None when nothing is there.

        At most `max_bytes`, but the first batch whole if `at_least_one`; never past `limit` (a position; -1:
        the valid length).
        """
        cdef Walk w
        cdef int64_t start, end, length = load_length(&self.region.r)
        if limit < 0 or limit > length:
            limit = length
        if check(self._guarded(_locate_guarded, offset, 0, &w), "reading at an offset", offset) == END:
            return None
        start = w.position
        if start >= limit:
            return None
        end = start + w.size
        if end > limit or (w.size > max_bytes and not at_least_one):
            return None
        if w.size < max_bytes:
            w.position = end
            check(self._guarded(_span_guarded, min(start + max_bytes, limit), limit, &w), "reading", offset)
            end = w.position
        return self.region.pin(start, end - start)

    def position_by_time(self, int64_t timestamp, int64_t start_offset):
        """(position, size, base offset, last offset) of the first batch at or above `start_offset` with a
        record of at least `timestamp` (ms), or None."""
        cdef TimestampOffset hint
        cdef Walk w
        hint.timestamp, hint.offset = self.time_index.find(timestamp)
        if check(self._guarded(_locate_guarded, max(hint.offset, start_offset), 0, &w), "searching by time",
                 timestamp) == END:
            return None
        if check(self._guarded(_by_time_guarded, timestamp, load_length(&self.region.r), &w), "searching by time",
                 timestamp) == END:
            return None
        return w.position, w.size, w.base_offset, w.last_offset

    # ---- recovery and change ----------------------------------------------------------------------------

    def limit_to(self, int64_t position):
        """For a reader: take the file to end at `position`, which the writer has published; nothing on disk
        changes."""
        publish_length(&self.region.r, min(position, self.region.r.capacity))
        self.known = False

    def forget(self):
        """Before a rebuild: drop both indexes and what was learnt of timestamps."""
        self.offset_index.reset()
        self.time_index.reset()
        self.first_timestamp = self.max_timestamp = self.offset_of_max_timestamp = -1
        self.bytes_since_index = 0
        self.known = True

    def check_indexes(self):
        """For a reader, who cannot rebuild: leave out an index's padding, and the whole of one that does not
        fit."""
        self.offset_index.forget_padding()
        self.time_index.forget_padding()
        if not self.offset_index.is_plausible(load_length(&self.region.r)):
            publish_length(&self.offset_index.region.r, 0)
        if not self.time_index.is_plausible():
            publish_length(&self.time_index.region.r, 0)

    def know(self):
        """Learn the timestamps if that has not been done since the open: a clean open looks at no batch."""
        if not self.known:
            self.learn()

    def learn(self):
        """The timestamps, from the time index and the batches behind its last entry.

        Raises CorruptMessage when a header on the way is broken.
        """
        cdef Walk w
        cdef int64_t limit = load_length(&self.region.r), entries = len(self.time_index), position = 0
        self.max_timestamp = self.offset_of_max_timestamp = self.first_timestamp = -1
        self.known = True
        if limit == 0:
            return
        w.position = 0
        check(self._guarded(_span_guarded, 1, limit, &w), "opening a segment", self.base_offset)
        self.first_timestamp = w.max_timestamp
        if entries:
            self.max_timestamp, self.offset_of_max_timestamp = self.time_index[entries - 1]
        if len(self.offset_index):
            position = self.offset_index[len(self.offset_index) - 1][1]
        self.bytes_since_index = limit - position
        self._guarded(_learn_guarded, position, limit, &w)

    def seal(self):
        """The segment becomes a closed one: the last time entry, and every file trimmed to its length."""
        if self.max_timestamp >= 0:
            self.time_index.append(self.max_timestamp, self.offset_of_max_timestamp, closing=True)
        for region in self.regions():
            region.trim()

    def truncate_to(self, int64_t offset):
        """Drop the batches from the one that holds `offset` on; returns the number of bytes dropped."""
        cdef int64_t before = self.region.length
        found = self.position_of(offset)
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        if found is None:
            return 0
        self.region.truncate(found[0])
        self.learn()
        return before - found[0]

    def regions(self):
        """The regions of the log and its indexes, in the order in which they are flushed."""
        return self.region, self.offset_index.region, self.time_index.region

    def flush(self):
        """Everything on disk; raises KafkaStorageError, after which nothing is retried."""
        for region in self.regions():
            region.flush()

    def idle(self):
        """Hold no map, no descriptor and no slack until the next use."""
        for region in self.regions():
            region.idle()

    def close(self):
        for region in self.regions():
            region.close()

    def largest_timestamp(self):
        """The greatest timestamp (ms) of the segment's batches, or -1."""
        self.know()
        return self.max_timestamp

    def next_offset(self):
        """The offset after the segment's last batch, from its headers; None when it holds no batch."""
        cdef Walk w
        cdef int64_t position = 0, limit = load_length(&self.region.r)
        if limit == 0:
            return None
        if len(self.offset_index):
            position = self.offset_index[len(self.offset_index) - 1][1]
        w.position = position
        w.last_offset = self.base_offset - 1
        check(self._guarded(_span_guarded, limit, limit, &w), "looking for a segment's end", self.base_offset)
        return w.last_offset + 1

    @property
    def size(self):
        """Valid bytes."""
        return load_length(&self.region.r)

    def __repr__(self):
        return f"LogSegment(base_offset={self.base_offset}, size={self.size})"


cdef int _learn_guarded(void *argument) noexcept nogil:
    # From position `target` on: the greatest timestamp and its batch's last offset.
    cdef Locate *c = <Locate *> argument
    cdef Walk *w = c.walk
    cdef int64_t position = c.target
    cdef int status
    while True:
        status = (<LogSegment> c.segment).peek_at(position, c.limit, w)
        if status != OK:
            return status
        if w.max_timestamp > (<LogSegment> c.segment).max_timestamp:
            (<LogSegment> c.segment).max_timestamp = w.max_timestamp
            (<LogSegment> c.segment).offset_of_max_timestamp = w.last_offset
        position += w.size
