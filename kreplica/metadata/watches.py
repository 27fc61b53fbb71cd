"""Watches: deliver the changes of the metadata tree, in the log's order, to programs that observe a cluster.

The loaders of a cluster's nodes report what they apply; every node reports the same changes, with the same
versions, some sooner than others. `Watches` takes each change from the first node that has it. So a watch
sees every change once, whichever nodes are killed meanwhile. If all running nodes have skipped records,
because they loaded a snapshot, the changes are the differences between the two states.

A watch keeps what its reader has not taken yet, at most `max_pending` changes. A reader that is slower gets
these, and then WatchOverflowed: its watch has ended, and nothing was dropped silently.

Thread rule: any thread; `_lock` guards all watches. Futures are resolved outside the lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import InvalidStateError
from contextlib import suppress
from typing import NamedTuple

from kreplica.common.errors import ClusterClosed, KreplicaError, WatchOverflowed
from kreplica.common.future import Future
from kreplica.common.locks import Lock
from kreplica.metadata.cluster_metadata import ClusterMetadata, Step, difference
from kreplica.metadata.image_format import ROOT, OffsetAndEpoch, check_path
from kreplica.metadata.image_paths import CONTROLLER, TreeChange, path_of_step, shown, steps_of

# How many changes a watch keeps for its reader by default.
MAX_PENDING = 10_000

TimedStep = tuple[Step, int]
"""A step, and the timestamp of its record in ms since 1970 (-1: unknown)."""


class LeaderOfEpoch(NamedTuple):
    """The quorum's leader in an epoch."""

    leader: int
    epoch: int


class Watches:
    """The watches of one cluster."""

    def __init__(self) -> None:
        self._lock = Lock()
        # Guarded by _lock: the newest state that any node has reported, and the open watches.
        self._metadata = ClusterMetadata()
        self._end_offset = 0
        self._controller: LeaderOfEpoch | None = None
        self._watches: list[Watch] = []
        self._closed_by: ClusterClosed | None = None

    # ---- for loaders --------------------------------------------------------------------------------------

    def on_commit(
        self, start: int, steps: Sequence[TimedStep], metadata: ClusterMetadata, applied: OffsetAndEpoch
    ) -> None:
        """Offer the watches the changes that the records from offset `start` up to `applied` made.

        `metadata`: the state after them.
        """
        with self._lock:
            before, self._end_offset = self._end_offset, max(self._end_offset, applied.offset)
            if applied.offset <= before:
                return
            known, self._metadata = self._metadata, metadata
            if not self._watches:
                return
            if start <= before:
                steps = [each for each in steps if each[0].version >= before]
            else:
                delta = difference(known, metadata)
                steps = [(step, -1) for step in steps_of(delta, metadata, applied.offset)]
            awake = self._offer(changes_of(steps))
        _wake(awake)

    def on_leader_change(self, leader_id: int, epoch: int) -> None:
        """Offer the watches a change of the quorum's leader."""
        with self._lock:
            old = self._controller
            if old is not None and epoch <= old.epoch:
                has_one_leader = epoch < old.epoch or old.leader == leader_id
                assert has_one_leader, f"epoch {epoch} has two leaders: {old.leader} and {leader_id}"
                return
            self._controller = LeaderOfEpoch(leader_id, epoch)
            awake = self._offer(iter([controller_change(old, self._controller)]))
        _wake(awake)

    def _offer(self, changes: Iterator[TreeChange]) -> list[Future[None]]:
        awake: list[Future[None]] = []
        for change in changes:
            for watch in self._watches:
                watch._offer(change, awake)
        self._watches = [watch for watch in self._watches if watch._error is None]
        return awake

    # ---- for observers ------------------------------------------------------------------------------------

    def watch(self, path: str = ROOT, *, initial: bool = False, max_pending: int = MAX_PENDING) -> Watch:
        """Return a watch on the node at `path` and on all nodes below it, from now on.

        `initial`: it starts with the existing nodes, as changes from None. Raises InvalidRequest for an
        invalid path, and ClusterClosed.
        """
        check_path(path)
        if max_pending < 1:
            raise ValueError(f"max_pending={max_pending} is below the minimum of 1")
        with self._lock:
            if self._closed_by is not None:
                raise self._closed_by
            state = self._metadata, self._end_offset, self._controller
            first = _existing(*state) if initial else iter(())
            watch = Watch(self, path, max_pending, first)
            self._watches.append(watch)
        return watch

    def close(self, error: ClusterClosed) -> None:
        """End all watches: they deliver the changes that are left, and then raise `error`."""
        awake: list[Future[None]] = []
        with self._lock:
            self._closed_by = error
            watches, self._watches = self._watches, []
            for watch in watches:
                watch._end(error, awake)
        _wake(awake)


