# Duration: a metric that adds up durations in ms: their count, mean and maximum.
#
# Thread rule: any thread may call; the GIL guards the fields.


cdef class Duration:
    cdef public long long count
    cdef public double total_ms
    cdef public double max_ms

    cpdef object update(self, double took_ms)
