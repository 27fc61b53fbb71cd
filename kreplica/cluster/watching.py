"""ClusterWatch: iterates over the changes of a cluster's tree of metadata. The watch itself is in metadata/.

One thread at a time reads; any thread may close it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from kreplica.common.future import Future
from kreplica.metadata.image_paths import TreeChange
from kreplica.metadata.watches import Watch


class ClusterWatch:
    """An iterator over changes, oldest first. Close it, or use it as a context manager.

    The iteration ends when no change has come within the watch's timeout; iterating again continues. It also
    ends when the watch is closed. It raises WatchOverflowed if the reader was too slow, and ClusterClosed,
    both after the changes before that.
    """

    def __init__(self, watch: Watch, wait: Callable[[Future[None]], bool]) -> None:
        """`wait(future)` returns whether the future was done in time."""
        self._watch = watch
        self._wait = wait

    @property
    def path(self) -> str:
        """The path that is watched, with all paths below it."""
        return self._watch.path

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> TreeChange:
        while (change := self._watch.pop()) is None:
            if self._watch.is_closed or not self._wait(self._watch.ready()):
                raise StopIteration
        return change

    def close(self) -> None:
        """End the watch, also for a reader in another thread."""
        self._watch.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
