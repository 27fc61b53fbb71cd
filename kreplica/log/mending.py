"""Mending a log of which an exception from outside has broken a change off; _core/log_lock.pxd says when.

What such a change leaves is what a crash of the process at that point would leave. So the log is opened once
more from its files, and stands from then on where recovery says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kreplica.log.unified_log import UnifiedLog


def mend(log: UnifiedLog) -> None:
    """Let the log go on; its lock is held. Raises as `log_loader.load`, and may be called again then."""
    if not (log.closed or log.is_offline or log.local.read_only or log.opened_again is None):
        if log.queue is not None:
            log.queue.settle()
        _stand_as(log, log.opened_again(log))
    log.choose_path()


def _stand_as(log: UnifiedLog, opened: UnifiedLog) -> None:
    if log.queue is not None:
        opened.state.share()
    log.local, log.state, log.active = opened.local, opened.state, opened.active
    log.epochs, log.leader_epoch = opened.epochs, opened.leader_epoch
    log.producers, log.damages, log.stopped_at = opened.producers, opened.damages, opened.stopped_at
    log.flusher.truncated(log.state.log_end_offset)
    log.configure(log.config)