class Watch:
    """One watch: changes wait here until its reader takes them. It has one reader, in any thread."""

    def __init__(self, watches: Watches, path: str, max_pending: int, first: Iterator[TreeChange]) -> None:
        self.path = path
        self._watches = watches
        self._below = path if path == ROOT else f"{path}/"
        self._first = filter(self._concerns, first)
        self._max_pending = max_pending
        # Guarded by the lock of `watches`:
        self._pending: deque[TreeChange] = deque()
        self._error: KreplicaError | None = None
        self._ready: Future[None] | None = None
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """Whether the reader has closed it."""
        return self._is_closed

    def pop(self) -> TreeChange | None:
        """Return the next change; None if none is waiting, or if the watch is closed.

        After the last change of a watch that has ended, raises WatchOverflowed or ClusterClosed.
        """
        if not self._is_closed:
            change = next(self._first, None)
            if change is not None:
                return change
        with self._watches._lock:
            if self._pending:
                return self._pending.popleft()
            if self._error is not None and not self._is_closed:
                raise self._error
        return None

    def ready(self) -> Future[None]:
        """Return a future that is done when `pop` has something to return or raise, or at `close`."""
        with self._watches._lock:
            if self._ready is None or self._ready.cancelled():
                self._ready = Future()
            ready = self._ready
            is_ready = bool(self._pending or self._error or self._is_closed)
            if is_ready:
                self._ready = None
        if is_ready:
            _wake([ready])
        return ready

    def close(self) -> None:
        """End the watch and drop the changes that are left."""
        awake: list[Future[None]] = []
        with self._watches._lock:
            self._is_closed = True
            self._pending.clear()
            self._notify(awake)
            if self in self._watches._watches:
                self._watches._watches.remove(self)
        _wake(awake)

    def _concerns(self, change: TreeChange) -> bool:
        return change.path == self.path or change.path.startswith(self._below)

    def _offer(self, change: TreeChange, awake: list[Future[None]]) -> None:
        if self._error is not None or not self._concerns(change):
            return
        if len(self._pending) == self._max_pending:
            text = f"{len(self._pending)} changes below {self.path} are waiting: read faster, or watch again"
            self._end(WatchOverflowed(f"{text}; the first one missed has version {change.version}"), awake)
            return
        self._pending.append(change)
        self._notify(awake)

    def _end(self, error: KreplicaError, awake: list[Future[None]]) -> None:
        self._error = error
        self._notify(awake)

    def _notify(self, awake: list[Future[None]]) -> None:
        if self._ready is not None:
            awake.append(self._ready)
            self._ready = None


def changes_of(steps: Iterable[TimedStep]) -> Iterator[TreeChange]:
    """Yield the steps as changes with plain values."""
    for step, timestamp_ms in steps:
        yield shown(step, path_of_step(step), timestamp_ms)


def controller_change(old: LeaderOfEpoch | None, new: LeaderOfEpoch, timestamp_ms: int = -1) -> TreeChange:
    """Return the change of /controller."""
    was = None if old is None else old._asdict()
    return TreeChange(CONTROLLER, new.epoch, was, new._asdict(), timestamp_ms)


def _existing(
    metadata: ClusterMetadata, end_offset: int, controller: LeaderOfEpoch | None
) -> Iterator[TreeChange]:
    if controller is not None:
        yield controller_change(None, controller)
    delta = difference(ClusterMetadata(), metadata)
    yield from changes_of((step, -1) for step in steps_of(delta, metadata, end_offset))


def _wake(futures: list[Future[None]]) -> None:
    for future in futures:
        # The reader may have cancelled it.
        with suppress(InvalidStateError):
            future.set_result(None)
