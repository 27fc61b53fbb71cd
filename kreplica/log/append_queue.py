"""AppendQueue: runs the appends of one log on the disk thread, in the order of submission.

    submit ──▶ waiting ──job──▶ disk thread ──▶ finished ──▶ noted ──▶ owner notified
                  ▲                 │ declined: the log's lane is blocked, and
                  └─────────────────┘ the appends behind it return as well

A batch that is slow to decompress and check is checked on another thread, so that it delays neither the loop
nor the disk. Meanwhile the queue sets it aside, together with the appends that must not overtake it: later
ones of the same connection or producer id, and those without a connection. All others pass. Offsets and
sequence numbers, which depend on the log end, are decided when its turn comes again.

Some appends need a decision: a roll, a transaction, a new leader epoch. The owner makes such an append in the
loop, once no append of the log is in flight, and before any later one. So appends of one connection or
producer never overtake each other.

Any other change to the log end or the segments is made under `UnifiedLog.lock`, which with a queue is a
SettledLock (_core/log_lock.pxd). While it is held, no append is in flight, and the producer states of all
finished appends are noted. Only the high watermark moves meanwhile, under `offsets_lock`. It reaches the
state file with the next append or with a job of its own, since writing that page may block, too.

Ownership: the log owns its queue. The requests that connections may have in flight bound its length.
Thread rule: `submit` and its callbacks run in the node's loop; `settle` runs in any thread that holds the
log's lock. `offsets_lock` guards the tables.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from kreplica._core.append_job import PublishJob
from kreplica._core.disk_thread import DiskJob, Lane
from kreplica.common.errors import KreplicaError
from kreplica.common.ports import Disk
from kreplica.log.producer_append_info import ProducerAppendInfo

if TYPE_CHECKING:
    from kreplica._core.log_lock import LogLock
    from kreplica._core.log_state import LogState


class QueuedLog(Protocol):
    """The part of UnifiedLog that the queue uses. UnifiedLog imports this module."""

    @property
    def offsets_lock(self) -> LogLock: ...

    @property
    def state(self) -> LogState: ...


class QueuedAppend(Protocol):
    """An append that can be submitted to the queue.

    `connection`: the connection that sent it. With None it stays in order with all other appends.
    `producer_id`: -1 without a producer id.
    """

    @property
    def connection(self) -> object: ...

    @property
    def producer_id(self) -> int: ...

    def make_job(self, queue: AppendQueue) -> DiskJob | None:
        """Return the job for the disk thread; None if the append needs a decision. Call with offsets_lock."""
        ...

    @property
    def check(self) -> Callable[[], None] | None:
        """The check to run on another thread before a job can be made, or None."""
        ...

    def note(self) -> None:
        """Record the effects of a job that is done, wholly or in part. Call with offsets_lock."""
        ...

    def finish(self) -> None:
        """Notify the owner that the append was made."""
        ...

    def give_up(self, error: KreplicaError) -> None:
        """Notify the owner that the queue has given up on the append, though it may still be made."""
        ...

    def make_carefully(self) -> None:
        """Leave the append, or the rest of it, to the owner, which handles every error."""
        ...


class _Entry:
    """An append in the queue.

    `is_declined`: the core has left the append to its owner.
    `is_given_up`: the owner was notified that the queue has given up.
    `is_in_check`: its check runs on another thread.
    """

    __slots__ = ("append", "is_declined", "is_given_up", "is_in_check", "is_noted", "job")

    def __init__(self, append: QueuedAppend) -> None:
        self.append = append
        self.job: DiskJob | None = None
        self.is_noted = False
        self.is_declined = False
        self.is_given_up = False
        self.is_in_check = False


class AppendQueue:
    """The queue of one log's appends, which `disk` makes."""

    __slots__ = (
        "_connections_set_aside",
        "_disk",
        "_in_flight",
        "_is_going_on",
        "_is_publishing",
        "_lane",
        "_log",
        "_producers_set_aside",
        "_returned",
        "_set_aside",
        "_waiting",
        "end",
        "producers",
    )

    def __init__(self, log: QueuedLog, disk: Disk) -> None:
        self._log = log
        self._disk = disk
        self._lane = Lane()
        # The log's offsets_lock guards these and all that follow:
        self._in_flight: deque[_Entry] = deque()
        # Returned undone, in order; they precede `_waiting`.
        self._returned: list[_Entry] = []
        self._waiting: deque[_Entry] = deque()
        # In check, or to follow one that is, in order; they precede `_waiting`. With their connections and
        # producer ids.
        self._set_aside: list[_Entry] = []
        self._connections_set_aside: set[object] = set()
        self._producers_set_aside: set[int] = set()
        self._is_going_on = False
        self._is_publishing = False
        # The log end, and the producer states, once all appends in flight are done. The end is None if it
        # cannot be known in advance.
        self.end: int | None = None
        self.producers: dict[int, ProducerAppendInfo] = {}

    def submit(self, append: QueuedAppend) -> None:
        """Queue the append; its owner is notified in the loop."""
        self._waiting.append(_Entry(append))
        if not self._is_going_on:
            self._go_on()

    @property
    def is_idle(self) -> bool:
        """Whether no append is in flight or waiting."""
        return not (self._in_flight or self._waiting or self._returned or self._set_aside)

    @property
    def is_under_way(self) -> bool:
        """Whether the disk thread may be at work on the log."""
        return bool(self._in_flight) or self._is_publishing

    def wait(self) -> None:
        """Wait for the jobs that are in flight now; others may have begun by the time it returns."""
        self._disk.settle(self._lane)

    def settle(self) -> None:
        """Wait until no job of the log is in flight. Call with the log's lock held."""
        if self.is_under_way:
            self._disk.settle(self._lane)
            self._note_finished()

    def give_up(self, error: KreplicaError) -> None:
        """Notify all owners that the log is offline. Appends in flight may never finish."""
        self._take_back()
        left = [*self._in_flight, *self._returned, *self._waiting]
        self._returned.clear()
        self._waiting.clear()
        for entry in left:
            if not entry.is_given_up:
                entry.is_given_up = True
                entry.append.give_up(error)

    def publish_soon(self) -> None:
        """Write an advanced high watermark to the state file soon, if no append will do so."""
        if not self._is_publishing and not self._in_flight and self._log.state.is_unpublished:
            self._is_publishing = True
            self._disk.submit(PublishJob(self._log.state), self._published, self._lane, lazily=True)

    # ---- the loop -----------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        if self._returned:
            if self._in_flight:
                # Not all appends behind it have returned.
                return
            self._disk.free(self._lane)
            # An append that was set aside may have to follow one that returned.
            self._take_back()
            self._waiting.extendleft(reversed(self._returned))
            self._returned.clear()
        self._is_going_on = True
        try:
            while self._waiting and self._take_next():
                pass
        finally:
            self._is_going_on = False

    def _take_next(self) -> bool:
        """Start the next append or set it aside; return False if it must wait for those in flight."""
        entry = self._waiting[0]
        if entry.is_in_check or (self._set_aside and self._must_follow(entry.append)):
            self._put_aside()
            return True
        with self._log.offsets_lock:
            if not self._in_flight:
                self.end = self._log.state.log_end_offset
                self.producers.clear()
            job = None if entry.is_declined else entry.append.make_job(self)
            if job is not None:
                self._waiting.popleft()
                entry.job, entry.is_noted = job, False
                self._in_flight.append(entry)
                self._disk.submit(job, self._back, self._lane)
                return True
        check = entry.append.check
        if check is not None:
            entry.is_in_check = True
            self._disk.aside(check, partial(self._checked, entry))
            self._put_aside()
            return True
        if self._in_flight:
            return False
        self._waiting.popleft()
        entry.append.make_carefully()
        return True

    def _must_follow(self, append: QueuedAppend) -> bool:
        """Return whether an append that was set aside must be made before this one."""
        connections = self._connections_set_aside
        return (
            append.connection is None
            or None in connections
            or append.connection in connections
            or (append.producer_id >= 0 and append.producer_id in self._producers_set_aside)
        )

    def _put_aside(self) -> None:
        entry = self._waiting.popleft()
        self._set_aside.append(entry)
        self._connections_set_aside.add(entry.append.connection)
        self._producers_set_aside.add(entry.append.producer_id)

    def _take_back(self) -> None:
        """Move the appends that were set aside back to the front of the waiting ones."""
        self._waiting.extendleft(reversed(self._set_aside))
        self._set_aside.clear()
        self._connections_set_aside.clear()
        self._producers_set_aside.clear()

    def _checked(self, entry: _Entry) -> None:
        entry.is_in_check = False
        self._take_back()
        if not self._is_going_on:
            self._go_on()

    def _back(self, job: DiskJob) -> None:
        with self._log.offsets_lock:
            self._note_finished()
            entry = self._in_flight.popleft()
            assert entry.job is job
            entry.job = None
            if job.status and not entry.is_given_up:
                entry.is_declined = not job.is_held
                self._returned.append(entry)
        if not job.status and not entry.is_given_up:
            entry.append.finish()
        if not self._in_flight:
            if not self._is_going_on and (self._returned or self._waiting):
                self._go_on()
            self.publish_soon()

    def _note_finished(self) -> None:
        for entry in self._in_flight:
            assert entry.job is not None
            if not entry.is_noted:
                if not self._disk.is_finished(entry.job):
                    return
                entry.is_noted = True
                if not entry.job.is_held:
                    entry.append.note()

    def _published(self, _job: DiskJob) -> None:
        self._is_publishing = False
        if not self._in_flight:
            self.publish_soon()
