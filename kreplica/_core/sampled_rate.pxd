# SampledRate: a rate per second, measured over several windows, as Kafka's Rate.
#
# Values are added up in slots. A slot is full after a window; the next value opens another one. A slot without a value
# for the time of all windows is cleared. Until there are enough windows, empty ones are assumed before the first: a
# client that has been silent may use the quota of all windows at once.
#
# Ownership: the owner of the quota. Thread rule: any thread, with the GIL; no method lets another thread in.

from libc.stdint cimport int64_t

cdef struct slot_t:
    double total
    int64_t start_ms
    int64_t last_ms


cdef class SampledRate:
    cdef int64_t samples
    cdef int64_t window_ms
    cdef slot_t *slots
    cdef int64_t count            # of the slots in use; they grow as time passes
    cdef int64_t current

    cpdef object record(self, double value, int64_t now_ms)
    # Return the rate per second, and the time over which it was measured.
    cdef double rate_at(self, int64_t now_ms, double *elapsed_ms) noexcept
    cpdef int64_t throttle_ms(self, double quota, int64_t now_ms) noexcept
    cdef double over_all_ms(self) noexcept
    cdef int open_slot(self, int64_t at, int64_t now_ms) except -1


# Return a throttle time in whole ms, within its limit.
cdef int64_t rounded_throttle_ms(double delay_ms) noexcept
