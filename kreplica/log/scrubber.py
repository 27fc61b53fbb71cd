"""Scrubber: slowly rereads the closed segments of all logs, to find rot before the bytes are needed.

Kafka has no scrubber, and serves rotted records below its recovery point. A scrubber checks log after log and
segment after segment in steps of at most STEP_BYTES, and rests at the end of a round. It reports damage to
the log (see damage_search.py), which stays online. A log that it cannot read is passed to `on_error` and
skipped until the next round.

It has no thread and no clock: its owner calls `do_work`, and again after the milliseconds that it returns.
Where the system allows it, the reads do not stay in the page cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from kreplica.common.config import LogManagerConfig
from kreplica.common.errors import KreplicaError
from kreplica.common.ports import Clock, monotonic_ms
from kreplica.common.types import TopicPartition
from kreplica.log.damage_search import SegmentExamination
from kreplica.log.unified_log import UnifiedLog

STEP_BYTES = 8 << 20

Logs = Callable[[], Iterable[UnifiedLog]]
OnError = Callable[[UnifiedLog, Exception], None]


class ScrubberStatus(NamedTuple):
    """The totals of a scrubber since its creation, and the position of its current round."""

    rounds: int
    segments: int
    bytes: int
    damages: int
    started_at_ms: int | None
    at: TopicPartition | None


class Scrubber:
    """Scrubs the logs that `logs()` returns. Thread rule: one thread at a time calls `do_work`."""

    def __init__(self, logs: Logs, clock: Clock, on_error: OnError, config: LogManagerConfig) -> None:
        self._logs = logs
        self.clock = clock
        self.on_error = on_error
        self._config = config
        self._rounds = self._segments = self._bytes = self._damages = 0
        # The current round: its start time, and the remaining logs in reverse order.
        self._started_at_ms: int | None = None
        self._left: list[UnifiedLog] = []
        self._examination: SegmentExamination | None = None
        # In the current log, the segments below this base offset are done.
        self._done_below = 0

    @property
    def status(self) -> ScrubberStatus:
        at = self._left[-1].topic_partition if self._left else None
        done = self._rounds, self._segments, self._bytes, self._damages
        return ScrubberStatus(*done, self._started_at_ms, at)

    def do_work(self) -> int:
        """Run one step; return the milliseconds until the next one is due."""
        now_ms, interval_ms = monotonic_ms(self.clock), self._config.log_scrub_interval_ms
        if not self._left:
            if self._started_at_ms is not None and now_ms - self._started_at_ms < interval_ms:
                return self._started_at_ms + interval_ms - now_ms
            self._begin(now_ms)
        before = self._bytes
        while self._left and self._bytes == before:
            self._step(self._left[-1])
        rest_ms = (self._bytes - before) * 1000 // self._config.log_scrub_max_bytes_per_second
        if not self._left:
            self._rounds += 1
            assert self._started_at_ms is not None
            rest_ms = max(rest_ms, self._started_at_ms + interval_ms - now_ms)
        return max(1, rest_ms)

    def _begin(self, now_ms: int) -> None:
        self._started_at_ms = now_ms
        self._left = sorted(self._logs(), key=lambda log: log.topic_partition, reverse=True)
        self._examination, self._done_below = None, 0

    def _step(self, log: UnifiedLog) -> None:
        self._examination = self._examination or self._next_segment(log)
        if self._examination is None:
            self._go_on()
            return
        try:
            self._examine(log, self._examination)
        except KreplicaError as error:
            # If retention, truncation or the cleaner has removed the segment meanwhile, this is no error.
            there = not log.closed and log.following_offset(self._examination.segment) is not None
            self._examination = None
            if there:
                self._go_on()
                self.on_error(log, error)

    def _go_on(self) -> None:
        self._left.pop()
        self._examination, self._done_below = None, 0

    def _examine(self, log: UnifiedLog, examination: SegmentExamination) -> None:
        before = examination.read_to
        damage = examination.step(STEP_BYTES)
        self._bytes += max(0, examination.read_to - before)
        if examination.is_done:
            self._segments += 1
            self._done_below = examination.segment.base_offset + 1
            self._examination = None
        if damage is not None and log.report_damage(examination.segment, damage):
            self._damages += 1

    def _next_segment(self, log: UnifiedLog) -> SegmentExamination | None:
        # The first closed segment not done yet. The segments may have changed since the last step.
        if log.closed or log.local.read_only:
            return None
        segments = log.local.segments
        for index in range(len(segments) - 1):
            if segments[index].base_offset >= self._done_below:
                following = segments[index + 1].base_offset
                return SegmentExamination(
                    segments[index],
                    following,
                    log.epochs,
                    log.damages,
                    may_have_gaps=log.state.has_gaps,
                )
        return None
