"""Group commit: many appends wait for the disk together, and one of them does the flush for all.

The first to take the turn flushes; all that come meanwhile wait for the end of that turn. The flush may not
have covered them, since they were appended after it began: then one of them has the next turn, which covers
all that was appended by then. So the number of flushes follows the disk's speed, not the number of appends.

    turn 1   A flushes; B and C wait       B was covered and goes on, C was not
    turn 2   C flushes; D and E wait       ...

A turn is a lock, and nothing else says that a flush is under way. An exception that is not the disk's (see
_core/log_lock.pxd) leaves the `with` block and so gives the lock back; the turn was not used up, and the
next thread that waits for it flushes.
"""

from __future__ import annotations

from collections.abc import Callable

from kreplica.common.errors import KreplicaError
from kreplica.common.locks import Lock

NO_LIMIT = (1 << 63) - 1


class GroupCommit:
    """Calls `flush()` so that every `wait(offset)` returns only when all below `offset` is on disk.

    `flush` flushes the log up to its end and returns that end (exclusive); the error of the disk that it
    raises, each waiter gets from then on. Thread rule: any number of threads; one `flush` at a time.
    """

    __slots__ = ("_failure", "_flush", "_flushed", "_limit", "_lock", "_turn")

    def __init__(self, flush: Callable[[], int], flushed: int = 0) -> None:
        self._flush = flush
        # The turn that is under way, or the next one; its holder replaces it when it is used up.
        self._turn = Lock()
        # Guarded by the turn:
        self._failure: KreplicaError | None = None
        self._lock = Lock()
        # Guarded by _lock:
        self._flushed = flushed
        # What a flush that is under way may count as flushed: a cut lowers it.
        self._limit = NO_LIMIT

    def wait(self, offset: int) -> bool:
        """Return True when everything below `offset` is on disk, False when the log was cut below it; raises
        what the flush raised."""
        ran = False
        while self._flushed < offset:
            turn = self._turn
            with turn:
                if turn is not self._turn or self._flushed >= offset:
                    continue
                if self._failure is not None:
                    raise self._failure
                if ran:
                    # A whole flush by this thread did not come so far: the log does not, any more.
                    return False
                self._run()
                ran = True
                self._turn = Lock()
        return True

    def _run(self) -> None:
        with self._lock:
            self._limit = NO_LIMIT
        try:
            flushed = self._flush()
        except KreplicaError as error:
            # A flush that failed once may report success the next time though the pages are lost, so it is
            # never tried again.
            self._failure = error
            return
        with self._lock:
            self._flushed = max(self._flushed, min(flushed, self._limit))

    def truncated(self, offset: int) -> None:
        """The log now ends at `offset`: what comes after it is not on disk any more."""
        with self._lock:
            self._flushed = min(self._flushed, offset)
            self._limit = min(self._limit, offset)
