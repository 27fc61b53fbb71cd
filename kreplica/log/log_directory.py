"""One log directory of a node: its lock, its meta.properties, its checkpoints, and the partitions in it.

A directory fails as a whole: after an I/O error it is offline, its logs with it, and the node's others go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kreplica.common.errors import InconsistentClusterId, InvalidFile, KafkaStorageError
from kreplica.common.ports import DirectoryLock, Random, Storage
from kreplica.common.types import TopicPartition, Uuid
from kreplica.log.checkpoint import OffsetCheckpointFile
from kreplica.log.clean_shutdown_file import CleanShutdownFile
from kreplica.log.file_names import (
    DELETED_DIRECTORY_SUFFIX,
    STATE_FILE,
    parse_directory_name,
    parse_file_name,
)
from kreplica.log.meta_properties import MetaProperties, MetaPropertiesFile
from kreplica.log.unified_log import UnifiedLog

RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
LOG_START_CHECKPOINT = "log-start-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"


class LogDirectory:
    """A directory that this node has locked for itself. Thread rule: the LogManager's lock guards changes."""

    __slots__ = (
        "_lock",
        "_log_starts",
        "_marks",
        "_recovery_points",
        "_storage",
        "failure",
        "id",
        "logs",
        "path",
        "was_clean",
    )

    def __init__(self, storage: Storage, path: str) -> None:
        self._storage = storage
        self.path = path
        self.failure: BaseException | None = None
        self.id: Uuid | None = None
        self.logs: dict[TopicPartition, UnifiedLog] = {}
        self.was_clean = False
        self._recovery_points = OffsetCheckpointFile(storage, f"{path}/{RECOVERY_POINT_CHECKPOINT}")
        self._log_starts = OffsetCheckpointFile(storage, f"{path}/{LOG_START_CHECKPOINT}")
        self._marks = OffsetCheckpointFile(storage, f"{path}/{HIGH_WATERMARK_CHECKPOINT}")
        self._lock: DirectoryLock | None = None

    @property
    def is_offline(self) -> bool:
        return self.failure is not None

    def open(self, cluster_id: str, node_id: int, random: Random) -> None:
        """Lock the directory and see that it belongs to this node; a new one is given its meta.properties.

        Raises LogDirLocked, InconsistentClusterId, InvalidFile (another node's), KafkaStorageError.
        """
        self._storage.make_directory(self.path)
        self._lock = self._storage.lock_directory(self.path)
        try:
            file = MetaPropertiesFile(self._storage, self.path)
            found = file.read()
            if found is None:
                found = MetaProperties(cluster_id, node_id, Uuid.generate(random))
                file.write(found)
            elif found.cluster_id != cluster_id:
                raise InconsistentClusterId(f"{self.path}: of cluster {found.cluster_id}, not {cluster_id}")
            elif found.node_id != node_id:
                raise InvalidFile(f"{self.path}: of node {found.node_id}, not {node_id}")
            self.id = found.directory_id
            # The marker goes before anything is loaded: a crash in the middle of the load is an unclean one.
            self.was_clean = CleanShutdownFile(self._storage, self.path).take() is not None
        except BaseException:
            self.release()
            raise

    def partitions(self) -> tuple[list[str], list[str]]:
        """(names of the partitions' directories, names of those whose deletion had begun)."""
        names = self._storage.list_directory(self.path)
        deleted = [name for name in names if name.endswith(DELETED_DIRECTORY_SUFFIX)]
        return [n for n in names if n not in deleted and self._is_partition(n)], deleted

    def _is_partition(self, name: str) -> bool:
        if parse_directory_name(name) is None or not self._storage.is_directory(f"{self.path}/{name}"):
            return False
        inside = self._storage.list_directory(f"{self.path}/{name}")
        # A directory that merely looks like one is left alone; an empty one was just being created.
        return not inside or any(
            parse_file_name(n) or n in (STATE_FILE, "partition.metadata") for n in inside
        )

    def read_checkpoints(self) -> tuple[Mapping[TopicPartition, int], ...]:
        """(recovery points, log start offsets, high watermarks) as they were last written."""
        return self._recovery_points.read(), self._log_starts.read(), self._marks.read()

    def write_recovery_points(self) -> None:
        self._recovery_points.write({tp: log.flush_offset for tp, log in self.logs.items()})

    def write_log_starts(self) -> None:
        self._log_starts.write(
            {
                tp: log.log_start_offset
                for tp, log in self.logs.items()
                if log.log_start_offset > log.local.segments[0].base_offset
            }
        )

    def write_high_watermarks(self, marks: Mapping[TopicPartition, int]) -> None:
        self._marks.write(marks)

    def close(self, failed: Iterable[TopicPartition]) -> None:
        """Write the checkpoints and, unless a log failed to close, the marker of a clean shutdown."""
        if not self.is_offline:
            try:
                self.write_recovery_points()
                self.write_log_starts()
                self.write_high_watermarks({tp: log.high_watermark for tp, log in self.logs.items()})
                if not any(tp in self.logs for tp in failed):
                    CleanShutdownFile(self._storage, self.path).write()
            except KafkaStorageError as error:
                self.failure = error
        self.release()

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None
