"""LogRemoval: rename the directories of deleted or stray partitions, and remove them later.

A directory is renamed at once, so that it no longer counts as the log of its partition. Several directories
share one flush of their parent. Thread rule: as for the LogManager. Its `guarded` handles I/O errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from kreplica.common.errors import InvalidFile
from kreplica.common.ports import Random, Scheduler, Storage
from kreplica.common.types import TopicPartition, Uuid
from kreplica.log.log_directory import LogDirectory
from kreplica.log.partition_metadata_file import PartitionMetadataFile
from kreplica.log.unified_log import UnifiedLog

# Runs a step; an I/O error in it takes the directory offline.
Guarded = Callable[[LogDirectory, Callable[[], object]], None]


class LogRemoval:
    """Renames and removes files and directories in the log directories of one node."""

    def __init__(self, storage: Storage, scheduler: Scheduler, random: Random, guarded: Guarded) -> None:
        self.storage = storage
        self._scheduler = scheduler
        self.random = random
        self.guarded = guarded

    def move_aside(
        self, directory: LogDirectory, logs: Sequence[UnifiedLog], suffix: str
    ) -> dict[TopicPartition, str]:
        """Rename the directories of these logs to unique names with that suffix; return their new paths."""
        targets = {
            log.topic_partition: directory.aside_path_of(log.topic_partition, suffix, self.random)
            for log in logs
        }

        def rename() -> None:
            for log in logs:
                self.storage.rename(log.local.directory, targets[log.topic_partition])
            self.storage.sync_directory(directory.path)

        self.guarded(directory, rename)
        return targets

    def remove_tree_later(self, directory: LogDirectory, path: str, delay_ms: int) -> None:
        """Remove a directory with its contents after `delay_ms`."""
        remove = partial(self.guarded, directory, partial(self.storage.remove_tree, path))
        self._scheduler.schedule("delete-log", remove, delay_ms)

    def remove_later(self, directory: LogDirectory, path: str, delay_ms: int) -> None:
        """Remove a file after `delay_ms`."""
        remove = partial(self.guarded, directory, partial(self.storage.remove, path))
        self._scheduler.schedule("delete-file", remove, delay_ms)

    def strays(self, directory: LogDirectory, is_gone: Callable[[Uuid], bool]) -> list[str]:
        """Return the paths of the strays in `directory` whose topic `is_gone`."""
        strays: list[str] = []
        self.guarded(directory, lambda: strays.extend(directory.strays()))
        return [path for path in strays if (found := self.topic_id_in(path)) is not None and is_gone(found)]

    def topic_id_in(self, path: str) -> Uuid | None:
        """Return the topic id in the partition.metadata of a directory, or None if missing or unreadable."""
        try:
            return PartitionMetadataFile(self.storage, path).read()
        except InvalidFile:
            return None
