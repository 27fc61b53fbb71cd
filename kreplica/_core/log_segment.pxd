# LogSegment: one .log file with its two indexes, and the one call that appends to it.
#
# Ownership: a segment owns the use of its regions, not their files. Thread rule: one writer under the log's lock;
# readers take the region's published length and pin what they return. Mapped memory is touched only under the guard, so
# that a lost page becomes a status; anything that could grow a file or take a lock is done before entering the guard.

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from kreplica._core.log_state cimport LogState
from kreplica._core.record_batch cimport BatchHeader
from kreplica._core.region cimport Region, Slice, kr_guarded
from kreplica._core.segment_index cimport OffsetIndex, TimeIndex

cdef enum:
    MAX_RELATIVE_OFFSET = 0x7FFFFFFF      # the largest offset relative to a segment's base that fits an index entry

cdef enum:
    # Appends of at least this size release the GIL; for smaller ones that costs more than the work (ARCHITECTURE).
    RELEASE_GIL_BYTES = 32768

cdef enum AppendFlag:
    AS_LEADER = 1                 # assign the batch's offset and leader epoch; else it keeps its own
    ONLY_PLAIN = 2                # decline (END) what needs a decision: producer ids, transactions, codecs
    CHECK_RECORDS = 4             # check the records of an uncompressed batch
    MAY_ROLL = 8                  # decline (NEEDS_ROLL) what belongs in a new segment
    WITH_PRODUCER = 16            # with ONLY_PLAIN: the caller maintains the producer's state
    WRITES_BODY = 32              # write the records of a large batch past the mapping, see _write_body
    BODY_WRITTEN = 64             # they have been written
    WITH_TRANSACTION = 128        # with WITH_PRODUCER: a batch of a transaction that is open is plain, too

cdef struct Append:
    const uint8_t *data
    int64_t size
    int64_t base_offset           # the log end offset: assigned to the batch, or the least it may start at
    int32_t leader_epoch
    int64_t append_time           # ms, or -1: the batch keeps its create time
    int64_t latest                # ONLY_PLAIN: decline (END) a later timestamp, ms
    int64_t max_size              # ONLY_PLAIN: decline (END) a larger batch
    int32_t flags
    BatchHeader header            # out: the header before stamping
    int64_t position              # out

cdef struct Walk:
    # The location of one batch, and the state of a walk over headers.
    int64_t position
    int64_t size
    int64_t base_offset
    int64_t last_offset
    int64_t max_timestamp
    int32_t record_count
    bint is_control
    int64_t counted               # by _count_guarded: the records of the batches it has passed


cdef struct Locate:
    # Arguments of a walk under the guard.
    void *segment
    int64_t target
    int64_t behind                # a batch begins here; nothing below is read
    int64_t limit
    Walk *walk

cdef struct Landing:
    # One append under the guard: its target, and what is updated.
    void *segment
    void *state
    void *builder                 # for append_records
    Append *append
    uint8_t *target
    int64_t last_offset
    int64_t max_timestamp
    bint publishes                # the state's file is mapped
    bint landed                   # the batch is in the log, whatever happens afterwards


cdef inline int32_t epoch_of(const Append *a) noexcept nogil:
    return a.leader_epoch if a.flags & AS_LEADER else a.header.leader_epoch


cdef inline int64_t timestamp_of_records(const BatchHeader *h) noexcept nogil:
    # A batch without records, as a cleaner leaves it, still has their greatest timestamp, but no index entry may
    # refer to it: Kafka's tool reports that as an error.
    return h.max_timestamp if h.record_count > 0 else -1


cdef class LogAppendInfo:
    cdef readonly int64_t base_offset
    cdef readonly int64_t last_offset
    cdef readonly int32_t leader_epoch
    cdef readonly int64_t max_timestamp
    cdef readonly int64_t log_append_time
    cdef readonly int64_t log_start_offset
    cdef readonly int32_t record_count
    cdef readonly int64_t size
    cdef readonly int64_t position
    cdef public bint duplicate


cdef class LogSegment:
    cdef readonly Region region
    cdef readonly OffsetIndex offset_index
    cdef readonly TimeIndex time_index
    cdef readonly int64_t base_offset
    cdef public int64_t max_bytes           # segment.bytes
    cdef public int64_t max_age_ms          # segment.ms less the jitter
    cdef public int64_t index_interval_bytes
    cdef readonly int64_t first_timestamp   # of the first batch; -1 if unknown
    cdef readonly int64_t max_timestamp     # -1 if there is no record
    cdef readonly int64_t offset_of_max_timestamp
    cdef int64_t bytes_since_index
    cdef bint known                         # the timestamps have been read since the segment was opened
    cdef public object transaction_index    # the segment's transaction index (log/transaction_index.py), created on use
    cdef object __weakref__

    cdef int append_native(self, Append *a, LogState state) noexcept nogil
    cdef int guarded_append(self, kr_guarded step, Landing *to) noexcept nogil
    cdef void land(self, Landing *to) noexcept nogil
    cdef LogAppendInfo _append(self, object data, Append *a, LogState state)
    cdef void foresee(self, const Walk *w, int64_t limit) noexcept nogil
    cdef int should_roll(self, int64_t size, int64_t timestamp, int64_t last_offset) noexcept nogil
    cdef int prepare(self, int64_t size) noexcept nogil
    cdef void committed(self, int64_t position, int64_t size, int64_t last_offset, int64_t max_timestamp) noexcept nogil
    cdef int fed(self, int64_t position, const BatchHeader *h) noexcept nogil
    cdef int peek_at(self, int64_t position, int64_t limit, Walk *w) noexcept nogil
    cdef int next_at(self, int64_t limit, Walk *w) noexcept nogil
    cdef int64_t hinted_at(self, int64_t offset, int64_t limit, Walk *w) noexcept nogil
    cdef int64_t hint_by_time(self, entry, int64_t limit, Walk *w) except? -1
    # Find the first batch whose last offset is at least `offset`, and read nothing below byte `behind`.
    cdef int locate(self, int64_t offset, int64_t behind, Walk *w) noexcept nogil
    # Read whole batches from the one that holds `offset` on, as `read`.
    cdef Slice slice_of(self, int64_t offset, int64_t max_bytes, int64_t limit, bint at_least_one, int64_t behind)
    # ... up to the batch that holds the record before `stop_offset`.
    cdef Slice read_below(self, int64_t offset, int64_t stop_offset, int64_t max_bytes, bint at_least_one)
    # Run locate() under the guard, with the regions mapped.
    cdef int reach(self, int64_t offset, int64_t behind, Walk *w) except? -128
    cdef int _guarded(self, kr_guarded step, int64_t target, int64_t behind, int64_t limit, Walk *w) except? -128
    cdef LogAppendInfo _info(self, int64_t base_offset, int64_t last_offset, int32_t leader_epoch,
                             int64_t max_timestamp, int64_t append_time, int32_t count, int64_t size,
                             int64_t position, LogState state)
