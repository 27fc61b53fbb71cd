"""Scrubber: reads the closed segments of all logs again, slowly, so that rot is found before somebody needs
the bytes.

Kafka has nothing like it and serves what rotted below its recovery point. A scrubber goes from log to log and
from segment to segment in steps of at most STEP_BYTES, and rests when it has seen all. What it finds is told
to the log (see damage_search), which goes on; a log that it cannot read is named to `on_error` and left out
until the next round. It has no thread and no clock: whoever owns it calls `do_work`, and again after as many
milliseconds as that returns. What it reads leaves no trace in the page cache where the system allows that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from kreplica.common.config import LogManagerConfig
from kreplica.common.errors import KreplicaError
from kreplica.common.ports import Clock
from kreplica.common.types import TopicPartition
from kreplica.log.damage_search import SegmentExamination
from kreplica.log.unified_log import UnifiedLog

STEP_BYTES = 8 << 20

Logs = Callable[[], Iterable[UnifiedLog]]
OnError = Callable[[UnifiedLog, Exception], None]


class ScrubberStatus(NamedTuple):
    """What a scrubber has done since it was made, and how far its round is."""

    rounds: int
    segments: int
    bytes: int
    damages: int
    started_at_ms: int | None
    at: TopicPartition | None


class Scrubber:
    """Scrubs what `logs()` gives; owned by whoever calls `do_work`, one thread at a time."""

    def __init__(self, logs: Logs, clock: Clock, on_error: OnError, config: LogManagerConfig) -> None:
        self._logs = logs
        self.clock = clock
        self.on_error = on_error
        self._config = config
        self._rounds = self._segments = self._bytes = self._damages = 0
        # The round that is under way: when it began, the logs that are left, the last one first.
        self._started_at_ms: int | None = None
        self._left: list[UnifiedLog] = []
        self._examination: SegmentExamination | None = None
        # Of the log whose turn it is: segments below this base offset are done.
        self._done_below = 0

    @property
    def status(self) -> ScrubberStatus:
        at = self._left[-1].topic_partition if self._left else None
        done = self._rounds, self._segments, self._bytes, self._damages
        return ScrubberStatus(*done, self._started_at_ms, at)

    def do_work(self) -> int:
        """Take one step; the milliseconds until the next one is due."""
        now_ms, interval_ms = self.clock.monotonic_ns() // 1_000_000, self._config.log_scrub_interval_ms
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
            # Retention, a cut or the cleaner may have taken the segment under our eyes: then it is no fault.
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
        # The first closed segment that is left. Retention, a roll or the cleaner may have come in between.
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
