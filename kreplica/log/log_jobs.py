"""The periodic work of a LogManager: what runs how often.

Names and intervals are Kafka's, but for scrubbing and idling, which it has not. High watermarks are written
by whoever moves them, the ReplicaManager. Thread rule: as periodic_job.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kreplica.common.ports import Clock, Scheduler
from kreplica.common.types import TopicPartition
from kreplica.log.periodic_job import PeriodicJob, Sweep
from kreplica.log.unified_log import UnifiedLog

if TYPE_CHECKING:
    from kreplica.log.log_manager import LogManager

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
