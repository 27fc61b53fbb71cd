"""Commit each batch of rows exactly once, even if Spark runs the batch again.

Each writer (a stream's query) has its own directory: `<path>.spark/<query>` beside a directory of logs, or,
for a cluster, one in the stream's checkpoint. It holds a batch's staged rows, its intent and, after the batch
is written, its commit. The intent lists the files to append, and what the target needs to find out which rows
it already has. It is on disk before the first append. If a commit is interrupted, the next attempt completes
it from the intent and ignores what the repeated batch has staged. Thread rule: one commit at a time for a
target.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Protocol

import pyarrow
from kreplica.arrow.partition_directories import PartitionDirectories
from kreplica.spark.path_patterns import COMMITS
from kreplica.spark.sink_rows import Staged, StagedFile, staged_batches, sync

import kreplica
from kreplica.common.errors import InvalidFile
from kreplica.common.types import TopicPartition

VERSION = 0
# Its presence says that batches may have been written without this log.
LEFT = "left"
# A file that a machine which sees the driver's directory sees, too.
TOKEN = "token"
# Spark repeats only the last batch; the others are kept for inspection.
KEPT_COMMITS = 100
# For each partition, the paths of the files with its rows, in order.
Files = Mapping[TopicPartition, Sequence[str]]
Facts = dict[str, Any]


class Target(Protocol):
    """The port through which a CommitLog appends rows."""

    def begin(self, files: Files, previous: Facts | None) -> Facts:
        """Return the target's part of an intent; `previous`: that of the previous batch, if it exists."""

    def append(self, files: Files, facts: Facts) -> None:
        """Append the rows of the files, except those that an earlier attempt has appended.

        On return all rows are as durable as the target makes them. Raises InvalidFile if another writer's
        records are between them.
        """


class CommitLog:
    """The commits of one writer into `target`; `directory` is the writer's."""

    def __init__(self, directory: str, target: Target) -> None:
        self._directory = os.path.abspath(directory)
        self._target = target

    def has(self, batch_id: int) -> bool:
        """Return whether this batch's commit was begun."""
        return any(os.path.exists(self._name(batch_id, what)) for what in ("intent", "committed"))

    def leave(self) -> None:
        """Note on disk that from now on batches may be written without this log."""
        if not self.was_left():
            _write(os.path.join(self._directory, LEFT), {"version": VERSION})

    def was_left(self) -> bool:
        """Return whether batches may have been written without this log."""
        return os.path.exists(os.path.join(self._directory, LEFT))

    def staging(self, batch_id: int) -> str:
        """Return the directory in which the batch's tasks stage their rows."""
        return os.path.join(self._directory, f"{batch_id}.staged")

    def commit(self, batch_id: int, files: Sequence[StagedFile]) -> bool:
        """Append the rows of these files, unless the batch is already written. Returns False if it is.

        Raises InvalidFile if the intent is damaged, and the errors of appending.
        """
        intent = self._name(batch_id, "intent")
        if os.path.exists(self._name(batch_id, "committed")):
            self.discard(batch_id)
            return False
        if os.path.exists(intent):
            files, facts = _read(intent)
            self._target.append(paths_of(self.staging(batch_id), files), facts)
        else:
            paths = paths_of(self.staging(batch_id), files)
            facts = self._target.begin(paths, self._previous(batch_id))
            _write(intent, {"version": VERSION, "files": _named(files), **facts})
            self._target.append(paths, facts)
        os.replace(intent, self._name(batch_id, "committed"))
        sync(self._directory)
        self.discard(batch_id)
        self._forget(batch_id - KEPT_COMMITS)
        return True

    def discard(self, batch_id: int) -> None:
        """Remove the staged files of the batch, unless an interrupted commit needs them."""
        if not os.path.exists(self._name(batch_id, "intent")):
            shutil.rmtree(self.staging(batch_id), ignore_errors=True)

    def _previous(self, batch_id: int) -> Facts | None:
        path = self._name(batch_id - 1, "committed")
        return _read(path)[1] if os.path.exists(path) else None

    def _name(self, batch_id: int, what: str) -> str:
        return os.path.join(self._directory, f"{batch_id}.{what}")

    def _forget(self, batch_id: int) -> None:
        with suppress(FileNotFoundError):
            os.remove(self._name(batch_id, "committed"))


