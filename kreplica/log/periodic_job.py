"""The periodic work of a LogManager: PeriodicJob runs a step again and again, each time after the delay that
the step asked for; the other classes are steps.

A job waits in the Scheduler port and has no thread. Its steps are short; a job over all logs visits a few
logs per step. Thread rule: the scheduler's thread runs the steps; any thread may start or stop a job and read
its record. `_lock` is held during a step, so no step runs after `stop` has returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from kreplica.common.dataclass import dataclass, field
from kreplica.common.locks import RLock
from kreplica.common.ports import Cancellable, Clock, Scheduler, monotonic_ms
from kreplica.common.types import TopicPartition
from kreplica.log.unified_log import UnifiedLog

# The number of logs that a sweep visits in one step.
LOGS_AT_ONCE = 50
# The number of producers to check in one step, which holds the log's lock.
PRODUCERS_AT_ONCE = 10_000


Visit = Callable[[UnifiedLog], Iterator[object] | None]


@dataclass(slots=True)
class JobRecord:
    """The record of a job: its steps, their durations in ms, and the logs that failed, with the reasons.

    `last_run_ms`: when the last step began, in ms since 1970.
    """

    runs: int = 0
    failures: int = 0
    last_run_ms: int = -1
    last_duration_ms: float = 0.0
    longest_duration_ms: float = 0.0
    total_duration_ms: float = 0.0
    failed: dict[TopicPartition, str] = field(default_factory=dict)


class PeriodicJob:
    """Runs `step()`, a bounded piece of work that returns the milliseconds until the next step.

    After an exception, the next step follows in `retry_ms`. The scheduler reports the exception.
    """

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
        """Schedule the first step in `delay_ms`."""
        with self._lock:
            self._timer = self._scheduler.schedule(self.name, self._run, delay_ms)

    def stop(self) -> None:
        """Cancel all further steps, and wait for a running one to finish."""
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
    """A job step that visits every log once per `period_ms`, a few at a time.

    `visit(log)` may return an iterator: each item ends a step, and the next step goes on with the same log.
    A log that fails is recorded in `failed`, and the round continues with the others. The first error is
    raised at the end of the round.
    """

    def __init__(
        self,
        logs: Callable[[], Iterable[UnifiedLog]],
        visit: Visit,
        period_ms: int,
        clock: Clock,
    ) -> None:
        self.failed: dict[TopicPartition, str] = {}
        self._logs = logs
        self._visit = visit
        self._period_ms = period_ms
        self._clock = clock
        # The current round: the remaining logs, the rest of the last one's visit, its start, its first error.
        self._left: list[UnifiedLog] = []
        self._rest: Iterator[object] | None = None
        self._began_ms = 0
        self._error: Exception | None = None

    def __call__(self) -> int:
        now_ms = monotonic_ms(self._clock)
        if not self._left:
            self._left, self._began_ms, self._error = list(self._logs()), now_ms, None
        for _ in range(min(LOGS_AT_ONCE, len(self._left))):
            if not self._visit_one(self._left[-1]):
                return 0
            self._left.pop()
        if self._left:
            return 0
        if self._error is not None:
            raise self._error
        return self._began_ms + self._period_ms - now_ms

    def _visit_one(self, log: UnifiedLog) -> bool:
        """Visit the log; return False if the visit has to go on in the next step."""
        begun, self._rest = self._rest, None
        try:
            rest = begun or self._visit(log) or iter(())
            for _ in rest:
                self._rest = rest
                return False
        except Exception as error:
            error.add_note(f"log: {log.topic_partition}")
            self.failed[log.topic_partition] = f"{type(error).__name__}: {error}"
            self._error = self._error or error
        else:
            self.failed.pop(log.topic_partition, None)
        return True


class IdleLogs:
    """Releases the system resources of idle logs, such as mappings and descriptors.

    The next read of a closed segment maps it again. The active segment is released only if nothing was
    appended since the last visit.
    """

    def __init__(self) -> None:
        self._ends: dict[TopicPartition, int] = {}

    def visit(self, log: UnifiedLog) -> None:
        end = log.log_end_offset
        if self._ends.get(log.topic_partition) == end:
            log.idle()
        else:
            with log.lock:
                for segment in list(log.local.segments)[:-1]:
                    segment.idle()
        self._ends[log.topic_partition] = end


def expire_producers(log: UnifiedLog) -> Iterator[None]:
    """Remove producers that have been idle for `producer.id.expiration.ms`.

    Checks PRODUCERS_AT_ONCE under the log's lock, and yields if there may be more (Kafka:
    PeriodicProducerExpirationCheck).
    """
    with log.lock:
        left = list(log.producers.active_producers)
    while left:
        some = left[-PRODUCERS_AT_ONCE:]
        del left[-PRODUCERS_AT_ONCE:]
        with log.lock:
            log.producers.remove_expired(log.time_ms(), some)
        if len(some) == PRODUCERS_AT_ONCE:
            yield


def delete_old(log: UnifiedLog) -> int:
    """Delete old segments and idle producers of a log without a LogManager; return the number of segments.

    Appends may run in between.
    """
    gone = log.delete_old_segments()
    for _ in expire_producers(log):
        pass
    return gone
