"""When a log's bytes reach the disk: flushes that many appends share, and what an append waits for.

A flush runs outside the log's lock, so that appends go on meanwhile; what it may count as flushed is noted
under the lock before and after. Thread rule: any thread may flush; GroupCommit lets one do it for all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kreplica._core.disk_thread import FlushJob
from kreplica._core.log_append_info import LogAppendInfo
from kreplica.common.errors import KreplicaError
from kreplica.common.ports import Clock
from kreplica.log import truncation
from kreplica.log.group_commit import GroupCommit

if TYPE_CHECKING:
    from kreplica.log.unified_log import UnifiedLog


class LogFlusher:
    """Flushes `log`, which owns it, by the durability that the log's configuration names."""

    __slots__ = ("_bound", "_clock", "_commit", "_flushed_at_ms", "_log")

    def __init__(self, log: UnifiedLog, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._flushed_at_ms = clock.time_ms()
        # What a flush that is under way may count as flushed: a truncation meanwhile lowers it. Guarded by
        # the log's lock.
        self._bound = 0
        self._commit = GroupCommit(self._flush_to_end, log.state.flush_offset)

    def make_durable(self, info: LogAppendInfo) -> None:
        """Return when the append is as safe as the configuration wants it."""
        log = self._log
        config = log.config
        if config.durability != "page_cache":
            truncation.require_kept(self._commit.wait(info.last_offset + 1), info.base_offset)
        elif log.log_end_offset - log.flush_offset >= config.flush_messages:
            log.flush()
        else:
            log.flush_if_due(self._clock.time_ms())

    def flush(self) -> int:
        """As UnifiedLog.flush."""
        end = self._log.log_end_offset
        self._commit.wait(end)
        return end

    def flush_if_due(self, now_ms: int) -> None:
        """As UnifiedLog.flush_if_due."""
        log = self._log
        due = now_ms - self._flushed_at_ms >= log.config.flush_ms
        if due and log.flush_offset < log.log_end_offset:
            self._flushed_at_ms = now_ms
            log.flush()

    def _flush_to_end(self) -> int:
        log = self._log
        with log.offsets_lock:
            self._bound = log.state.log_end_offset
        try:
            # With it the flush point of the commit before: it is never further behind on disk.
            log.local.flush(log.state.flush_offset, along=log.state.region if log.durable else None)
        except KreplicaError as error:
            log.fail(error)
            raise
        with log.offsets_lock:
            # A truncation may have come in between: only what still stands counts.
            end = self._bound
            log.state.update(flush_offset=max(log.state.flush_offset, end))
        return end

    def flush_job(self) -> tuple[FlushJob, Callable[[], None]] | None:
        """A job for a disk thread that flushes the log up to its end of now, and what to call when it is
        done, which raises as `flush`; None where more than the active segment has to be flushed.
        """
        log = self._log
        if not self._is_active_enough():
            return None
        with log.offsets_lock:
            end, cuts = log.state.log_end_offset, log.state.cuts
        job = FlushJob(log.active.region)

        def finish() -> None:
            try:
                job.require_done()
            except KreplicaError as error:
                log.fail(error)
                raise
            with log.offsets_lock:
                is_kept = log.state.cuts == cuts
                if is_kept:
                    log.state.update(flush_offset=max(log.state.flush_offset, end))
            if not is_kept:
                # Something else may be there by now, which the job did not see.
                log.flush()

        return job, finish

    def flush_alone(self) -> bool:
        """As `flush`, for a log that one thread appends to, cuts and flushes: nobody shares it, so nobody is
        told. False, and nothing is done, where more than the active segment has to be flushed.
        """
        log = self._log
        if log.local.read_only or not self._is_active_enough():
            return False
        if log.state.flush_offset >= log.state.log_end_offset:
            return True
        try:
            log.active.region.flush()
        except KreplicaError as error:
            log.fail(error)
            raise
        with log.offsets_lock:
            log.state.update(flush_offset=log.state.log_end_offset)
        return True

    def _is_active_enough(self) -> bool:
        # Whether all that is not on disk yet is in the active segment's own file.
        log, active = self._log, self._log.active
        from_offset = log.state.flush_offset
        return (
            from_offset > active.base_offset
            and not log.local.names_changed
            and active.transaction_index is None
        )

    def truncated(self, end: int) -> None:
        """The log now ends at `end`, also for a flush that is under way; under the log's lock."""
        self._bound = min(self._bound, end)
        self._commit.truncated(end)

    def flush_state(self) -> None:
        """As UnifiedLog.flush_state."""
        region = self._log.state.region
        if region is not None:
            try:
                region.flush()
            except KreplicaError as error:
                self._log.fail(error)
                raise
