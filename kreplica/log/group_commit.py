"""GroupCommit: one flush makes the appends of many waiting threads durable.

The first thread that takes the turn flushes; later ones wait for the end of the turn. The flush may not cover
their appends, if they came after it began. Then one of them takes the next turn, which covers everything
appended by then. So the number of flushes follows the speed of the disk, not the number of appends.

    turn 1   A flushes; B and C wait       B was covered and returns, C was not
    turn 2   C flushes; D and E wait       ...

A turn is a lock, and nothing else records that a flush is in progress. An asynchronous exception (see
_core/log_lock.pxd) leaves the `with` block and so releases the lock. The turn is not used up then, and the
next waiting thread flushes.
"""

from __future__ import annotations

from collections.abc import Callable

from kreplica.common.errors import KreplicaError
from kreplica.common.locks import Lock

NO_LIMIT = (1 << 63) - 1


class GroupCommit:
    """Calls `flush()` so that `wait(offset)` returns only once everything below `offset` is on disk.

    `flush` flushes the log up to its end and returns that end (exclusive). If it raises a disk error, all
    later waiters get the same error. Thread rule: any number of threads wait; one at a time flushes.
    """

    __slots__ = ("_failure", "_flush", "_flushed", "_lock", "_turn", "limit")

    def __init__(self, flush: Callable[[], int], flushed: int = 0) -> None:
        self._flush = flush
        # The current or next turn. Its holder replaces it when it is used up.
        self._turn = Lock()
        # Guarded by the turn:
        self._failure: KreplicaError | None = None
        self._lock = Lock()
        # Guarded by _lock:
        self._flushed = flushed
        # The offset up to which the flush in progress may count as flushed; a truncation lowers it.
        self.limit = NO_LIMIT

    def wait(self, offset: int) -> bool:
        """Wait until everything below `offset` is on disk; return False if the log was truncated below it.

        Raises what the flush raised.
        """
        ran = False
        while self._flushed < offset:
            turn = self._turn
            with turn:
                if turn is not self._turn or self._flushed >= offset:
                    continue
                if self._failure is not None:
                    raise self._failure
                if ran:
                    # A complete flush by this thread did not reach `offset`, so the log has been truncated.
                    return False
                self._run()
                ran = True
                self._turn = Lock()
        return True

    def _run(self) -> None:
        with self._lock:
            self.limit = NO_LIMIT
        try:
            flushed = self._flush()
        except KreplicaError as error:
            # Never retry a failed flush: it may report success although the pages are lost.
            self._failure = error
            return
        with self._lock:
            self._flushed = max(self._flushed, min(flushed, self.limit))

    def truncated(self, offset: int) -> None:
        """Lower the flushed offset, since the log was truncated to `offset`."""
        with self._lock:
            self._flushed = min(self._flushed, offset)
            self.limit = min(self.limit, offset)
