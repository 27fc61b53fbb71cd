# BatchWalk: walks over the batches of a segment for the cleaner, checking each before use, in bounded steps.
#
# A subclass processes the batches. Ownership: a walk pins what it reads, window by window. Thread rule: one thread at
# a time; the GIL is released for each window. Mapped memory is touched only under the guard.

from libc.stdint cimport int64_t, uint8_t

from kreplica._core.log_segment cimport LogSegment
from kreplica._core.record_batch cimport BatchHeader
from kreplica._core.records cimport RecordBatch


cdef class BatchWalk:
    cdef readonly int64_t position        # of the current batch in its segment
    cdef readonly int64_t bytes_read
    cdef readonly int64_t records_read
    cdef readonly int64_t batches_read
    cdef int64_t max_decompressed
    cdef readonly int64_t next_offset              # the least base offset allowed for the next batch
    cdef BatchHeader h                    # of the current batch, checked
    cdef const uint8_t *batch             # its bytes, valid while its window is pinned

    # The current window, and the limits within it.
    cdef const uint8_t *window
    cdef int64_t window_start
    cdef int64_t window_end
    cdef int64_t need                     # size of a batch that extends past the window
    cdef int64_t limit
    cdef int64_t stop_at
    cdef int64_t base_offset              # of the segment

    # Process the current batch, under the guard. Returns OK; COMPRESSED: call take_decoded; NEEDS_LOOK; NEEDS_GROWTH:
    # call make_room and retry; NEEDS_ROLL and FULL end the walk; or an error.
    cdef int take(self) noexcept nogil
    # Process a compressed batch; returns like take().
    cdef int take_decoded(self, RecordBatch batch) except? -128
    # Returns OK or NEEDS_ROLL, or raises an error.
    cdef int make_room(self) except? -128
    # Count the current batch as processed.
    cdef void passed(self) noexcept nogil

    cdef int go(self) noexcept nogil
    cdef int examine(self) noexcept nogil
    cdef tuple walk(self, LogSegment segment, int64_t position, int64_t limit, int64_t max_bytes)
