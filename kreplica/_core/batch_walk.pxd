# BatchWalk: over the batches of a segment for the cleaner, each checked before it is used, in bounded steps.
#
# What is done with a batch is a subclass's. Ownership: a walk pins what it reads, window by window. Thread rule: one
# thread at a time; the GIL is released for each window. Mapped memory is touched under the guard alone.

from libc.stdint cimport int64_t, uint8_t

from kreplica._core.log_segment cimport LogSegment
from kreplica._core.record_batch cimport BatchHeader
from kreplica._core.records cimport RecordBatch


cdef class BatchWalk:
    cdef readonly int64_t position        # of the batch at work, in its segment
    cdef readonly int64_t bytes_read
    cdef readonly int64_t records_read
    cdef readonly int64_t batches_read
    cdef int64_t max_decompressed
    cdef readonly int64_t next_offset              # the least base offset that the next batch may have
    cdef BatchHeader h                    # of the batch at work, which is checked
    cdef const uint8_t *batch             # its bytes, for as long as its window is pinned

    # The present window and how far to go in it.
    cdef const uint8_t *window
    cdef int64_t window_start
    cdef int64_t window_end
    cdef int64_t need                     # bytes of a batch that does not end within the window
    cdef int64_t limit
    cdef int64_t stop_at
    cdef int64_t base_offset              # of the segment

    # Do the batch at work, under the guard: OK; COMPRESSED: take_decoded has to; NEEDS_LOOK; NEEDS_GROWTH:
    # make_room, then again; NEEDS_ROLL and FULL end the walk; or an error.
    cdef int take(self) noexcept nogil
    # Do a compressed one: as take().
    cdef int take_decoded(self, RecordBatch batch) except? -128
    # OK, NEEDS_ROLL, or an error raised.
    cdef int make_room(self) except? -128
    # Count the batch at work as done.
    cdef void passed(self) noexcept nogil

    cdef int go(self) noexcept nogil
    cdef int examine(self) noexcept nogil
    cdef tuple walk(self, LogSegment segment, int64_t position, int64_t limit, int64_t max_bytes)
