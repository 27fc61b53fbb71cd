"""AppendQueue: gives the appends of one log to its Disk, in the order of submission.

    admit ──▶ start ──job──▶ disk ──▶ take_back: finished
      │         ▲              │
      │         │              │ declined: the log's lane is blocked, and the appends behind it return as well
      ▼         │              ▼
    waiting ──▶ next ◀──── returned

An append is one native call, a job of the disk. With a disk thread the job is done later. With InlineDisk
it is done in `start`, so nothing ever waits. The caller of `start` decides the rest: it checks a compressed
batch and the producer's sequence numbers, against the log end that the appends in flight will leave. If the
log then ends elsewhere, the core declines the append.

A batch that is slow to decompress and check is checked on another thread, so that it delays neither the loop
nor the disk. Meanwhile the queue sets it aside, together with the appends that must not overtake it: later
ones of the same connection or producer id, and those without a connection. All others pass. Offsets and
sequence numbers, which depend on the log end, are decided when its turn comes again.

Some appends need a decision: a roll, a transaction, a new leader epoch. The owner makes such an append in its
turn, once no append of the log is in flight, and before any later one. So appends of one connection or
producer never overtake each other.

The queue makes no decision of its owner's. `start`, `take_back` and `next` return all that the owner has to
act on. `on_done` is only a signal: it wakes the owner when a disk thread or a check has finished something.

Any other change to the log end or the segments is made under `UnifiedLog.lock`, which with a disk thread is a
SettledLock (_core/log_lock.pxd). While it is held, no append is in flight, and the producer states of all
finished appends are noted. Only the high watermark moves meanwhile, under `offsets_lock`. It reaches the
state file with the next append or with a job of its own, since writing that page may block, too.

Ownership: with a disk thread the lock of the log keeps the queue. A queue with InlineDisk keeps nothing
between appends, so each Partition makes its own. The requests that connections may have in flight bound
its length.
Thread rule: with a disk thread all methods run in the node's loop, except `settle`, which runs in any thread
that holds the log's lock; `offsets_lock` guards the tables. With InlineDisk any thread may call.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from kreplica._core.append_job import AppendJob, RunJob, publish_soon
from kreplica._core.disk_thread import DiskJob, Lane
from kreplica._core.log_lock import SettledLock
from kreplica._core.producer_table import PendingProducers
from kreplica._core.records import RecordBatch, batches
from kreplica.common.errors import DecompressionTooLarge, KreplicaError, UnknownServerError
from kreplica.common.ports import Disk
from kreplica.common.types import AppendOrigin
from kreplica.log.log_validator import BRIEF_BYTES, ValidBatch
from kreplica.log.producer_append_info import ProducerAppendInfo, Verification
from kreplica.record.batch_header import PRODUCER_ID

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kreplica._core.log_segment import LogAppendInfo
    from kreplica.log.unified_log import UnifiedLog

LOGGER = logging.getLogger(__name__)

# What `AppendQueue.start` returns: the append is left to its owner, is in flight, or is in the log.
LEFT, IN_FLIGHT, MADE = 0, 1, 2

PRODUCER_ID_BYTES = 8


class InlineDisk:
    """Implements `kreplica.common.ports.Disk` in the caller's turn: `submit` does the job."""

    __slots__ = ()

    waiting_ms = 0.0

    def submit(
        self,
        job: DiskJob,
        done: Callable[[DiskJob], object],  # noqa: ARG002
        lane: Lane | None = None,  # noqa: ARG002
        *,
        lazily: bool = False,  # noqa: ARG002
    ) -> bool:
        """Do the job."""
        job.run()
        return True

    def aside(self, task: Callable[[], None], done: Callable[[], None]) -> bool:  # noqa: ARG002
        """Run the task."""
        task()
        return True

    def settle(self, lane: Lane) -> None:
        """Do nothing: no job is in flight."""

    def is_finished(self, job: DiskJob) -> bool:  # noqa: ARG002
        """Return True: each job is done when it is submitted."""
        return True

    def free(self, lane: Lane) -> None:
        """Do nothing: no lane is ever held."""


