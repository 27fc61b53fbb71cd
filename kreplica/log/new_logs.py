"""NewLogs: creates the logs of partitions that a LogManager does not have yet.

New logs are created in parallel, since each waits for the disk several times. Those of one directory share
its flush. The LogManager's lock is free meanwhile, so other calls need not wait.
Thread rule: any thread; one thread creates logs at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from kreplica.common.config import LogConfig
from kreplica.common.errors import InvalidTopic, KafkaStorageError, KreplicaError, StorageFull
from kreplica.common.locks import Lock
from kreplica.common.ports import Clock, Storage, Workers
from kreplica.common.types import TopicPartition
from kreplica.log import log_creation
from kreplica.log.file_names import CLUSTER_METADATA_DIRECTORY, check_topic
from kreplica.log.log_creation import NewLog
from kreplica.log.log_directories import LogDirectories
from kreplica.log.log_directory import LogDirectory
from kreplica.log.unified_log import UnifiedLog

# For each partition its log, or the error that prevented one.
Logs = dict[TopicPartition, UnifiedLog | KreplicaError]


class NewLogs:
    """Creates missing logs in `directories`, which `lock` guards. The LogManager provides the callables."""

    def __init__(
        self,
        directories: LogDirectories,
        *,
        storage: Storage,
        clock: Clock,
        workers: Workers,
        lock: AbstractContextManager[Any],
        config_of: Callable[[str], LogConfig],
        guarded: Callable[[LogDirectory, Callable[[], object]], None],
        fail: Callable[[str, BaseException], object],
        add: Callable[[LogDirectory, UnifiedLog], None],
    ) -> None:
        self._directories = directories
        self._storage = storage
        self._clock = clock
        self._workers = workers
        self._lock = lock
        self._config_of = config_of
        self._guarded = guarded
        self._fail = fail
        self._add = add
        # Held while logs are created; taken before the lock.
        self._making = Lock()

    def get_or_create(self, wanted: Iterable[NewLog]) -> Logs:
        """Return each partition's log, created if needed, or the error of LogManager.get_or_create_log."""
        # Create a log that is wanted twice only once: two workers, or two directories, would conflict.
        wanted = list({each.partition: each for each in wanted}.values())
        logs, missing = self._found(wanted)
        if missing:
            with self._making:
                # Another thread may have created some while this one waited.
                more, missing = self._found(missing)
                logs.update(more)
                if missing:
                    self._make(missing, logs)
        return {each.partition: logs[each.partition] for each in wanted}

    def _found(self, wanted: Iterable[NewLog]) -> tuple[Logs, list[NewLog]]:
        """Return the existing logs and the errors of invalid requests, and the logs to create."""
        found: Logs = {}
        missing: list[NewLog] = []
        with self._lock:
            for each in wanted:
                try:
                    log = self._known(each)
                except KreplicaError as error:
                    found[each.partition] = error
                    continue
                if log is None:
                    missing.append(each)
                else:
                    found[each.partition] = log
        return found, missing

    def _known(self, wanted: NewLog) -> UnifiedLog | None:
        partition = wanted.partition
        check_topic(partition.topic)
        if str(partition) == CLUSTER_METADATA_DIRECTORY:
            raise InvalidTopic(f"{partition}: the quorum owns the metadata log; use another topic name")
        log = self._directories.log(partition)
        if log is not None and wanted.topic_id is not None:
            log_creation.check_topic_id(log, wanted.topic_id)
        return log

    def _make(self, missing: Iterable[NewLog], logs: Logs) -> None:
        placed = self._placed(missing, logs)
        places = [
            (each, directory.path_of(each.partition), self._config_of(each.partition.topic))
            for each, directory in placed
        ]
        made = log_creation.create_all(places, self._storage, self._clock, self._workers)
        for each, directory in placed:
            error = made[each.partition]
            if isinstance(error, KafkaStorageError) and not isinstance(error, StorageFull):
                self._fail(directory.path, error)
        self._flush_names(placed)
        for each, directory in placed:
            logs[each.partition] = self._added(directory, made[each.partition])

    def _placed(self, missing: Iterable[NewLog], logs: Logs) -> list[tuple[NewLog, LogDirectory]]:
        """Choose a directory for each log; add an error to `logs` where none is available."""
        placed: list[tuple[NewLog, LogDirectory]] = []
        more = Counter[str]()
        with self._lock:
            for each in missing:
                try:
                    directory = self._directories.for_new_log(each.directory, more)
                except KreplicaError as error:
                    logs[each.partition] = error
                    continue
                placed.append((each, directory))
                more[directory.path] += 1
        return placed

    def _flush_names(self, placed: Sequence[tuple[NewLog, LogDirectory]]) -> None:
        for directory in {directory.path: directory for _, directory in placed}.values():
            if not directory.is_offline:
                self._guarded(directory, partial(self._storage.sync_directory, directory.path))

    def _added(self, directory: LogDirectory, log: UnifiedLog | KreplicaError) -> UnifiedLog | KreplicaError:
        if isinstance(log, UnifiedLog):
            with self._lock:
                self._add(directory, log)
                config = self._config_of(log.topic_partition.topic)
                if config != log.config:
                    log.configure(config)  # the configuration changed while the log was created
            if directory.is_offline:
                return KafkaStorageError(f"{directory.path} is offline: {directory.failure}")
        return log
