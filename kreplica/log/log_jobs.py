"""Steps of the LogManager's periodic jobs: release idle logs, and expire idle producers.

The LogManager sets the periods. Thread rule: as for periodic_job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kreplica.common.ports import Clock
from kreplica.common.types import TopicPartition
from kreplica.log.periodic_job import LOGS_AT_ONCE
from kreplica.log.unified_log import UnifiedLog

# The number of producers to check in one step, which holds the log's lock.
PRODUCERS_AT_ONCE = 10_000


class IdleLogs:
    """Releases the system resources of idle logs, such as mappings and descriptors.

    The next read of a closed segment maps it again. The active segment is released only if nothing was
    appended since the last visit.
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
    """A job step that removes producers that have been idle for `producer.id.expiration.ms`.

    It checks every producer of every log once per `period_ms` (Kafka: PeriodicProducerExpirationCheck).
    """

    __slots__ = ("_began_ms", "_clock", "_log", "_logs", "_logs_left", "_period_ms", "_producers_left")

    def __init__(self, logs: Callable[[], Iterable[UnifiedLog]], clock: Clock, period_ms: int) -> None:
        self._logs = logs
        self._clock = clock
        self._period_ms = period_ms
        # The current round: its start time, the remaining logs, the current log and its remaining producers.
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
        """Check some producers of the current log; return whether that used up the step."""
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
    """Delete old segments and idle producers of a log without a LogManager; return the number of segments.

    Producers expire as in ProducerExpiration. Appends may run in between.
    """
    gone = log.delete_old_segments()
    with log.lock:
        left = list(log.producers.active_producers)
    for start in range(0, len(left), PRODUCERS_AT_ONCE):
        with log.lock:
            log.producers.remove_expired(log.time_ms(), left[start : start + PRODUCERS_AT_ONCE])
    return gone
