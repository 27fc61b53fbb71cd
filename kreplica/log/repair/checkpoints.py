"""NodeCheckpoints: repairs the checkpoints of a node's log directory.

Readable rows are kept. A missing row is restored from the log's state file. Without that, the row is left
out,
which is safe: the next start recovers more and trusts less.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from kreplica._core.log_state import LogStanding, read_standing
from kreplica.common.errors import InvalidFile, KreplicaError
from kreplica.common.types import TopicPartition
from kreplica.log.checkpoint import (
    CLEANER_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    OffsetCheckpointFile,
    format_rows,
)
from kreplica.log.file_names import STATE_FILE, parse_directory_name
from kreplica.log.repair.finding import BLOCKED, REBUILD, Finding
from kreplica.log.repair.partition import Checkpointed
from kreplica.log.verify.directory import small_files

if TYPE_CHECKING:
    from kreplica.common.ports import Storage

NAMES = (
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    CLEANER_CHECKPOINT,
)


class NodeCheckpoints:
    """The four checkpoints of the directory at `path`, as far as they can be read.

    The caller sets `ends` to the log ends that it finds.
    """

    def __init__(self, storage: Storage, path: str) -> None:
        self._storage = storage
        self._path = path
        self._rows: dict[str, Mapping[TopicPartition, int]] = {}
        self._broken: dict[str, InvalidFile] = {}
        self.ends: dict[TopicPartition, int] = {}  # the end offsets of the logs
        for name in NAMES:
            try:
                self._rows[name] = OffsetCheckpointFile(storage, f"{path}/{name}").read()
            except InvalidFile as error:
                self._broken[name] = error
                self._rows[name] = self._salvaged(name)

    def of(self, partition: TopicPartition) -> Checkpointed:
        """Return the checkpointed offsets of the partition."""
        return Checkpointed(
            self._rows[RECOVERY_POINT_CHECKPOINT].get(partition, 0),
            self._rows[LOG_START_OFFSET_CHECKPOINT].get(partition, 0),
            self._rows[REPLICATION_CHECKPOINT].get(partition, 0),
        )

    def _salvaged(self, name: str) -> dict[TopicPartition, int]:
        """Return the valid rows of a broken file, without partitions that occur twice."""
        data = self._storage.read_file(f"{self._path}/{name}")
        found: dict[TopicPartition, int] = {}
        doubtful: set[TopicPartition] = set()
        for row in data.split(b"\n")[2:-1]:
            try:
                one = OffsetCheckpointFile.parse(format_rows([row.decode()]), name)
            except (InvalidFile, UnicodeDecodeError):
                continue
            doubtful |= found.keys() & one.keys()
            found.update(one)
        return {key: offset for key, offset in found.items() if key not in doubtful}

    def repair(self, partitions: Iterable[str], apply_changes: bool) -> Iterator[Finding]:
        """Repair the checkpoints, and yield the findings. Call this after repairing these partitions.

        Afterwards no checkpoint is beyond the end of its log.
        """
        standings = dict(self._standings(partitions))
        for name in NAMES:
            rows = self._corrected(name, standings)
            beyond = {key for key, offset in rows.items() if offset < self._rows[name].get(key, 0)}
            if name not in self._broken and not beyond:
                continue
            text = str(self._broken.get(name) or f"{len(beyond)} rows beyond the end of their logs")
            kind = "InvalidFile" if name in self._broken else "OffsetBeyondLog"
            finding = Finding(f"{self._path}/{name}", kind, REBUILD, text)
            if apply_changes:
                OffsetCheckpointFile(self._storage, f"{self._path}/{name}").write(rows)
                finding.done = True
            yield finding
        for problem in small_files(self._storage, self._path, self._storage.list_directory(self._path)):
            if problem.path.rpartition("/")[2] not in NAMES:
                yield Finding(
                    problem.path, problem.kind, BLOCKED, f"{problem.text}; its content is nowhere else"
                )

    def _standings(self, partitions: Iterable[str]) -> Iterator[tuple[TopicPartition, LogStanding]]:
        for name in partitions:
            partition, path = parse_directory_name(name), f"{self._path}/{name}/{STATE_FILE}"
            if partition is not None and self._storage.exists(path):
                try:
                    standing = read_standing(self._storage.read_file(path, 1 << 16))
                except KreplicaError:
                    continue  # reported with its partition
                if standing is not None and standing.clean:
                    yield partition, standing

    def _corrected(
        self, name: str, standings: Mapping[TopicPartition, LogStanding]
    ) -> dict[TopicPartition, int]:
        rows = dict(self._rows[name])
        for partition, standing in standings.items():
            if name in self._broken and partition not in rows:
                known = {
                    RECOVERY_POINT_CHECKPOINT: standing.flush_offset,
                    REPLICATION_CHECKPOINT: standing.high_watermark,
                    LOG_START_OFFSET_CHECKPOINT: standing.log_start_offset,
                }
                if name in known:
                    rows[partition] = known[name]
        return {key: min(offset, self.ends.get(key, offset)) for key, offset in rows.items()}
