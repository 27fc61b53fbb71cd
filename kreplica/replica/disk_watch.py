"""DiskWatch: notices that a disk stands still, while the loop that asks goes on.

Each log directory has a disk thread of its own. Where one has been at the same work for longer than
`log.dir.stall.timeout.ms`, its directory is offline from then on, as after an error: the next heartbeat
tells the controller, which moves the leaders away. Whoever waits for an append there is answered, though it
may still be made. Thread rule: the loop.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from kreplica.common.errors import StorageIOError
from kreplica.common.ports import Cancellable, Loop
from kreplica.log.log_manager import LogManager

LOGGER = logging.getLogger(__name__)

# How often it is looked in the time that a disk is given.
LOOKS = 10


class DiskWatch:
    """Watches the disks of the directories of `log_manager`. `on_failure(path, error)`: one of them is
    offline."""

    def __init__(
        self, log_manager: LogManager, loop: Loop, on_failure: Callable[[str, BaseException], None]
    ) -> None:
        self._log_manager = log_manager
        self._loop = loop
        self._on_failure = on_failure
        self._limit_ms = log_manager.settings.log_dir_stall_timeout_ms
        self._timer: Cancellable | None = None

    def start(self) -> None:
        """Begin to look; nothing happens where nobody but the loop itself waits for the disks."""
        if self._log_manager.disk is not None:
            self._timer = self._loop.post_later(self._look, max(1, self._limit_ms // LOOKS))

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        disk = self._log_manager.disk
        assert disk is not None
        for path in list(self._log_manager.directory_ids):
            waiting_ms = disk(path).waiting_ms
            if waiting_ms > self._limit_ms:
                self._give_up(path, waiting_ms)
        self.start()

    def _give_up(self, path: str, waiting_ms: float) -> None:
        error = StorageIOError(f"{path}: its disk has been at one append for {waiting_ms:.0f} ms")
        LOGGER.error("%s", error)
        logs = [log for log in self._log_manager.logs() if os.path.dirname(log.local.directory) == path]
        self._on_failure(path, error)
        for log in logs:
            if log.queue is not None:
                log.queue.give_up(error)
