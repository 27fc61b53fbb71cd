"""Open logs in a temporary directory, under a clock that a test sets."""

from __future__ import annotations

from pathlib import Path

from kreplica.common.config import LogConfig
from kreplica.common.errors import KreplicaError
from kreplica.common.types import TopicPartition, Uuid
from kreplica.log import log_loader
from kreplica.log.log_loader import NewLog, OpenOptions
from kreplica.log.log_manager import LogManager
from kreplica.log.unified_log import UnifiedLog
from kreplica.runtime.storage import FileStorage

NOW_MS = 1_700_000_000_000


class ManualClock:
    """A clock that only advances when a test moves it."""

    def __init__(self, now_ms: int = NOW_MS) -> None:
        self.now_ms = now_ms

    def time_ms(self) -> int:
        return self.now_ms

    def monotonic_ns(self) -> int:
        return self.now_ms * 1_000_000


class OtherBoot(FileStorage):
    """The machine's files after a restart of the machine."""

    def boot_id(self) -> str:
        return "11111111-2222-3333-4444-555555555555"


def open_log(
    path: Path | str,
    clock: ManualClock | None = None,
    *,
    storage: FileStorage | None = None,
    options: OpenOptions | None = None,
    **settings: object,
) -> UnifiedLog:
    """Open the log in the directory `path`, creating it if missing; `settings` as LogConfig's."""
    files = storage or FileStorage()
    files.make_directory(str(path))
    config = LogConfig(**settings)
    return log_loader.load(
        str(path),
        TopicPartition("t", 0),
        config,
        files,
        clock or ManualClock(),
        options or OpenOptions(is_only_replica=True),
    )


def get_or_create_log(
    manager: LogManager,
    partition: TopicPartition,
    *,
    topic_id: Uuid | None = None,
    directory: str | None = None,
) -> UnifiedLog:
    """Return the partition's log; create it if needed. Raises the error if there is one."""
    made = manager.get_or_create_logs([NewLog(partition, topic_id, directory)])[partition]
    if isinstance(made, KreplicaError):
        raise made
    return made


def checkpoint(manager: LogManager) -> None:
    """Write the recovery points and log start offsets of every directory."""
    manager.checkpoint_recovery_points()
    manager.checkpoint_log_starts()


def values(
    log: UnifiedLog, start: int | None = None, isolation: str = "log_end"
) -> list[tuple[int, bytes | None]]:
    """Return (offset, value) of the records from `start` on, without control records."""
    first = log.log_start_offset if start is None else start
    return [
        (record.offset, record.value)
        for batch in log.batches(first, isolation=isolation)
        if not batch.is_control
        for record in batch
        if record.offset >= first
    ]
