# FetchSteps: the steps of a fetcher, from one fetch to the next, without Python.
#
#     do_work --> _maybe_fetch --> request --> its future --posted to the loop--> take --> _fetched --> _take_answers
#        ^                                                                                                   |
#        +--- resume, once the disk has made the appends ----------------------------------------------------+
#
# What has to be decided is the subclass's, the ReplicaFetcher: truncations, back-offs, errors, and the answers that the
# Follower declines.
#
# Ownership: a fetcher owns its Follower. Thread rule: everything runs in the fetcher's loop, except that any thread may
# set `_closed`. `_lock` guards the Follower; it is held while a request is made.

from libc.stdint cimport int64_t

from kreplica._core.follower cimport Follower


cdef class FetchSteps:
    cdef readonly object leader       # its `fetch(SessionFetch)` returns the future of the answer
    cdef readonly object quota        # of replication
    cdef readonly object metrics
    cdef readonly object _lock
    cdef readonly Follower _follower
    cdef readonly object _clock
    cdef readonly object _loop
    cdef readonly list _broken        # failures to report once no lock is held
    cdef public bint _closed
    cdef public int64_t _waits_until_ms
    cdef bint in_flight               # a request is
    cdef bint is_taking               # a part of an answer is being applied
    cdef bint has_more_answers        # later steps apply the rest of the answer

    cdef int take(self, Reply reply) except -1
    cdef double ms_since(self, int64_t started_ns) except? -1


cdef class Reply:
    # The callback of the future of a request, and then the task that takes its answer.
    cdef FetchSteps steps
    cdef object answered              # called with the response; None for `_fetched`
    cdef int64_t started_ns
    cdef object done                  # the future, once it is resolved
