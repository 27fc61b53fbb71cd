# RecordAccumulator: the appends to one partition that wait to be sent, encoded into batches as they come.
#
# ProducerBatch: one batch of them. A batch is open while appends may join it; `take` and `seal` end that. An append
# is in one batch as a whole; with acks=0 it is a batch of its own.
#
# Any thread may append. Everything that changes a batch or the row of batches happens in one native call that runs
# no Python code, so the GIL makes it atomic; what may run Python code (gathering records, creating objects) comes
# before. A batch that was taken belongs to the taker.

from libc.stdint cimport int32_t, int64_t, uint8_t

from kreplica._core.batch_builder cimport BatchBuilder
from kreplica._core.record_batch cimport BatchHeader
from kreplica._core.scratch cimport Scratch

cdef struct AppendEntry:
    # One append of a batch.
    int64_t deadline_ms
    int32_t first                 # the offset delta of its first record
    int32_t count                 # of its records


cdef enum:
    MOST_FREE = 8


cdef class BufferPool:
    # Memory of batches that are done, for the next ones: fresh pages cost more than filling them.
    cdef uint8_t *free_buffers[MOST_FREE]
    cdef int count
    cdef readonly int64_t used    # bytes of the batches that hold memory: waiting, in flight, or looked at

    cdef uint8_t *take(self, int64_t least, int64_t *capacity) except NULL
    cdef void give(self, uint8_t *data, int64_t capacity) noexcept


cdef class ProducerBatch:
    cdef readonly object owner    # what the accumulator was given; for those who hold only a future
    cdef readonly int acks
    cdef public int64_t base_offset
    cdef BatchHeader h            # h.size: bytes so far, header included
    cdef Scratch entries          # AppendEntry after AppendEntry
    cdef list futures             # one for each entry; None once it was expired or released
    cdef int64_t earliest         # the lowest deadline of the entries that have not expired; INT64_MAX: none
    cdef int64_t latest           # the highest deadline of all entries
    cdef Py_ssize_t expired
    cdef BufferPool pool
    cdef uint8_t *data            # of the pool; `capacity` bytes: room for a request's head, the batch, its tail
    cdef int64_t capacity
    cdef int64_t views            # buffers of `data` that were exported
    cdef bint is_sealed
    cdef bint is_framed           # a request was written around the batch
    cdef int64_t exported_head    # the bytes of it that the next buffer begins with
    cdef bint is_released         # `data` returns to the pool with the last view

    cdef void drop(self) noexcept
    cdef uint8_t *batch(self) noexcept
    cdef void _write_header(self, uint8_t *p) noexcept
    cdef int make_room(self, int64_t more) except -1
    cdef int put(self, BatchBuilder builder, int64_t size, int64_t deadline_ms, object future) except -1


cdef class RecordAccumulator:
    cdef readonly object owner
    cdef BufferPool pool
    cdef readonly int64_t max_request_size
    cdef public int64_t max_batch_size
    cdef object waiting           # a deque of ProducerBatch
    cdef ProducerBatch open       # the last of `waiting`, if appends may join it
    cdef ProducerBatch spare      # the next to be opened
    cdef BatchBuilder builder     # None while a call uses it
    cdef int64_t earliest         # the lowest deadline since take_earliest_deadline; INT64_MAX: none

    cdef int commit(self, BatchBuilder builder, int64_t deadline_ms, int acks, object future) except -1
