# Two replicas' batches side by side: whole ones by memcmp, their records one by one where batches differ.

from libc.stdint cimport int32_t, int64_t, uint8_t

from kreplica._core.record_batch cimport BatchHeader, RecordView
from kreplica._core.records cimport RecordBatch


cdef class RecordCursor:
    # Where a replica stands among its records: at one of a batch, or drained and in want of the next batch.
    cdef RecordBatch batch
    cdef object keeper            # keeps the records alive
    cdef const uint8_t *position  # of the record behind the current one
    cdef int64_t left             # bytes from there
    cdef int32_t remaining        # records from there
    cdef RecordView record        # the current one
    cdef int64_t timestamp        # of the current one, ms
    cdef readonly int64_t offset  # of the current one; INT64_MAX behind the last of all
    cdef readonly bint is_drained
    cdef int64_t unknown_from     # offsets of which this replica lost the bytes: [from, to)
    cdef int64_t unknown_to

    # Go to the next record: OK, END where the batch has none, or a negative Status.
    cdef int step(self) noexcept nogil
    cdef bint is_unknown(self, int64_t offset) noexcept nogil
