"""BrokerMetadataPublisher: applies changes of the cluster's metadata to the replicas, logs and settings of a
broker.

The loader passes each change to it in the quorum's loop. It posts, and works in a loop of its own, in this
order: the metadata cache, the settings of logs, the replicas that the broker loses, and the roles of those
that it has. Each step handles a limited number. Many new logs are created in a second loop, since each waits
for the disk a few times. A few are created at once, so that clients see a new topic only when its leader is
ready. Changes of one commit follow those of the one before. `metadata_offset` advances only when all of a
commit is done, because the controller then considers deleted replicas gone.

The first change is the whole cluster, and the logs on disk are compared with it. A log is a stray if its
topic is gone (by id; the name may belong to a new topic) or if this broker no longer has the replica. It is
moved aside, and removed if its topic id no longer exists (KAFKA-15082 and KIP-966 rely on logs of a deleted
topic never being taken for those of a new one).

Operations on replicas that fail are retried with the next change and every second. Thread rule: the methods
of a publisher belong to the quorum's loop; any thread may read `metadata_offset` and `published`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from kreplica.broker.kraft_metadata_cache import KRaftMetadataCache
from kreplica.common.config import CleanerConfig, LogConfig, cleaners_settings, topics_settings
from kreplica.common.errors import (
    InvalidConfig,
    KafkaStorageError,
    KreplicaError,
    UnknownServerError,
)
from kreplica.common.future import Future
from kreplica.common.leader_and_isr import LeaderAndIsr
from kreplica.common.metrics import MetricRegistry
from kreplica.common.ports import Loop
from kreplica.common.types import TopicPartition, Uuid
from kreplica.log.log_loader import NewLog
from kreplica.log.log_manager import Logs
from kreplica.metadata.cluster_metadata import (
    BROKER_RESOURCE,
    CLUSTER_DEFAULT,
    TOPIC_RESOURCE,
    ClusterMetadata,
    MetadataDelta,
    PartitionChange,
)
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.metadata.registrations import (
    LOST_DIRECTORY,
    MIGRATING_DIRECTORY,
    UNASSIGNED_DIRECTORY,
)
from kreplica.replica.replica_manager import ReplicaManager

T = TypeVar("T")
# A step yields the future that the next step has to wait for, or None.
Steps = Generator[Future[Any] | None, None, T]

C = TypeVar("C", LogConfig, CleanerConfig)

LOGGER = logging.getLogger(__name__)

# How many roles are taken in one step. Heartbeats wait for the step, which flushes new leader epochs.
ROLES_A_STEP = 16
# How many logs are created at a time, or removed with one flush.
LOGS_A_STEP = 64
# Up to this many logs are created at once. Clients of a new topic should not wait; heartbeats can.
FEW_LOGS = 16
RETRY_MS = 1000
FIRST_LEADER_EPOCH = 0
NO_DIRECTORY = frozenset({UNASSIGNED_DIRECTORY, LOST_DIRECTORY, MIGRATING_DIRECTORY})


class BrokerMetadataPublisher:
    """Implements `kreplica.metadata.metadata_loader.MetadataPublisher` for broker `broker_id`.

    `loop` runs the work, `disk_loop` the parts that wait for the disk. The logs must be loaded before the
    first change. `on_assignment(topic_id, partition, directory)` is called with the directory of a replica if
    the metadata names a different one (KIP-858).
    """

    def __init__(
        self,
        broker_id: int,
        *,
        cache: KRaftMetadataCache,
        replica_manager: ReplicaManager,
        loop: Loop,
        disk_loop: Loop,
        on_assignment: Callable[[Uuid, int, Uuid], None] = lambda *_: None,
        metrics: MetricRegistry | None = None,
    ) -> None:
        # The metadata that the broker has applied; None before the first change is done.
        self.published: OffsetAndEpoch | None = None
        self.first_published: Future[None] = Future()
        self.error_count = 0
        # Called in the loop after `published` has moved on.
        self.on_applied: Callable[[], object] = lambda: None
        self._broker_id = broker_id
        self._cache = cache
        self._replicas = replica_manager
        self._logs = replica_manager.log_manager
        # The default of topics, unless the metadata says otherwise.
        self._start_config = self._logs.configs.default
        self._start_cleaner = self._logs.cleaner.config
        self._loop = loop
        self._disk_loop = disk_loop
        self._on_assignment = on_assignment
        # Owned by the loop:
        self._work: deque[Steps[None]] = deque()
        self._is_first = True
        self._is_closed = False
        self._failed: dict[TopicPartition, Uuid] = {}  # partitions whose roles are to be retried
        self._logged: dict[TopicPartition, str] = {}  # their errors, which are logged once
        self._is_retrying = False
        if metrics is not None:
            metrics.gauge("broker-metadata-metrics", "last-applied-record-offset", self.metadata_offset)
            metrics.gauge("broker-metadata-metrics", "metadata-apply-error-count", lambda: self.error_count)

    def metadata_offset(self) -> int:
        """The offset of the last metadata record that has been applied; -1 if there was no change yet."""
        return -1 if self.published is None else self.published.offset - 1

    def on_metadata_update(
        self, delta: MetadataDelta, metadata: ClusterMetadata, applied: OffsetAndEpoch
    ) -> None:
        """Queue the change. It is applied in the loop."""
        self._loop.post(lambda: self._queue(self._publish(delta, metadata, applied)))

    def on_leader_change(self, leader: Any) -> None:
        """Do nothing: replicas do not depend on the leader of the quorum."""

    def close(self) -> None:
        """Start no further steps. The current one is finished."""
        self._is_closed = True

    # ---- steps --------------------------------------------------------------------------------------------

    def _queue(self, work: Steps[None]) -> None:
        self._work.append(work)
        if len(self._work) == 1:
            self._step()

    def _step(self) -> None:
        if self._is_closed:
            return
        awaited = None
        try:
            awaited = next(self._work[0])
        except StopIteration:
            self._work.popleft()
        except Exception:
            # There is no caller to fail. The replicas that were not changed are not reported as published.
            self._work.popleft()
            self.error_count += 1
            LOGGER.exception("broker %d: failed to apply a change of the metadata", self._broker_id)
        if awaited is not None:
            awaited.add_done_callback(lambda _: self._loop.post(self._step))
        elif self._work:
            self._loop.post(self._step)

    def _publish(
        self, delta: MetadataDelta, metadata: ClusterMetadata, applied: OffsetAndEpoch
    ) -> Steps[None]:
        self._cache.set_image(metadata)
        self._configure(delta, metadata)
        if self._is_first:
            self._is_first = False
            yield from self._move_strays_aside(metadata)
        yield from self._stop_replicas(delta)
        changes = [*self._changes_to_retry(metadata), *self._own_changes(delta.partitions)]
        # The changed partitions may include some that failed before.
        yield from self._take_roles(list({each.topic_partition: each for each in changes}.values()), applied)
        if delta.brokers:
            self._replicas.brokers_changed()
        self.published = applied
        self.on_applied()
        if not self.first_published.done():
            self.first_published.set_result(None)

    # ---- settings -----------------------------------------------------------------------------------------

    def _configure(self, delta: MetadataDelta, metadata: ClusterMetadata) -> None:
        default = self._logs.configs.default
        if any(kind == BROKER_RESOURCE for kind, _ in delta.configs):
            of_all = metadata.config(BROKER_RESOURCE, CLUSTER_DEFAULT)
            settings = {**of_all, **metadata.config(BROKER_RESOURCE, str(self._broker_id))}
            self._replicas.quotas.set_rates(settings)
            whose = f"broker {self._broker_id}"
            self._logs.cleaner.reconfigure(
                _with_settings(self._start_cleaner, cleaners_settings(settings), whose)
            )
            default = _with_settings(self._start_config, topics_settings(settings), whose)
        changed = {name for kind, name in delta.configs if kind == TOPIC_RESOURCE}
        if default != self._logs.configs.default:
            # The topics' own settings override the default, so apply them to the new default.
            changed |= {name for kind, name in metadata.configs if kind == TOPIC_RESOURCE}
        elif not changed:
            return
        configs: dict[str, LogConfig | None] = {}
        for name in changed:
            own = metadata.config(TOPIC_RESOURCE, name)
            configs[name] = _with_settings(default, own, f"topic {name}") if own else None
        self._logs.configs.change(configs, default)

    # ---- logs that this broker no longer has --------------------------------------------------------------

    def _move_strays_aside(self, metadata: ClusterMetadata) -> Steps[None]:
        for log in self._logs.logs():
            topic_partition = log.topic_partition
            if self._is_stray(topic_partition, metadata):
                try:
                    path = self._logs.move_stray_aside(topic_partition)
                except KreplicaError as error:
                    self._log_failure(topic_partition, error)
                    continue
                LOGGER.warning("%s is a stray: moved to %s", topic_partition, path)
                yield None
        removed = self._logs.remove_strays(lambda topic_id: metadata.topic_by_id(topic_id) is None)
        if removed:
            LOGGER.info("removed the stray logs of deleted topics: %s", ", ".join(removed))
        yield None

    def _is_stray(self, topic_partition: TopicPartition, metadata: ClusterMetadata) -> bool:
        topic_id = self._logs.topic_id(topic_partition)
        topic = None if topic_id is None else metadata.topic_by_id(topic_id)
        if topic is None or topic.name != topic_partition.topic:
            return True
        partition = topic.partitions.get(topic_partition.partition)
        return partition is None or self._broker_id not in partition.replicas

    def _stop_replicas(self, delta: MetadataDelta) -> Steps[None]:
        # This comes before all roles: a new topic may have the name of a deleted one.
        gone = [
            change.topic_partition
            for change in delta.partitions
            if change.old is not None
            and self._broker_id in change.old.replicas
            and (change.new is None or self._broker_id not in change.new.replicas)
        ]
        for some in _in_parts(gone, LOGS_A_STEP):
            for topic_partition in some:
                self._failed.pop(topic_partition, None)
                self._logged.pop(topic_partition, None)
            results = self._replicas.stop_replicas(dict.fromkeys(some, True))
            for topic_partition, error in results.items():
                if error is not None:
                    self._log_failure(topic_partition, error)
            yield None

    # ---- roles --------------------------------------------------------------------------------------------

    def _own_changes(self, changes: Iterable[PartitionChange]) -> Iterator[PartitionChange]:
        for change in changes:
            if change.new is not None and self._broker_id in change.new.replicas:
                yield change

    def _changes_to_retry(self, metadata: ClusterMetadata) -> list[PartitionChange]:
        """Return the current state of the partitions that failed before, and forget them."""
        failed, self._failed = self._failed, {}
        again = []
        for topic_partition, topic_id in failed.items():
            partition = metadata.partition(topic_partition)
            if partition is not None and metadata.topic_names.get(topic_id) == topic_partition.topic:
                again.append(PartitionChange(topic_partition, topic_id, None, partition))
        return again

    def _take_roles(self, changes: Sequence[PartitionChange], applied: OffsetAndEpoch) -> Steps[None]:
        for some in _in_parts(changes, LOGS_A_STEP):
            placed = yield from self._create_missing_logs(some)
            for few in _in_parts(placed, ROLES_A_STEP):
                self._take_roles_at_once(few, applied)
                yield None
        if self._failed and not self._is_retrying:
            self._is_retrying = True
            self._loop.post_later(self._retry, RETRY_MS)

    def _take_roles_at_once(self, changes: Sequence[PartitionChange], applied: OffsetAndEpoch) -> None:
        # A directory may have failed since the last step. Its logs must not be created again elsewhere.
        changes = [each for each in changes if not self._lacks_log(each, {})]
        states = {
            each.topic_partition: each.new.leader_and_isr(each.topic_partition, each.topic_id)
            for each in changes
            if each.new is not None
        }
        for topic_partition, error in self._become_leader_or_follower(states, applied).items():
            if error is None:
                self._logged.pop(topic_partition, None)
                continue
            self._log_failure(topic_partition, error)
            self._failed[topic_partition] = states[topic_partition].topic_id
        self._report_directories(changes)

    def _become_leader_or_follower(
        self, states: Mapping[TopicPartition, LeaderAndIsr], applied: OffsetAndEpoch
    ) -> dict[TopicPartition, KreplicaError | None]:
        try:
            return self._replicas.become_leader_or_follower(states.values(), applied.epoch)
        except Exception as error:
            LOGGER.exception("broker %d: failed to take %d roles", self._broker_id, len(states))
            failure = error if isinstance(error, KreplicaError) else UnknownServerError(str(error))
            return dict.fromkeys(states, failure)

    def _create_missing_logs(self, changes: Iterable[PartitionChange]) -> Steps[list[PartitionChange]]:
        """Create the missing logs of the partitions. Returns the changes of those that have a log now."""
        online = {each: path for path, each in self._logs.directory_ids.items()}
        wanted: list[NewLog] = []
        placed = []
        for change in changes:
            try:
                new = self._missing_log(change, online)
            except KreplicaError as error:
                self._retry_later(change, error)
                continue
            if new is not None:
                if new.directory is None and self._is_on_failed_disk(change):
                    self._replicas.partitions.take_offline(change.topic_partition)
                    continue
                wanted.append(new)
            placed.append(change)
        if len(wanted) > FEW_LOGS:
            made = yield from self._create_in_disk_loop(wanted)
        else:
            self._loop.about_to_wait()
            made = self._logs.get_or_create_logs(wanted)
        return [each for each in placed if not self._lacks_log(each, made)]

    def _missing_log(self, change: PartitionChange, online: Mapping[Uuid, str]) -> NewLog | None:
        """Return the log to create for the partition; None if it exists.

        A log of another topic with the same name is moved aside first.
        """
        topic_partition, topic_id, _, partition = change
        assert partition is not None
        if self._logs.get_log(topic_partition) is not None:
            if self._logs.topic_id(topic_partition) in (None, topic_id):
                return None
            path = self._logs.move_stray_aside(topic_partition)
            LOGGER.warning(
                "%s was the log of another topic with the same name: moved to %s", topic_partition, path
            )
        # Nothing comes before the first leader epoch, so it starts at the first offset in every replica.
        first_epoch = FIRST_LEADER_EPOCH if partition.leader_epoch == FIRST_LEADER_EPOCH else None
        directory = online.get(partition.directory(self._broker_id))
        return NewLog(topic_partition, topic_id, directory, first_epoch)

    def _is_on_failed_disk(self, change: PartitionChange) -> bool:
        """Return whether the replica may be on a disk that has failed (KIP-858).

        If so, no log may be created in another directory: it would be empty and replace the lost one.
        """
        partition = change.new
        assert partition is not None
        was_made = partition.directory(self._broker_id) not in NO_DIRECTORY or partition.partition_epoch > 0
        return was_made and bool(self._logs.offline_directories)

    def _create_in_disk_loop(self, wanted: list[NewLog]) -> Steps[Logs]:
        made: Future[Logs] = Future()
        self._disk_loop.post(partial(self._create_logs, wanted, made))
        yield made
        return made.result()

    def _create_logs(self, wanted: list[NewLog], made: Future[Logs]) -> None:
        self._disk_loop.about_to_wait()
        try:
            logs = self._logs.get_or_create_logs(wanted)
        except Exception as error:
            made.set_exception(error)
        else:
            made.set_result(logs)

    def _lacks_log(self, change: PartitionChange, made: Logs) -> bool:
        """Return whether the partition has no log. If so, its role is retried later.

        `made`: the logs just created, or the errors.
        """
        topic_partition = change.topic_partition
        log = made.get(topic_partition)
        if not isinstance(log, KreplicaError):
            if self._logs.get_log(topic_partition) is not None:
                return False
            log = KafkaStorageError("the log directory failed while the log was created")
        self._retry_later(change, log)
        return True

    def _report_directories(self, changes: Iterable[PartitionChange]) -> None:
        directories = self._logs.directory_ids
        for topic_partition, topic_id, _, partition in changes:
            log = self._logs.get_log(topic_partition)
            if partition is None or log is None:
                continue
            directory = directories.get(log.parent_directory)
            if directory is not None and directory != partition.directory(self._broker_id):
                self._on_assignment(topic_id, topic_partition.partition, directory)

    def _retry(self) -> None:
        self._is_retrying = False
        if self._failed:
            self._queue(self._take_failed())

    def _take_failed(self) -> Steps[None]:
        # Use the current metadata, including what was published meanwhile.
        if self.published is not None:
            yield from self._take_roles(self._changes_to_retry(self._cache.metadata), self.published)

    def _retry_later(self, change: PartitionChange, error: KreplicaError) -> None:
        """Log the error; the partition is tried again with the next change and after RETRY_MS."""
        self._log_failure(change.topic_partition, error)
        self._failed[change.topic_partition] = change.topic_id

    def _log_failure(self, topic_partition: TopicPartition, error: KreplicaError) -> None:
        """Count the failure, and log it unless the partition's last one was the same."""
        self.error_count += 1
        text = str(error)
        if self._logged.get(topic_partition) == text:
            return
        self._logged[topic_partition] = text
        level = logging.WARNING if isinstance(error, KafkaStorageError) else logging.ERROR
        LOGGER.log(level, "broker %d: %s: %s", self._broker_id, topic_partition, error)


def _with_settings(config: C, settings: Mapping[str, str], whose: str) -> C:
    """Return the configuration with these settings.

    Unknown settings and invalid values are left out and logged: another version may know them.
    """
    try:
        return config.replace(settings)
    except InvalidConfig:
        pass
    for name, value in settings.items():
        try:
            config = config.replace({name: value})
        except InvalidConfig as error:
            LOGGER.warning("%s: %s", whose, error)
    return config


def _in_parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
