"""PendingFutures: what callers of a cluster wait for, so that closing it leaves nobody waiting.

Thread rule: any thread; `_lock` guards the set. Futures are resolved outside of it.
"""

from __future__ import annotations

import os
from concurrent.futures import InvalidStateError
from contextlib import suppress
from typing import Any, TypeVar

from kreplica.common.errors import ClusterClosed, UseAfterFork
from kreplica.common.future import Future
from kreplica.common.locks import Lock

T = TypeVar("T")


class PendingFutures:
    """See the module. `name`: what is said to be closed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._process_id = os.getpid()
        self._lock = Lock()
        # Guarded by _lock:
        self._futures: set[Future[Any]] = set()
        self._is_closed = False

    def require_open(self) -> None:
        """Raises ClusterClosed after `close`, UseAfterFork in a child of the process that made it."""
        self.require_own()
        if self._is_closed:
            raise ClusterClosed(f"{self.name} is closed")

    def require_own(self) -> None:
        """Raises UseAfterFork in a child of the process that made it."""
        if self.is_forked:
            raise UseAfterFork(f"{self.name} belongs to the parent process")

    @property
    def is_forked(self) -> bool:
        """Whether this is a child of the process that made the cluster: its threads are not here, and its
        locks, files and directory are the parent's."""
        return os.getpid() != self._process_id

    def track(self, future: Future[T]) -> Future[T]:
        """The future; it fails with ClusterClosed if it is pending when the cluster is closed, or was."""
        if future.done():
            return future
        with self._lock:
            is_closed = self._is_closed
            if not is_closed:
                self._futures.add(future)
        if is_closed:
            self._fail(future)
        else:
            future.add_done_callback(self._forget)
        return future

    def close(self) -> None:
        """Take nothing more in; what is pending stays so until `fail_all`."""
        with self._lock:
            self._is_closed = True

    def fail_all(self) -> None:
        """Let everything that is pending fail."""
        with self._lock:
            futures, self._futures = self._futures, set()
        for future in futures:
            self._fail(future)

    def _forget(self, future: Any) -> None:
        with self._lock:
            self._futures.discard(future)

    def _fail(self, future: Future[Any]) -> None:
        # A task that was running when the network stopped may have been first.
        with suppress(InvalidStateError):
            future.set_exception(ClusterClosed(f"{self.name} was closed meanwhile"))
