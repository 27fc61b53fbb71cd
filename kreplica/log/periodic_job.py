"""Work that comes back: a step that is taken again after as many milliseconds as it asks for, and its record.

A job waits in the Scheduler port and has no thread. Its steps are short; one that goes over all logs takes
some at a time. Thread rule: the scheduler's thread runs the steps; any thread may start and stop a job and
read its record. `_lock` is held during a step, so that none runs when `stop` has returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kreplica.common.locks import RLock
from kreplica.common.ports import Cancellable, Clock, Scheduler
from kreplica.common.types import TopicPartition
from kreplica.log.unified_log import UnifiedLog

# How many logs a sweep visits before it lets others have their turn.
LOGS_AT_ONCE = 50


@dataclass(slots=True)
class JobRecord:
    """What a job has done: counts of steps, times in milliseconds (`last_run_ms` since 1970), and the logs
    that it last failed for, with the reason."""

    runs: int = 0
    failures: int = 0
    last_run_ms: int = -1
    last_duration_ms: float = 0.0
    longest_duration_ms: float = 0.0
    total_duration_ms: float = 0.0
    failed: dict[TopicPartition, str] = field(default_factory=dict)


class PeriodicJob:
    """`step()` does a bounded piece of work and returns after how many milliseconds it wants to go on.

    One that raises goes on after `retry_ms`; the error goes on to the scheduler, which reports it.
    """

    __slots__ = ("_clock", "_lock", "_retry_ms", "_scheduler", "_step", "_timer", "name", "record")

    def __init__(
        self, name: str, step: Callable[[], int], scheduler: Scheduler, clock: Clock, retry_ms: int
    ) -> None:
        self.name = name
        self.record = JobRecord()
        self._step = step
        self._scheduler = scheduler
        self._clock = clock
        self._retry_ms = retry_ms
        self._lock = RLock()
        # Guarded by _lock; None while the job is stopped.
        self._timer: Cancellable | None = None

    def start(self, delay_ms: int) -> None:
        """Take the first step after `delay_ms`."""
        with self._lock:
            self._timer = self._scheduler.schedule(self.name, self._run, delay_ms)

    def stop(self) -> None:
        """Take no step any more; returns when one that is under way is done."""
        with self._lock:
            timer, self._timer = self._timer, None
            if timer is not None:
                timer.cancel()

    def _run(self) -> None:
        with self._lock:
            if self._timer is None:
                return
            record, began_ns, delay_ms = self.record, self._clock.monotonic_ns(), self._retry_ms
            record.runs += 1
            record.last_run_ms = self._clock.time_ms()
            try:
                delay_ms = self._step()
            except Exception:
                record.failures += 1
                raise
            finally:
                record.last_duration_ms = (self._clock.monotonic_ns() - began_ns) / 1e6
                record.longest_duration_ms = max(record.longest_duration_ms, record.last_duration_ms)
                record.total_duration_ms += record.last_duration_ms
                self._timer = self._scheduler.schedule(self.name, self._run, max(1, delay_ms))


class Sweep:
    """A step of a job that visits every log once in `period_ms`, some at a time.

    A log that fails is named in `failed`, and the others are visited all the same; the first error is raised
    at the end of the round.
    """

    __slots__ = ("_began_ms", "_clock", "_error", "_left", "_logs", "_period_ms", "_visit", "failed")

    def __init__(
        self,
        logs: Callable[[], Iterable[UnifiedLog]],
        visit: Callable[[UnifiedLog], object],
        period_ms: int,
        clock: Clock,
    ) -> None:
        self.failed: dict[TopicPartition, str] = {}
        self._logs = logs
        self._visit = visit
        self._period_ms = period_ms
        self._clock = clock
        # The round that is under way: what is left of it, when it began, its first error.
        self._left: list[UnifiedLog] = []
        self._began_ms = 0
        self._error: Exception | None = None

    def __call__(self) -> int:
        now_ms = self._clock.monotonic_ns() // 1_000_000
        if not self._left:
            self._left, self._began_ms, self._error = list(self._logs()), now_ms, None
        for _ in range(min(LOGS_AT_ONCE, len(self._left))):
            self._visit_one(self._left.pop())
        if self._left:
            return 0
        if self._error is not None:
            raise self._error
        return self._began_ms + self._period_ms - now_ms

    def _visit_one(self, log: UnifiedLog) -> None:
        try:
            self._visit(log)
        except Exception as error:
            error.add_note(f"log: {log.topic_partition}")
            self.failed[log.topic_partition] = f"{type(error).__name__}: {error}"
            self._error = self._error or error
        else:
            self.failed.pop(log.topic_partition, None)
