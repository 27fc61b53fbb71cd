# The state of appending a run of fetched batches; the Python functions are in follower_append.pyx.

from libc.stdint cimport int64_t, uint8_t

from kreplica._core.log_segment cimport Append, LogSegment
from kreplica._core.log_state cimport LogState

cdef struct FetchedRun:
    const uint8_t *data
    int64_t size
    int64_t used                  # size of the appended batches
    Append last                   # the last of them
    bint with_producers           # a batch with a producer id is plain, too
    bint has_producers            # one of the appended batches has a producer id
    int64_t decided               # what batches with producers before here change is decided, see PreparedRun

# Return whether one of the batches at p[0:size] is a control batch or belongs to a transaction.
cdef bint has_transactions(const uint8_t *p, int64_t size) noexcept nogil

# Append the run's batches from `used` on, as long as they are plain.
cdef void append_batches(LogSegment segment, LogState state, FetchedRun *run) noexcept nogil
