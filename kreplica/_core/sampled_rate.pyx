"""The rate of what a client uses; purpose, ownership and thread rule: sampled_rate.pxd."""

from libc.math cimport floor
from libc.stdint cimport int64_t
from libc.stdlib cimport free, realloc

# A throttle time is an int32 on the wire, and some clients obey it without a limit of their own.
LONGEST_THROTTLE_MS = 3_600_000

cdef double LONGEST = LONGEST_THROTTLE_MS


cdef int64_t rounded_throttle_ms(double delay_ms) noexcept:
    return <int64_t> min(floor(min(delay_ms, LONGEST) + 0.5), LONGEST)


def rounded_ms(double delay_ms):
    """Return a throttle time in whole ms, LONGEST_THROTTLE_MS at most."""
    return rounded_throttle_ms(delay_ms)


cdef class SampledRate:
    """A rate per second over `samples` windows of `window_ms` each."""

    def __init__(self, int64_t samples, int64_t window_ms):
        if samples < 1 or window_ms < 1:
            raise ValueError(f"samples={samples} and window_ms={window_ms} must be positive")
        self.samples = samples
        self.window_ms = window_ms

    def __dealloc__(self):
        free(self.slots)

    @property
    def full_ms(self):
        """The time over which a silent client's first value is measured."""
        return int(self.over_all_ms())

    cdef double over_all_ms(self) noexcept:
        return max((<double> self.samples - 1) * self.window_ms, 1)

    cdef int open_slot(self, int64_t at, int64_t now_ms) except -1:
        cdef slot_t *grown
        if at == self.count:
            grown = <slot_t *> realloc(self.slots, (self.count + 1) * sizeof(slot_t))
            if grown == NULL:
                raise MemoryError
            self.slots = grown
            self.count += 1
        self.slots[at] = slot_t(0, now_ms, now_ms)
        self.current = at
        return 0

    cpdef object record(self, double value, int64_t now_ms):
        """Add a value, which is negative to take one back."""
        if not self.count:
            self.open_slot(0, now_ms)
        elif now_ms - self.slots[self.current].start_ms >= self.window_ms:
            self.open_slot((self.current + 1) % (self.samples + 1), now_ms)
        self.slots[self.current].total += value
        self.slots[self.current].last_ms = now_ms

    cdef double rate_at(self, int64_t now_ms, double *elapsed_ms) noexcept:
        cdef double total = 0, missing
        cdef int64_t i, oldest_ms = now_ms
        cdef slot_t *slot
        if not self.count:
            elapsed_ms[0] = self.over_all_ms()
            return 0
        for i in range(self.count):
            slot = &self.slots[i]
            if now_ms - slot.last_ms >= <double> self.samples * self.window_ms:
                slot[0] = slot_t(0, now_ms, now_ms)
            total += slot.total
            oldest_ms = min(oldest_ms, slot.start_ms)
        missing = self.samples - 1 - (now_ms - oldest_ms) // self.window_ms
        elapsed_ms[0] = max(now_ms - oldest_ms + max(missing, 0) * self.window_ms, 1)
        return total * 1000 / elapsed_ms[0]

    def measure(self, int64_t now_ms):
        """Return the rate per second, and the ms over which it was measured."""
        cdef double elapsed_ms
        cdef double rate = self.rate_at(now_ms, &elapsed_ms)
        return rate, int(elapsed_ms)

    cpdef int64_t throttle_ms(self, double quota, int64_t now_ms) noexcept:
        """Return how long to wait until the rate is down to `quota`; 0 if it is not above it."""
        cdef double elapsed_ms
        cdef double rate = self.rate_at(now_ms, &elapsed_ms)
        return 0 if rate <= quota else rounded_throttle_ms((rate - quota) / quota * elapsed_ms)
