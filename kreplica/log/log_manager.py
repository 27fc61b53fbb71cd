"""LogManager: manages all logs of a node, in all its log directories.

It loads the logs in parallel, and creates, truncates, moves and deletes them. The Scheduler runs its periodic
work: retention, flushing, checkpoints, cleaning, scrubbing, and releasing the resources of idle logs. If the
disk of a directory fails, only that directory goes offline.

Thread rule: `_lock` guards the tables of logs, directories and moves; each log guards its own state. The
scheduler's thread does the periodic work, one step at a time, and takes `_lock` only to read the tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any

from kreplica.common.config import CleanerConfig, LogConfig, LogManagerConfig
from kreplica.common.dataclass import replace
from kreplica.common.errors import (
    DamagedLog,
    InconsistentTopicId,
    InvalidFile,
    InvalidTopic,
    KafkaStorageError,
    KreplicaError,
    LogClosed,
    LogDirLocked,
    LogDirNotFound,
    StorageFull,
    UnknownTopicOrPartition,
)
from kreplica.common.locks import Lock, RLock
from kreplica.common.ports import Clock, Disk, Random, Scheduler, Storage, Workers
from kreplica.common.types import INT64_MAX, TopicPartition, Uuid, check_topic_name
from kreplica.log import log_loader
from kreplica.log.append_queue import AppendQueue
from kreplica.log.file_names import (
    CLUSTER_METADATA_DIRECTORY,
    DELETED_DIRECTORY_SUFFIX,
    FUTURE_DIRECTORY_SUFFIX,
    STRAY_DIRECTORY_SUFFIX,
    parse_directory_name,
)
from kreplica.log.log_cleaner import LogCleaner
from kreplica.log.log_directory import UNKNOWN_BROKER_EPOCH, LogDirectory
from kreplica.log.log_loader import NewLog, OpenOptions
from kreplica.log.log_move import BYTES_BETWEEN_FLUSHES, WHOLE, LogMove, whole_copy_in
from kreplica.log.partition_metadata_file import PartitionMetadataFile
from kreplica.log.periodic_job import IdleLogs, JobRecord, PeriodicJob, Sweep, Visit, expire_producers
from kreplica.log.scrubber import Scrubber
from kreplica.log.unified_log import OnDamage, UnifiedLog

# For each partition its log, or the error that prevented one.
Logs = dict[TopicPartition, UnifiedLog | KreplicaError]
Progress = Callable[[int, int], None]

# Delay after an error before the next step of a job that sets its own pace.
REST_MS = 15_000


class LogConfigs:
    """The configurations of a node's logs, by topic and by default, which may change at runtime.

    `default` applies to topics without their own configuration. `logs()`: the logs to reconfigure. `lock`
    guards everything, so that no log is opened with an outdated configuration.
    """

    def __init__(
        self,
        default: LogConfig,
        by_topic: Mapping[str, LogConfig],
        *,
        lock: AbstractContextManager[Any],
        logs: Callable[[], list[UnifiedLog]],
    ) -> None:
        # Called with the configurations that `change` has changed.
        self.on_change: Callable[[Mapping[str, LogConfig | None]], object] = lambda _: None
        self._lock = lock
        self._logs = logs
        # Guarded by _lock:
        self._default = default
        self._by_topic = dict(by_topic)

    @property
    def default(self) -> LogConfig:
        """The configuration of topics without their own."""
        return self._default

    @property
    def by_topic(self) -> dict[str, LogConfig]:
        """A copy of the topics' own configurations."""
        with self._lock:
            return dict(self._by_topic)

    def of(self, topic: str) -> LogConfig:
        """Return the topic's own configuration, or the default."""
        with self._lock:
            return self._by_topic.get(topic, self._default)

    def change(self, configs: Mapping[str, LogConfig | None], default: LogConfig | None = None) -> None:
        """Set the configurations of these topics, and reconfigure their open logs.

        None removes a topic's own configuration. `default`: the new default, if given.
        """
        with self._lock:
            is_other = default is not None and default != self._default
            self._default = default or self._default
            for topic, config in configs.items():
                if config is None:
                    self._by_topic.pop(topic, None)
                else:
                    self._by_topic[topic] = config
            for log in self._logs():
                topic = log.topic_partition.topic
                if topic in configs or (is_other and topic not in self._by_topic):
                    log.configure(self._by_topic.get(topic, self._default))
        self.on_change(configs)


