"""What is written of each batch, so that a batch that Spark runs again is written once.

Beside the log directory `<path>` stands `<path>.spark/<writer>/`, a writer being a stream's query: a batch's
staged rows, its intent, and once it is written its commit. The intent says which files are appended, and
where each log ended before; it is on the disk before the first append. A commit that was cut off is carried
out to its end from those files and offsets, whatever the batch's second run has staged. Thread rule: one
commit at a time for a path; the logs' own locks hold others off.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import pyarrow

import kreplica
from kreplica.common.errors import InvalidFile
from kreplica.common.types import TopicPartition
from spark_connector.sink_rows import StagedFile, staged_batches

VERSION = 0
# Spark runs none again but the last; more are kept for whoever looks.
KEPT_COMMITS = 100
Ends = dict[TopicPartition, int]


class CommitLog:
    """The commits of one writer into the logs in `path`."""

    def __init__(self, path: str, writer: str) -> None:
        self._path = os.path.abspath(path)
        self._directory = os.path.join(f"{self._path}.spark", writer)

    def staging(self, batch_id: int) -> str:
        """Where the batch's tasks leave their rows."""
        return os.path.join(self._directory, f"{batch_id}.staged")

    def commit(self, batch_id: int, files: Sequence[StagedFile]) -> bool:
        """Append the rows of these files, unless the batch is written already; whether it was not.

        Raises InvalidFile where somebody else has written since an attempt that was cut off, and what
        appending raises.
        """
        intent = self._name(batch_id, "intent")
        if os.path.exists(self._name(batch_id, "committed")):
            self.discard(batch_id)
            return False
        with ExitStack() as stack:
            logs: dict[TopicPartition, kreplica.Log] = {}
            if os.path.exists(intent):
                files, ends = _read_intent(intent)
                _open(logs, self._path, files, stack)
            else:
                _open(logs, self._path, files, stack)
                ends = {at: log.log_end_offset for at, log in logs.items()}
                _write(intent, _intent(files, ends))
            for at, log in logs.items():
                paths = [os.path.join(self.staging(batch_id), file.name) for file in files if file.at == at]
                _append(log, at, ends[at], paths)
                log.flush()
        os.replace(intent, self._name(batch_id, "committed"))
        _sync_directory(self._directory)
        self.discard(batch_id)
        self._forget(batch_id - KEPT_COMMITS)
        return True

    def discard(self, batch_id: int) -> None:
        """Remove what tasks have left of the batch, unless a commit that was cut off needs it."""
        if not os.path.exists(self._name(batch_id, "intent")):
            shutil.rmtree(self.staging(batch_id), ignore_errors=True)

    def _name(self, batch_id: int, what: str) -> str:
        return os.path.join(self._directory, f"{batch_id}.{what}")

    def _forget(self, batch_id: int) -> None:
        with suppress(FileNotFoundError):
            os.remove(self._name(batch_id, "committed"))


def _open(
    logs: dict[TopicPartition, kreplica.Log], path: str, files: Sequence[StagedFile], stack: ExitStack
) -> None:
    for at in sorted({file.at for file in files}):
        logs[at] = stack.enter_context(kreplica.Log.open(os.path.join(path, str(at))))


def _append(log: kreplica.Log, at: TopicPartition, end: int, paths: Sequence[str]) -> None:
    """Append the rows behind `end`, but those that an earlier attempt has appended."""
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
        raise InvalidFile(f"{at}: {present} records were appended by somebody else while a batch was written")


def _require_same(log: kreplica.Log, at: TopicPartition, start: int, rows: Any) -> None:
    found = log.to_arrow(start, start + rows.num_rows, columns=["key", "value"])
    if (
        found.combine_chunks().to_pylist()
        != pyarrow.Table.from_batches([rows.select(["key", "value"])]).to_pylist()
    ):
        raise InvalidFile(f"{at}: offset {start} was appended by somebody else while a batch was written")


# ---- the intent ------------------------------------------------------------------------------------------


def _intent(files: Sequence[StagedFile], ends: Ends) -> dict[str, Any]:
    return {
        "version": VERSION,
        "files": [
            {"topic": file.at.topic, "partition": file.at.partition, "name": file.name} for file in files
        ],
        "ends": [{"topic": at.topic, "partition": at.partition, "offset": end} for at, end in ends.items()],
    }


def _read_intent(path: str) -> tuple[list[StagedFile], Ends]:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        if found["version"] != VERSION:
            raise InvalidFile(f"{path}: version {found['version']} is not known")
        files = [StagedFile(_at(each), str(each["name"])) for each in found["files"]]
        return files, {_at(each): int(each["offset"]) for each in found["ends"]}
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidFile(f"{path}: {error!r}") from error


def _at(found: dict[str, Any]) -> TopicPartition:
    return TopicPartition(str(found["topic"]), int(found["partition"]))


def _write(path: str, content: dict[str, Any]) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(f"{path}.tmp", "w", encoding="utf-8") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.tmp", path)
    for directory in _new_directories(path):
        _sync_directory(directory)


def _new_directories(path: str) -> Iterator[str]:
    # The writer's own, the one that holds all writers, and the one in which that stands.
    for _ in range(3):
        path = os.path.dirname(path)
        yield path


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