class LogDirectory:
    """The logs in the directory `path`, as the place that rows are written to.

    The intent records where each log ended; records after that end are compared with the rows. The logs'
    own locks keep other writers out meanwhile. It is pickled and sent to the machines that write.
    """

    def __init__(self, path: str) -> None:
        self._path = os.path.abspath(path)
        self._token = _token(os.path.join(f"{self._path}{COMMITS}", TOKEN))

    def is_here(self) -> bool:
        """Return whether this machine sees the driver's directory."""
        try:
            with open(os.path.join(f"{self._path}{COMMITS}", TOKEN), encoding="ascii") as file:
                return file.read() == self._token
        except FileNotFoundError:
            return False

    def counts(self) -> dict[str, int]:
        """Return the number of partitions of each topic; empty if the directory does not exist."""
        if not os.path.isdir(self._path):
            return {}
        try:
            return partition_counts(PartitionDirectories.find([self._path]).partitions)
        except InvalidFile:
            return {}

    def commits(self, writer: str) -> CommitLog:
        """Return the commits of this writer."""
        return CommitLog(os.path.join(f"{self._path}{COMMITS}", writer), self)

    def staging(self, writer: str, batch_id: int) -> str | None:
        """Return the directory in which a task stages its rows; None if the driver would not find them."""
        return self.commits(writer).staging(batch_id) if self.is_here() else None

    def commit(self, writer: str, batch_id: int, staged: Sequence[Staged]) -> bool:
        """Append the staged rows, unless the batch is already written. Returns False if it is."""
        commits = self.commits(writer)
        directory = commits.staging(batch_id)
        return commits.commit(batch_id, [file for each in staged for file in each.in_directory(directory)])

    def discard(self, writer: str, batch_id: int) -> None:
        """Remove the staged rows of the batch, unless an interrupted commit needs them."""
        self.commits(writer).discard(batch_id)

    def begin(self, files: Files, previous: Facts | None) -> Facts:  # noqa: ARG002 (batches are independent)
        with ExitStack() as stack:
            ends = {at: self._open(at, stack).log_end_offset for at in files}
        return {
            "ends": [
                {"topic": at.topic, "partition": at.partition, "offset": end} for at, end in ends.items()
            ]
        }

    def append(self, files: Files, facts: Facts) -> None:
        ends = {at_of(each): int(each["offset"]) for each in facts["ends"]}
        with ExitStack() as stack:
            logs = {at: self._open(at, stack) for at in files}
            for at, log in logs.items():
                _append(log, at, ends[at], files[at])
                log.flush()

    def _open(self, at: TopicPartition, stack: ExitStack) -> kreplica.Log:
        return stack.enter_context(kreplica.Log.open(os.path.join(self._path, str(at))))


def paths_of(directory: str, files: Iterable[StagedFile]) -> Files:
    """Return the paths of the staged files in `directory` by partition, in order."""
    found: dict[TopicPartition, list[str]] = {}
    for file in sorted(files, key=lambda file: file.at):
        found.setdefault(file.at, []).append(os.path.join(directory, file.name))
    return found


def partition_counts(partitions: Iterable[TopicPartition]) -> dict[str, int]:
    """Return the number of partitions of each topic; partitions are numbered from 0."""
    counts: dict[str, int] = {}
    for at in partitions:
        counts[at.topic] = max(counts.get(at.topic, 0), at.partition + 1)
    return counts


def _append(log: kreplica.Log, at: TopicPartition, end: int, paths: Sequence[str]) -> None:
    """Append the rows after `end`, except those that an earlier attempt has appended."""
    present = log.log_end_offset - end
    for batch in (batch for path in paths for batch in staged_batches(path)):
        done = min(present, batch.num_rows)
        if done:
            _require_same(log, at, end, batch.slice(0, done))
        if done < batch.num_rows:
            log.append_arrow(batch.slice(done))
        present -= done
        end += batch.num_rows
    if present:
        raise InvalidFile(f"{at}: another writer appended {present} records while a batch was written")


def _require_same(log: kreplica.Log, at: TopicPartition, start: int, rows: Any) -> None:
    found = log.to_arrow(start, start + rows.num_rows, columns=["key", "value"])
    if (
        found.combine_chunks().to_pylist()
        != pyarrow.Table.from_batches([rows.select(["key", "value"])]).to_pylist()
    ):
        raise InvalidFile(f"{at}: another writer appended offset {start} while a batch was written")


# ---- the intent ------------------------------------------------------------------------------------------


def _named(files: Sequence[StagedFile]) -> list[Facts]:
    return [{"topic": file.at.topic, "partition": file.at.partition, "name": file.name} for file in files]


def _read(path: str) -> tuple[list[StagedFile], Facts]:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        if found["version"] != VERSION:
            raise InvalidFile(f"{path}: unknown version {found['version']}, expected {VERSION}")
        return [StagedFile(at_of(each), str(each["name"])) for each in found["files"]], found
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidFile(f"{path}: {error!r}") from error


def _token(path: str) -> str:
    """Return the content of the file, which is made if it does not exist."""
    if not os.path.exists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        made = f"{path}-{uuid.uuid4().hex}"
        with open(made, "w", encoding="ascii") as file:
            file.write(uuid.uuid4().hex)
        # Of two writers the first one wins.
        with suppress(FileExistsError):
            os.link(made, path)
        os.remove(made)
    with open(path, encoding="ascii") as file:
        return file.read()


def at_of(found: Facts) -> TopicPartition:
    """Return the partition that an intent's entry names."""
    return TopicPartition(str(found["topic"]), int(found["partition"]))


def _write(path: str, content: dict[str, Any]) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(f"{path}.tmp", "w", encoding="utf-8") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.tmp", path)
    for directory in _new_directories(path):
        sync(directory)


def _new_directories(path: str) -> Iterator[str]:
    # The writer's directory, the directory of all writers, and its parent.
    for _ in range(3):
        path = os.path.dirname(path)
        yield path
