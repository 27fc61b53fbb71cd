# RecordFilter: copies the records that survive a round of cleaning from a log's segments into cleaned ones.
#
# Ownership: the filter borrows the map, which must not change meanwhile; it is the target segment's only writer.
# Thread rule: that of BatchWalk.

from libc.stdint cimport int32_t, int64_t, uint8_t

from kreplica._core.batch_walk cimport BatchWalk
from kreplica._core.log_segment cimport LogSegment
from kreplica._core.offset_map cimport OffsetMap
from kreplica._core.record_batch cimport BatchHeader
from kreplica._core.records cimport RecordBatch
from kreplica._core.scratch cimport Scratch

cdef enum:
    # A new base timestamp makes a record at most this many bytes longer: its delta by 9, its length by 1.
    MOST_GROWTH = 10

cdef enum Keep:
    # Which records of a batch stay.
    NO_RECORD = 0
    LATEST_RECORDS = 1            # those that are the latest according to the map
    EVERY_RECORD = 2

cdef enum Outcome:
    # What became of a batch; the same values as Python's Fate.
    BATCH_DROPPED = 0
    BATCH_EMPTIED = 1
    BATCH_KEPT = 2

cdef struct Survivors:
    int64_t size                  # bytes of the records section
    int32_t count
    int64_t max_timestamp         # -1 without a record
    int64_t keyless               # records dropped because they have no key
    bint tombstones               # at least one survivor has no value


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
    cdef bint keep_empty          # the current batch stays even if empty, whatever the retained offsets are
    cdef int64_t room             # bytes that the current batch needs in the target
    cdef int64_t written          # bytes that it took there
    cdef Survivors found          # of the current batch
    cdef Outcome outcome          # of the batch that was done last
    cdef Scratch retained         # last offsets that stay, ascending
    cdef Scratch section          # the survivors of a batch that is not built in the target itself

    # Copy the survivors of a records section to `out`, which has room for the whole section, and fill `found`. If
    # every record survives, nothing is copied unless `copy_all`.
    cdef int pick(self, const uint8_t *records, int64_t size, Keep keep, uint8_t *out,
                  bint copy_all) noexcept nogil
    # Return the header of the survivors' batch; its size is not set.
    cdef BatchHeader header_of_survivors(self, bint horizon) noexcept nogil
    # Return whether the survivors' tombstones require a delete horizon.
    cdef bint is_horizon_due(self) noexcept nogil
    # Return whether the current batch stays without a record.
    cdef bint stays_empty(self) noexcept nogil
    # Return OK if the current batch may write `need` bytes to the target, else NEEDS_GROWTH, NEEDS_ROLL or an error.
    cdef int ask_room(self, int64_t need) noexcept nogil
    # Publish the batch of made.size bytes that was written at the target's end, and feed the indexes.
    cdef void landed(self, const BatchHeader *made, Outcome outcome) noexcept nogil
    # Write the current batch unchanged, as an empty header or not at all, or its survivors as given by `made` and
    # `section`.
    cdef int put_whole(self) noexcept nogil
    cdef int put_empty(self) noexcept nogil
    cdef int put_made(self, BatchHeader *made, const uint8_t *section) noexcept nogil
    # Write survivors that already lie in the target, after the place of their header.
    cdef int put_in_place(self) noexcept nogil

    cdef int do_batch(self, RecordBatch batch, Keep keep, bint set_horizon) except? -128
    cdef int remake(self, RecordBatch batch, Keep keep, bint set_horizon) except? -128
    cdef int put_guarded(self, BatchHeader *made, const uint8_t *section) except? -128
