"""A metric of durations; contract: duration.pxd."""


cdef class Duration:
    """Adds up durations in ms: their count, mean and maximum."""

    cpdef object update(self, double took_ms):
        """Add a duration."""
        self.count += 1
        self.total_ms += took_ms
        if took_ms > self.max_ms:
            self.max_ms = took_ms

    @property
    def mean_ms(self):
        """The mean of all durations; 0.0 without any."""
        return self.total_ms / self.count if self.count else 0.0
