# ClientAccount: what the native lanes charge a client for, so that a quota costs them little.
#
#     LaneGate --begin--> ClientAccount --charge--> RateBucket of bytes, RateBucket of time
#         |                    |
#         |                    +-- a wait is due, or a bucket is gone: nothing is charged, and Python takes the request
#         +--lane--> answer --note--> time
#
# A lane takes a request only if no quota makes its client wait. Python (broker/client_quotas.py) finds the buckets, and
# charges what the lanes leave to it; both use the same ones. A request is charged for its bytes when a lane takes it.
# Its time is charged afterwards, so a client that exceeds that quota is throttled one request later.
#
# Ownership: buckets belong to ClientQuotas, an account to the ServerConnections of its client. Thread rule: any thread,
# with the GIL; no method of a bucket lets another thread in.

from libc.stdint cimport int64_t

from kreplica._core.sampled_rate cimport SampledRate


cdef class RateBucket:
    cdef SampledRate sampled
    cdef public double quota
    cdef int64_t most_throttle_ms  # -1 for no limit
    cdef public bint is_gone       # its owner has another one for these clients
    cdef readonly int64_t used_ms  # when it was charged last

    cpdef object note(self, double value, int64_t now_ms)
    # What a client that was silent may use at once.
    cdef double most_at_once(self) noexcept
    cdef int64_t wait_ms(self, int64_t now_ms) noexcept
    # Count what is to be used, or nothing if the client would have to wait; return whether it was counted.
    cdef bint take_within(self, double value, int64_t now_ms) except -1


cdef class ClientAccount:
    cdef object monotonic_ns
    cdef RateBucket produced      # None where no quota applies
    cdef RateBucket fetched
    cdef RateBucket time

    cdef int64_t now_ns(self) except -1
    # Begin a request; return its time, or 0 if Python has to take it.
    cdef int64_t begin(self) except -1
    # Charge a request for its bytes; return whether its client need not wait.
    cdef bint take_produced(self, int64_t size, int64_t began_ns) except -1
    cdef int give_back_produced(self, int64_t size, int64_t began_ns) except -1
    cdef bint take_fetched(self, int64_t size, int64_t began_ns) except -1
    # The most bytes that an answer to a fetch should have.
    cdef int64_t most_fetched(self, int64_t limit) noexcept
    # Count the time since then.
    cdef int note_time(self, int64_t began_ns) except -1