INLINE = InlineDisk()


class QueuedAppend(ABC):
    """An append, and its result.

    `connection`: the connection that sent it. With None it stays in order with all other appends.
    `info`: what was appended. `error`: why nothing was, or why that is not certain.
    `check`: the check to run on another thread before a job can be made, or None.
    """

    __slots__ = (
        "check",
        "connection",
        "error",
        "info",
        "is_declined",
        "is_given_up",
        "is_in_check",
        "job",
    )

    def __init__(self, connection: object) -> None:
        self.connection = connection
        self.info: LogAppendInfo | None = None
        self.error: KreplicaError | None = None
        self.check: Callable[[], None] | None = None
        # Kept by the queue: the job in flight; whether the core has left the append to its owner, the queue
        # has given up on it, its check runs on another thread.
        self.job: Any = None
        self.is_declined = self.is_given_up = self.is_in_check = False

    @property
    def producer_id(self) -> int:
        """The producer id of the first batch, -1 if it has none."""
        return -1

    @abstractmethod
    def make_job(self, log: UnifiedLog, queue: AppendQueue, leader_epoch: int) -> DiskJob | None:
        """Return the job for the disk; None if the append needs a decision. Call with offsets_lock."""

    def come_back(self, is_declined: bool) -> QueuedAppend:
        """Return the append to keep in this one's place, whose job was not done: this one.

        `is_declined`: the core has left it to its owner.
        """
        self.is_declined = is_declined
        return self

    @abstractmethod
    def note(self, queue: AppendQueue, job: Any) -> None:
        """Record the effects of a job that is done, wholly or in part. Call with offsets_lock."""


