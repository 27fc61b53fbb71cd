"""The log directories of a node: which there are, and what holds for all of them. Thread rule: the list never
changes; what a directory is guards the LogManager's lock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kreplica.common.errors import KafkaStorageError, LogDirNotFound, StorageFull
from kreplica.common.types import TopicPartition, Uuid
from kreplica.log.clean_shutdown_file import UNKNOWN_BROKER_EPOCH
from kreplica.log.log_directory import LogDirectory
from kreplica.log.unified_log import UnifiedLog


class LogDirectories:
    """In the order of the configuration."""

    def __init__(self, directories: Sequence[LogDirectory]) -> None:
        self._directories = directories

    def __iter__(self) -> Iterator[LogDirectory]:
        return iter(self._directories)

    def get(self, path: str) -> LogDirectory:
        """The one at `path`. Raises LogDirNotFound."""
        for directory in self._directories:
            if directory.path == path:
                return directory
        raise LogDirNotFound(f"{path} is no log directory of this node")

    def logs(self) -> list[UnifiedLog]:
        """Every log in them."""
        return [log for directory in self._directories for log in directory.logs.values()]

    def log(self, partition: TopicPartition) -> UnifiedLog | None:
        """The partition's log, None where there is none."""
        for directory in self._directories:
            log = directory.logs.get(partition)
            if log is not None:
                return log
        return None

    def online(self) -> list[LogDirectory]:
        """Those that have not failed."""
        return [directory for directory in self._directories if not directory.is_offline]

    def require_online(self) -> list[LogDirectory]:
        """As `online`; raises KafkaStorageError if all have failed."""
        online = self.online()
        if not online:
            raise KafkaStorageError("no log directory is online") from self._directories[0].failure
        return online

    def for_new_log(self, path: str | None, more: Mapping[str, int]) -> LogDirectory:
        """The one at `path`, or the one with the fewest logs; `more`: how many others each is about to get.

        Raises LogDirNotFound, KafkaStorageError.
        """
        if path is None:
            return min(self.require_online(), key=lambda each: len(each.logs) + more.get(each.path, 0))
        directory = self.get(path)
        if directory.is_offline:
            raise KafkaStorageError(f"{path} is offline") from directory.failure
        return directory

    @property
    def ids(self) -> dict[str, Uuid]:
        """The ids of those that are online, by path; known once they are opened."""
        return {each.path: each.id for each in self.online() if each.id is not None}

    @property
    def previous_broker_epoch(self) -> int:
        """The broker epoch in which they were closed in order; -1 if one was not, or it is not known
        (KIP-966)."""
        epochs = {directory.previous_broker_epoch for directory in self._directories}
        epoch = epochs.pop()
        return UNKNOWN_BROKER_EPOCH if epochs or epoch is None else epoch

    @property
    def failures(self) -> dict[str, BaseException]:
        """Those that failed, and what they failed with."""
        return {each.path: each.failure for each in self._directories if each.failure is not None}

    @property
    def full(self) -> dict[str, StorageFull]:
        """Those whose disk had no room for a checkpoint when one was written last."""
        return {each.path: each.refused for each in self._directories if each.refused is not None}