class LogManager:
    """Manages the logs of node `node_id` in `directories`.

    `config`: the default configuration of a log; `configs` overrides it by topic.
    `settings`, `cleaner`: settings of the periodic work.
    `on_damage(log, damage)`: called without any lock when a running log finds a damaged range.
    `locked`: directories that the caller has locked already.
    `disk(path)`: returns the Disk that makes a directory's appends. None: the calling thread makes them.

    A directory that cannot be opened goes offline. `startup` raises only if all of them do.
    """

    def __init__(
        self,
        directories: Sequence[str],
        *,
        cluster_id: str,
        node_id: int,
        storage: Storage,
        clock: Clock,
        scheduler: Scheduler,
        workers: Workers,
        random: Random,
        config: LogConfig,
        configs: Mapping[str, LogConfig] | None = None,
        settings: LogManagerConfig | None = None,
        cleaner: CleanerConfig | None = None,
        on_damage: OnDamage | None = None,
        locked: Container[str] = (),
        disk: Callable[[str], Disk] | None = None,
    ) -> None:
        self.disk = disk
        # Called in the node's loop with the AppendQueue of a log when its disk thread has done a job.
        self.on_disk_done: Callable[[AppendQueue], object] = lambda _queue: None
        # Called with the id of each directory that goes offline. `_lock` is held, so it should only post.
        self.on_directory_failed: Callable[[Uuid], object] = lambda _: None
        self._storage = storage
        self._clock = clock
        self._scheduler = scheduler
        self._workers = workers
        self._random = random
        self._cluster_id = cluster_id
        self._node_id = node_id
        self.settings = settings or LogManagerConfig()
        # Called with the partitions of a directory that failed, in any thread and under locks, so it should
        # only post.
        self.on_failure: Callable[[list[TopicPartition]], object] = lambda _: None
        self._on_damage = on_damage
        self.cleaner = LogCleaner(
            self.logs,
            clock=clock,
            random=random,
            storage=storage,
            config=cleaner,
            on_storage_error=self._fail_directory_of,
        )
        self.scrubber = Scrubber(self.logs, clock, self._scrub_failed, self.settings)
        self._jobs = self._make_jobs(scheduler, clock)
        self._lock = RLock()
        self.configs = LogConfigs(config, configs or {}, lock=self._lock, logs=self.logs)
        self._directories = [LogDirectory(storage, path, lent=path in locked) for path in directories]
        # Held while logs are created; taken before `_lock`.
        self._making = Lock()
        # Guarded by _lock: the moves of logs to another directory, and the number of logs loaded so far.
        self.moves: dict[TopicPartition, LogMove] = {}
        self._loaded = 0

    # ---- start and stop -----------------------------------------------------------------------------------

    def _make_jobs(self, scheduler: Scheduler, clock: Clock) -> list[PeriodicJob]:
        """Create the periodic jobs without starting them.

        Names and intervals are Kafka's, except for scrubbing and idling, which Kafka does not have. The
        ReplicaManager advances the high watermarks and schedules their checkpoint.
        """
        settings = self.settings

        def sweep(
            name: str, visit: Visit, period_ms: int, logs: Callable[[], list[UnifiedLog]] = self.logs
        ) -> PeriodicJob:
            step = Sweep(logs, visit, period_ms, clock)
            job = PeriodicJob(name, step, scheduler, clock, period_ms)
            job.record.failed = step.failed
            return job

        def checkpoint(name: str, write: Callable[[], None], period_ms: int) -> PeriodicJob:
            def step() -> int:
                write()
                return period_ms

            return PeriodicJob(name, step, scheduler, clock, period_ms)

        def upkeep(step: Callable[[UnifiedLog], object]) -> Callable[[UnifiedLog], None]:
            return lambda log: self.upkeep(log, step)

        def flush(log: UnifiedLog) -> None:
            log.flush_if_due(clock.time_ms())

        def flushed() -> list[UnifiedLog]:
            # Few logs have flush.ms, and the job runs each second.
            return [log for log in self.logs() if log.config.flush_ms < INT64_MAX]

        retain = upkeep(UnifiedLog.delete_old_segments)

        jobs = [
            sweep("log-retention", retain, settings.log_retention_check_interval_ms),
            sweep("log-flusher", upkeep(flush), settings.log_flush_scheduler_interval_ms, flushed),
            checkpoint(
                "recovery-point-checkpoint",
                self.checkpoint_recovery_points,
                settings.log_flush_offset_checkpoint_interval_ms,
            ),
            checkpoint(
                "log-start-offset-checkpoint",
                self.checkpoint_log_starts,
                settings.log_flush_start_offset_checkpoint_interval_ms,
            ),
            sweep("log-idling", upkeep(IdleLogs().visit), settings.log_idle_ms),
            sweep("producer-expiration", expire_producers, settings.producer_id_expiration_check_interval_ms),
            PeriodicJob("log-cleaner", self.cleaner.do_work, scheduler, clock, REST_MS),
        ]
        if settings.log_scrub_enable:
            jobs.append(PeriodicJob("log-scrubber", self.scrubber.do_work, scheduler, clock, REST_MS))
        return jobs

    def startup(self, on_progress: Progress | None = None) -> None:
        """Open the directories, load every log in them, and start the periodic work.

        Calls `on_progress(done, total)` after each log. Raises:
        LogDirLocked if a directory, or a partition in it, has another writer;
        InconsistentClusterId or InvalidFile if a directory belongs to another node; no directory was changed;
        KafkaStorageError if no directory could be opened.
        After any exception, all locks and logs are released.
        """
        try:
            self._open_directories()
            self._load_all(on_progress)
        except BaseException:
            self._release_all()
            raise
        delays_ms = {
            "log-flusher": self.settings.log_flush_scheduler_interval_ms,
            # As in Kafka, the first expiration of producers comes after exactly one interval.
            "producer-expiration": self.settings.producer_id_expiration_check_interval_ms,
        }
        for job in self._jobs:
            job.start(delays_ms.get(job.name, self.settings.log_initial_task_delay_ms))

    @property
    def jobs(self) -> dict[str, JobRecord]:
        """The record of each periodic job's work, by job name."""
        return {job.name: job.record for job in self._jobs}

    def _open_directories(self) -> None:
        # Check all directories before writing to any.
        for directory in self._directories:
            self._guarded(directory, partial(directory.open, self._cluster_id, self._node_id))
        for directory in self._online():
            self._guarded(directory, partial(directory.begin, self._cluster_id, self._node_id, self._random))

    def _load_all(self, on_progress: Progress | None) -> None:
        tasks: list[Callable[[], None]] = []
        self._recover_moves()
        for directory in self._online():
            self._guarded(directory, partial(self._collect, directory, tasks))
        self._loaded = 0
        self._workers.run([partial(self._load_one, task, len(tasks), on_progress) for task in tasks])
        # Wait until all logs are loaded: a checkpoint contains only the logs that are.
        for log in self.logs():
            self._lower_checkpoints_of(log)
        self._require_online()

    def _release_all(self) -> None:
        with self._lock:
            for move in self.moves.values():
                move.future.abandon()
            self.moves.clear()
            for directory in self._directories:
                for log in directory.logs.values():
                    log.abandon()
                directory.logs.clear()
                directory.release()

    def _collect(self, directory: LogDirectory, tasks: list[Callable[[], None]]) -> None:
        """Remove deleted logs from the directory, and add a task that loads it for each other log."""
        names, deleted = directory.partitions()
        for name in deleted:
            self._storage.remove_tree(f"{directory.path}/{name}")
        points, starts, marks = directory.read_checkpoints()
        # The quorum owns the metadata log; the broker leaves it alone.
        for name in (each for each in names if each != CLUSTER_METADATA_DIRECTORY):
            partition = parse_directory_name(name)
            assert partition is not None
            options = OpenOptions(
                recovery_point=points.get(partition, 0),
                log_start_offset=starts.get(partition, 0),
                high_watermark=marks.get(partition, 0),
                known_start=starts.get(partition),
                is_settled=directory.previous_broker_epoch is not None,
            )
            load = partial(self._open_log, directory, partition, options)
            tasks.append(partial(self._guarded, directory, load))

    def _load_one(self, task: Callable[[], None], total: int, on_progress: Progress | None) -> None:
        task()
        if on_progress is not None:
            with self._lock:
                self._loaded += 1
                on_progress(self._loaded, total)

    def _open_log(self, directory: LogDirectory, partition: TopicPartition, options: OpenOptions) -> None:
        if directory.is_offline:
            return
        path = directory.path_of(partition)
        # A program that opens a single log locks the log's directory and then checks for our lock. We do the
        # reverse, so at least one of the two notices the other.
        if self._storage.is_locked(path):
            raise LogDirLocked(f"{path}: another writer has the log open; close it first")
        config = self.configs.of(partition.topic)
        options = replace(options, producer_id_expiration_ms=self.settings.producer_id_expiration_ms)
        log = log_loader.load(path, partition, config, self._storage, self._clock, options)
        log.idle()
        self._add(directory, log)

    def _add(self, directory: LogDirectory, log: UnifiedLog) -> None:
        log.on_deleted = partial(
            self._remove_later, directory, delay_ms=self.configs.default.file_delete_delay_ms
        )
        log.on_cut = directory.lower_checkpoints
        self.cleaner.manager.watch(log)
        log.on_damage = self._on_damage or log.on_damage
        log.producers.producer_id_expiration_ms = self.settings.producer_id_expiration_ms
        if self.disk is not None and log.is_writable:
            AppendQueue(log, self.disk(directory.path), self.on_disk_done)
        with self._lock:
            if directory.failure is None:
                directory.logs[log.topic_partition] = log
            else:
                log.fail(directory.failure)

    def shutdown(self, broker_epoch: int = UNKNOWN_BROKER_EPOCH) -> None:
        """Stop the periodic work, close every log, and mark the directories as cleanly shut down in
        `broker_epoch`."""
        for job in self._jobs:
            job.stop()
        for move in list(self.moves.values()):
            self.cancel_move(move)
        self.cleaner.close()
        failed: list[TopicPartition] = []

        def close(log: UnifiedLog) -> None:
            try:
                log.close()
            except KafkaStorageError:
                failed.append(log.topic_partition)

        self._workers.run([partial(close, log) for log in self.logs()])
        with self._lock:
            for directory in self._directories:
                directory.close(failed, broker_epoch)

    def abandon(self) -> None:
        """Release every log and directory without writing anything, as if the process had been killed."""
        for job in self._jobs:
            job.stop()
        self.cleaner.close()
        self._release_all()

    def _guarded(self, directory: LogDirectory, step: Callable[[], object]) -> None:
        """Run `step`. An I/O error takes the directory offline; any other error is raised."""
        try:
            step()
        except (LogDirLocked, DamagedLog):
            raise
        except KafkaStorageError as error:
            self.fail(directory.path, error)

    def _write(self, directory: LogDirectory, write: Callable[[], None]) -> None:
        """Write one of the directory's checkpoints. If the disk is full, the old one stays valid and the next
        period tries again."""

        def step() -> None:
            with suppress(StorageFull):
                write()

        self._guarded(directory, step)

    def fail(self, path: str, error: BaseException) -> list[TopicPartition]:
        """Take the directory and all its logs offline; return their partitions."""
        with self._lock:
            directory = self._directory(path)
            if directory.is_offline:
                return []
            directory.failure = error
            gone = list(directory.logs)
            for log in directory.logs.values():
                log.fail(error)
            directory.logs.clear()
            directory.release()
            if directory.id is not None:
                self.on_directory_failed(directory.id)
        if gone:
            self.on_failure(gone)
        return gone

    # ---- logs ---------------------------------------------------------------------------------------------

    def logs(self) -> list[UnifiedLog]:
        """Return every online log."""
        with self._lock:
            return [log for directory in self._directories for log in directory.logs.values()]

    def get_log(self, partition: TopicPartition) -> UnifiedLog | None:
        with self._lock:
            found = (directory.logs.get(partition) for directory in self._directories)
            return next((log for log in found if log is not None), None)

    def log_of(self, partition: TopicPartition, topic_id: Uuid) -> UnifiedLog:
        """Return the existing log of a partition, checked against its topic id.

        Raises KafkaStorageError if no online log directory holds the log, InconsistentTopicId if the log
        belongs to another topic of the same name.
        """
        with self._lock:
            log = self.get_log(partition)
            if log is None:
                raise KafkaStorageError(f"{partition}: no online log directory holds its log")
            _check_topic_id(log, topic_id)
            return log

    def get_or_create_logs(self, wanted: Iterable[NewLog]) -> Logs:
        """Return for each partition its log, created if needed, or the error that prevented it.

        New logs are created in parallel, since each waits for the disk several times. Those of one directory
        share its flush. `_lock` is free meanwhile, so other calls need not wait. A log without a directory
        goes into the one with the fewest logs.

        The errors are InconsistentTopicId if the existing log belongs to another topic of the same name,
        InvalidTopic, LogDirNotFound, KafkaStorageError.
        """
        # Create a log that is wanted twice only once: two workers, or two directories, would conflict.
        wanted = list({each.partition: each for each in wanted}.values())
        logs, missing = self._find_existing(wanted)
        if missing:
            with self._making:
                # Another thread may have created some while this one waited.
                more, missing = self._find_existing(missing)
                logs.update(more)
                if missing:
                    self._create_missing(missing, logs)
        return {each.partition: logs[each.partition] for each in wanted}

    def _find_existing(self, wanted: Iterable[NewLog]) -> tuple[Logs, list[NewLog]]:
        """Return the existing logs and the errors of invalid requests, and the logs to create."""
        found: Logs = {}
        missing: list[NewLog] = []
        with self._lock:
            for each in wanted:
                try:
                    log = self._existing_log(each)
                except KreplicaError as error:
                    found[each.partition] = error
                    continue
                if log is None:
                    missing.append(each)
                else:
                    found[each.partition] = log
        return found, missing

    def _existing_log(self, wanted: NewLog) -> UnifiedLog | None:
        partition = wanted.partition
        check_topic_name(partition.topic)
        if str(partition) == CLUSTER_METADATA_DIRECTORY:
            raise InvalidTopic(f"{partition}: the quorum owns the metadata log; use another topic name")
        log = self.get_log(partition)
        if log is not None and wanted.topic_id is not None:
            _check_topic_id(log, wanted.topic_id)
        return log

    def _create_missing(self, missing: Iterable[NewLog], logs: Logs) -> None:
        """Create the logs in parallel, flush each directory once, and add logs and errors to `logs`."""
        placed = self._choose_directories(missing, logs)
        places = [
            (each, directory.path_of(each.partition), self.configs.of(each.partition.topic))
            for each, directory in placed
        ]
        made = self._create_all(places)
        for each, directory in placed:
            error = made[each.partition]
            if isinstance(error, KafkaStorageError) and not isinstance(error, StorageFull):
                self.fail(directory.path, error)
        self._flush_names(placed)
        for each, directory in placed:
            logs[each.partition] = self._add_created(directory, made[each.partition])

    def _create_all(self, places: Iterable[tuple[NewLog, str, LogConfig]]) -> Logs:
        made: Logs = {}

        def try_to_create(wanted: NewLog, path: str, config: LogConfig) -> None:
            try:
                made[wanted.partition] = log_loader.create(path, wanted, config, self._storage, self._clock)
            except KreplicaError as error:
                made[wanted.partition] = error

        self._workers.run([partial(try_to_create, *each) for each in places])
        return made

    def _choose_directories(self, missing: Iterable[NewLog], logs: Logs) -> list[tuple[NewLog, LogDirectory]]:
        """Choose a directory for each log; add an error to `logs` where none is available."""
        placed: list[tuple[NewLog, LogDirectory]] = []
        more = Counter[str]()
        with self._lock:
            for each in missing:
                try:
                    directory = self._directory_for(each.directory, more)
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

    def _add_created(
        self, directory: LogDirectory, log: UnifiedLog | KreplicaError
    ) -> UnifiedLog | KreplicaError:
        if isinstance(log, UnifiedLog):
            with self._lock:
                self._add_new(directory, log)
                config = self.configs.of(log.topic_partition.topic)
                if config != log.config:
                    log.configure(config)  # the configuration changed while the log was created
            if directory.is_offline:
                return KafkaStorageError(f"{directory.path} is offline: {directory.failure}")
        return log

    def _directory_for(self, path: str | None, more: Mapping[str, int]) -> LogDirectory:
        """Return the directory for a new log: the one at `path`, or the one with the fewest logs.

        `more`: the number of other logs about to be created, by directory. Raises LogDirNotFound,
        KafkaStorageError.
        """
        if path is None:
            return min(self._require_online(), key=lambda each: len(each.logs) + more.get(each.path, 0))
        directory = self._directory(path)
        if directory.is_offline:
            raise KafkaStorageError(f"{path} is offline") from directory.failure
        return directory

    def _add_new(self, directory: LogDirectory, log: UnifiedLog) -> None:
        self._add(directory, log)
        # The checkpoints may still list a deleted log of the same name.
        self._lower_checkpoints_of(log)

    def reopen_log(self, partition: TopicPartition, mend: Callable[[], None]) -> UnifiedLog:
        """Call `mend` to repair the files of a damaged log, then open the log again.

        The log is opened again even if `mend` raises, where possible. Raises what `mend` raises, and
        KafkaStorageError.
        """
        with self._lock:
            if self.get_log(partition) is None:
                raise KafkaStorageError(f"{partition}: its log directory is offline")
            directory = next(each for each in self._online() if partition in each.logs)
            former = directory.logs.pop(partition)
            former.abandon()
            points, starts, marks = directory.read_checkpoints()
            # The checkpoints may be older than the log that was open.
            options = OpenOptions(
                recovery_point=points.get(partition, 0),
                log_start_offset=max(starts.get(partition, 0), former.log_start_offset),
                high_watermark=max(marks.get(partition, 0), former.high_watermark),
            )
            try:
                mend()
            finally:
                self._guarded(directory, partial(self._open_log, directory, partition, options))
            log = self.get_log(partition)
            if log is None:
                raise KafkaStorageError(f"{partition}: its log directory is offline")
            self._lower_checkpoints_of(log)
            return log

    def _lower_checkpoints_of(self, log: UnifiedLog) -> None:
        directory = self._directory(log.parent_directory)
        if not directory.is_offline:
            self._guarded(directory, partial(directory.lower_checkpoints, log))

    # ---- directories --------------------------------------------------------------------------------------

    def _directory(self, path: str) -> LogDirectory:
        """Return the directory at `path`. Raises LogDirNotFound."""
        for directory in self._directories:
            if directory.path == path:
                return directory
        known = ", ".join(directory.path for directory in self._directories)
        raise LogDirNotFound(f"{path} is not a log directory of this node, which has {known}")

    def _online(self) -> list[LogDirectory]:
        with self._lock:
            return [directory for directory in self._directories if not directory.is_offline]

    def _require_online(self) -> list[LogDirectory]:
        """Return the online directories. Raises KafkaStorageError if all have failed."""
        online = self._online()
        if not online:
            raise KafkaStorageError(
                f"no log directory is online; the first one failed with: {self._directories[0].failure}"
            ) from self._directories[0].failure
        return online

    @property
    def directory_ids(self) -> dict[str, Uuid]:
        """The ids of the online directories, by path; known after `startup`."""
        return {each.path: each.id for each in self._online() if each.id is not None}

    @property
    def previous_broker_epoch(self) -> int:
        """The broker epoch of the last clean shutdown of all directories (KIP-966).

        -1 if one of them was not cleanly shut down, or if the epochs differ or are unknown.
        """
        epochs = {directory.previous_broker_epoch for directory in self._directories}
        epoch = epochs.pop()
        return UNKNOWN_BROKER_EPOCH if epochs or epoch is None else epoch

    @property
    def offline_directories(self) -> dict[str, BaseException]:
        """The failed directories, with their errors."""
        return {each.path: each.failure for each in self._directories if each.failure is not None}

    @property
    def directory_paths(self) -> list[str]:
        """The paths of all directories, also of those that have failed."""
        return [each.path for each in self._directories]

    def disk_space(self, path: str) -> tuple[int, int]:
        """Return the size and the free bytes of a directory's file system. Raises KafkaStorageError."""
        return self._storage.total_bytes(path), self._storage.free_bytes(path)

    # ---- deleting -----------------------------------------------------------------------------------------

    def delete_logs(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Delete the existing logs of these partitions; return the partitions that had one.

        The logs' directories are renamed at once, with one flush of the parent, and removed after
        file.delete.delay.ms.
        """
        moved = self._move_aside(partitions, DELETED_DIRECTORY_SUFFIX)
        for directory, log, path in moved:
            self._remove_tree_later(directory, path, log.config.file_delete_delay_ms)
        return [log.topic_partition for _, log, _ in moved]

    def move_stray_aside(self, partition: TopicPartition) -> str:
        """Set aside a stray log, which belongs to no topic of the cluster; return its new path.

        Its directory is renamed and keeps its files. Raises UnknownTopicOrPartition, KafkaStorageError.
        """
        for _, _, path in self._move_aside([partition], STRAY_DIRECTORY_SUFFIX):
            return path
        raise UnknownTopicOrPartition(f"{partition}: no log of it here")

    def remove_strays(self, is_gone: Callable[[Uuid], bool]) -> list[str]:
        """Remove the stray logs whose topic `is_gone`, after file.delete.delay.ms; return their paths.

        This includes strays of earlier runs. A stray without a known topic id is kept.
        """
        removed = []
        for directory in self._online():
            strays: list[str] = []
            self._guarded(directory, partial(directory.add_strays_to, strays))
            for path in strays:
                topic_id = self._topic_id_in(path)
                if topic_id is not None and is_gone(topic_id):
                    self._remove_tree_later(directory, path, self.configs.default.file_delete_delay_ms)
                    removed.append(path)
        return removed

    def topic_id(self, partition: TopicPartition) -> Uuid | None:
        """Return the id of the topic that the partition's log belongs to; None if unknown or without a
        log."""
        log = self.get_log(partition)
        if log is not None and log.topic_id is None:
            log.topic_id = self._topic_id_in(log.local.directory)
        return None if log is None else log.topic_id

    def _topic_id_in(self, path: str) -> Uuid | None:
        """Return the topic id in the partition.metadata of a directory, or None if missing or unreadable."""
        try:
            return PartitionMetadataFile(self._storage, path).read()
        except InvalidFile:
            return None

    def _move_aside(
        self, partitions: Iterable[TopicPartition], suffix: str
    ) -> list[tuple[LogDirectory, UnifiedLog, str]]:
        """Close the logs of these partitions and rename their directories; return logs and new paths."""
        moved = []
        with self._lock:
            found: dict[str, list[UnifiedLog]] = {}
            for partition in partitions:
                log = self.get_log(partition)
                if log is not None:
                    found.setdefault(log.parent_directory, []).append(log)
            for path, logs in found.items():
                directory = self._directory(path)
                for log in logs:
                    del directory.logs[log.topic_partition]
                    log.abandon()
                    self._write(directory, partial(self.cleaner.manager.forget, log))
                targets = self._rename_aside(directory, logs, suffix)
                moved += [(directory, log, targets[log.topic_partition]) for log in logs]
        return moved

    def _rename_aside(
        self, directory: LogDirectory, logs: Sequence[UnifiedLog], suffix: str
    ) -> dict[TopicPartition, str]:
        """Rename the directories of these logs to unique names with that suffix; return their new paths.

        A renamed directory no longer counts as the log of its partition.
        """
        targets = {
            log.topic_partition: directory.aside_path_of(log.topic_partition, suffix, self._random)
            for log in logs
        }

        def rename() -> None:
            for log in logs:
                self._storage.rename(log.local.directory, targets[log.topic_partition])
            self._storage.sync_directory(directory.path)

        self._guarded(directory, rename)
        return targets

    def _remove_tree_later(self, directory: LogDirectory, path: str, delay_ms: int) -> None:
        remove = partial(self._guarded, directory, partial(self._storage.remove_tree, path))
        self._scheduler.schedule("delete-log", remove, delay_ms)

    def _remove_later(self, directory: LogDirectory, path: str, delay_ms: int) -> None:
        remove = partial(self._guarded, directory, partial(self._storage.remove, path))
        self._scheduler.schedule("delete-file", remove, delay_ms)

    # ---- moving to another directory (KIP-113); see LogMove -----------------------------------------------

    def begin_move(self, log: UnifiedLog, path: str, topic_id: Uuid | None) -> LogMove | None:
        """Start moving the log to the directory at `path`; return None if it is already there.

        A move of this log to another directory is cancelled. Raises LogDirNotFound, KafkaStorageError.
        """
        partition = log.topic_partition
        with self._lock:
            target = self._directory(path)
            known = self.moves.get(partition)
            if known is not None and known.log is log and known.target is target:
                return known
            if known is not None:
                self.cancel_move(known)
            if target.is_offline:
                raise KafkaStorageError(
                    f"{path} is offline, so {partition} cannot move there"
                ) from target.failure
            if partition in target.logs:
                return None
            aside = target.aside_path_of(partition, FUTURE_DIRECTORY_SUFFIX, self._random)
            wanted = NewLog(partition, topic_id=topic_id)
            config = self.configs.of(partition.topic)
            future = log_loader.create(aside, wanted, config, self._storage, self._clock)
            self._storage.sync_directory(target.path)
            self.cleaner.manager.abort_and_pause_cleaning(partition)
            move = self.moves[partition] = LogMove(log, target, future)
            return move

    def cancel_move(self, move: LogMove) -> None:
        """Cancel the move and remove the copy; the log stays where it is."""
        partition = move.log.topic_partition
        with self._lock:
            if self.moves.get(partition) is not move:
                return
            del self.moves[partition]
            self.cleaner.manager.resume_cleaning(partition)
            path = move.future.local.directory
            move.future.abandon()
            self._guarded(move.target, partial(self._storage.remove_tree, path))

    def finish_move(self, move: LogMove) -> bool:
        """Copy the rest and replace the log by the copy; return False if the copy must first start again.

        The caller blocks appends meanwhile. Raises DamagedLog, KafkaStorageError.
        """
        log = move.log
        with self._lock, log.lock:
            if move.is_stale or self.moves.get(log.topic_partition) is not move:
                return False
            while not move.copy(BYTES_BETWEEN_FLUSHES):
                pass
            options = move.seal()
            del self.moves[log.topic_partition]
            self.cleaner.manager.resume_cleaning(log.topic_partition)
            self._change_names(move, options)
            return True

    def _change_names(self, move: LogMove, options: OpenOptions) -> None:
        log, partition, target = move.log, move.log.topic_partition, move.target
        source = next(each for each in self._directories if each.logs.get(partition) is log)
        delay_ms = log.config.file_delete_delay_ms
        del source.logs[partition]
        log.abandon()
        self.cleaner.manager.forget(log)
        old = self._rename_aside(source, [log], DELETED_DIRECTORY_SUFFIX)[partition]
        take_name = partial(self._put_copy_in_place, target, partition, move.future.local.directory)
        self._guarded(target, take_name)
        self._guarded(target, partial(self._open_log, target, partition, options))
        self._guarded(target, target.write_checkpoints)
        self._remove_tree_later(source, old, delay_ms)

    def _put_copy_in_place(self, target: LogDirectory, partition: TopicPartition, path: str) -> None:
        self._storage.rename(path, target.path_of(partition))
        self._storage.sync_directory(target.path)
        self._storage.remove(f"{target.path_of(partition)}/{WHOLE}")

    def _recover_moves(self) -> None:
        """Finish the moves whose copy is whole, and remove other copies, before logs are loaded."""
        for directory in self._online():
            self._guarded(directory, partial(self._recover_moves_to, directory))

    def _recover_moves_to(self, directory: LogDirectory) -> None:
        for path in directory.futures():
            partition = whole_copy_in(self._storage, path)
            if partition is not None:
                for other in self._online():
                    self._guarded(other, partial(self._move_original_aside, other, partition))
                self._put_copy_in_place(directory, partition, path)
            else:
                self._storage.remove_tree(path)

    def _move_original_aside(self, directory: LogDirectory, partition: TopicPartition) -> None:
        path = directory.path_of(partition)
        if self._storage.is_directory(path):
            self._storage.rename(
                path, directory.aside_path_of(partition, DELETED_DIRECTORY_SUFFIX, self._random)
            )
            self._storage.sync_directory(directory.path)

    # ---- periodic work ------------------------------------------------------------------------------------

    def checkpoint_recovery_points(self) -> None:
        """Write the recovery points of every directory."""
        for directory in self._online():
            self._write(directory, directory.write_recovery_points)

    def checkpoint_log_starts(self) -> None:
        """Write the log start offsets of every directory."""
        for directory in self._online():
            self._write(directory, directory.write_log_starts)

    def checkpoint_high_watermarks(self) -> None:
        """Write the high watermarks of each directory where one has moved."""
        for directory in self._online():
            self._write(directory, directory.update_high_watermarks)

    def delete_old_segments(self) -> None:
        """Apply retention to every log, now."""
        for log in self.logs():
            self.upkeep(log, UnifiedLog.delete_old_segments)

    def upkeep(self, log: UnifiedLog, step: Callable[[UnifiedLog], object]) -> None:
        """Run `step` on a writable log; if the disk fails, take the log's directory offline."""
        if not log.is_writable:
            return
        try:
            step(log)
        except LogClosed:
            # The log may have been deleted since the list of logs was made.
            if not log.closed:
                raise
        except DamagedLog:
            raise
        except KafkaStorageError as error:
            self._fail_directory_of(log, error)

    def _scrub_failed(self, log: UnifiedLog, error: Exception) -> None:
        if not isinstance(error, KafkaStorageError) or isinstance(error, DamagedLog):
            raise error
        self._fail_directory_of(log, error)

    def _fail_directory_of(self, log: UnifiedLog, error: BaseException) -> None:
        if isinstance(error, StorageFull) and not log.is_offline:
            return
        self.fail(log.parent_directory, error)


def _check_topic_id(log: UnifiedLog, topic_id: Uuid) -> None:
    """Check that the log belongs to the topic; assign the topic if the log has none.

    Raises InconsistentTopicId if the log belongs to another topic.
    """
    if log.topic_id is None:
        file = PartitionMetadataFile(log.local.storage, log.local.directory)
        log.topic_id = file.read()
        if log.topic_id is None:
            file.write(topic_id)
            log.topic_id = topic_id
    if log.topic_id != topic_id:
        raise InconsistentTopicId(
            f"{log.topic_partition}: the log's topic id is {log.topic_id}, not {topic_id}"
        )
