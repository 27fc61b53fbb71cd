"""The latest offset of each key, in bounded memory: the cleaner's knowledge of a log's dirty range.

A pass begins with `clear` and ends when the map is full. Contract, ownership and thread rule: offset_map.pxd.
"""

from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t

from kreplica._core.batch_walk cimport BatchWalk
from kreplica._core.log_segment cimport LogSegment
from kreplica._core.record_batch cimport (
    CODEC_MASK, COMPRESSED, CONTROL, HEADER_SIZE, MAX_DECOMPRESSED, MIN_RECORD_SIZE, TRANSACTIONAL, BatchHeader,
    RecordView, parse_record,
)
from kreplica._core.records cimport RecordBatch
from kreplica._core.region cimport kr_guard_call
from kreplica._core.status cimport (
    BAD_OFFSET_DELTA, BAD_RECORD_COUNT, FULL, NEEDS_LOOK, OK, TRAILING_BYTES, check,
)

cdef enum:
    SLOT_BYTES = 16


cdef struct Section:
    # The records of one batch, processed under the guard.
    void *map
    const BatchHeader *h
    const uint8_t *records
    int64_t size


cdef int _put_guarded(void *argument) noexcept nogil:
    cdef Section *s = <Section *> argument
    return (<OffsetMap> s.map).put_section(s.h, s.records, s.size)


