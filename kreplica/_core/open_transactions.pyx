"""The open transactions of a log; contract, ownership and thread rule: open_transactions.pxd."""

from libc.stdint cimport int64_t

from kreplica._core.log_state cimport LogState
from kreplica._core.producer_append_info cimport CompletedTxn

from bisect import insort


cdef class OpenTransactions:
    """The transactions of one log that bound its last stable offset."""

    def __cinit__(self, *_arguments, **_options):
        self._unreplicated = []

    @property
    def has_transactions(self):
        """Whether a transaction is open."""
        return bool(self.ongoing)

    @property
    def first_undecided_offset(self):
        """The first offset of the oldest transaction without a marker, or None."""
        return self.first_undecided()

    @property
    def first_unstable_offset(self):
        """The first offset of the oldest transaction that is open or not replicated yet, or None."""
        return self.first_unstable()

    cdef object first_undecided(self):
        for offset in self.ongoing or ():
            return offset
        return None

    cdef object first_unstable(self):
        cdef object undecided = self.first_undecided()
        cdef object unreplicated
        if undecided is None:
            undecided = self.beginning
        if not self._unreplicated:
            return undecided
        unreplicated = self._unreplicated[0][0]
        return unreplicated if undecided is None or unreplicated < undecided else undecided

    cpdef object complete_txn(self, CompletedTxn completed):
        """Record that the marker of an ongoing transaction is in the log."""
        assert self.ongoing is not None, completed
        del self.ongoing[completed.first_offset]
        insort(self._unreplicated, (completed.first_offset, completed.last_offset))

    cpdef object on_high_watermark_updated(self, int64_t high_watermark):
        """Count the transactions whose marker is below the high watermark as stable.

        Return the first unstable offset, or None.
        """
        if self._unreplicated:
            self._unreplicated = [txn for txn in self._unreplicated if <int64_t> txn[1] >= high_watermark]
        return self.first_unstable()

    # ---- the last stable offset -------------------------------------------------------------------------------

    def publish_stable_offset(self, LogState state not None):
        """Publish the last stable offset that the transactions allow.

        It is the first offset of a transaction that is open, or completed above the high watermark; the log start, if
        the transaction began below.
        """
        self.publish(state)

    cdef int publish(self, LogState state) except -1:
        cdef int64_t high_watermark = state.now.high_watermark
        cdef int64_t stable = high_watermark
        cdef object unstable = self.on_high_watermark_updated(high_watermark)
        state.stable = unstable is None
        if unstable is not None:
            stable = max(state.now.log_start_offset, min(<int64_t> unstable, high_watermark))
        if stable != state.now.last_stable_offset:
            state.advance(high_watermark, stable)
        return 0

    def set_high_watermark(self, LogState state not None, int64_t offset):
        """Set the high watermark to `offset`, which is in the log, and publish the last stable offset."""
        self.advance(state, offset)

    cdef int advance(self, LogState state, int64_t offset) except -1:
        state.advance(offset, min(offset, state.now.last_stable_offset))
        return self.publish(state)
