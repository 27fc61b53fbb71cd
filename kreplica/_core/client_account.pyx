"""What the native lanes charge a client for; purpose, ownership and thread rule: client_account.pxd."""

from libc.stdint cimport int64_t

from kreplica._core.sampled_rate cimport SampledRate

# 1 s of a thread is 100 %.
PERCENT_OF_NS = 1e-7

cdef enum:
    NANOSECONDS_PER_MS = 1000000

cdef double PERCENT = PERCENT_OF_NS


cdef class RateBucket:
    """What clients with one quota have used lately. `quota`: per second; it may change.

    `most_throttle_ms`: None for no limit.
    """

    def __init__(self, int64_t samples, int64_t window_ms, double quota, most_throttle_ms=None):
        self.sampled = SampledRate(samples, window_ms)
        self.quota = quota
        self.most_throttle_ms = -1 if most_throttle_ms is None else most_throttle_ms

    @property
    def burst(self):
        """What a client that was silent may use at once."""
        return self.most_at_once()

    def rate(self, int64_t now_ms):
        """Return the rate per second."""
        cdef double elapsed_ms
        return self.sampled.rate_at(now_ms, &elapsed_ms)

    cpdef object note(self, double value, int64_t now_ms):
        """Count what was used without asking how long to wait."""
        self.sampled.record(value, now_ms)
        self.used_ms = now_ms

    def charge(self, double value, int64_t now_ms):
        """Count what was used; return how many ms the client has to wait."""
        self.note(value, now_ms)
        return self.wait_ms(now_ms)

    def take(self, double value, int64_t now_ms):
        """Count what is to be sent, or nothing if it must not be; return whether it may, and the wait in ms.

        What is larger than any burst is sent if the quota is not exceeded yet. Otherwise its client would
        never get it (KAFKA-9677).
        """
        cdef bint was_over = self.wait_ms(now_ms) > 0
        cdef int64_t wait_ms = self.charge(value, now_ms)
        cdef bint may_send = not wait_ms or (value > self.most_at_once() and not was_over)
        if not may_send:
            self.sampled.record(-value, now_ms)
        return may_send, wait_ms

    cdef double most_at_once(self) noexcept:
        return self.quota * self.sampled.over_all_ms() / 1000

    cdef int64_t wait_ms(self, int64_t now_ms) noexcept:
        cdef int64_t wait_ms = self.sampled.throttle_ms(self.quota, now_ms)
        return wait_ms if self.most_throttle_ms < 0 else min(wait_ms, self.most_throttle_ms)

    cdef bint take_within(self, double value, int64_t now_ms) except -1:
        self.note(value, now_ms)
        if not self.wait_ms(now_ms):
            return True
        self.sampled.record(-value, now_ms)
        return False


cdef class ClientAccount:
    """The buckets of one client: of the bytes that it produces and fetches, and of its time. None: no quota applies.

    `monotonic_ns()`: the time.
    """

    def __init__(self, monotonic_ns, RateBucket produced, RateBucket fetched, RateBucket time):
        self.monotonic_ns = monotonic_ns
        self.produced, self.fetched, self.time = produced, fetched, time

    cdef int64_t now_ns(self) except -1:
        return self.monotonic_ns()

    cdef int64_t begin(self) except -1:
        cdef int64_t began_ns = self.now_ns()
        for bucket in (self.produced, self.fetched, self.time):
            if bucket is not None and (<RateBucket> bucket).is_gone:
                return 0
        if self.time is not None and self.time.wait_ms(began_ns // NANOSECONDS_PER_MS):
            return 0
        return began_ns

    cdef bint take_produced(self, int64_t size, int64_t began_ns) except -1:
        return self.produced is None or self.produced.take_within(size, began_ns // NANOSECONDS_PER_MS)

    cdef int give_back_produced(self, int64_t size, int64_t began_ns) except -1:
        if self.produced is not None:
            self.produced.sampled.record(-size, began_ns // NANOSECONDS_PER_MS)
        return 0

    cdef bint take_fetched(self, int64_t size, int64_t began_ns) except -1:
        return self.fetched is None or self.fetched.take_within(size, began_ns // NANOSECONDS_PER_MS)

    cdef int64_t most_fetched(self, int64_t limit) noexcept:
        if self.fetched is None:
            return limit
        return max(<int64_t> min(self.fetched.most_at_once(), <double> limit), 1)

    cdef int note_time(self, int64_t began_ns) except -1:
        cdef int64_t now_ns
        if self.time is not None:
            now_ns = self.now_ns()
            self.time.note((now_ns - began_ns) * PERCENT, now_ns // NANOSECONDS_PER_MS)
        return 0
