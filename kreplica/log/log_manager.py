"""LogManager: all logs of a node, over its log directories.

It loads them in parallel, makes, cuts and deletes them, and runs from the Scheduler what keeps them well:
retention, flushing, checkpoints, cleaning, scrubbing, and letting go of what nobody uses. A directory whose
disk fails goes offline alone. Thread rule: `_lock` guards the tables of logs and directories; a log guards
itself; the periodic work is done by the scheduler's thread, one step at a time, and holds `_lock` only to
look at the tables.
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

# How long a job rests after an error if it sets its own pace.
REST_MS = 15_000


class LogManager:
    """The logs of node `node_id` in `directories`.

    `config`: what a log gets that has no configuration of its own; `configs` gives that by topic. `settings`
    and `cleaner`: of the periodic work. `on_damage(log, damage)`: called, with no lock held, when a range of
    a log is found to have rotted while it runs. A directory that cannot be opened is offline; `startup`
    raises only if all are. `locked`: directories that the caller has locked. `disk(path)`: what makes the
    appends of a directory, None where whoever asks for them does.
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
        # Told the id of each directory that goes offline, with the lock held: it should only post.
        self.on_directory_failed: Callable[[Uuid], object] = lambda _: None
        self._storage = storage
        self._clock = clock
        self._scheduler = scheduler
        self._workers = workers
        self._random = random
        self._cluster_id = cluster_id
        self._node_id = node_id
        self.settings = settings or LogManagerConfig()
        # Told the partitions of a directory that failed, in any thread and under locks: to be posted.
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
        """Make the periodic jobs, not started.

        Names and intervals are Kafka's, except for scrubbing and idling, which Kafka does not have. The
        ReplicaManager moves the high watermarks, and writes them.
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

        `on_progress(done, all)` is called after each log. Raises LogDirLocked if a directory, or a partition
        in it, has another writer; InconsistentClusterId, InvalidFile if a directory is not this node's (then
        nothing was changed in any); KafkaStorageError if no directory could be opened. Whatever it raises, it
        holds nothing then.
        """
        try:
            self._open_directories()
            self._load_all(on_progress)
        except BaseException:
            self._let_go()
            raise
        delays_ms = {
            "log-flusher": self.settings.log_flush_scheduler_interval_ms,
            # As Kafka's, producers are not looked at sooner nor later than their interval says.
            "producer-expiration": self.settings.producer_id_expiration_check_interval_ms,
        }
        for job in self._jobs:
            job.start(delays_ms.get(job.name, self.settings.log_initial_task_delay_ms))

    @property
    def jobs(self) -> dict[str, JobRecord]:
        """What each periodic job has done, by its name."""
        return {job.name: job.record for job in self._jobs}

    def _open_directories(self) -> None:
        # All are looked at before anything is written into one.
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
        # Once all are there: a checkpoint that is written leaves out what is not.
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
        # The metadata log is the quorum's, not the broker's.
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
        # Who opens a log by itself locks its own directory, then looks for our lock: one sees the other.
        if self._storage.is_locked(path):
            raise LogDirLocked(f"{path}: another writer has the log")
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
        """Stop the periodic work, close every log and leave the directories marked as closed in order, in
        that broker epoch."""
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
        """Let every log and directory go as they are, as the end of the process would: nothing is written."""
        for job in self._jobs:
            job.stop()
        self.cleaner.close()
        self._let_go()

    def _guarded(self, directory: LogDirectory, step: Callable[[], object]) -> None:
        # An I/O error takes the directory offline; anything else is no fault of the disk and is raised.
        try:
            step()
        except (LogDirLocked, DamagedLog):
            raise
        except KafkaStorageError as error:
            self.fail(directory.path, error)

    def _write(self, directory: LogDirectory, write: Callable[[], None]) -> None:
        """Write one of the directory's checkpoints, if there is room for it."""
        self._guarded(directory, partial(directory.unless_full, write))

    def fail(self, path: str, error: BaseException) -> list[TopicPartition]:
        """Take the directory offline, all its logs with it; returns their partitions."""
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
        """Every log that is online."""
        with self._lock:
            return self._directories.logs()

    def get_log(self, partition: TopicPartition) -> UnifiedLog | None:
        with self._lock:
            return self._directories.log(partition)

    def log_of(self, partition: TopicPartition, topic_id: Uuid) -> UnifiedLog:
        """The log of that topic's partition, which was made before.

        Raises KafkaStorageError if no log directory that is online holds it, InconsistentTopicId if the log
        there belongs to another topic of the same name.
        """
        with self._lock:
            log = self._directories.log(partition)
            if log is None:
                raise KafkaStorageError(f"{partition}: no log directory that is online holds its log")
            check_topic_id(log, topic_id)
            return log

    def get_or_create_log(
        self, partition: TopicPartition, *, topic_id: Uuid | None = None, directory: str | None = None
    ) -> UnifiedLog:
        """The partition's log; a new one goes into `directory`, or into the one with the fewest logs.

        Raises InconsistentTopicId if the log there belongs to another topic of the same name, InvalidTopic,
        LogDirNotFound, KafkaStorageError.
        """
        made = self.get_or_create_logs([NewLog(partition, topic_id, directory)])[partition]
        if isinstance(made, KreplicaError):
            raise made
        return made

    def get_or_create_logs(self, wanted: Iterable[NewLog]) -> Logs:
        """Each partition's log, or what `get_or_create_log` would raise for it.

        New ones are made side by side, since each waits for the disk some times, and share the flush of the
        directory that they are in.
        """
        return self._new_logs.get_or_create(wanted)

    def _add_new(self, directory: LogDirectory, log: UnifiedLog) -> None:
        self._add(directory, log)
        # A log of the same name, which was deleted, may still stand in the checkpoints.
        self._lower_checkpoints_of(log)

    def reopen_log(self, partition: TopicPartition, mend: Callable[[], None]) -> UnifiedLog:
        """Open a log again at which recovery stopped, once `mend` has put its files in order. Raises what it
        raises, and KafkaStorageError; the log is opened again all the same where it can be."""
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
        """The ids of the directories that are online, by path; known after `startup`."""
        return self._directories.ids

    @property
    def previous_broker_epoch(self) -> int:
        """The broker epoch in which the directories were closed in order; -1 if it is not known (KIP-966)."""
        return self._directories.previous_broker_epoch

    @property
    def offline_directories(self) -> dict[str, BaseException]:
        """The directories that failed, and what they failed with."""
        return self._directories.failures

    @property
    def full_directories(self) -> dict[str, StorageFull]:
        """The directories whose disk had no room for a checkpoint when one was written last."""
        return self._directories.full

    def delete_log(self, partition: TopicPartition) -> None:
        """As `delete_logs`, for one; raises UnknownTopicOrPartition, KafkaStorageError."""
        if not self.delete_logs([partition]):
            raise UnknownTopicOrPartition(f"{partition}: no log of it here")

    def delete_logs(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Delete the logs that there are of these partitions; returns whose. Their directories are renamed at
        once, with one flush of the parent, and removed after file.delete.delay.ms."""
        moved = self._move_aside(partitions, DELETED_DIRECTORY_SUFFIX)
        for directory, log, path in moved:
            self._removal.remove_tree_later(directory, path, log.config.file_delete_delay_ms)
        return [log.topic_partition for _, log, _ in moved]

    def move_stray_aside(self, partition: TopicPartition) -> str:
        """Take the log of no topic of the cluster out of the way: its directory gets a name that no log has,
        and keeps all that is in it. Returns its path; raises as `delete_log`."""
        for _, _, path in self._move_aside([partition], STRAY_DIRECTORY_SUFFIX):
            return path
        raise UnknownTopicOrPartition(f"{partition}: no log of it here")

    def remove_strays(self, is_gone: Callable[[Uuid], bool]) -> list[str]:
        """Remove what was moved aside, now or in an earlier run, and whose topic's id says that it is gone;
        after file.delete.delay.ms. Returns the paths; one that tells no id is kept."""
        removed = []
        for directory in self._online():
            for path in self._removal.strays(directory, is_gone):
                self._removal.remove_tree_later(directory, path, self.configs.default.file_delete_delay_ms)
                removed.append(path)
        return removed

    def topic_id(self, partition: TopicPartition) -> Uuid | None:
        """The id of the topic that the partition's log belongs to; None if it tells none or is not there."""
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
        """Cut each log to end at its offset, and write the recovery points; the partitions that were cut.
        Their cleaning is stopped meanwhile. Raises UnknownTopicOrPartition, KafkaStorageError, and as
        UnifiedLog.truncate_to."""
        cut = []
        for partition, offset in offsets.items():
            if self._cut(partition, partial(UnifiedLog.truncate_to, offset=offset)):
                cut.append(partition)
        self._checkpoint_after(cut)
        return cut

    def truncate_fully_and_start_at(self, partition: TopicPartition, offset: int) -> None:
        """Let the log begin again at `offset`, empty, and write the recovery points; raises as
        `truncate_to`."""
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
        # A recovery point above the new end would make a loss of what comes there next.
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
        """Do `step` with a log that can be written; a disk that fails takes the log's directory offline."""
        if not log.is_writable:
            return
        try:
            step(log)
        except LogClosed:
            # It may be deleted between the look at it and the step.
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
