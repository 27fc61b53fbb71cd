# RecordBatch: one batch for Python, a view of memory that it keeps alive.

from libc.stdint cimport int32_t, int64_t, uint8_t

from kreplica._core.record cimport _MappedBytes
from kreplica._core.record_batch cimport BatchHeader, RecordScan


cdef class RecordBatch(_MappedBytes):
    cdef BatchHeader h
    cdef const uint8_t *data
    cdef object owner             # keeps data[0:h.size] alive and unchanged
    cdef Py_buffer view           # of owner, if the constructor took one
    cdef bint viewed
    cdef bint checked             # CRC and header fields are known to be valid
    cdef public int64_t max_decompressed

    # Check the CRC and the header's fields, once.
    cdef int check_header(self) except -1
    # Check the header, then point to the records section, in the batch itself or decompressed. Returns the object that
    # keeps the section alive.
    cdef object section(self, int64_t max_decompressed, const uint8_t **records, int64_t *size)


cdef class BatchIterator:
    cdef object data
    cdef Py_buffer view           # of data
    cdef bint viewed
    cdef int64_t position         # of the next batch
    cdef bint partial
    cdef const int32_t *fault     # of the mapping that holds `data`; NULL: plain memory


cdef class RecordIterator:
    cdef RecordBatch batch
    cdef object keeper            # keeps the records section alive
    cdef const uint8_t *position
    cdef int64_t left
    cdef int32_t remaining


# Return the batch at p[0:left], which `owner` keeps alive and unchanged; raises what parse_header returns. `checked`:
# the caller has already checked what check_header checks.
cdef RecordBatch wrap(object owner, const uint8_t *p, int64_t left, bint checked)
# Check what a leader demands of p[0:left] before it appends it: exactly one batch of format v2 with valid fields and
# records. Fills `h` and `found`, and decompresses up to max_decompressed bytes. Returns OK or a negative Status, and
# raises only what decompression does. `check_sum` False leaves the CRC to the caller, who computes it while copying.
cdef int check_produced(const uint8_t *p, int64_t left, bint allow_control, bint check_sum,
                        int64_t max_decompressed, BatchHeader *h, RecordScan *found) except? -128
