"""Copy what survives a round of cleaning into cleaned segments: whole batches unchanged, others rebuilt.

A record stays if its offset is beyond the map. It also stays if it has a key for which the map has no later offset,
unless it is a tombstone whose time has come. Plain batches are copied from mapping to mapping; a compressed batch, or
one that had to be decided, is built in a buffer first. Contract, ownership and thread rule: record_filter.pxd.
"""

from enum import IntEnum

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_READ, PyBuffer_Release, PyObject_GetBuffer
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memmove

from kreplica._core cimport codec
from kreplica._core.batch_walk cimport BatchWalk
from kreplica._core.log_segment cimport MAX_RELATIVE_OFFSET, LogSegment, timestamp_of_records
from kreplica._core.offset_map cimport (
    OFFSET_MAP_GROUP, OffsetMap, kr_offset_entry, kr_offset_map_entry, kr_offset_map_find,
)
from kreplica._core.record_batch cimport (
    CODEC_MASK, COMPRESSED, CONTROL, DELETE_HORIZON, HEADER_SIZE, LOG_APPEND_TIME, MAX_DECOMPRESSED, MIN_RECORD_SIZE,
    TRANSACTIONAL, BatchHeader, RecordView, parse_record, record_timestamp, seal, write_header,
)
from kreplica._core.records cimport RecordBatch
from kreplica._core.region cimport is_writable, kr_guard_call, load_length, publish_length
from kreplica._core.scratch cimport reserve
from kreplica._core.segment_index cimport OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE
from kreplica._core.status cimport (
    BAD_OFFSET_DELTA, BAD_RECORD_COUNT, BAD_RECORD_LENGTH, BAD_TIMESTAMP, BATCH_TOO_LARGE, NEEDS_GROWTH, NEEDS_LOOK,
    NEEDS_ROLL, OFFSET_OVERFLOW, OFFSET_REGRESSION, OK, OUT_OF_RANGE, TRAILING_BYTES, check,
)
from kreplica._core.varint cimport (
    read_varint, read_varlong, size_of_varlong, write_varint, write_varlong,
)


class Fate(IntEnum):
    """What became of a batch."""

    DROPPED = 0
    EMPTIED = 1
    """Only its header is written."""
    KEPT = 2
    """At least one of its records is written."""
    TARGET_FULL = 3
    """Nothing was done because it does not fit the target."""


cdef struct Candidate:
    const uint8_t *end            # of the record, which begins at the end of the one before
    int64_t offset
    int64_t timestamp
    kr_offset_entry entry
    bint has_key
    bint has_value


cdef struct Step:
    # The arguments of one guarded call.
    void *filter
    const uint8_t *section
    int64_t size
    Keep keep
    uint8_t *out
    BatchHeader *made


cdef int _pick_guarded(void *argument) noexcept nogil:
    cdef Step *s = <Step *> argument
    return (<RecordFilter> s.filter).pick(s.section, s.size, s.keep, s.out, True)


cdef int _put_guarded(void *argument) noexcept nogil:
    cdef Step *s = <Step *> argument
    if s.made == NULL:
        return (<RecordFilter> s.filter).put_whole()
    if s.made.record_count == 0:
        return (<RecordFilter> s.filter).put_empty()
    return (<RecordFilter> s.filter).put_made(s.made, s.section)


cdef int _rebase(uint8_t *to, const uint8_t *section, int64_t left, const BatchHeader *old, const BatchHeader *made,
                 int64_t *size) noexcept nogil:
    # Write the records of section[0:left], which were parsed before, with timestamps relative to made's base
    # timestamp. Each becomes at most MOST_GROWTH bytes longer. `to` may begin that far before the section and overlap
    # it.
    cdef uint8_t *start = to
    cdef int32_t length = 0
    cdef int64_t delta = 0, timestamp = 0, rest
    cdef int32_t _
    cdef int used
    cdef uint8_t attributes
    for _ in range(made.record_count):
        used = read_varint(section, left, &length)
        if used < 0 or not 1 < length <= left - used:
            return BAD_RECORD_LENGTH
        section += used
        left -= used + length
        attributes = section[0]
        used = read_varlong(section + 1, length - 1, &delta)
        if used < 0 or record_timestamp(old, delta, &timestamp) != OK:
            return BAD_TIMESTAMP
        if timestamp < INT64_MIN + made.base_timestamp:
            return BAD_TIMESTAMP
        section += 1 + used
        rest = length - 1 - used
        delta = timestamp - made.base_timestamp
        if rest > INT32_MAX - MOST_GROWTH - 1:
            return BATCH_TOO_LARGE
        to += write_varint(to, <int32_t> (1 + size_of_varlong(delta) + rest))
        to[0] = attributes
        to += 1
        to += write_varlong(to, delta)
        memmove(to, section, <size_t> rest)
        to += rest
        section += rest
    size[0] = to - start
    return OK


