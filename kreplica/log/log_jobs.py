"""The periodic work of a LogManager: what runs how often.

Names and intervals are Kafka's, but for scrubbing and idling, which it has not. High watermarks are written
by whoever moves them, the ReplicaManager. Thread rule: as periodic_job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kreplica.common.ports import Clock, Scheduler
from kreplica.common.types import TopicPartition
from kreplica.log.periodic_job import LOGS_AT_ONCE, PeriodicJob, Sweep
from kreplica.log.unified_log import UnifiedLog

if TYPE_CHECKING:
    from kreplica.log.log_manager import LogManager

# How many producers of a log are looked at in one step, which holds the log's lock.
PRODUCERS_AT_ONCE = 10_000
# After an error nobody expected, a job that names its own pace rests so long.
REST_MS = 15_000


def made(manager: LogManager, scheduler: Scheduler, clock: Clock) -> list[PeriodicJob]:
    """The jobs of `manager`, not started; its LogManagerConfig says when."""
    settings = manager.settings

    def sweep(name: str, visit: Callable[[UnifiedLog], object], period_ms: int) -> PeriodicJob:
        step = Sweep(manager.logs, lambda log: manager.upkeep(log, visit), period_ms, clock)
        job = PeriodicJob(name, step, scheduler, clock, period_ms)
        job.record.failed = step.failed
        return job

    def checkpoint(name: str, write: Callable[[], None], period_ms: int) -> PeriodicJob:
        def step() -> int:
            write()
            return period_ms

        return PeriodicJob(name, step, scheduler, clock, period_ms)

    def flush(log: UnifiedLog) -> None:
        log.flush_if_due(clock.time_ms())

    jobs = [
        sweep("log-retention", UnifiedLog.delete_old_segments, settings.log_retention_check_interval_ms),
        sweep("log-flusher", flush, settings.log_flush_scheduler_interval_ms),
        checkpoint(
            "recovery-point-checkpoint",
            manager.checkpoint_recovery_points,
            settings.log_flush_offset_checkpoint_interval_ms,
        ),
        checkpoint(
            "log-start-offset-checkpoint",
            manager.checkpoint_log_starts,
            settings.log_flush_start_offset_checkpoint_interval_ms,
        ),
        sweep("log-idling", IdleLogs().visit, settings.log_idle_ms),
        PeriodicJob(
            "producer-expiration",
            ProducerExpiration(manager.logs, clock, settings.producer_id_expiration_check_interval_ms),
            scheduler,
            clock,
            settings.producer_id_expiration_check_interval_ms,
        ),
        PeriodicJob("log-cleaner", manager.cleaner.do_work, scheduler, clock, REST_MS),
    ]
    if settings.log_scrub_enable:
        jobs.append(PeriodicJob("log-scrubber", manager.scrubber.do_work, scheduler, clock, REST_MS))
    return jobs


class IdleLogs:
    """Lets go of what logs hold of the system while nobody needs it.

    Closed segments come back with their next read, at the price of a mapping; the active one only goes where
    nothing was appended since the last visit.
    """

    __slots__ = ("_ends",)

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


class ProducerExpiration:
    """A step of a job that forgets producers which have written nothing for `producer.id.expiration.ms`.

    It looks at every producer of every log once in `period_ms` (Kafka: PeriodicProducerExpirationCheck).
    """

    __slots__ = ("_began_ms", "_clock", "_log", "_logs", "_logs_left", "_period_ms", "_producers_left")

    def __init__(self, logs: Callable[[], Iterable[UnifiedLog]], clock: Clock, period_ms: int) -> None:
        self._logs = logs
        self._clock = clock
        self._period_ms = period_ms
        # The round that is under way: when it began, the logs that are left, the log whose turn it is, and
        # its producers that are left.
        self._began_ms = 0
        self._logs_left: list[UnifiedLog] = []
        self._log: UnifiedLog | None = None
        self._producers_left: list[int] = []

    def __call__(self) -> int:
        now_ms = self._clock.monotonic_ns() // 1_000_000
        if self._log is None and not self._logs_left:
            self._logs_left, self._began_ms = list(self._logs()), now_ms
        for _ in range(LOGS_AT_ONCE):
            if not self._has_log() or self._forget_some():
                break
        if self._log is not None or self._logs_left:
            return 0
        return self._began_ms + self._period_ms - now_ms

    def _has_log(self) -> bool:
        if self._log is None and self._logs_left:
            self._log = self._logs_left.pop()
            with self._log.lock:
                self._producers_left = list(self._log.producers.active_producers)
        return self._log is not None

    def _forget_some(self) -> bool:
        """Look at some producers of the log whose turn it is; whether as many as a step may."""
        log = self._log
        assert log is not None
        some = self._producers_left[-PRODUCERS_AT_ONCE:]
        del self._producers_left[-PRODUCERS_AT_ONCE:]
        if some:
            with log.lock:
                log.producers.remove_expired(self._clock.time_ms(), some)
        if not self._producers_left:
            self._log = None
        return len(some) == PRODUCERS_AT_ONCE


def delete_old(log: UnifiedLog) -> int:
    """Delete old segments of a log that no LogManager has, and forget its idle producers as
    ProducerExpiration does; appends go on in between. Returns the number of segments.
    """
    gone = log.delete_old_segments()
    with log.lock:
        left = list(log.producers.active_producers)
    for start in range(0, len(left), PRODUCERS_AT_ONCE):
        with log.lock:
            log.producers.remove_expired(log.time_ms(), left[start : start + PRODUCERS_AT_ONCE])
    return gone
