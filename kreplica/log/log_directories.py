"""LogDirectories: the log directories of a node, and queries over all of them.

Thread rule: the list never changes; the LogManager's lock guards the state of each directory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kreplica.common.errors import KafkaStorageError, LogDirNotFound, StorageFull
from kreplica.common.types import TopicPartition, Uuid
from kreplica.log.clean_shutdown_file import UNKNOWN_BROKER_EPOCH
from kreplica.log.log_directory import LogDirectory
from kreplica.log.unified_log import UnifiedLog


class LogDirectories:
    """The log directories of a node, in the order of the configuration."""

    def __init__(self, directories: Sequence[LogDirectory]) -> None:
        self._directories = directories

    def __iter__(self) -> Iterator[LogDirectory]:
        return iter(self._directories)

    def get(self, path: str) -> LogDirectory:
        """Return the directory at `path`. Raises LogDirNotFound."""
        for directory in self._directories:
            if directory.path == path:
                return directory
        known = ", ".join(directory.path for directory in self._directories)
        raise LogDirNotFound(f"{path} is not a log directory of this node, which has {known}")

    def logs(self) -> list[UnifiedLog]:
        """Return every log in the directories."""
        return [log for directory in self._directories for log in directory.logs.values()]

    def log(self, partition: TopicPartition) -> UnifiedLog | None:
        """Return the partition's log, or None."""
        for directory in self._directories:
            log = directory.logs.get(partition)
            if log is not None:
                return log
        return None

    def online(self) -> list[LogDirectory]:
        """Return the directories that have not failed."""
        return [directory for directory in self._directories if not directory.is_offline]

    def require_online(self) -> list[LogDirectory]:
        """Return the online directories. Raises KafkaStorageError if all have failed."""
        online = self.online()
        if not online:
            raise KafkaStorageError(
                f"no log directory is online; the first one failed with: {self._directories[0].failure}"
            ) from self._directories[0].failure
        return online

    def for_new_log(self, path: str | None, more: Mapping[str, int]) -> LogDirectory:
        """Return the directory for a new log: the one at `path`, or the one with the fewest logs.

        `more`: the number of other logs about to be created, by directory. Raises LogDirNotFound,
        KafkaStorageError.
        """
        if path is None:
            return min(self.require_online(), key=lambda each: len(each.logs) + more.get(each.path, 0))
        directory = self.get(path)
        if directory.is_offline:
            raise KafkaStorageError(f"{path} is offline") from directory.failure
        return directory

    @property
    def ids(self) -> dict[str, Uuid]:
        """The ids of the online directories, by path; known once they are opened."""
        return {each.path: each.id for each in self.online() if each.id is not None}

    @property
    def previous_broker_epoch(self) -> int:
        """The broker epoch of the last clean shutdown of all directories (KIP-966).

        -1 if one of them was not cleanly shut down, or if the epochs differ or are unknown.
        """
        epochs = {directory.previous_broker_epoch for directory in self._directories}
        epoch = epochs.pop()
        return UNKNOWN_BROKER_EPOCH if epochs or epoch is None else epoch

    @property
    def failures(self) -> dict[str, BaseException]:
        """The failed directories, with their errors."""
        return {each.path: each.failure for each in self._directories if each.failure is not None}

    @property
    def full(self) -> dict[str, StorageFull]:
        """The directories whose last checkpoint could not be written because the disk was full."""
        return {each.path: each.refused for each in self._directories if each.refused is not None}
