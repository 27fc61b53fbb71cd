"""One log directory of a node: its lock, its meta.properties, its checkpoints, and the partitions in it.

A directory fails as a whole: an I/O error takes it offline with all its logs. The node's other directories
stay online.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from kreplica.common.errors import InvalidFile, KafkaStorageError, StorageFull
from kreplica.common.json_file import integer, parse_object
from kreplica.common.locks import Lock
from kreplica.common.ports import DirectoryLock, Random, Storage
from kreplica.common.types import INT64_MAX, TopicPartition, Uuid
from kreplica.log.checkpoint import (
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    OffsetCheckpointFile,
)
from kreplica.log.file_names import (
    DELETED_DIRECTORY_SUFFIX,
    FUTURE_DIRECTORY_SUFFIX,
    STATE_FILE,
    STRAY_DIRECTORY_SUFFIX,
    parse_directory_name,
    parse_file_name,
)
from kreplica.log.meta_properties import MetaProperties, MetaPropertiesFile
from kreplica.log.small_file import SmallFile
from kreplica.log.unified_log import UnifiedLog

# The limit for a file or directory name, in bytes, on common file systems.
MAX_NAME_LENGTH = 255
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
CLEAN_SHUTDOWN_VERSION = 0
UNKNOWN_BROKER_EPOCH = -1


class CleanShutdownFile(SmallFile[int]):
    """The file `.kafka_cleanshutdown`. It marks a log directory as cleanly shut down: no log needs recovery.

        {"version":0,"brokerEpoch":10}

    It is written last at a clean stop, and removed at the next start before the first log is loaded. If it
    survived a crash during loading, the next start would trust logs that were never checked (KAFKA-10471).
    With its broker epoch the controller distinguishes a clean restart from an unclean one (KIP-966); -1 if
    unknown. Thread rule: one thread, at start and stop.
    """

    NAME = CLEAN_SHUTDOWN_FILE

    def write(self, content: int = UNKNOWN_BROKER_EPOCH, *, flush_name: bool = True) -> None:
        """Mark the directory. Everything in it must be flushed before."""
        super().write(content, flush_name=flush_name)

    def take(self) -> int | None:
        """Remove the marker durably; return its broker epoch, or None without a valid marker.

        An unreadable marker counts as missing: that costs a recovery, but trusting it could cost data.
        """
        if not self.exists():
            return None
        try:
            broker_epoch = self.read()
        except InvalidFile:
            broker_epoch = None
        self._storage.remove(self.path)
        self._storage.sync_directory(self.directory)
        return broker_epoch

    @staticmethod
    def format(content: int) -> bytes:
        fields = {"version": CLEAN_SHUTDOWN_VERSION, "brokerEpoch": content}
        return json.dumps(fields, separators=(",", ":")).encode()

    @staticmethod
    def parse(data: bytes, path: str) -> int:
        """Return the broker epoch; -1 for an empty file, which Kafka wrote before 3.7. Raises InvalidFile."""
        if not data:
            return UNKNOWN_BROKER_EPOCH
        fields = parse_object(data, path)
        if integer(fields, "version", 0, INT64_MAX, path) != CLEAN_SHUTDOWN_VERSION:
            raise InvalidFile(f"{path}: version {fields['version']}, not {CLEAN_SHUTDOWN_VERSION}")
        return integer(fields, "brokerEpoch", UNKNOWN_BROKER_EPOCH, INT64_MAX, path)


class LogDirectory:
    """A log directory that this node has locked.

    `lent`: whether the caller has locked the directory already, and will release it.

    Thread rule: the LogManager's lock guards changes. `_checkpoint_lock` guards the checkpoints and the
    copies of what was last read or written. A truncation takes `_checkpoint_lock` under the log's lock; no
    other lock is taken while it is held.
    """

    def __init__(self, storage: Storage, path: str, *, lent: bool = False) -> None:
        self._storage = storage
        self.path = path
        self.failure: BaseException | None = None
        self.id: Uuid | None = None
        self.logs: dict[TopicPartition, UnifiedLog] = {}
        # The broker epoch of the last clean shutdown, -1 if unknown; None after an unclean one.
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
        """Whether the directory has a meta.properties, so it is a node's log directory."""
        return self._meta.exists()

    @property
    def is_taken(self) -> bool:
        """Whether another, running node has locked the directory."""
        return self._storage.is_locked(self.path)

    @property
    def was_closed_in_order(self) -> bool:
        """Whether the directory has the marker of a clean shutdown."""
        return CleanShutdownFile(self._storage, self.path).exists()

    def open(self, cluster_id: str, node_id: int) -> None:
        """Lock the directory and check that it belongs to this node, without changing anything in it.

        Raises LogDirLocked, InconsistentClusterId, InvalidFile (another node's), KafkaStorageError.
        """
        self._storage.make_directory(self.path)
        if not self._is_lent:
            self._lock = self._storage.lock_directory(self.path)
        found = self._meta.read()
        if found is None:
            return
        found.require_owner(self.path, cluster_id, node_id)
        self.id = found.directory_id

    def begin(self, cluster_id: str, node_id: int, random: Random) -> None:
        """Prepare the opened directory for this run: create its meta.properties if it is new, and remove the
        marker of a clean shutdown.

        The marker is removed before loading, so that a crash during the load counts as unclean.
        """
        if not self._meta.exists():
            self.id = Uuid.generate(random)
            self._meta.write(MetaProperties(cluster_id, node_id, self.id))
        self.previous_broker_epoch = self.no_longer_clean()

    def no_longer_clean(self) -> int | None:
        """Remove the marker of a clean shutdown; return its broker epoch, or None without a marker.

        Call this before writing anything to the directory.
        """
        return CleanShutdownFile(self._storage, self.path).take()

    def path_of(self, partition: TopicPartition) -> str:
        """Return the path of the partition's log in this directory."""
        return f"{self.path}/{partition.topic}-{partition.partition}"

    def aside_path_of(self, partition: TopicPartition, suffix: str, random: Random) -> str:
        """Return a unique path to rename the partition's directory to when it is set aside.

        A long topic name is shortened, so that the name has at most 255 characters.
        """
        end = f"-{partition.partition}.{random.randbytes(16).hex()}{suffix}"
        return f"{self.path}/{partition.topic[: MAX_NAME_LENGTH - len(end)]}{end}"

    def add_strays_to(self, paths: list[str]) -> None:
        """Add the paths of the partition directories that were set aside as strays to `paths`."""
        names = self._storage.list_directory(self.path)
        found = [f"{self.path}/{name}" for name in names if name.endswith(STRAY_DIRECTORY_SUFFIX)]
        paths += [path for path in found if self._storage.is_directory(path)]

    def futures(self) -> list[str]:
        """Return the paths of unfinished copies of logs that were being moved here."""
        names = self._storage.list_directory(self.path)
        return [f"{self.path}/{name}" for name in names if name.endswith(FUTURE_DIRECTORY_SUFFIX)]

    def partitions(self) -> tuple[list[str], list[str]]:
        """Return (names of the partition directories, names of those being deleted).

        The first list includes the metadata log's directory.
        """
        names = self._storage.list_directory(self.path)
        if any(self._is_partition(name) for name in names):
            # The process may have been killed before the new name was on disk. A power cut must not lose the
            # name, with everything that is flushed below it from now on.
            self._storage.sync_directory(self.path)
        deleted = [name for name in names if name.endswith(DELETED_DIRECTORY_SUFFIX)]
        return [n for n in names if n not in deleted and self._is_partition(n)], deleted

    def _is_partition(self, name: str) -> bool:
        if parse_directory_name(name) is None or not self._storage.is_directory(f"{self.path}/{name}"):
            return False
        inside = self._storage.list_directory(f"{self.path}/{name}")
        # Ignore a directory that only has a matching name. An empty one was just being created.
        return not inside or any(
            parse_file_name(n) or n in (STATE_FILE, "partition.metadata") for n in inside
        )

    def read_checkpoints(self) -> tuple[Mapping[TopicPartition, int], ...]:
        """Read the checkpoints; return (recovery points, log start offsets, high watermarks)."""
        with self._checkpoint_lock:
            self._written_starts, self._written_marks = self._log_starts.read(), self._marks.read()
            return self._recovery_points.read(), self._written_starts, self._written_marks

    # Logs are added and removed while a checkpoint is written, so each writer first copies the table.

    def write_checkpoints(self) -> None:
        """Write the recovery points, log start offsets and high watermarks."""
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

    def update_high_watermarks(self) -> None:
        """Write the high watermarks if one has moved; an idle node flushes nothing."""
        with self._checkpoint_lock:
            if self._high_watermarks() != self._written_marks:
                self._write_high_watermarks()

    def lower_checkpoints(self, log: UnifiedLog) -> None:
        """Rewrite the high watermark and log start checkpoints if they are above the log's present values.

        After an unclean election, a truncation may remove offsets that were committed or deleted. If the
        process crashed then, an older checkpoint would apply to whatever has been appended there since. Kafka
        accepts that until the next period. If the disk is full, the checkpoint file is removed instead.
        Raises KafkaStorageError.
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
        marks = self._high_watermarks()
        self._marks.write(marks)
        self._written_marks = marks

    def _high_watermarks(self) -> dict[TopicPartition, int]:
        return {tp: log.high_watermark for tp, log in list(self.logs.items())}

    def close(self, failed: Iterable[TopicPartition], broker_epoch: int) -> None:
        """Write the checkpoints, and the marker of a clean shutdown unless a log in it failed to close.

        `broker_epoch` goes into the marker; -1 if unknown.
        """
        if not self.is_offline:
            try:
                self.write_checkpoints()
                if not any(tp in self.logs for tp in failed):
                    CleanShutdownFile(self._storage, self.path).write(broker_epoch)
            except KafkaStorageError as error:
                self.failure = error
        self.release()

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None
