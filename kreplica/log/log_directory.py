"""One log directory of a node: its lock, its meta.properties, its checkpoints, and the partitions in it.

A directory fails as a whole: after an I/O error it is offline, its logs with it, and the node's others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kreplica.common.errors import InconsistentClusterId, InvalidFile, KafkaStorageError, StorageFull
from kreplica.common.locks import Lock
from kreplica.common.ports import DirectoryLock, Random, Storage
from kreplica.common.types import TopicPartition, Uuid
from kreplica.log.checkpoint import (
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    OffsetCheckpointFile,
)
from kreplica.log.clean_shutdown_file import CleanShutdownFile
from kreplica.log.file_names import (
    DELETED_DIRECTORY_SUFFIX,
    FUTURE_DIRECTORY_SUFFIX,
    STATE_FILE,
    STRAY_DIRECTORY_SUFFIX,
    parse_directory_name,
    parse_file_name,
)
from kreplica.log.meta_properties import MetaProperties, MetaPropertiesFile
from kreplica.log.unified_log import UnifiedLog

# Of a file or directory, on the file systems there are.
MAX_NAME_LENGTH = 255


class LogDirectory:
    """A directory that this node has locked for itself.

    `lent`: whether who uses it has locked it already, and will let it go. Thread rule: the LogManager's lock
    guards changes, `_checkpoint_lock` the checkpoints and what was last read or written of them; a log that
    is cut takes that one under its own lock, and none is taken in it.
    """

    __slots__ = (
        "_checkpoint_lock",
        "_is_lent",
        "_lock",
        "_log_starts",
        "_marks",
        "_meta",
        "_recovery_points",
        "_storage",
        "_written_marks",
        "_written_starts",
        "failure",
        "id",
        "logs",
        "path",
        "previous_broker_epoch",
        "refused",
    )

    def __init__(self, storage: Storage, path: str, *, lent: bool = False) -> None:
        self._storage = storage
        self.path = path
        self.failure: BaseException | None = None
        # What a full disk has refused last, if that was not written since.
        self.refused: StorageFull | None = None
        self.id: Uuid | None = None
        self.logs: dict[TopicPartition, UnifiedLog] = {}
        # The broker epoch in which it was closed in order, -1 if unknown; None if it was not.
        self.previous_broker_epoch: int | None = None
        self._is_lent = lent
        self._meta = MetaPropertiesFile(storage, path)
        self._recovery_points = OffsetCheckpointFile(storage, f"{path}/{RECOVERY_POINT_CHECKPOINT}")
        self._log_starts = OffsetCheckpointFile(storage, f"{path}/{LOG_START_OFFSET_CHECKPOINT}")
        self._marks = OffsetCheckpointFile(storage, f"{path}/{REPLICATION_CHECKPOINT}")
        self._lock: DirectoryLock | None = None
        self._checkpoint_lock = Lock()
        # Guarded by _checkpoint_lock:
        self._written_marks: Mapping[TopicPartition, int] = {}
        self._written_starts: Mapping[TopicPartition, int] = {}

    @property
    def is_offline(self) -> bool:
        return self.failure is not None

    @property
    def is_formatted(self) -> bool:
        """Whether it is some node's log directory: it has a meta.properties."""
        return self._meta.exists()

    @property
    def is_taken(self) -> bool:
        """Whether a node that runs has locked it; its own node does not ask."""
        return self._storage.is_locked(self.path)

    @property
    def was_closed_in_order(self) -> bool:
        """Whether its node's last stop left the marker of a clean shutdown."""
        return CleanShutdownFile(self._storage, self.path).exists()

    def open(self, cluster_id: str, node_id: int) -> None:
        """Lock the directory and see that it belongs to this node; nothing in it is changed.

        Raises LogDirLocked, InconsistentClusterId, InvalidFile (another node's), KafkaStorageError.
        """
        self._storage.make_directory(self.path)
        if not self._is_lent:
            self._lock = self._storage.lock_directory(self.path)
        found = self._meta.read()
        if found is None:
            return
        if found.cluster_id != cluster_id:
            raise InconsistentClusterId(f"{self.path}: of cluster {found.cluster_id}, not {cluster_id}")
        if found.node_id != node_id:
            raise InvalidFile(f"{self.path}: of node {found.node_id}, not {node_id}")
        self.id = found.directory_id

    def begin(self, cluster_id: str, node_id: int, random: Random) -> None:
        """Make the opened directory the node's for this run: a new one is given its meta.properties, and the
        marker of a clean shutdown goes.

        It goes before anything is loaded: a crash in the middle of the load is an unclean one.
        """
        if not self._meta.exists():
            self.id = Uuid.generate(random)
            self._meta.write(MetaProperties(cluster_id, node_id, self.id))
        self.previous_broker_epoch = self.no_longer_clean()

    def no_longer_clean(self) -> int | None:
        """Remove the marker of a clean shutdown, before anything is written; the broker epoch in it, or None
        if there was none.
        """
        return CleanShutdownFile(self._storage, self.path).take()

    def unless_full(self, write: Callable[[], None]) -> None:
        """Write a checkpoint. A full disk keeps the one there is, until the next time: it is only older than
        it might be."""
        try:
            write()
        except StorageFull as error:
            self.refused = error
        else:
            self.refused = None

    def path_of(self, partition: TopicPartition) -> str:
        """The directory of the partition's log in this one."""
        return f"{self.path}/{partition.topic}-{partition.partition}"

    def aside_path_of(self, partition: TopicPartition, suffix: str, random: Random) -> str:
        """A name for the partition's directory once it is moved aside, which no other has had.

        Of a long topic's name the end is left out, so that the whole has at most 255 characters.
        """
        end = f"-{partition.partition}.{random.randbytes(16).hex()}{suffix}"
        return f"{self.path}/{partition.topic[: MAX_NAME_LENGTH - len(end)]}{end}"

    def strays(self) -> list[str]:
        """The paths of the partitions' directories that were moved aside as strays."""
        names = self._storage.list_directory(self.path)
        paths = [f"{self.path}/{name}" for name in names if name.endswith(STRAY_DIRECTORY_SUFFIX)]
        return [path for path in paths if self._storage.is_directory(path)]

    def futures(self) -> list[str]:
        """The paths of the copies of logs that were to be moved here."""
        names = self._storage.list_directory(self.path)
        return [f"{self.path}/{name}" for name in names if name.endswith(FUTURE_DIRECTORY_SUFFIX)]

    def partitions(self) -> tuple[list[str], list[str]]:
        """(names of the partitions' directories, names of those whose deletion had begun); the metadata log's
        is one of the former."""
        names = self._storage.list_directory(self.path)
        if any(self._is_partition(name) for name in names):
            # Who made it may have been ended before that was on the disk, and what is flushed in it from now
            # on must not go with its name.
            self._storage.sync_directory(self.path)
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
        with self._checkpoint_lock:
            self._written_starts, self._written_marks = self._log_starts.read(), self._marks.read()
            return self._recovery_points.read(), self._written_starts, self._written_marks

    # Logs come and go while a checkpoint is made: each takes a copy of the table first.

    def write_checkpoints(self) -> None:
        """Write all three."""
        self.write_recovery_points()
        self.write_log_starts()
        self.write_high_watermarks()

    def write_recovery_points(self) -> None:
        with self._checkpoint_lock:
            self._recovery_points.write({tp: log.flush_offset for tp, log in list(self.logs.items())})

    def write_log_starts(self) -> None:
        with self._checkpoint_lock:
            self._write_log_starts()

    def write_high_watermarks(self) -> None:
        with self._checkpoint_lock:
            self._write_high_watermarks()

    def lower_checkpoints(self, log: UnifiedLog) -> None:
        """Write those checkpoints anew that tell more of the log than there is of it.

        A cut takes back what was committed, or deleted, where an unclean election made it void. Read after a
        crash, an older checkpoint would say the same of what has been appended there since. Kafka leaves it
        so until the next period. A full disk has room for none: then the file goes. Raises KafkaStorageError.
        """
        partition = log.topic_partition
        with self._checkpoint_lock:
            if self._written_marks.get(partition, 0) > log.high_watermark:
                try:
                    self._write_high_watermarks()
                except StorageFull:
                    self._remove(self._marks)
                    self._written_marks = {}
            if self._written_starts.get(partition, 0) > log.log_start_offset:
                try:
                    self._write_log_starts()
                except StorageFull:
                    self._remove(self._log_starts)
                    self._written_starts = {}

    def _remove(self, checkpoint: OffsetCheckpointFile) -> None:
        self._storage.remove(checkpoint.path)
        self._storage.sync_directory(self.path)

    def _write_log_starts(self) -> None:
        starts = {
            tp: log.log_start_offset
            for tp, log in list(self.logs.items())
            if log.log_start_offset > log.local.segments[0].base_offset
        }
        self._log_starts.write(starts)
        self._written_starts = starts

    def _write_high_watermarks(self) -> None:
        marks = {tp: log.high_watermark for tp, log in list(self.logs.items())}
        self._marks.write(marks)
        self._written_marks = marks

    def close(self, failed: Iterable[TopicPartition], broker_epoch: int) -> None:
        """Write the checkpoints and, unless a log failed to close, the marker of a clean shutdown in that
        broker epoch (-1: unknown)."""
        if not self.is_offline:
            try:
                self.write_recovery_points()
                self.write_log_starts()
                self.write_high_watermarks()
                if not any(tp in self.logs for tp in failed):
                    CleanShutdownFile(self._storage, self.path).write(broker_epoch)
            except KafkaStorageError as error:
                self.failure = error
        self.release()

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None
