"""Group commit: many appends wait for the disk together, and one of them does the flush for all.

The first to find no flush under way takes the part of the flusher; whoever comes meanwhile waits for the next
round, which again covers all that was appended by then. So the number of flushes follows the disk's speed,
not the number of appends.
"""

from __future__ import annotations

from collections.abc import Callable

from kreplica.common.locks import Condition

NO_LIMIT = (1 << 63) - 1


class GroupCommit:
    """Calls `flush()` so that every `wait(offset)` returns only when all below `offset` is on disk.

    `flush` flushes the log up to its end and returns that end (exclusive); what it raises, every waiter that
    it would have covered gets. Thread rule: any number of threads; one `flush` at a time.
    """

    __slots__ = ("_condition", "_failure", "_flush", "_flushed", "_limit", "_running")

    def __init__(self, flush: Callable[[], int], flushed: int = 0) -> None:
        self._flush = flush
        self._condition = Condition()
        # Guarded by _condition:
        self._flushed = flushed
        self._running = False
        # What a flush that is under way may count as flushed: a cut lowers it.
        self._limit = NO_LIMIT
        self._failure: BaseException | None = None

    def wait(self, offset: int) -> bool:
        """Return True when everything below `offset` is on disk, False when the log was cut below it; raises
        what the flush raised."""
        ran = False
        while True:
            with self._condition:
                while self._running and self._flushed < offset and self._failure is None:
                    self._condition.wait()
                if self._flushed >= offset:
                    return True
                if self._failure is not None:
                    raise self._failure
                if ran:
                    # A whole flush of ours did not come so far: the log does not, any more.
                    return False
                self._running = True
                self._limit = NO_LIMIT
            self._run()
            ran = True

    def _run(self) -> None:
        flushed, failure = -1, None
        try:
            flushed = self._flush()
        except BaseException as error:
            # A flush that failed once may report success the next time though the pages are lost, so it is
            # never tried again: everybody gets this error from now on.
            failure = error
        with self._condition:
            self._running = False
            self._flushed = max(self._flushed, min(flushed, self._limit))
            self._failure = failure
            self._condition.notify_all()

    def truncated(self, offset: int) -> None:
        """The log now ends at `offset`: what comes after it is not on disk any more."""
        with self._condition:
            self._flushed = min(self._flushed, offset)
            self._limit = min(self._limit, offset)