class LeaderAppend(QueuedAppend):
    """Appends a producer's batch to a log that this node leads."""

    __slots__ = ("_checked", "_producer", "origin", "records", "verification")

    def __init__(
        self,
        records: Buffer,
        origin: AppendOrigin,
        connection: object = None,
        verification: Verification | None = None,
    ) -> None:
        super().__init__(connection)
        self.records = records
        self.origin = origin
        self.verification = verification
        self._producer: ProducerAppendInfo | None = None
        # The result of the check.
        self._checked: list[ValidBatch] | KreplicaError | None = None

    @property
    def producer_id(self) -> int:
        """The producer id in the first batch's unchecked header; -1 if the batch is too short to have one."""
        field = memoryview(self.records).cast("B")[PRODUCER_ID]
        return int.from_bytes(field, "big", signed=True) if len(field) == PRODUCER_ID_BYTES else -1

    def _check(self, log: UnifiedLog) -> None:
        # Runs in any thread: the records and the validator are immutable.
        try:
            self._checked = log.validator.validate_anew(self.records, log.time_ms(), self.origin)
        except KreplicaError as error:
            # Drop the traceback and the context: their frames keep the records alive.
            self._checked = error.with_traceback(None)
            error.__context__ = None
        except Exception as error:
            LOGGER.exception("%s: checking a batch failed; the producer gets an error", log.topic_partition)
            self._checked = UnknownServerError(repr(error))
        self.check = None

    def _valid(self, log: UnifiedLog) -> list[ValidBatch] | None:
        """Return the checked batches, or None if the check must first run on another thread.

        Raises like LogValidator.validate.
        """
        assert not isinstance(self._checked, KreplicaError)
        if self._checked is None:
            try:
                if log.validator.is_brief(self.records):
                    return log.validator.validate_anew(
                        self.records,
                        log.time_ms(),
                        self.origin,
                        max_decompressed=min(BRIEF_BYTES, log.validator.max_decompressed),
                    )
            except DecompressionTooLarge:
                pass
            self.check = partial(self._check, log)
            return None
        if self._checked[0].append_time >= 0:
            # Other batches were appended since the check, so the append time is stale.
            now_ms = log.time_ms()
            self._checked = [each._replace(append_time=now_ms) for each in self._checked]
        return self._checked

    def make_job(self, log: UnifiedLog, queue: AppendQueue, leader_epoch: int) -> AppendJob | None:
        self._producer = None
        job = log.plain_job(self.records, leader_epoch)
        if job is not None and job.producer_id < 0:
            if queue.end is not None:
                queue.end += job.offset_count
            return job
        if isinstance(self._checked, KreplicaError) or not log.may_append(leader_epoch):
            # The careful path reports the error in its turn, like the errors raised below. Raised here, it
            # would refer to this append and its records until the garbage collector runs.
            return None
        try:
            return self._with_decisions(job, log, queue, leader_epoch)
        except KreplicaError:
            return None

    def _with_decisions(
        self, job: AppendJob | None, log: UnifiedLog, queue: AppendQueue, leader_epoch: int
    ) -> AppendJob | None:
        """Return the job of a batch that has to be checked first, or has a producer id."""
        batch: RecordBatch | None = None
        if job is None:
            found = self._valid(log)
            if found is None:
                return None
            batch = found[0].batch
            if len(found) > 1 or batch.is_control:
                return None
            job = AppendJob(
                found[0].data,
                log.active,
                log.state,
                leader_epoch,
                checked=True,
                append_time=found[0].append_time,
            )
        if job.producer_id >= 0:
            batch = batch or next(batches(self.records))
            if queue.end is None or not self._continues_sequence(queue, batch):
                return None
            job.expect(queue.end)
        if queue.end is not None:
            queue.end += job.offset_count
        return job

    def _continues_sequence(self, queue: AppendQueue, batch: RecordBatch) -> bool:
        """Return whether the batch continues its producer's sequence, including the appends in flight."""
        if batch.is_control or batch.is_transactional:
            return False
        self._producer = queue.continue_sequence(batch, self.origin)
        return self._producer is not None

    def note(self, queue: AppendQueue, job: AppendJob) -> None:
        if job.status:
            return
        self.info = info = job.info()
        if self._producer is not None:
            queue.note_producer(self._producer, info.last_offset + 1)

    def make_carefully(self, log: UnifiedLog, leader_epoch: int) -> LogAppendInfo:
        """Append the batch under the log's lock. Raises as UnifiedLog.append_as_leader."""
        if isinstance(self._checked, KreplicaError):
            raise self._checked
        if self._checked is not None:
            # Already checked: the log need not check the batch again.
            found = self._valid(log)
            assert found is not None
            log.validator.expect(self.records, found)
        self.info = log.append_as_leader(
            self.records, leader_epoch, origin=self.origin, wait=False, verification=self.verification
        )
        return self.info


class FollowerAppend(QueuedAppend):
    """Appends records that a follower fetched from the leader of `leader_epoch`.

    `rest`: what is not appended yet. `info` describes the last batch that was appended.
    """

    __slots__ = ("leader_epoch", "rest")

    def __init__(self, records: Buffer, leader_epoch: int) -> None:
        super().__init__(None)  # stays in order with all other appends
        self.rest = memoryview(records)
        self.leader_epoch = leader_epoch

    def make_job(self, log: UnifiedLog, queue: AppendQueue, leader_epoch: int) -> RunJob | None:
        queue.end = None
        # Refuse records of an older leader epoch than the log's latest.
        if log.leader_epoch > leader_epoch or not log.may_append(log.leader_epoch):
            return None
        with_producers = not log.producers.has_transactions
        return RunJob(self.rest, log.active, log.state, log.leader_epoch, with_producers=with_producers)

    def note(self, queue: AppendQueue, job: RunJob) -> None:
        info = job.info()
        if info is None:
            return
        done, self.rest = self.rest[: job.bytes_used], self.rest[job.bytes_used :]
        self.info = info
        producers = queue.log.producers
        producers.map_end_offset = max(producers.map_end_offset, info.last_offset + 1)
        if job.has_producers:
            producers.take_over_run(done)


