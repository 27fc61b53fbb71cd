# Compares two replicas' batches: whole batches by memcmp, record by record where batches differ.

from libc.stdint cimport int32_t, int64_t, uint8_t

from kreplica._core.record_batch cimport BatchHeader, RecordView
from kreplica._core.records cimport RecordBatch


cdef class RecordCursor:
    # A replica's position among its records: at a record of a batch, or drained and waiting for the next batch.
    cdef RecordBatch batch
    cdef object keeper            # keeps the records alive
    cdef const uint8_t *position  # the end of the current record
    cdef int64_t left             # bytes after it
    cdef int32_t remaining        # records after it
    cdef RecordView record        # the current record
    cdef int64_t timestamp        # its timestamp, ms
    cdef readonly int64_t offset  # its offset; INT64_MAX after the last record
    cdef readonly bint is_drained
    cdef int64_t unknown_from     # offsets whose bytes this replica lost: [from, to)
    cdef int64_t unknown_to

    # Go to the next record: OK, END at the end of the batch, or a negative Status.
    cdef int step(self) noexcept nogil
    cdef bint is_unknown(self, int64_t offset) noexcept nogil
