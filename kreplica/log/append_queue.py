"""AppendQueue: the appends of one log that the disk thread makes, in the order in which they were asked for.

    submit ──▶ waiting ──job──▶ disk thread ──▶ finished ──▶ noted ──▶ its owner is told
                  ▲                 │ declined: it holds the log's lane, and
                  └─────────────────┘ those behind it come back, too

A batch whose records take long to decompress and check is checked aside, by a thread that holds up neither
the loop nor the disk. It is set aside meanwhile, with what must not overtake it: later appends of the same
connection, of the same producer id, and those that come from no connection. All others pass. What depends on
the log's end, offsets and sequence numbers, is decided when its turn comes again.

An append that needs a decision (a roll, a transaction, a new leader epoch) is made by its owner in the
loop, once nothing of the log is under way, and before any that came after it. So appends of one connection
or producer never overtake each other.

Any other change of the log's end or its segments is made under `UnifiedLog.lock`, which here is a SettledLock
(_core/log_lock.pxd): no append is under way then, and what they leave to be noted (producers' states) is
noted. The high watermark alone moves meanwhile, under `offsets_lock`, and reaches the state file with the
next append or by a job of its own, since that page may have to be waited for, too.

Ownership: the log owns its queue; what waits in it is bounded by what connections may have under way.
Thread rule: `submit`, and what it calls back, in the node's loop; `settle` under the log's lock in any
thread. `offsets_lock` guards the tables.
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
    """What the queue uses of its UnifiedLog, which imports this module."""

    @property
    def offsets_lock(self) -> LogLock: ...

    @property
    def state(self) -> LogState: ...


class QueuedAppend(Protocol):
    """An append on its way.

    `connection`: where it came from; None keeps it in order with all others. `producer_id`: -1 for none.
    """

    @property
    def connection(self) -> object: ...

    @property
    def producer_id(self) -> int: ...

    def make_job(self, queue: AppendQueue) -> DiskJob | None:
        """What the disk thread is to do; None where it takes a decision. Under the log's lock."""
        ...

    @property
    def check(self) -> Callable[[], None] | None:
        """What has to run aside before a job can be made; None where nothing has to."""
        ...

    def note(self) -> None:
        """The job is done, or part of it: keep what the log has to know of it. Under the log's lock."""
        ...

    def finish(self) -> None:
        """Tell the owner of an append that was made."""
        ...

    def give_up(self, error: KreplicaError) -> None:
        """Tell the owner of an append for which nobody waits any more; it may still be made."""
        ...

    def make_carefully(self) -> None:
        """Make it, or what is left of it, now, and tell the owner; whatever fails is the owner's, too."""
        ...


class _Entry:
    """An append in the queue. `is_declined`: the core has left it to its owner. `is_given_up`: he was
    told. `is_in_check`: its check runs aside."""

    __slots__ = ("append", "is_declined", "is_given_up", "is_in_check", "is_noted", "job")

    def __init__(self, append: QueuedAppend) -> None:
        self.append = append
        self.job: DiskJob | None = None
        self.is_noted = False
        self.is_declined = False
        self.is_given_up = False
        self.is_in_check = False


class AppendQueue:
    """See the module."""

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
        # Guarded by the log's offsets_lock, as is what follows:
        self._in_flight: deque[_Entry] = deque()
        # Came back undone, in their order; before those that wait.
        self._returned: list[_Entry] = []
        self._waiting: deque[_Entry] = deque()
        # In check, or to follow one that is; in their order, and before those that wait. With the
        # connections and producer ids that they are of.
        self._set_aside: list[_Entry] = []
        self._connections_set_aside: set[object] = set()
        self._producers_set_aside: set[int] = set()
        self._is_going_on = False
        self._is_publishing = False
        # Where the log will end when all that is under way is done; None where that cannot be told. And the
        # states of producers as they will be then.
        self.end: int | None = None
        self.producers: dict[int, ProducerAppendInfo] = {}

    def submit(self, append: QueuedAppend) -> None:
        """Make the append after those before it, and tell its owner in the loop."""
        self._waiting.append(_Entry(append))
        if not self._is_going_on:
            self._go_on()

    @property
    def is_idle(self) -> bool:
        """Whether no append is under way, or waits."""
        return not (self._in_flight or self._waiting or self._returned or self._set_aside)

    @property
    def is_under_way(self) -> bool:
        """Whether the disk thread may be at work on the log."""
        return bool(self._in_flight) or self._is_publishing

    def wait(self) -> None:
        """Return when what is under way now is done; more may be by then."""
        self._disk.settle(self._lane)

    def settle(self) -> None:
        """Wait until nothing of the log is under way. Under the log's lock."""
        if self.is_under_way:
            self._disk.settle(self._lane)
            self._note_finished()

    def give_up(self, error: KreplicaError) -> None:
        """The log is offline, and what is under way may never end: tell all who wait."""
        self._take_back()
        left = [*self._in_flight, *self._returned, *self._waiting]
        self._returned.clear()
        self._waiting.clear()
        for entry in left:
            if not entry.is_given_up:
                entry.is_given_up = True
                entry.append.give_up(error)

    def publish_soon(self) -> None:
        """A mark was moved that the state file does not have yet."""
        if not self._is_publishing and not self._in_flight and self._log.state.is_unpublished:
            self._is_publishing = True
            self._disk.submit(PublishJob(self._log.state), self._published, self._lane, lazily=True)

    # ---- the loop -----------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        if self._returned:
            if self._in_flight:
                # Those behind it are not all back.
                return
            self._disk.free(self._lane)
            # Those set aside may have to follow one that came back.
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
        """Begin the next append, or set it aside; False where it has to wait for those under way."""
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
        """Whether one that is set aside has to be made before it."""
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
        """Let those set aside wait for their turn, before all that came later."""
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
