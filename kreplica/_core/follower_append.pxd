# Where the append of a run of fetched batches stands; the functions are Python's (follower_append.pyx).

from libc.stdint cimport int64_t, uint8_t

from kreplica._core.log_segment cimport Append

cdef struct FetchedRun:
    const uint8_t *data
    int64_t size
    int64_t used                  # bytes of the batches that were appended
    Append last                   # as the last of them was
