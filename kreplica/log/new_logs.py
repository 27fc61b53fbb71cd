"""NewLogs: the logs of partitions that a LogManager has none of yet.

New ones are made side by side, since each waits for the disk some times, and share the flush of the directory
that they are in. The LogManager's lock is not held meanwhile, so that whoever asks for another log need not
wait. Thread rule: any thread; one makes logs at a time.
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

# Each partition's log, or why it has none.
Logs = dict[TopicPartition, UnifiedLog | KreplicaError]


class NewLogs:
    """See the module; the callables are the LogManager's, and so is `lock`, which guards `directories`."""

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
        # Held by who makes logs; taken before the lock.
        self._making = Lock()

    def get_or_create(self, wanted: Iterable[NewLog]) -> Logs:
        """Each partition's log, one made now if need be, or what LogManager.get_or_create_log would raise."""
        # One that is wanted twice is made once: two workers, or two directories, would lose it.
        wanted = list({each.partition: each for each in wanted}.values())
        logs, missing = self._found(wanted)
        if missing:
            with self._making:
                # Some may have been made while this thread waited.
                more, missing = self._found(missing)
                logs.update(more)
                if missing:
                    self._make(missing, logs)
        return {each.partition: logs[each.partition] for each in wanted}

    def _found(self, wanted: Iterable[NewLog]) -> tuple[Logs, list[NewLog]]:
        """What is there, or may not be made; and what is missing."""
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
            raise InvalidTopic(f"{partition}: the metadata log belongs to the quorum")
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
        """Each log with the directory that it is made in; `logs` gets why there is none."""
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
                    log.configure(config)  # it was changed while the log was made
            if directory.is_offline:
                return KafkaStorageError(f"{directory.path} is offline: {directory.failure}")
        return log
