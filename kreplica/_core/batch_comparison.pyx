"""Compares the batches of two replicas.

`agree` skips whole batches that are equal byte for byte. `RecordCursor` and `compare_records` go from record to
record where batches differ although their records may not, as after each replica's own compaction.

Ownership: a cursor keeps its batch alive. Thread rule: one thread at a time for a cursor; the GIL is released
while bytes are compared.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT64_MAX, int16_t, int32_t, int64_t, uint8_t
from libc.string cimport memcmp

from kreplica._core.record cimport check_fault, fault_of
from kreplica._core.record_batch cimport (
    CONTROL,
    LOG_APPEND_TIME,
    BatchHeader,
    RecordScan,
    RecordView,
    check_crc,
    check_fields,
    parse_header,
    parse_record,
    parse_record_header,
    record_timestamp,
    scan_records,
)
from kreplica._core.records cimport RecordBatch
from kreplica._core.status cimport END, OK, check

from collections import namedtuple

RecordsCompared = namedtuple(
    "RecordsCompared", "differs compared only_left only_right first_only_left first_only_right"
)


cdef struct Agreement:
    int64_t size                  # size of the equal batches
    int64_t next_offset           # the offset after the last of them
    int32_t leader_epoch          # the leader epoch of the last of them


cdef void _agree(const uint8_t *a, int64_t a_left, const uint8_t *b, int64_t b_left, int64_t stop,
                 Agreement *done) noexcept nogil:
    cdef BatchHeader h
    while parse_header(a, a_left, &h) == OK and h.size <= b_left:
        if memcmp(a, b, <size_t>h.size) != 0 or check_fields(&h) != OK or check_crc(a, &h) != OK:
            return
        if h.base_offset < done.next_offset or h.base_offset + h.last_offset_delta >= stop:
            return
        done.size += h.size
        done.next_offset = h.base_offset + h.last_offset_delta + 1
        done.leader_epoch = h.leader_epoch
        a += h.size
        b += h.size
        a_left -= h.size
        b_left -= h.size


def agree(left, right, int64_t next_offset, int64_t stop):
    """Compare two pieces of logs; return (equal bytes, next offset, leader epoch of the last equal batch or -1).

    Counts whole batches that are equal byte for byte, have a valid CRC, have ascending offsets from `next_offset` on
    and end below `stop`. Raises MappedPageLost if bytes could not be read.
    """
    cdef Py_buffer a, b
    cdef Agreement done
    done.size = 0
    done.next_offset = next_offset
    done.leader_epoch = -1
    PyObject_GetBuffer(left, &a, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(right, &b, PyBUF_SIMPLE)
        try:
            with nogil:
                _agree(<const uint8_t *>a.buf, a.len, <const uint8_t *>b.buf, b.len, stop, &done)
        finally:
            PyBuffer_Release(&b)
    finally:
        PyBuffer_Release(&a)
    check_fault(fault_of(left))
    check_fault(fault_of(right))
    return done.size, done.next_offset, done.leader_epoch


@cython.final
cdef class RecordCursor:
    """Iterates over the records of one batch after the other.

    `offset` is the current record's; `is_drained` is set at the end of a batch.
    """

    def __cinit__(self):
        self.is_drained = True
        self.offset = -1

    def load(self, RecordBatch batch not None):
        """Go to the first record of `batch`, which is checked. Raises what reading it raises."""
        cdef const uint8_t *records = NULL
        cdef int64_t size = 0
        cdef RecordScan found
        keeper = batch.section(batch.max_decompressed, &records, &size)
        check(scan_records(records, size, &batch.h, False, &found), "comparing records", batch.h.base_offset)
        self.batch = batch
        self.keeper = keeper
        self.position = records
        self.left = size
        self.remaining = batch.h.record_count
        self.is_drained = False
        check(self.step(), "comparing records", batch.h.base_offset)

    def end(self):
        """Mark the end: no batch follows."""
        self.offset = INT64_MAX
        self.is_drained = False

    def lost(self, int64_t first_offset, int64_t next_offset):
        """Mark the offsets [first_offset, next_offset) as lost here: records are not counted as missing there."""
        self.unknown_from = first_offset
        self.unknown_to = next_offset

    def seek(self, int64_t offset):
        """Advance to the first record at or above `offset` in this batch."""
        while not self.is_drained and self.offset < offset:
            check(self.step(), "comparing records", self.offset)

    cdef int step(self) noexcept nogil:
        cdef int64_t used = 0
        cdef int status
        if self.remaining == 0:
            self.is_drained = True
            return END
        status = parse_record(self.position, self.left, &self.record, &used)
        if status == OK:
            status = record_timestamp(&self.batch.h, self.record.timestamp_delta, &self.timestamp)
        if status != OK:
            return status
        self.offset = self.batch.h.base_offset + self.record.offset_delta
        self.position += used
        self.left -= used
        self.remaining -= 1
        return OK

    cdef bint is_unknown(self, int64_t offset) noexcept nogil:
        return self.unknown_from <= offset < self.unknown_to


cdef bint _same_bytes(const uint8_t *a, int64_t a_size, const uint8_t *b, int64_t b_size) noexcept nogil:
    if a == NULL or b == NULL:
        return a == b
    return a_size == b_size and memcmp(a, b, <size_t>a_size) == 0


cdef bint _same_headers(const RecordView *a, const RecordView *b) noexcept nogil:
    # Lengths may be encoded in more bytes than needed, so compare the decoded headers.
    cdef const uint8_t *p = a.headers
    cdef const uint8_t *q = b.headers
    cdef const uint8_t *key = NULL
    cdef const uint8_t *value = NULL
    cdef const uint8_t *other_key = NULL
    cdef const uint8_t *other_value = NULL
    cdef int64_t p_left = a.headers_size, q_left = b.headers_size
    cdef int64_t key_size = 0, value_size = 0, other_key_size = 0, other_value_size = 0, used = 0
    cdef int32_t _
    if a.header_count != b.header_count:
        return False
    for _ in range(a.header_count):
        if parse_record_header(p, p_left, &key, &key_size, &value, &value_size, &used) != OK:
            return False
        p += used
        p_left -= used
        if parse_record_header(q, q_left, &other_key, &other_key_size, &other_value, &other_value_size,
                               &used) != OK:
            return False
        q += used
        q_left -= used
        if not _same_bytes(key, key_size, other_key, other_key_size):
            return False
        if not _same_bytes(value, value_size, other_value, other_value_size):
            return False
    return True


cdef bint _same_record(RecordCursor a, RecordCursor b) noexcept nogil:
    cdef int16_t differing = a.batch.h.attributes ^ b.batch.h.attributes
    return (
        a.timestamp == b.timestamp
        and a.batch.h.leader_epoch == b.batch.h.leader_epoch
        and not differing & (CONTROL | LOG_APPEND_TIME)
        and _same_bytes(a.record.key, a.record.key_size, b.record.key, b.record.key_size)
        and _same_bytes(a.record.value, a.record.value_size, b.record.value, b.record.value_size)
        and _same_headers(&a.record, &b.record)
    )


cdef struct Counts:
    bint differs
    int64_t compared
    int64_t only_left
    int64_t only_right
    int64_t first_only_left
    int64_t first_only_right


cdef int _compare(RecordCursor a, RecordCursor b, int64_t stop, Counts *c) noexcept nogil:
    cdef int status = OK
    while status >= 0 and not a.is_drained and not b.is_drained and min(a.offset, b.offset) < stop:
        if a.offset == b.offset:
            if not _same_record(a, b):
                c.differs = True
                return OK
            c.compared += 1
            status = a.step()
            if status >= 0:
                status = b.step()
        elif a.offset < b.offset:
            if not b.is_unknown(a.offset):
                if c.only_left == 0:
                    c.first_only_left = a.offset
                c.only_left += 1
            status = a.step()
        else:
            if not a.is_unknown(b.offset):
                if c.only_right == 0:
                    c.first_only_right = b.offset
                c.only_right += 1
            status = b.step()
    return status


def compare_records(RecordCursor left not None, RecordCursor right not None, int64_t stop):
    """Advance both cursors until one is drained, both are at or above offset `stop`, or two records differ.

    Records with the same offset differ if their key, value, headers, timestamp (or its type) or leader epoch differ,
    or if only one is a control record. `only_left` counts the records whose offset the right side lacks, and
    `first_only_left` is the first of them (-1: none); likewise for the other side.
    """
    cdef Counts c
    cdef int status
    c.differs = False
    c.compared = c.only_left = c.only_right = 0
    c.first_only_left = c.first_only_right = -1
    with nogil:
        status = _compare(left, right, stop, &c)
    for cursor in (left, right):
        if (<RecordCursor>cursor).batch is not None:
            check_fault((<RecordCursor>cursor).batch.fault)
    check(status, "comparing records")
    return RecordsCompared(
        c.differs, c.compared, c.only_left, c.only_right, c.first_only_left, c.first_only_right
    )