class _SetAside:
    """Appends in check, and those that must follow one of them, in order."""

    __slots__ = ("_connections", "_producers", "appends")

    def __init__(self) -> None:
        self.appends: list[QueuedAppend] = []
        self._connections: set[object] = set()
        self._producers: set[int] = set()

    def add(self, append: QueuedAppend) -> None:
        self.appends.append(append)
        self._connections.add(append.connection)
        self._producers.add(append.producer_id)

    def must_precede(self, append: QueuedAppend) -> bool:
        """Return whether an append that was set aside must be made before this one."""
        connections = self._connections
        return (
            append.connection is None
            or None in connections
            or append.connection in connections
            or (append.producer_id >= 0 and append.producer_id in self._producers)
        )


class AppendQueue(PendingProducers):
    """The queue of one log's appends, which `disk` makes.

    `on_done(queue)`: called in the node's loop once for each job or check that is done. The owner then calls
    `take_back`, and `next` until it returns None. InlineDisk never calls it.
    """

    __slots__ = (
        "_blocked",
        "_on_done",
        "aside",
        "disk",
        "in_flight",
        "is_publishing",
        "lane",
        "log",
        "noted",
        "returned",
        "waiting",
    )

    def __init__(
        self,
        log: UnifiedLog,
        disk: Disk = INLINE,
        on_done: Callable[[AppendQueue], object] = lambda _queue: None,
    ) -> None:
        self.log = log
        self.disk = disk
        self._on_done = on_done
        self.lane = Lane()
        # The log's offsets_lock guards these and all that follow:
        self.in_flight: list[Any] = []
        # The number of those, the first ones, whose jobs are finished and whose effects are recorded.
        self.noted = 0
        # The appends that came back undone, in order. They precede `waiting`.
        self.returned: list[Any] = []
        self.waiting: list[Any] = []
        # The appends that were set aside, or None. They precede `waiting`.
        self.aside: _SetAside | None = None
        # The first of `waiting` if it needs a decision.
        self._blocked: QueuedAppend | None = None
        self.is_publishing = False
        if disk is not INLINE:
            log.lock = SettledLock(log.offsets_lock, self)
            log.state.share()

    @classmethod
    def of(cls, log: UnifiedLog) -> AppendQueue:
        """Return the queue of the log's disk thread, or one whose appends are made in the caller's turn."""
        if not isinstance(log.lock, SettledLock):
            return cls(log)
        queue = log.lock.queue
        assert isinstance(queue, cls)
        return queue

    @property
    def is_idle(self) -> bool:
        """Whether no append is in flight or waiting."""
        return not (self.in_flight or self.waiting or self.returned or self.aside)

    def is_settled(self, producer_id: int) -> bool:
        """Whether no append in flight changes this producer. Call with offsets_lock."""
        return not self.in_flight or (self.end is not None and producer_id not in self.producers)

    @property
    def is_under_way(self) -> bool:
        """Whether a disk thread may be at work on the log."""
        return bool(self.in_flight) or self.is_publishing

    # ---- the owner's side ---------------------------------------------------------------------------------

    def admit(self, append: QueuedAppend) -> bool:
        """Return whether it is the append's turn; otherwise `next` returns it when its turn comes."""
        if self.waiting or self.returned:
            self.waiting.append(append)
            return False
        if self.aside is not None and self.aside.must_precede(append):
            self.aside.add(append)
            return False
        return True

    def start(self, append: QueuedAppend, leader_epoch: int) -> int:
        """Give the append, whose turn it is, to the disk.

        Return LEFT if it needs a decision. The owner then calls `must_wait`, and makes the append itself or
        calls `hold_back`.
        """
        log = self.log
        with log.offsets_lock:
            if not self.in_flight:
                self.end = log.state.log_end_offset
                self.producers.clear()
            job = None if append.is_declined else append.make_job(log, self, leader_epoch)
            if job is None:
                return LEFT
            with log.step:
                if self.disk.submit(job, self.job_done, self.lane):
                    append.note(self, job)
                    return LEFT if job.status else MADE
            append.job = job
            self.in_flight.append(append)
            return IN_FLIGHT

    def hold_back(self, append: QueuedAppend) -> bool:
        """Keep the append, which was left to its owner, until its turn comes again. Return True if the owner
        may go on at once."""
        if append.check is not None:
            if self.disk.aside(append.check, partial(self._checked, append)):
                return True
            append.is_in_check = True
            self._put_aside(append)
            return False
        if self.in_flight:
            self._blocked = append
            self.waiting.insert(0, append)
            return False
        return True

    def must_wait(self, append: QueuedAppend) -> bool:
        """Return whether an append that was left to its owner cannot be made yet."""
        return append.check is not None or bool(self.in_flight)

    def take_back(self) -> Any:
        """Take back the oldest append in flight if its job is done or held. Return it if it is finished."""
        with self.log.offsets_lock:
            self._note_finished()
            if not self.noted:
                return None
            self.noted -= 1
            append = self.in_flight.pop(0)
            job = append.job
            # Release the job: it holds the records, and the owner may keep the append.
            append.job = None
            if job.status and not append.is_given_up:
                self.returned.append(append.come_back(not job.is_held))
        if self.returned and not self.in_flight:
            # All appends behind it have returned, too.
            self.disk.free(self.lane)
            # An append that was set aside may have to follow one that returned.
            self._take_back_aside()
            self.waiting[:0] = self.returned
            self.returned.clear()
        return None if job.status or append.is_given_up else append

    def next(self) -> Any:
        """Return the next append whose turn it is, or None."""
        while self.waiting and not self.returned:
            append = self.waiting[0]
            if append is self._blocked and self.in_flight:
                break
            del self.waiting[0]
            aside = self.aside
            if not append.is_in_check and (aside is None or not aside.must_precede(append)):
                return append
            self._put_aside(append)
        publish_soon(self)
        return None

    def give_up(self, error: KreplicaError) -> list[Any]:
        """Give up on all appends, since the log is offline; return them. Those in flight may yet be made."""
        self._take_back_aside()
        left = [each for each in (*self.in_flight, *self.returned, *self.waiting) if not each.is_given_up]
        self.returned.clear()
        self.waiting.clear()
        for append in left:
            append.is_given_up = True
            append.error = error
        return left

    def _put_aside(self, append: QueuedAppend) -> None:
        if self.aside is None:
            self.aside = _SetAside()
        self.aside.add(append)

    def _take_back_aside(self) -> None:
        """Move the appends that were set aside back to the front of the waiting ones."""
        if self.aside is not None:
            self.waiting[:0] = self.aside.appends
            self.aside = None

    def _checked(self, append: QueuedAppend) -> None:
        append.is_in_check = False
        self._take_back_aside()
        self._on_done(self)

    def job_done(self, _job: DiskJob) -> None:
        """Signal that a job of the queue is done."""
        self._on_done(self)

    # ---- the log's side -----------------------------------------------------------------------------------

    def wait(self) -> None:
        """Wait for the jobs that are in flight now; others may have begun by the time it returns."""
        self.disk.settle(self.lane)

    def settle(self) -> None:
        """Wait until no job of the log is in flight. Call with the log's lock held."""
        if self.is_under_way:
            self.disk.settle(self.lane)
            self._note_finished()

    def _note_finished(self) -> None:
        in_flight = self.in_flight
        while self.noted < len(in_flight):
            append = in_flight[self.noted]
            if not self.disk.is_finished(append.job):
                return
            self.noted += 1
            if not append.job.is_held:
                append.note(self, append.job)
