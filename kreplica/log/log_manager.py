"""LogManager: manages all logs of a node, in all its log directories.

It loads the logs in parallel and creates, truncates and deletes them. The Scheduler runs its periodic work:
retention, flushing, checkpoints, cleaning, scrubbing, and releasing the resources of idle logs. If the disk
of a directory fails, only that directory goes offline.

Thread rule: `_lock` guards the tables of logs and directories; each log guards its own state. The scheduler's
thread does the periodic work, one step at a time, and takes `_lock` only to read the tables.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from kreplica.common.config import CleanerConfig, LogConfig, LogManagerConfig
from kreplica.common.errors import (
    DamagedLog,
    KafkaStorageError,
    KreplicaError,
    LogClosed,
    LogDirLocked,
    StorageFull,
    UnknownTopicOrPartition,
)
from kreplica.common.locks import RLock
from kreplica.common.ports import Clock, Disk, Random, Scheduler, Storage, Workers
from kreplica.common.types import TopicPartition, Uuid
from kreplica.log import log_loader
from kreplica.log.clean_shutdown_file import UNKNOWN_BROKER_EPOCH
from kreplica.log.file_names import (
    CLUSTER_METADATA_DIRECTORY,
    DELETED_DIRECTORY_SUFFIX,
    STRAY_DIRECTORY_SUFFIX,
    parse_directory_name,
)
from kreplica.log.log_cleaner import LogCleaner
from kreplica.log.log_configs import LogConfigs
from kreplica.log.log_creation import NewLog, check_topic_id
from kreplica.log.log_directories import LogDirectories
from kreplica.log.log_directory import LogDirectory
from kreplica.log.log_jobs import IdleLogs, ProducerExpiration
from kreplica.log.log_loader import OpenOptions
from kreplica.log.log_moves import LogMoves
from kreplica.log.log_removal import LogRemoval
from kreplica.log.new_logs import Logs, NewLogs
from kreplica.log.periodic_job import JobRecord, PeriodicJob, Sweep
from kreplica.log.scrubber import Scrubber
from kreplica.log.unified_log import OnDamage, UnifiedLog

Progress = Callable[[int, int], None]

# Delay after an error before the next step of a job that sets its own pace.
REST_MS = 15_000


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
        self._removal = LogRemoval(storage, scheduler, random, self._guarded)
        self._jobs = self._make_jobs(scheduler, clock)
        self._lock = RLock()
        self.configs = LogConfigs(config, configs or {}, lock=self._lock, logs=self.logs)
        made = [LogDirectory(storage, path, lent=path in locked) for path in directories]
        self._directories = LogDirectories(made)
        self.moves = LogMoves(
            self._directories,
            self._removal,
            self.cleaner.manager,
            clock=clock,
            lock=self._lock,
            open_log=self._open_log,
            config_of=self.configs.of,
        )
        self._new_logs = NewLogs(
            self._directories,
            storage=storage,
            clock=clock,
            workers=workers,
            lock=self._lock,
            config_of=self.configs.of,
            guarded=self._guarded,
            fail=self.fail,
            add=self._add_new,
        )
        self._loaded = 0

    # ---- start and stop -----------------------------------------------------------------------------------

    def _make_jobs(self, scheduler: Scheduler, clock: Clock) -> list[PeriodicJob]:
        """Create the periodic jobs without starting them.

        Names and intervals are Kafka's, except for scrubbing and idling, which Kafka does not have. The
        ReplicaManager advances the high watermarks and schedules their checkpoint.
        """
        settings = self.settings

        def sweep(name: str, visit: Callable[[UnifiedLog], object], period_ms: int) -> PeriodicJob:
            step = Sweep(self.logs, lambda log: self.upkeep(log, visit), period_ms, clock)
            job = PeriodicJob(name, step, scheduler, clock, period_ms)
            job.record.failed = step.failed
            return job

        def checkpoint(name: str, write: Callable[[], None], period_ms: int) -> PeriodicJob:
            def step() -> int:
                write()
                return period_ms

            return PeriodicJob(name, step, scheduler, clock, period_ms)

        def flush(log: UnifiedLog) -> None:
            log.flush_if_due(clock.time_ms())

        jobs = [
            sweep("log-retention", UnifiedLog.delete_old_segments, settings.log_retention_check_interval_ms),
            sweep("log-flusher", flush, settings.log_flush_scheduler_interval_ms),
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
            sweep("log-idling", IdleLogs().visit, settings.log_idle_ms),
            PeriodicJob(
                "producer-expiration",
                ProducerExpiration(self.logs, clock, settings.producer_id_expiration_check_interval_ms),
                scheduler,
                clock,
                settings.producer_id_expiration_check_interval_ms,
            ),
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
            self._let_go()
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
        self.moves.recover()
        for directory in self._online():
            self._guarded(directory, partial(self._collect, directory, tasks))
        self._loaded = 0
        self._workers.run([partial(self._load_one, task, len(tasks), on_progress) for task in tasks])
        # Wait until all logs are loaded: a checkpoint contains only the logs that are.
        for log in self.logs():
            self._lower_checkpoints_of(log)
        self._directories.require_online()

    def _let_go(self) -> None:
        with self._lock:
            self.moves.abandon()
            for directory in self._directories:
                for log in directory.logs.values():
                    log.abandon()
                directory.logs.clear()
                directory.release()

    def _collect(self, directory: LogDirectory, tasks: list[Callable[[], None]]) -> None:
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
        remove_later, delay_ms = self._removal.remove_later, self.configs.default.file_delete_delay_ms
        log.on_deleted = partial(remove_later, directory, delay_ms=delay_ms)
        log.on_cut = directory.lower_checkpoints
        self.cleaner.manager.watch(log)
        log.on_damage = self._on_damage or log.on_damage
        log.producers.producer_id_expiration_ms = self.settings.producer_id_expiration_ms
        if self.disk is not None and log.is_writable:
            log.use_disk(self.disk(directory.path))
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
        self.moves.close()
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
        self._let_go()

    def _guarded(self, directory: LogDirectory, step: Callable[[], object]) -> None:
        # An I/O error takes the directory offline. Any other error is not the disk's fault and is raised.
        try:
            step()
        except (LogDirLocked, DamagedLog):
            raise
        except KafkaStorageError as error:
            self.fail(directory.path, error)

    def _write(self, directory: LogDirectory, write: Callable[[], None]) -> None:
        """Write one of the directory's checkpoints; keep the old one if the disk is full."""
        self._guarded(directory, partial(directory.unless_full, write))

    def fail(self, path: str, error: BaseException) -> list[TopicPartition]:
        """Take the directory and all its logs offline; return their partitions."""
        with self._lock:
            directory = self._directories.get(path)
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
            return self._directories.logs()

    def get_log(self, partition: TopicPartition) -> UnifiedLog | None:
        with self._lock:
            return self._directories.log(partition)

    def log_of(self, partition: TopicPartition, topic_id: Uuid) -> UnifiedLog:
        """Return the existing log of a partition, checked against its topic id.

        Raises KafkaStorageError if no online log directory holds the log, InconsistentTopicId if the log
        belongs to another topic of the same name.
        """
        with self._lock:
            log = self._directories.log(partition)
            if log is None:
                raise KafkaStorageError(f"{partition}: no online log directory holds its log")
            check_topic_id(log, topic_id)
            return log

    def get_or_create_log(
        self, partition: TopicPartition, *, topic_id: Uuid | None = None, directory: str | None = None
    ) -> UnifiedLog:
        """Return the partition's log; create it if needed, in `directory` or in the one with the fewest logs.

        Raises InconsistentTopicId if the existing log belongs to another topic of the same name,
        InvalidTopic, LogDirNotFound, KafkaStorageError.
        """
        made = self.get_or_create_logs([NewLog(partition, topic_id, directory)])[partition]
        if isinstance(made, KreplicaError):
            raise made
        return made

    def get_or_create_logs(self, wanted: Iterable[NewLog]) -> Logs:
        """Return for each partition its log, or the error that `get_or_create_log` would raise.

        New logs are created in parallel, since each waits for the disk several times. Those of one directory
        share its flush.
        """
        return self._new_logs.get_or_create(wanted)

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
        directory = self._directories.get(os.path.dirname(log.local.directory))
        if not directory.is_offline:
            self._guarded(directory, partial(directory.lower_checkpoints, log))

    @property
    def directory_ids(self) -> dict[str, Uuid]:
        """The ids of the online directories, by path; known after `startup`."""
        return self._directories.ids

    @property
    def previous_broker_epoch(self) -> int:
        """The broker epoch of the last clean shutdown of the directories; -1 if unknown (KIP-966)."""
        return self._directories.previous_broker_epoch

    @property
    def offline_directories(self) -> dict[str, BaseException]:
        """The failed directories, with their errors."""
        return self._directories.failures

    @property
    def full_directories(self) -> dict[str, StorageFull]:
        """The directories whose last checkpoint could not be written because the disk was full."""
        return self._directories.full

    def delete_log(self, partition: TopicPartition) -> None:
        """Delete one log, like `delete_logs`. Raises UnknownTopicOrPartition, KafkaStorageError."""
        if not self.delete_logs([partition]):
            raise UnknownTopicOrPartition(f"{partition}: no log of it here")

    def delete_logs(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Delete the existing logs of these partitions; return the partitions that had one.

        The logs' directories are renamed at once, with one flush of the parent, and removed after
        file.delete.delay.ms.
        """
        moved = self._move_aside(partitions, DELETED_DIRECTORY_SUFFIX)
        for directory, log, path in moved:
            self._removal.remove_tree_later(directory, path, log.config.file_delete_delay_ms)
        return [log.topic_partition for _, log, _ in moved]

    def move_stray_aside(self, partition: TopicPartition) -> str:
        """Set aside a stray log, which belongs to no topic of the cluster; return its new path.

        Its directory is renamed and keeps its files. Raises like `delete_log`.
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
            for path in self._removal.strays(directory, is_gone):
                self._removal.remove_tree_later(directory, path, self.configs.default.file_delete_delay_ms)
                removed.append(path)
        return removed

    def topic_id(self, partition: TopicPartition) -> Uuid | None:
        """Return the id of the topic that the partition's log belongs to; None if unknown or without a
        log."""
        log = self.get_log(partition)
        if log is not None and log.topic_id is None:
            log.topic_id = self._removal.topic_id_in(log.local.directory)
        return None if log is None else log.topic_id

    def _move_aside(
        self, partitions: Iterable[TopicPartition], suffix: str
    ) -> list[tuple[LogDirectory, UnifiedLog, str]]:
        moved = []
        with self._lock:
            found: dict[str, list[UnifiedLog]] = {}
            for partition in partitions:
                log = self.get_log(partition)
                if log is not None:
                    found.setdefault(os.path.dirname(log.local.directory), []).append(log)
            for path, logs in found.items():
                directory = self._directories.get(path)
                for log in logs:
                    del directory.logs[log.topic_partition]
                    log.abandon()
                    self._write(directory, partial(self.cleaner.manager.forget, log))
                targets = self._removal.move_aside(directory, logs, suffix)
                moved += [(directory, log, targets[log.topic_partition]) for log in logs]
        return moved

    # ---- cutting ------------------------------------------------------------------------------------------

    def truncate_to(self, offsets: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """Truncate each log to its offset, and write the recovery points; return the truncated partitions.

        Cleaning of these logs is paused meanwhile. Raises UnknownTopicOrPartition, KafkaStorageError, and
        like UnifiedLog.truncate_to.
        """
        cut = []
        for partition, offset in offsets.items():
            if self._cut(partition, partial(UnifiedLog.truncate_to, offset=offset)):
                cut.append(partition)
        self._checkpoint_after(cut)
        return cut

    def truncate_fully_and_start_at(self, partition: TopicPartition, offset: int) -> None:
        """Empty the log, restart it at `offset`, and write the recovery points. Raises like `truncate_to`."""
        self._cut(partition, lambda log: log.truncate_fully_and_start_at(offset))
        self._checkpoint_after([partition])

    def _cut(self, partition: TopicPartition, cut: Callable[[UnifiedLog], object]) -> bool:
        log = self.get_log(partition)
        if log is None:
            raise UnknownTopicOrPartition(f"{partition}: no log of it here")
        self.cleaner.manager.abort_and_pause_cleaning(partition)
        try:
            return bool(cut(log))
        except KafkaStorageError as error:
            self._fail_directory_of(log, error)
            raise
        finally:
            self.cleaner.manager.resume_cleaning(partition)

    def _checkpoint_after(self, cut: Sequence[TopicPartition]) -> None:
        # With a recovery point above the new end, recovery would report the next appends there as lost.
        for directory in self._online():
            if any(partition in directory.logs for partition in cut):
                self._write(directory, directory.write_recovery_points)
                self._write(directory, directory.write_log_starts)

    # ---- periodic work ------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Write the recovery points and log start offsets of every directory."""
        self.checkpoint_recovery_points()
        self.checkpoint_log_starts()

    def checkpoint_recovery_points(self) -> None:
        """Write the recovery points of every directory."""
        for directory in self._online():
            self._write(directory, directory.write_recovery_points)

    def checkpoint_log_starts(self) -> None:
        """Write the log start offsets of every directory."""
        for directory in self._online():
            self._write(directory, directory.write_log_starts)

    def checkpoint_high_watermarks(self) -> None:
        """Write every log's high watermark."""
        for directory in self._online():
            self._write(directory, directory.write_high_watermarks)

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
        self.fail(os.path.dirname(log.local.directory), error)

    def _online(self) -> list[LogDirectory]:
        with self._lock:
            return self._directories.online()
