# RecordFilter: copies what survives a round of cleaning from a log's segments into cleaned ones.
#
# Ownership: the filter borrows the map, which must not change meanwhile; it is the target segment's one writer.
# Thread rule: as BatchWalk.

from libc.stdint cimport int32_t, int64_t, uint8_t

from kreplica._core.batch_walk cimport BatchWalk
from kreplica._core.log_segment cimport LogSegment
from kreplica._core.offset_map cimport OffsetMap
from kreplica._core.record_batch cimport BatchHeader
from kreplica._core.records cimport RecordBatch
from kreplica._core.scratch cimport Scratch

cdef enum:
    # A new base timestamp makes a record longer by so many bytes at most: its delta by 9, its length by 1.
    MOST_GROWTH = 10

cdef enum Keep:
    # Which records of a batch stay.
    NO_RECORD = 0
    LATEST_RECORDS = 1            # as the map has it
    EVERY_RECORD = 2

cdef enum Outcome:
    # What became of a batch; as the Python side's Fate.
    BATCH_DROPPED = 0
    BATCH_EMPTIED = 1
    BATCH_KEPT = 2

cdef struct Survivors:
    int64_t size                  # bytes of their section
    int32_t count
    int64_t max_timestamp         # -1 without a record
    int64_t keyless               # records that went for want of a key
    bint tombstones               # one of them has no value


cdef class RecordFilter(BatchWalk):
    cdef readonly OffsetMap offset_map
    cdef readonly int64_t now_ms
    cdef readonly int64_t delete_retention_ms
    cdef readonly int64_t bytes_written
    cdef readonly int64_t records_written
    cdef readonly int64_t batches_written
    cdef readonly int64_t keyless_dropped
    cdef LogSegment target
    cdef bint keep_last
    cdef bint keep_empty          # of the batch at work: it stays, whatever the retained offsets say
    cdef int64_t room             # bytes that the batch at work turned out to need in the target
    cdef int64_t written          # bytes that it took there
    cdef Survivors found          # of the batch at work
    cdef Outcome outcome          # of the batch that was done last
    cdef Scratch retained         # last offsets that stay, ascending
    cdef Scratch section          # the survivors of a batch that is not made in the target itself

    # Copy the survivors of a records section to `out`, which has room for all of it, and fill `found`. Where every
    # record survives, nothing is copied unless `copy_all`.
    cdef int pick(self, const uint8_t *records, int64_t size, Keep keep, uint8_t *out,
                  bint copy_all) noexcept nogil
    # The header of the survivors' batch, all but its size.
    cdef BatchHeader header_of_survivors(self, bint horizon) noexcept nogil
    # Whether their tombstones make a delete horizon due.
    cdef bint is_horizon_due(self) noexcept nogil
    # Whether the batch at work stays without a record.
    cdef bint stays_empty(self) noexcept nogil
    # OK when `need` bytes may be written to the target, for the batch at work, or NEEDS_GROWTH, NEEDS_ROLL, an error.
    cdef int ask_room(self, int64_t need) noexcept nogil
    # The batch made.size bytes long at the target's end is there: publish it and feed the indexes.
    cdef void landed(self, const BatchHeader *made, Outcome outcome) noexcept nogil
    # The batch at work as it is, as an empty header or not at all, or its survivors as `made` and `section` have them.
    cdef int put_whole(self) noexcept nogil
    cdef int put_empty(self) noexcept nogil
    cdef int put_made(self, BatchHeader *made, const uint8_t *section) noexcept nogil
    # The same for survivors that lie in the target already, behind where their header goes.
    cdef int put_in_place(self) noexcept nogil

    cdef int do_batch(self, RecordBatch batch, Keep keep, bint set_horizon) except? -128
    cdef int remake(self, RecordBatch batch, Keep keep, bint set_horizon) except? -128
    cdef int put_guarded(self, BatchHeader *made, const uint8_t *section) except? -128
