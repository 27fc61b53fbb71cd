"""PendingFutures: the futures that callers of a cluster wait for; closing the cluster fails them.

In a forked child they fail with UseAfterFork, since the threads that would resolve them do not exist there.

Thread rule: any thread; `_lock` guards the set. Futures are resolved outside the lock.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import InvalidStateError
from contextlib import suppress
from typing import Any, TypeVar

from kreplica.common.errors import ClusterClosed, UseAfterFork
from kreplica.common.future import Future
from kreplica.common.locks import Lock

T = TypeVar("T")


class PendingFutures:
    """The pending futures of one cluster. `name`: the cluster's name for error messages.

    `appends`, if set, returns the pending futures of appends, which are not tracked one by one.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.appends: Callable[[], Iterable[Future[Any]]] = tuple
        self._process_id = os.getpid()
        self._lock = Lock()
        # Guarded by _lock:
        self._futures: set[Future[Any]] = set()
        self.is_closed = False
        _of_this_process.add(self)

    def require_open(self) -> None:
        """Raises ClusterClosed after `close`, UseAfterFork in a forked child."""
        # Each append comes by here, so it calls no other method.
        if os.getpid() != self._process_id:
            raise self._use_after_fork()
        if self.is_closed:
            raise ClusterClosed(f"{self.name} is closed")

    def require_own(self) -> None:
        """Raises UseAfterFork in a forked child of the process that created it."""
        if self.is_forked:
            raise self._use_after_fork()

    def _use_after_fork(self) -> UseAfterFork:
        return UseAfterFork(f"{self.name} belongs to the parent process: open another one in this process")

    def abandon(self) -> None:
        """Fail all pending futures in a forked child, without a callback or a lock of the parent."""
        for future in (*self._futures, *self.appends()):
            future.abandon(self._use_after_fork())

    @property
    def is_forked(self) -> bool:
        """Whether this is a forked child of the process that created the cluster.

        The cluster's threads do not exist here, and its locks, files and directory belong to the parent.
        """
        return os.getpid() != self._process_id

    def track(self, future: Future[T]) -> Future[T]:
        """Return the future, which fails with ClusterClosed if it is pending when the cluster is closed."""
        if future.done():
            return future
        with self._lock:
            is_closed = self.is_closed
            if not is_closed:
                self._futures.add(future)
        if is_closed:
            self.fail(future)
        else:
            future.add_done_callback(self._forget)
        return future

    def close(self) -> None:
        """Accept no more futures; pending ones stay pending until `fail_all`."""
        with self._lock:
            self.is_closed = True

    def fail_all(self) -> None:
        """Fail all pending futures with ClusterClosed."""
        with self._lock:
            futures, self._futures = self._futures, set()
        for future in (*self.appends(), *futures):
            self.fail(future)

    def _forget(self, future: Any) -> None:
        with self._lock:
            self._futures.discard(future)

    def fail(self, future: Future[Any]) -> None:
        """Fail the future with ClusterClosed if it is pending."""
        # A task that was running when the network stopped may have resolved it first.
        with suppress(InvalidStateError):
            future.set_exception(ClusterClosed(f"{self.name} was closed during the call"))


# The clusters of this process; a forked child inherits them.
_of_this_process: weakref.WeakSet[PendingFutures] = weakref.WeakSet()


def _abandon_all() -> None:
    for pending in tuple(_of_this_process):
        pending.abandon()
    _of_this_process.clear()


os.register_at_fork(after_in_child=_abandon_all)
