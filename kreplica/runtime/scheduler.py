"""Runs tasks later in one thread, as the Scheduler port.

A ThreadScheduler owns its thread, from `start` to `shutdown`. Without a thread the caller of `run_due` runs
the tasks, as tests do. Tasks run one after another, so they must not block. Thread rule: any thread may
schedule and cancel, also a task; `_changed` guards the tables and the wheel.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from kreplica._core.timing_wheel import TimingWheel
from kreplica.common.locks import Condition
from kreplica.common.ports import Clock, monotonic_ms
from kreplica.runtime.clock import SystemClock

# The longest single wait, to stay within the system's limits.
LONGEST_WAIT_MS = 3_600_000

OnError = Callable[[str, BaseException], None]


def log_error(name: str, error: BaseException) -> None:
    """Log a task's error; the default error handler."""
    logging.getLogger(__name__).error("the task %s failed", name, exc_info=error)


class ScheduledTask:
    """A task that runs at its time; `cancel` prevents further runs."""

    __slots__ = ("_scheduler", "deadline_ms", "name", "period_ms", "task", "ticket")

    def __init__(
        self, scheduler: ThreadScheduler, name: str, task: Callable[[], None], period_ms: int | None
    ) -> None:
        self._scheduler = scheduler
        self.name = name
        self.task = task
        self.period_ms = period_ms
        # Guarded by the scheduler's _changed. A ticket of None means that it will not run (again).
        self.deadline_ms = 0
        self.ticket: int | None = None

    def cancel(self) -> None:
        """Prevent further runs; a current run continues."""
        self._scheduler._cancel(self)


class ThreadScheduler:
    """Implements `kreplica.common.ports.Scheduler`.

    A task's error is reported to `on_error` (name, error), by default to the log; a periodic task continues
    with its next turn.
    """

    def __init__(self, clock: Clock | None = None, on_error: OnError = log_error) -> None:
        self._clock = clock or SystemClock()
        self._on_error = on_error
        self._changed = Condition()
        # Guarded by _changed:
        self._wheel = TimingWheel(start_ms=monotonic_ms(self._clock))
        self._tasks: dict[int, ScheduledTask] = {}  # waiting tasks, by ticket
        self._handles: dict[int, int] = {}  # handles in the wheel, by ticket
        self._tickets = 0
        self._thread: threading.Thread | None = None
        self._stopping = False

    def schedule(
        self, name: str, task: Callable[[], None], delay_ms: int, period_ms: int | None = None
    ) -> ScheduledTask:
        """Run `task` after `delay_ms`, then every `period_ms` if that is given."""
        scheduled = ScheduledTask(self, name, task, period_ms)
        with self._changed:
            self._add(scheduled, monotonic_ms(self._clock) + max(delay_ms, 0))
        return scheduled

    def __len__(self) -> int:
        """Return the number of waiting tasks."""
        with self._changed:
            return len(self._tasks)

    # ---- the thread ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread that runs tasks when they are due."""
        with self._changed:
            assert self._thread is None, "started already"
            self._thread = threading.Thread(target=self._run, name="kreplica-scheduler", daemon=True)
        self._thread.start()

    def shutdown(self) -> None:
        """Stop the thread after its current task; waiting tasks are dropped."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def run_due(self) -> int:
        """Run the due tasks; return the milliseconds until the next one, at most an hour."""
        for scheduled in self._take_due():
            self._run_one(scheduled)
        with self._changed:
            following = self._wheel.next_deadline()
            return LONGEST_WAIT_MS if following is None else self._until(following)

    def _run(self) -> None:
        while True:
            self.run_due()
            with self._changed:
                # Checked again under the lock, so that no task scheduled meanwhile is missed.
                following = self._wheel.next_deadline()
                wait_ms = LONGEST_WAIT_MS if following is None else self._until(following)
                if not self._stopping and wait_ms:
                    self._changed.wait(wait_ms / 1000)
                if self._stopping:
                    return

    def _take_due(self) -> list[ScheduledTask]:
        with self._changed:
            due = []
            for ticket in self._wheel.advance(monotonic_ms(self._clock)):
                scheduled = self._tasks.pop(ticket)
                del self._handles[ticket]
                due.append(scheduled)
            return sorted(due, key=lambda scheduled: scheduled.deadline_ms)

    def _run_one(self, scheduled: ScheduledTask) -> None:
        with self._changed:
            # A task that ran earlier in this turn may have cancelled it.
            if self._stopping or scheduled.ticket is None:
                return
        try:
            scheduled.task()
        except Exception as error:
            self._on_error(scheduled.name, error)
        with self._changed:
            if scheduled.period_ms is None:
                scheduled.ticket = None
            elif scheduled.ticket is not None:
                # At a fixed rate, but missed turns are skipped.
                following, now_ms = scheduled.deadline_ms + scheduled.period_ms, monotonic_ms(self._clock)
                self._add(scheduled, following if following > now_ms else now_ms + scheduled.period_ms)

    # ---- under the lock -----------------------------------------------------------------------------------

    def _add(self, scheduled: ScheduledTask, deadline_ms: int) -> None:
        self._tickets += 1
        scheduled.deadline_ms, scheduled.ticket = deadline_ms, self._tickets
        self._tasks[self._tickets] = scheduled
        self._handles[self._tickets] = self._wheel.add(deadline_ms, self._tickets)
        self._changed.notify()

    def _cancel(self, scheduled: ScheduledTask) -> None:
        with self._changed:
            ticket, scheduled.ticket = scheduled.ticket, None
            if ticket is not None and self._tasks.pop(ticket, None) is not None:
                self._wheel.cancel(self._handles.pop(ticket))

    def _until(self, deadline_ms: int) -> int:
        return min(max(deadline_ms - monotonic_ms(self._clock), 0), LONGEST_WAIT_MS)


THREADS_A_CORE = 4


class ThreadWorkers:
    """Runs tasks in `threads` threads, which live for one `run`.

    The default is several per core, because most of these tasks wait for the disk, and flushes that wait at
    the same time cost the disk little more than one.
    """

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or THREADS_A_CORE * (os.cpu_count() or 1)

    def run(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Run all tasks; see the port. A single task runs in the caller's thread, and so do those that come
        at the interpreter's end, when no thread can start."""
        if len(tasks) == 1:
            tasks[0]()
            return
        futures: list[Future[None]] = []
        with ThreadPoolExecutor(min(self._threads, max(1, len(tasks))), "kreplica-worker") as pool:
            for task in tasks:
                try:
                    futures.append(pool.submit(task))
                except RuntimeError:
                    futures.append(_run_here(task))
        for future in futures:
            future.result()


def _run_here(task: Callable[[], None]) -> Future[None]:
    done: Future[None] = Future()
    try:
        task()
    except Exception as error:
        done.set_exception(error)
    else:
        done.set_result(None)
    return done
