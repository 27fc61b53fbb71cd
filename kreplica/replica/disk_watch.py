"""DiskWatch: detects a disk that hangs while the loop goes on.

Each log directory has a disk thread of its own. If one has been busy with the same operation for longer than
`log.dir.stall.timeout.ms`, its directory goes offline, as after an error. The next heartbeat notifies the
controller, which moves the leaders away. Appends that wait there are answered, although they may still be
made. Thread rule: the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kreplica.common.errors import KreplicaError, StorageIOError
from kreplica.common.ports import Cancellable, Loop
from kreplica.log.log_manager import LogManager

LOGGER = logging.getLogger(__name__)

# How many checks are made in the time that a disk has.
LOOKS = 10


class DiskWatch:
    """Watches the disks of the directories of `log_manager`. `on_failure(path, error)`: one hangs."""

    def __init__(
        self, log_manager: LogManager, loop: Loop, on_failure: Callable[[str, KreplicaError], None]
    ) -> None:
        self._log_manager = log_manager
        self._loop = loop
        self._on_failure = on_failure
        self._limit_ms = log_manager.settings.log_dir_stall_timeout_ms
        self._timer: Cancellable | None = None

    def start(self) -> None:
        """Start the checks, unless the loop itself makes the appends and there are no disk threads."""
        if self._log_manager.disk is not None:
            self._timer = self._loop.post_later(self._look, max(1, self._limit_ms // LOOKS))

    def stop(self) -> None:
        """Stop the checks."""
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
        error = StorageIOError(f"{path}: the disk has hung in one append for {waiting_ms:.0f} ms")
        LOGGER.error("%s", error)
        self._on_failure(path, error)
