# BatchWalk: the one walk over the batches of a file. It judges each batch by one set of rules, natively and window by
# window; what a verdict means is its user's policy.
#
# A verdict is a Status. A batch is sound if its frame, fields and CRC are valid, and if its place is right: offsets and
# leader epochs ascend, and the offsets belong to this segment. The CRC covers neither offset nor epoch.
#
# A subclass processes sound batches in `take`. Ownership: a walk pins mapped memory only during a call, window by
# window. Thread rule: one thread at a time; the GIL is released for each window. Mapped memory is touched only under
# the guard.

from libc.stdint cimport int64_t, uint8_t

from kreplica._core.log_segment cimport LogSegment
from kreplica._core.record_batch cimport BatchHeader
from kreplica._core.records cimport RecordBatch
from kreplica._core.region cimport Region, Slice, kr_guarded


cdef class BatchWalk:
    cdef readonly Region region
    cdef readonly int64_t position        # of the current batch
    cdef readonly int64_t limit           # the end of the valid bytes
    cdef readonly int64_t base_offset     # of the segment
    cdef public int64_t next_offset       # the least base offset allowed for the next batch
    cdef public int64_t following         # all offsets are below: where the next segment begins
    cdef public int64_t leader_epoch      # of the batch before
    cdef readonly bint epochs_ascend      # a lower leader epoch is wrong
    cdef bint judges_alone                # each batch is judged without its place
    cdef readonly int64_t last_position   # of the batch before; -1: none since the start or `go`
    cdef readonly int64_t last_due        # next_offset in front of it
    cdef BatchHeader h                    # of the current batch, if its frame is valid
    cdef const uint8_t *batch             # its bytes, valid during a call

    cdef readonly int64_t bytes_read
    cdef readonly int64_t records_read
    cdef readonly int64_t batches_read
    cdef int64_t max_decompressed

    # The current window, and the limits within it.
    cdef Slice held
    cdef bint aside                       # reading leaves no trace in the page cache
    cdef const uint8_t *window
    cdef int64_t window_start
    cdef int64_t window_end
    cdef int64_t need                     # size of a batch that extends past the window
    cdef int64_t stop_at                  # no batch at or behind this byte is read

    # Judge the batch at the position. END: the window ends before the batch does.
    cdef int judge(self) noexcept nogil
    # Process the current batch, which is sound, under the guard. Returns OK to go on; COMPRESSED: call take_decoded;
    # NEEDS_LOOK; NEEDS_GROWTH: call make_room and retry; NEEDS_ROLL and FULL end the walk; or an error.
    cdef int take(self) noexcept nogil
    # Process a compressed batch; returns like take().
    cdef int take_decoded(self, RecordBatch batch) except? -128
    # Returns OK or NEEDS_ROLL, or raises an error.
    cdef int make_room(self) except? -128
    # Pass over the current batch.
    cdef void passed(self) noexcept nogil

    cdef int go_on(self) noexcept nogil
    cdef int search_on(self) noexcept nogil
    # Go to byte `stop_at` in windows of at least `window_bytes`, by `step`. Returns OK there, or why it stopped before.
    cdef int run(self, int64_t stop_at, int64_t window_bytes, kr_guarded step) except? -128
    cdef RecordBatch wrapped(self, bint checked)
    # A step of the cleaner: see Stop.
    cdef tuple walk(self, LogSegment segment, int64_t position, int64_t limit, int64_t max_bytes)


cdef class SegmentWalk(BatchWalk):
    cdef LogSegment feeds                 # its indexes get an entry for each batch that is passed
    cdef readonly int verdict             # what `skip` or `look` returned
    cdef bint looks_at_producers
    cdef bint looks_at_epochs
    cdef bint looks_at_all
    cdef public int64_t stop_offset       # the first batch that reaches it needs a look
    cdef int feed(self) noexcept nogil
    cdef int settled(self, int status) except? -128


cdef class PlainWalk(SegmentWalk):
    # The entries of both indexes, which the batches must fit, and the progress among them.
    cdef const uint8_t[::1] offsets
    cdef const uint8_t[::1] times
    cdef int64_t offset_count
    cdef int64_t time_count
    cdef readonly int64_t offset_at         # the first entry whose position has not been reached
    cdef readonly int64_t open_at           # the entry whose position was reached but not its offset; -1: none
    cdef readonly int64_t time_at           # the first entry whose offset has not been reached
    cdef readonly int64_t greatest          # the greatest timestamp so far
    cdef bint fits_offsets(self) noexcept nogil
    cdef bint fits_times(self) noexcept nogil
