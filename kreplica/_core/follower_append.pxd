# Where the append of a run of fetched batches stands; the functions are Python's (follower_append.pyx).

from libc.stdint cimport int64_t, uint8_t

from kreplica._core.log_segment cimport Append, LogSegment
from kreplica._core.log_state cimport LogState

cdef struct FetchedRun:
    const uint8_t *data
    int64_t size
    int64_t used                  # bytes of the batches that were appended
    Append last                   # as the last of them was
    bint with_producers           # a batch with a producer id is plain, too
    bint has_producers            # one of those that were appended has one

# Append the run's batches from `used` on, as far as they are plain.
cdef void append_batches(LogSegment segment, LogState state, FetchedRun *run) noexcept nogil
