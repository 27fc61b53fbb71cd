# RecordBatch: one batch as Python sees it, a view of memory that it keeps alive.

from libc.stdint cimport int32_t, int64_t, uint8_t

from kreplica._core.record_batch cimport BatchHeader, RecordScan

cdef enum:
    MAX_DECOMPRESSED = 268435456  # bytes; the bound of a batch that has none of its own


cdef class RecordBatch:
    cdef BatchHeader h
    cdef const uint8_t *data
    cdef object owner             # keeps data[0:h.size] alive and unchanged
    cdef Py_buffer view           # of owner, where the constructor took one
    cdef bint viewed
    cdef const int32_t *fault     # of the mapping that holds the batch; NULL: plain memory
    cdef bint checked             # CRC and header fields were found right
    cdef public int64_t max_decompressed

    # Check the CRC and the header's fields, once.
    cdef int check_header(self) except -1
    # The records section, after check_header: in the batch itself, or decompressed; returns what keeps it
    # alive.
    cdef object section(self, int64_t max_decompressed, const uint8_t **records, int64_t *size)


cdef class BatchIterator:
    cdef object data
    cdef Py_buffer view           # of data
    cdef bint viewed
    cdef int64_t position         # of the next batch
    cdef bint partial
    cdef const int32_t *fault     # as RecordBatch's


cdef class RecordIterator:
    cdef RecordBatch batch
    cdef object keeper            # keeps the records section alive
    cdef const uint8_t *position
    cdef int64_t left
    cdef int32_t remaining


# Where the mapping behind a Slice says that it lost a page (record.check_fault); NULL for other owners.
cdef const int32_t *fault_of(object owner) except? NULL
# The batch at p[0:left], which `owner` keeps alive and unchanged; raises as parse_header says. `checked`
# where the caller has seen to what check_header checks.
cdef RecordBatch wrap(object owner, const uint8_t *p, int64_t left, bint checked)
# What a leader must know before it appends p[0:left]: that it is exactly one batch of format v2, right in
# every field and record. Fills `h` and `found`, decompressing up to max_decompressed bytes. Returns OK, or a
# negative Status, and raises only what decompression does. `check_sum` False leaves the CRC to the caller,
# who copies.
cdef int check_produced(const uint8_t *p, int64_t left, bint allow_control, bint check_sum,
                        int64_t max_decompressed, BatchHeader *h, RecordScan *found) except? -128
