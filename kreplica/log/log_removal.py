"""Taking the directories of partitions out of the way, to be removed for good later.

A directory is renamed at once, so that nobody takes it for the log of its partition any more. Those that go
together are renamed first, then their parent is flushed once. Thread rule: the LogManager's, which is told
what fails by `guarded`.
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

# Does a step; an I/O error in it takes the directory offline.
Guarded = Callable[[LogDirectory, Callable[[], object]], None]


class LogRemoval:
    """Renames and removes what lies in the log directories of one node."""

    def __init__(self, storage: Storage, scheduler: Scheduler, random: Random, guarded: Guarded) -> None:
        self.storage = storage
        self._scheduler = scheduler
        self.random = random
        self.guarded = guarded

    def move_aside(
        self, directory: LogDirectory, logs: Sequence[UnifiedLog], suffix: str
    ) -> dict[TopicPartition, str]:
        """Rename the directories of these logs: to names with that suffix that no others had. Their paths."""
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
        """Remove a directory and all that is in it, after `delay_ms`."""
        remove = partial(self.guarded, directory, partial(self.storage.remove_tree, path))
        self._scheduler.schedule("delete-log", remove, delay_ms)

    def remove_later(self, directory: LogDirectory, path: str, delay_ms: int) -> None:
        """Remove a file, after `delay_ms`."""
        remove = partial(self.guarded, directory, partial(self.storage.remove, path))
        self._scheduler.schedule("delete-file", remove, delay_ms)

    def strays(self, directory: LogDirectory, is_gone: Callable[[Uuid], bool]) -> list[str]:
        """The directories that were moved aside as strays and tell a topic's id that `is_gone`."""
        strays: list[str] = []
        self.guarded(directory, lambda: strays.extend(directory.strays()))
        return [path for path in strays if (told := self.topic_id_in(path)) is not None and is_gone(told)]

    def topic_id_in(self, path: str) -> Uuid | None:
        """The id of the topic that a partition's directory tells to belong to."""
        try:
            return PartitionMetadataFile(self.storage, path).read()
        except InvalidFile:
            return None