cdef class OffsetMap(BatchWalk):
    """Maps keys to offsets in at most `memory_bytes` bytes; nine tenths of its 16-byte slots can be used.

    `hash_key`: 16 random bytes. Raises ValueError if the memory is too small for one key (32 bytes), MemoryError if
    the system has none. A new map is like one cleared for offset 0.
    """

    def __cinit__(self, int64_t memory_bytes, const uint8_t[::1] hash_key not None):
        cdef int64_t slots = memory_bytes // SLOT_BYTES
        if slots < 2 or hash_key.shape[0] != 16:
            raise ValueError(f"memory_bytes={memory_bytes} must be at least 32, and the hash key must have 16 bytes, "
                             f"not {hash_key.shape[0]}")
        if kr_offset_map_open(&self.map, slots, max(slots * 9 // 10, 1), &hash_key[0]):
            raise MemoryError(f"no memory for a map of {memory_bytes} bytes")
        self.max_decompressed = MAX_DECOMPRESSED
        self.latest_offset = -1

    def __dealloc__(self):
        kr_offset_map_close(&self.map)

    # ---- a pass -----------------------------------------------------------------------------------------

    cdef int put_group(self, const kr_offset_entry *group, int64_t count) noexcept nogil:
        cdef int64_t i
        for i in range(count):
            if not kr_offset_map_put(&self.map, &group[i]):
                self.latest_offset = self.first_offset + <int64_t> group[i].mark - 2
                return FULL
        return OK

    cdef int put_section(self, const BatchHeader *h, const uint8_t *records, int64_t size) noexcept nogil:
        cdef kr_offset_entry group[OFFSET_MAP_GROUP]
        cdef RecordView record
        cdef int64_t used = 0, count = 0, last_delta = -1, distance
        cdef int status
        cdef int32_t _
        if h.record_count > size // MIN_RECORD_SIZE:
            return BAD_RECORD_COUNT
        for _ in range(h.record_count):
            status = parse_record(records, size, &record, &used)
            if status != OK:
                return status
            if not last_delta < record.offset_delta <= h.last_offset_delta:
                return BAD_OFFSET_DELTA
            last_delta = record.offset_delta
            records += used
            size -= used
            distance = h.base_offset + record.offset_delta - self.first_offset
            if distance < 0 or record.key == NULL:
                continue
            if distance > MAX_OFFSET_DISTANCE:
                status = self.put_group(group, count)
                if status == OK:
                    self.latest_offset = self.first_offset + distance - 1
                return FULL
            group[count] = kr_offset_map_entry(&self.map, record.key, record.key_size)
            group[count].mark = <uint32_t> (distance + 1)
            count += 1
            if count == OFFSET_MAP_GROUP:
                status = self.put_group(group, count)
                if status != OK:
                    return status
                count = 0
        status = self.put_group(group, count)
        if status != OK:
            return status
        if size != 0:
            return TRAILING_BYTES
        self.latest_offset = max(self.latest_offset, h.base_offset + h.last_offset_delta)
        return OK

    cdef int take(self) noexcept nogil:
        if self.h.base_offset + self.h.last_offset_delta < self.first_offset:
            return OK
        if self.h.attributes & (TRANSACTIONAL | CONTROL):
            return NEEDS_LOOK
        if self.h.attributes & CODEC_MASK:
            return COMPRESSED
        return self.put_section(&self.h, self.batch + HEADER_SIZE, self.h.size - HEADER_SIZE)

    cdef int take_decoded(self, RecordBatch batch) except? -128:
        cdef Section s
        cdef int status
        s.map = <void *> self
        s.h = &batch.h
        s.records = NULL
        keeper = batch.section(self.max_decompressed, &s.records, &s.size)
        with nogil:
            status = kr_guard_call(_put_guarded, &s)
        del keeper
        return status

    # ---- the Python side --------------------------------------------------------------------------------

    def clear(self, int64_t first_offset, int64_t stop_offset=INT64_MAX):
        """Empty the map for a pass over [first_offset, stop_offset); records below are skipped.

        There are no more keys than offsets, so a short range uses, and touches, only a part of the memory.
        """
        # Without a `stop_offset` the difference might overflow.
        kr_offset_map_clear(&self.map, INT64_MAX if stop_offset == INT64_MAX else stop_offset - first_offset)
        self.first_offset = first_offset
        self.latest_offset = first_offset - 1
        self.bytes_read = self.records_read = self.batches_read = self.next_offset = 0

    def put_batches(self, LogSegment segment not None, int64_t position, int64_t limit, int64_t max_bytes, *,
                    int64_t max_decompressed=MAX_DECOMPRESSED):
        """Put the keys of the segment's batches in [position, limit) into the map.

        Stops once `max_bytes` are read, but reads at least one batch. Returns (Stop, position to continue at, batch).
        A transactional or control batch is returned for a decision, and must then be put or skipped. latest_offset
        follows the batches' last offsets; if the map is full, it is below the first record that did not fit. Raises
        subclasses of CorruptMessage for an invalid batch, which is at `position`, and of KafkaStorageError; the map
        must then be cleared.
        """
        self.max_decompressed = max_decompressed
        return self.walk(segment, position, limit, max_bytes)

    def put_batch(self, RecordBatch batch not None):
        """Put the keys of one batch; return False if not all of them fit. Raises what `put_batches` does."""
        batch.check_header()
        cdef int status = self.take_decoded(batch)
        if status == FULL:
            return False
        check(status, "putting a batch into an offset map", batch.h.base_offset)
        self._count(batch)
        return True

    def skip_batch(self, RecordBatch batch not None):
        """Skip a batch without keys for the map: a marker, or a batch of an aborted transaction."""
        self.latest_offset = max(self.latest_offset, batch.h.base_offset + batch.h.last_offset_delta)
        self._count(batch)

    cdef int _count(self, RecordBatch batch) except -1:
        self.h = batch.h
        self.passed()
        return 0

    def put(self, const uint8_t[::1] key not None, int64_t offset):
        """Put one key, or raise its offset; return False and do nothing if it does not fit."""
        cdef kr_offset_entry entry = self._entry(key)
        if offset < self.first_offset or offset - self.first_offset > MAX_OFFSET_DISTANCE:
            return False
        entry.mark = <uint32_t> (offset - self.first_offset + 1)
        if not kr_offset_map_put(&self.map, &entry):
            return False
        self.latest_offset = max(self.latest_offset, offset)
        return True

    def get(self, const uint8_t[::1] key not None):
        """Return the latest offset put for the key, or -1."""
        cdef kr_offset_entry entry = self._entry(key)
        cdef uint32_t mark = kr_offset_map_find(&self.map, entry.place, entry.check)
        return self.first_offset + <int64_t> mark - 1 if mark else -1

    def fingerprint(self, const uint8_t[::1] key not None):
        """Return the 96 bits that identify the key in the map; the upper 64 determine its slot."""
        cdef kr_offset_entry entry = self._entry(key)
        return (<object> entry.place) << 32 | entry.check

    cdef kr_offset_entry _entry(self, const uint8_t[::1] key):
        return kr_offset_map_entry(&self.map, &key[0] if key.shape[0] else NULL, key.shape[0])

    def __len__(self):
        return self.map.size

    @property
    def size(self):
        """The number of keys in the map."""
        return self.map.size

    @property
    def capacity(self):
        """The number of keys that fit in this pass."""
        return self.map.capacity

    @property
    def memory_bytes(self):
        """The size of the slots, used or not, in bytes."""
        return self.map.reserved_slots * SLOT_BYTES

    def __repr__(self):
        return f"OffsetMap({self.map.size} of {self.map.capacity} keys, latest_offset={self.latest_offset})"