cdef class RecordFilter(BatchWalk):
    """The filter of one round, over its segments in ascending order.

    `offset_map`: the map that the round's pass has filled. `now_ms` and `delete_retention_ms` give the delete horizon
    of batches with tombstones that have none. `retained_offsets`: the last offsets of batches that stay as an empty
    header if all their records are dropped. `max_decompressed` limits a batch's records, in bytes. The counters are
    totals.
    """

    def __cinit__(self, OffsetMap offset_map not None, int64_t now_ms, int64_t delete_retention_ms,
                  retained_offsets=(), *, int64_t max_decompressed=MAX_DECOMPRESSED):
        cdef int64_t offset
        if now_ms < 0 or not 0 <= delete_retention_ms <= INT64_MAX - now_ms:
            raise ValueError(f"now_ms={now_ms} and delete_retention_ms={delete_retention_ms} must be at least 0, "
                             "and their sum must fit int64")
        self.offset_map = offset_map
        self.now_ms = now_ms
        self.delete_retention_ms = delete_retention_ms
        self.max_decompressed = max_decompressed
        for offset in sorted(retained_offsets):
            reserve(&self.retained, sizeof(int64_t))
            (<int64_t *> (self.retained.data + self.retained.size))[0] = offset
            self.retained.size += sizeof(int64_t)

    def __dealloc__(self):
        free(self.retained.data)
        free(self.section.data)

    # ---- which records stay -----------------------------------------------------------------------------

    cdef int pick(self, const uint8_t *records, int64_t size, Keep keep, uint8_t *out,
                  bint copy_all) noexcept nogil:
        # Works in groups: while the slots of one group's keys are loaded, its other records are parsed. Adjacent
        # survivors are copied at once.
        cdef Candidate group[OFFSET_MAP_GROUP]
        cdef Candidate *c
        cdef RecordView record
        cdef const BatchHeader *h = &self.h
        cdef const uint8_t *run = records
        cdef const uint8_t *p = records
        cdef int64_t latest = self.offset_map.latest_offset, first = self.offset_map.first_offset
        cdef int64_t used = 0, last_delta = -1, i, count, mark
        cdef int32_t left = h.record_count
        cdef bint deletes_stay = not h.attributes & DELETE_HORIZON or self.now_ms < h.base_timestamp
        cdef bint stays
        cdef int status
        self.found = Survivors(0, 0, -1, 0, False)
        if left > size // MIN_RECORD_SIZE:
            return BAD_RECORD_COUNT
        while left > 0:
            count = min(left, <int32_t> OFFSET_MAP_GROUP)
            left -= <int32_t> count
            for i in range(count):
                c = &group[i]
                status = parse_record(records, size, &record, &used)
                if status == OK:
                    status = record_timestamp(h, record.timestamp_delta, &c.timestamp)
                if status != OK:
                    return status
                if not last_delta < record.offset_delta <= h.last_offset_delta:
                    return BAD_OFFSET_DELTA
                last_delta = record.offset_delta
                records += used
                size -= used
                c.end = records
                c.offset = h.base_offset + record.offset_delta
                c.has_key = record.key != NULL
                c.has_value = record.value != NULL
                if c.has_key:
                    c.entry = kr_offset_map_entry(&self.offset_map.map, record.key, record.key_size)
            for i in range(count):
                c = &group[i]
                stays = keep == EVERY_RECORD or c.offset > latest
                if not stays and c.has_key and (c.has_value or deletes_stay):
                    mark = kr_offset_map_find(&self.offset_map.map, c.entry.place, c.entry.check)
                    stays = mark == 0 or c.offset - first + 1 >= mark
                if stays:
                    self.found.count += 1
                    self.found.tombstones |= not c.has_value
                    if self.found.count == 1 or c.timestamp > self.found.max_timestamp:
                        self.found.max_timestamp = c.timestamp
                else:
                    self.found.keyless += not c.has_key
                    if p != run:
                        memcpy(out + self.found.size, run, <size_t> (p - run))
                        self.found.size += p - run
                    run = c.end
                p = c.end
        if size != 0:
            return TRAILING_BYTES
        if p != run and (copy_all or self.found.count < h.record_count):
            memcpy(out + self.found.size, run, <size_t> (p - run))
        self.found.size += p - run
        return OK

    cdef bint is_horizon_due(self) noexcept nogil:
        # Not if the batch reaches beyond the map: the records that its tombstones delete are still there and must not
        # outlive them. The time of the tombstones counts from the round that drops those records.
        return (self.found.tombstones and not self.h.attributes & DELETE_HORIZON
                and self.h.base_offset + self.h.last_offset_delta <= self.offset_map.latest_offset)

    cdef bint stays_empty(self) noexcept nogil:
        cdef const int64_t *offsets = <const int64_t *> self.retained.data
        cdef int64_t target = self.h.base_offset + self.h.last_offset_delta
        cdef int64_t low = 0, high = self.retained.size // <int64_t> sizeof(int64_t), middle
        if self.keep_empty or self.keep_last and self.position + self.h.size == self.limit:
            return True
        while low < high:
            middle = (low + high) >> 1
            if offsets[middle] == target:
                return True
            if offsets[middle] < target:
                low = middle + 1
            else:
                high = middle
        return False

    # ---- into the target --------------------------------------------------------------------------------

    cdef int ask_room(self, int64_t need) noexcept nogil:
        # Like LogSegment.prepare, except that nothing grows here.
        cdef int64_t base_offset = self.target.base_offset, length = load_length(&self.target.region.r)
        cdef int64_t entries
        if self.h.base_offset < base_offset:
            return OUT_OF_RANGE
        if self.h.base_offset + self.h.last_offset_delta - base_offset > MAX_RELATIVE_OFFSET:
            return NEEDS_ROLL if length else OFFSET_OVERFLOW
        if need > INT32_MAX - length:
            return NEEDS_ROLL if length else BATCH_TOO_LARGE
        self.room = need
        if not is_writable(self.target.region, length + need):
            return NEEDS_GROWTH
        if self.target.bytes_since_index <= self.target.index_interval_bytes:
            return OK
        entries = self.target.offset_index.count() + 1
        if entries <= self.target.offset_index.max_entries and not is_writable(
                self.target.offset_index.region, entries * OFFSET_ENTRY_SIZE):
            return NEEDS_GROWTH
        entries = self.target.time_index.count() + 1
        if entries < self.target.time_index.max_entries and not is_writable(
                self.target.time_index.region, entries * TIME_ENTRY_SIZE):
            return NEEDS_GROWTH
        return OK

    cdef int make_room(self) except? -128:
        cdef int status
        with nogil:
            self.target.region.advanced()
            status = self.target.prepare(self.room)
        if status == OUT_OF_RANGE and load_length(&self.target.region.r):
            return NEEDS_ROLL
        return self.target.region.raise_for(status, "cleaning into", self.room)

    cdef void landed(self, const BatchHeader *made, Outcome outcome) noexcept nogil:
        cdef int64_t position = load_length(&self.target.region.r)
        publish_length(&self.target.region.r, position + made.size)
        self.target.committed(position, made.size, made.base_offset + made.last_offset_delta,
                              timestamp_of_records(made))
        self.bytes_written += made.size
        self.records_written += made.record_count
        self.batches_written += 1
        self.outcome = outcome

    cdef int put_whole(self) noexcept nogil:
        cdef int status = self.ask_room(self.h.size)
        if status == OK:
            memcpy(self.target.region.r.base + load_length(&self.target.region.r), self.batch, <size_t> self.h.size)
            self.landed(&self.h, BATCH_KEPT if self.h.record_count else BATCH_EMPTIED)
        return status

    cdef int put_made(self, BatchHeader *made, const uint8_t *section) noexcept nogil:
        cdef int status = self.ask_room(made.size)
        cdef uint8_t *to = self.target.region.r.base + load_length(&self.target.region.r)
        if status == OK:
            write_header(to, made)
            memcpy(to + HEADER_SIZE, section, <size_t> (made.size - HEADER_SIZE))
            seal(to, made.size)
            self.landed(made, BATCH_KEPT)
        return status

    cdef int put_empty(self) noexcept nogil:
        # Kafka's form of a batch that has lost its records: no codec, no horizon and no base timestamp.
        cdef BatchHeader made = self.h
        cdef int status
        self.outcome = BATCH_DROPPED
        if not self.stays_empty():
            return OK
        if made.record_count == 0:
            return self.put_whole()
        status = self.ask_room(HEADER_SIZE)
        if status != OK:
            return status
        made.size = HEADER_SIZE
        made.record_count = 0
        made.attributes &= LOG_APPEND_TIME | TRANSACTIONAL | CONTROL
        made.base_timestamp = -1
        cdef uint8_t *to = self.target.region.r.base + load_length(&self.target.region.r)
        write_header(to, &made)
        seal(to, made.size)
        self.landed(&made, BATCH_EMPTIED)
        return OK

    cdef BatchHeader header_of_survivors(self, bint horizon) noexcept nogil:
        cdef BatchHeader made = self.h
        made.record_count = self.found.count
        if not made.attributes & LOG_APPEND_TIME:
            made.max_timestamp = self.found.max_timestamp
        if horizon:
            made.attributes |= DELETE_HORIZON
            made.base_timestamp = self.now_ms + self.delete_retention_ms
        return made

    cdef int put_in_place(self) noexcept nogil:
        cdef bint horizon = self.is_horizon_due()
        cdef BatchHeader made = self.header_of_survivors(horizon)
        cdef uint8_t *to = self.target.region.r.base + load_length(&self.target.region.r)
        cdef int64_t growth = MOST_GROWTH * <int64_t> made.record_count
        cdef const uint8_t *section = to + HEADER_SIZE
        cdef int status
        made.size = HEADER_SIZE + self.found.size
        if horizon:
            status = self.ask_room(made.size + growth)
            if status != OK:
                return status
            if self.found.count == self.h.record_count:
                section = self.batch + HEADER_SIZE
            else:
                memmove(to + HEADER_SIZE + growth, section, <size_t> self.found.size)
                section += growth
            status = _rebase(to + HEADER_SIZE, section, self.found.size, &self.h, &made, &made.size)
            if status != OK:
                return status
            made.size += HEADER_SIZE
        write_header(to, &made)
        seal(to, made.size)
        self.landed(&made, BATCH_KEPT)
        return OK

    # ---- a batch ----------------------------------------------------------------------------------------

    cdef int take(self) noexcept nogil:
        cdef int status
        if self.h.attributes & (TRANSACTIONAL | CONTROL):
            return NEEDS_LOOK
        if self.h.base_offset > self.offset_map.latest_offset:
            return self.put_whole()
        if self.h.attributes & CODEC_MASK:
            return COMPRESSED
        status = self.ask_room(self.h.size)
        if status == OK:
            status = self.pick(self.batch + HEADER_SIZE, self.h.size - HEADER_SIZE, LATEST_RECORDS,
                               self.target.region.r.base + load_length(&self.target.region.r) + HEADER_SIZE,
                               False)
        if status != OK:
            return status
        if self.found.count == 0:
            status = self.put_empty()
        elif self.found.count == self.h.record_count and not self.is_horizon_due():
            status = self.put_whole()
        else:
            status = self.put_in_place()
        if status == OK:
            self.keyless_dropped += self.found.keyless
        return status

    cdef int take_decoded(self, RecordBatch batch) except? -128:
        return self.do_batch(batch, LATEST_RECORDS, False)

    cdef int do_batch(self, RecordBatch batch, Keep keep, bint set_horizon) except? -128:
        # The batch is the current one and is checked. Returns OK or NEEDS_ROLL; raises any error.
        cdef BatchHeader empty
        set_horizon = set_horizon and not self.h.attributes & DELETE_HORIZON
        if keep == LATEST_RECORDS and self.h.base_offset > self.offset_map.latest_offset and not set_horizon:
            return self.put_guarded(NULL, NULL)
        if keep == EVERY_RECORD and not set_horizon and self.h.record_count:
            return self.put_guarded(NULL, NULL)
        if keep == NO_RECORD or self.h.size == HEADER_SIZE and self.h.record_count == 0 and (
                self.h.attributes & CODEC_MASK == 0):
            empty.record_count = 0
            return self.put_guarded(&empty, NULL)
        return self.remake(batch, keep, set_horizon)

    cdef int remake(self, RecordBatch batch, Keep keep, bint set_horizon) except? -128:
        cdef Step s
        cdef BatchHeader made
        cdef Py_buffer view
        cdef const uint8_t *section = NULL
        cdef int64_t growth = MOST_GROWTH * <int64_t> self.h.record_count
        cdef int status
        keeper = batch.section(self.max_decompressed, &s.section, &s.size)
        if self.h.record_count > s.size // MIN_RECORD_SIZE:
            return BAD_RECORD_COUNT
        self.section.size = 0
        reserve(&self.section, s.size + growth)
        s.filter = <void *> self
        s.keep = keep
        s.out = self.section.data + growth
        with nogil:
            status = kr_guard_call(_pick_guarded, &s)
        if status != OK:
            return status
        set_horizon = set_horizon or self.is_horizon_due()
        made = self.header_of_survivors(set_horizon)
        if self.found.count == 0:
            status = self.put_guarded(&made, NULL)
        elif self.found.count == self.h.record_count and not set_horizon:
            status = self.put_guarded(NULL, NULL)
        else:
            section = s.out
            made.size = self.found.size
            if set_horizon:
                with nogil:
                    status = _rebase(self.section.data, section, made.size, &self.h, &made, &made.size)
                if status != OK:
                    return status
                section = self.section.data
            if made.attributes & CODEC_MASK:
                plain = PyMemoryView_FromMemory(<char *> section, made.size, PyBUF_READ)
                packed = codec.compress(made.attributes & CODEC_MASK, plain, None)
                PyObject_GetBuffer(packed, &view, PyBUF_SIMPLE)
                made.size = view.len
                section = <const uint8_t *> view.buf
                PyBuffer_Release(&view)     # `packed` itself keeps the bytes: codec's results do not change
            made.size += HEADER_SIZE
            status = self.put_guarded(&made, section)
        del keeper
        if status == OK:
            self.keyless_dropped += self.found.keyless
        return status

    cdef int put_guarded(self, BatchHeader *made, const uint8_t *section) except? -128:
        cdef Step s
        cdef int status = NEEDS_GROWTH
        s.filter = <void *> self
        s.made = made
        s.section = section
        while status == NEEDS_GROWTH:
            with nogil:
                status = kr_guard_call(_put_guarded, &s)
            if status == NEEDS_GROWTH:
                status = self.make_room()
                if status == OK:
                    status = NEEDS_GROWTH
        return status

    # ---- the Python side --------------------------------------------------------------------------------

    def filter_batches(self, LogSegment source not None, int64_t position, int64_t limit, int64_t max_bytes,
                       LogSegment target not None, *, bint keep_last=False):
        """Copy the survivors of the source's batches in [position, limit) to the end of the target.

        Stops once `max_bytes` are read, but does at least one batch. `keep_last`: the batch that ends at `limit`
        stays, if need be as an empty header. Returns (Stop, position to continue at, batch). A transactional or
        control batch is returned for a decision, which filter_batch takes. The target's length is published, and its
        indexes fed, batch by batch; sealing and flushing it is up to the caller. Raises StorageFull and subclasses of
        KafkaStorageError, and a subclass of CorruptMessage for an invalid batch at `position`. Nothing of an
        invalid batch is published.
        """
        self.target = target
        self.keep_last = keep_last
        self.keep_empty = False
        try:
            return self.walk(source, position, limit, max_bytes)
        finally:
            target.region.advanced()

    def filter_batch(self, RecordBatch batch not None, LogSegment target not None, *, bint discard=False,
                     bint set_horizon=False, bint keep_empty=False):
        """Do one batch as decided by the caller; return its Fate.

        `discard`: drop all its records. Otherwise the records of a data batch stay as in filter_batches, and all those
        of a control batch. `set_horizon`: give it a delete horizon if it has none. `keep_empty`: it stays as an empty
        header if no record does, as do batches whose last offset is retained. Raises what `filter_batches` does.
        """
        cdef Keep keep = NO_RECORD if discard else LATEST_RECORDS
        cdef int status
        if keep == LATEST_RECORDS and batch.h.attributes & CONTROL:
            keep = EVERY_RECORD
        batch.check_header()
        self.target = target
        self.keep_last = False
        self.keep_empty = keep_empty
        self.h = batch.h
        self.batch = batch.data
        if self.h.base_offset < self.next_offset:
            check(OFFSET_REGRESSION, "cleaning a batch", self.h.base_offset)
        status = self.do_batch(batch, keep, set_horizon)
        if status == NEEDS_ROLL:
            return Fate.TARGET_FULL
        check(status, "cleaning a batch", self.h.base_offset)
        self.passed()
        target.region.advanced()
        return Fate(self.outcome)
