"""ReplicaManager: owns the replicas on one broker and lets them lead or follow.

It sets the roles of partitions, passes appends and fetches to them, and acts on the effects they return: it
completes waiting requests, sends ISR changes, starts and stops fetchers. A partition never calls back; its
effects are acted on here, with no lock held. Time, files, threads and messages come through ports.

Thread rule: any thread may append and fetch. `_role_lock` serializes changes of roles, so that a partition
and its fetcher agree. It is taken before any partition's lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from kreplica.common.errors import (
    DamagedLog,
    KafkaStorageError,
    KreplicaError,
    LogCleaningAborted,
    StaleControllerEpoch,
    StorageFull,
    StorageIOError,
)
from kreplica.common.future import Future
from kreplica.common.leader_and_isr import NO_LEADER, LeaderAndIsr
from kreplica.common.locks import Lock, RLock
from kreplica.common.metrics import MetricRegistry
from kreplica.common.ports import Cancellable, Clock, Loop, Random, Scheduler, Transport, monotonic_ms
from kreplica.common.types import TopicPartition
from kreplica.log.append_queue import AppendQueue
from kreplica.log.log_manager import LogManager
from kreplica.log.splice import cut_stopped, splice_stopped
from kreplica.log.unified_log import TimestampOffset
from kreplica.replica.alter_partition_manager import AlterPartitionManager
from kreplica.replica.append_manager import PRODUCE_TIMEOUT_MS, AppendManager
from kreplica.replica.damage_repair import DamageRepair
from kreplica.replica.delayed_requests import (
    DelayedDeleteRecords,
    DelayedRequests,
    DeleteRecordsPartitionStatus,
    DeleteRecordsResult,
)
from kreplica.replica.fetch_manager import FetchManager, selector_of
from kreplica.replica.full_disks import FullDisks, UntakenRoles
from kreplica.replica.hosted_partitions import HostedPartitions, add_disk_gauges, add_gauges
from kreplica.replica.isr_policy import isr_policy_of
from kreplica.replica.metadata_cache import MetadataCache
from kreplica.replica.partition import Partition
from kreplica.replica.partition_events import REPORT_EVERY_MS, PartitionEvents
from kreplica.replica.partition_state import (
    INCREASED,
    EpochEndOffset,
    IsrChangeProposed,
    PartitionEffects,
)
from kreplica.replica.remote_leader_endpoint import RemoteLeaderEndPoint
from kreplica.replica.replica_alter_log_dirs_manager import ReplicaAlterLogDirsManager
from kreplica.replica.replica_config import ReplicaConfig
from kreplica.replica.replica_fetcher import FetcherMetrics, ReplicaFetcher
from kreplica.replica.replica_fetcher_manager import ReplicaFetcherManager
from kreplica.replica.replica_peers import ReplicaPeers
from kreplica.replica.replication_quotas import ReplicationQuotas

if TYPE_CHECKING:
    from kreplica.log.damage import Damage
    from kreplica.log.unified_log import UnifiedLog


class ReplicaManager:
    """The replicas of broker `broker_id`, whose epoch is `broker_epoch()`.

    `controller()`: the active controller's node id, None if unknown now. `new_loop(name)`: makes a Loop for
    an object of this broker.
    """

    def __init__(
        self,
        config: ReplicaConfig,
        *,
        broker_id: int,
        broker_epoch: Callable[[], int],
        log_manager: LogManager,
        metadata_cache: MetadataCache,
        controller: Callable[[], int | None],
        transport: Transport,
        clock: Clock,
        scheduler: Scheduler,
        new_loop: Callable[[str], Loop],
        random: Random,
        metrics: MetricRegistry | None = None,
    ) -> None:
        self.config = config
        self.broker_id = broker_id
        self.metrics = metrics or MetricRegistry()
        self.log_manager = log_manager
        self.partitions = HostedPartitions(metadata_cache.contains)
        self.events = PartitionEvents(broker_id, self.partitions)
        self._loop = loop = new_loop("replica-manager")
        self.delayed = DelayedRequests(clock, loop, self.metrics)
        self.quotas = ReplicationQuotas(broker_id, config, clock)
        self.fetches = FetchManager(
            self.partitions,
            config,
            clock=clock,
            loop=loop,
            random=random,
            metrics=self.metrics,
            act=self.act_on,
            delayed=self.delayed.operations,
            quota=self.quotas.leader,
            topic_name=metadata_cache.topic_name,
            selector=selector_of(config, broker_id, metadata_cache),
        )
        self.appends = AppendManager(
            broker_id,
            self.partitions,
            self.delayed,
            self.metrics,
            on_error=self._check_storage,
            disk_loop=None if log_manager.disk is None else loop,
            # Twice the longest wait of a follower's fetch.
            silence_ms=2 * config.replica_fetch_wait_max_ms,
        )
        # Bound directly, to save a call.
        self.append_records = self.appends.append_records
        self.append = self.appends.append
        self.append_values = self.appends.append_values
        log_manager.on_disk_done = self.appends.disk_done
        self.fetchers = ReplicaFetcherManager(config.num_replica_fetchers, self._new_fetcher, self.metrics)
        self._broker_epoch = broker_epoch
        self._metadata_cache = metadata_cache
        self._alter_partition = AlterPartitionManager(
            broker_id,
            broker_epoch=broker_epoch,
            controller=controller,
            transport=transport,
            loop=new_loop("alter-partition"),
            request_timeout_ms=config.controller_socket_timeout_ms,
        )
        self.peers = ReplicaPeers(broker_id, broker_epoch, config, transport)
        self.repairs = DamageRepair(
            config,
            self.peers,
            loop=new_loop("damage-repair"),
            metrics=self.metrics,
            mend_stopped=self._mend_stopped,
            on_moved=self.delayed.operations.moved,
            on_failure=self._check_storage,
        )
        self._transport = transport
        self._new_loop = new_loop
        self._clock = clock
        self._scheduler = scheduler
        self._isr_policy = isr_policy_of(config)
        self.untaken = UntakenRoles(loop, self._take_roles_again, config.replica_fetch_backoff_ms)
        self.full_disks = FullDisks(config, self.peers, loop, clock, self.partitions, self.untaken)
        self._timers: list[Cancellable] = []
        self._isr_shrinks = self.metrics.meter("ReplicaManager", "IsrShrinksPerSec")
        self._isr_expands = self.metrics.meter("ReplicaManager", "IsrExpandsPerSec")
        self._failed_isr_updates = self.metrics.meter("ReplicaManager", "FailedIsrUpdatesPerSec")
        add_gauges(self.metrics, self.partitions)
        add_disk_gauges(self.metrics, log_manager)
        self._key_lock = Lock()
        self._keys = 0  # guarded by _key_lock
        self._role_lock = RLock()
        # Guarded by _role_lock: the newest controller epoch, and the actions to run after a change of roles.
        self._controller_epoch = 0
        self._due: deque[Callable[[], object]] = deque()
        self.alter_log_dirs = ReplicaAlterLogDirsManager(
            self.partitions,
            log_manager,
            loop=new_loop("alter-log-dirs"),
            role_lock=self._role_lock,
            act=self.act_on,
            moved=self.delayed.operations.moved,
            take_offline=self._take_offline,
        )
        log_manager.on_failure = lambda gone: loop.post(partial(self._take_offline, gone))
        log_manager.configs.on_change = self.quotas.set_throttled
        self.quotas.set_throttled(log_manager.configs.by_topic)

    # ---- start and stop -----------------------------------------------------------------------------------

    def startup(self) -> None:
        """Start the periodic work. The logs must be loaded."""
        lag_ms = self.config.replica_lag_time_max_ms
        checkpoint_ms = self.config.replica_high_watermark_checkpoint_interval_ms
        schedule = self._scheduler.schedule
        self._timers = [
            # Every half lag, so that a replica leaves after 1 to 1.5 times the lag.
            schedule("isr-expiration", self.maybe_shrink_isr, lag_ms // 2, lag_ms // 2),
            schedule(
                "highwatermark-checkpoint", self.checkpoint_high_watermarks, checkpoint_ms, checkpoint_ms
            ),
            schedule("partition-report", self.events.report, REPORT_EVERY_MS, REPORT_EVERY_MS),
        ]

    def shutdown(self) -> None:
        """Stop fetching and the periodic work, fail waiting requests, and write the high watermarks.

        The logs stay open.
        """
        for timer in self._timers:
            timer.cancel()
        self._timers = []
        with self._role_lock:
            self.untaken.clear()
        self.repairs.shutdown()
        self.fetchers.shutdown()
        self._alter_partition.shutdown()
        self.appends.shutdown()
        self.delayed.shutdown()
        self.fetches.shutdown()
        self.checkpoint_high_watermarks()
        self.events.stopped()

    def checkpoint_high_watermarks(self) -> None:
        """Write every log's high watermark, including partitions without a role (KAFKA-1647)."""
        self.log_manager.checkpoint_high_watermarks()

    # ---- roles --------------------------------------------------------------------------------------------

    def become_leader_or_follower(
        self, states: Iterable[LeaderAndIsr], controller_epoch: int = 0
    ) -> dict[TopicPartition, KreplicaError | None]:
        """Take the roles that the controller has assigned. Returns each partition's error, or None.

        The log of each partition must exist (`LogManager.get_or_create_logs`); otherwise the error is
        KafkaStorageError. A state older than the partition's state changes nothing. Raises
        StaleControllerEpoch if a later controller is known.
        """
        results: dict[TopicPartition, KreplicaError | None] = {}
        with self._role_lock:
            if controller_epoch < self._controller_epoch:
                text = f"controller epoch {controller_epoch} is over; now it is {self._controller_epoch}"
                raise StaleControllerEpoch(text)
            self._controller_epoch = controller_epoch
            for state in states:
                results[state.topic_partition] = self._try_to_take_role(state)
        self._run_due_actions()
        return results

    def _try_to_take_role(self, state: LeaderAndIsr) -> KreplicaError | None:
        topic_partition = state.topic_partition
        if self.untaken.outdates(state):
            return None
        self.untaken.discard(topic_partition)
        try:
            self._take_role(state)
        except KreplicaError as error:
            if isinstance(error, StorageFull):
                self.untaken.add(state)
            self._due.append(partial(self._check_storage, topic_partition, error))
            return error
        return None

    def _take_roles_again(self) -> None:
        with self._role_lock:
            for state in self.untaken.take():
                self._try_to_take_role(state)
        self._run_due_actions()

    def _run_due_actions(self) -> None:
        """Run the actions that changes of roles have queued, with no lock held: futures are resolved here."""
        while self._due:
            try:
                act = self._due.popleft()
            except IndexError:
                return  # another thread took the last one
            act()

    def _take_role(self, state: LeaderAndIsr) -> None:
        topic_partition = state.topic_partition
        if self.broker_id not in state.replicas:
            known = self.partitions.get(topic_partition)
            if known is not None and known.partition_epoch <= state.partition_epoch:
                # The metadata will stop the replica later. It need not run until then.
                self.fetchers.remove_fetcher_for_partitions([topic_partition])
                self._stop(topic_partition)
            return
        known = self.partitions.get(topic_partition)
        log = None if known is None else known.log
        if log is None:
            # The log is never created here: an empty log could replace one whose directory has just failed.
            log = self.log_manager.log_of(topic_partition, state.topic_id)
        partition = self.partitions.get_or_create(
            topic_partition, partial(self._new_partition, topic_partition)
        )
        if state.leader == self.broker_id:
            self._lead(partition, state, log)
        else:
            self._follow(partition, state, log)
        self.repairs.role_changed(partition)

    def _lead(self, partition: Partition, state: LeaderAndIsr, log: UnifiedLog) -> None:
        # A leader has no fetcher. It is removed first, so that it appends nothing once the epoch has begun.
        if not partition.is_leader and state.partition_epoch >= partition.partition_epoch:
            self.fetchers.remove_fetcher_for_partitions([partition.topic_partition])
        try:
            became = partition.make_leader(state, log)
        except DamagedLog:
            # Until it can lead, it follows no leader. It copies what it lacks from the other replicas.
            partition.make_follower(state, log)
            self.repairs.role_changed(partition)
            self.repairs.refused_to_lead(partition)
            raise
        # If the controller removed a replica from the ISR, the high watermark may have waited for that
        # replica.
        self._due.append(partial(self.act_on, partition, became.effects))
        self.events.isr_changed(partition)
        if became.is_new_leader or became.is_new_epoch:
            self.events.leadership_taken(partition)
            self._due.append(partial(self.delayed.operations.moved, partition))

    def _follow(self, partition: Partition, state: LeaderAndIsr, log: UnifiedLog) -> None:
        led = partition.is_leader
        is_new_epoch = partition.make_follower(state, log)
        if led and not partition.is_leader:
            leader = "no broker leads" if state.leader == NO_LEADER else f"broker {state.leader} leads"
            self.events.leadership_lost(partition, log.log_end_offset, leader)
            self._due.append(self.delayed.leadership_lost(partition))
        if is_new_epoch:
            self._due.append(partial(self.delayed.operations.moved, partition))
            self._fetch_from_leader(partition, state)

    def _fetch_from_leader(self, partition: Partition, state: LeaderAndIsr) -> None:
        # If recovery stopped at rot, the records after the rot must not be fetched or truncated as if they
        # were missing.
        if partition.local_log.stopped_at is None:
            self.fetchers.follow(partition, state)

    def _new_partition(self, topic_partition: TopicPartition) -> Partition:
        with self._key_lock:
            self._keys += 1
            key = self._keys
        return Partition(
            topic_partition,
            key=key,
            broker_id=self.broker_id,
            clock=self._clock,
            brokers=self._metadata_cache,
            broker_epoch=self._broker_epoch,
            isr_policy=self._isr_policy,
            on_damage=self.repairs.found,
        )

    def stop_replicas(
        self, stopped: Mapping[TopicPartition, bool]
    ) -> dict[TopicPartition, KreplicaError | None]:
        """Stop the replicas of these partitions; delete the logs of those mapped to True.

        Returns each partition's error, or None.
        """
        results: dict[TopicPartition, KreplicaError | None] = {}
        with self._role_lock:
            self.fetchers.remove_fetcher_for_partitions(list(stopped))
            for topic_partition in stopped:
                self.untaken.discard(topic_partition)
                results[topic_partition] = self._stop(topic_partition)
            # Logs on a failed disk cannot be deleted.
            self.log_manager.delete_logs([each for each, delete in stopped.items() if delete])
            # Under the lock, so that no partition is added to a fetcher that is being stopped.
            self.fetchers.shutdown_idle_fetchers()
        self._run_due_actions()
        return results

    def _stop(self, topic_partition: TopicPartition) -> KreplicaError | None:
        if self.partitions.is_offline(topic_partition):
            return KafkaStorageError(f"{topic_partition}: its log directory is offline")
        partition = self.partitions.remove(topic_partition)
        if partition is not None:
            self._close(partition)
        return None

    def _close(self, partition: Partition, *, is_offline: bool = False) -> None:
        log = partition.leader_log_if_local
        partition.close(is_offline=is_offline)
        if log is not None:
            why = "its log directory is offline" if is_offline else "the broker is no longer a replica"
            self.events.leadership_lost(partition, log.log_end_offset, why)
        self._due.append(self.delayed.leadership_lost(partition))
        self._due.append(partial(self.delayed.operations.moved, partition))

    # ---- followers ----------------------------------------------------------------------------------------

    def _new_fetcher(self, leader_id: int, fetcher_id: int) -> ReplicaFetcher:
        name = f"ReplicaFetcher-{fetcher_id}-{leader_id}"
        return ReplicaFetcher(
            name,
            RemoteLeaderEndPoint(leader_id, self.broker_id, self._broker_epoch, self.config, self._transport),
            self.partitions,
            self.config,
            clock=self._clock,
            loop=self._new_loop(name),
            quota=self.quotas.follower,
            metrics=FetcherMetrics(
                self.metrics, fetcher_id, leader_id, self._metadata_cache.address(leader_id)
            ),
            on_moved=self.delayed.operations.moved,
            on_storage_failure=self._check_storage,
        )

    # ---- effects of partitions ----------------------------------------------------------------------------

    def act_on(self, partition: Partition, effects: PartitionEffects) -> None:
        """Act on the effects of a partition's step. The caller holds no lock."""
        if effects.isr_change is not None:
            self._propose(partition, effects.isr_change)
        if effects.high_watermark_change is INCREASED:
            self.delayed.operations.high_watermark_moved(partition)
        if effects.low_watermark_moved:
            self.delayed.low_watermark_moved(partition)

    def _propose(self, partition: Partition, proposed: IsrChangeProposed) -> None:
        answer = self._alter_partition.submit(proposed.leader_and_isr, proposed.isr_broker_epochs)
        answer.add_done_callback(partial(self._isr_change_answered, partition, proposed))

    def _isr_change_answered(
        self, partition: Partition, proposed: IsrChangeProposed, answer: Future[LeaderAndIsr]
    ) -> None:
        error = answer.exception()
        before = partition.isr
        if error is None:
            effects = partition.handle_alter_partition_response(proposed.pending, answer.result())
        else:
            assert isinstance(error, KreplicaError)
            self._failed_isr_updates.mark()
            effects = partition.handle_alter_partition_response(proposed.pending, error)
            # A change that was rejected for one replica may be proposed for another, or again, at their next
            # fetches.
            self.fetches.name_again(partition)
        self.events.isr_changed(partition)
        after = partition.isr
        self._isr_shrinks.mark(not set(after) >= set(before))
        self._isr_expands.mark(not set(after) <= set(before))
        self.act_on(partition, effects)

    def maybe_shrink_isr(self) -> None:
        """Remove replicas that have not kept up from the ISRs."""
        now_ms = monotonic_ms(self._clock)
        for partition in self.partitions:
            if partition.is_leader:
                self.act_on(partition, partition.maybe_shrink_isr(now_ms))

    def brokers_changed(self) -> None:
        """Check again whether replicas may join their ISRs, after a change of a broker.

        A fetch triggers this check too, but a follower without new records may not fetch.
        """
        now_ms = monotonic_ms(self._clock)
        for partition in self.partitions:
            if partition.is_leader and partition.is_under_replicated:
                self.act_on(partition, partition.maybe_shrink_isr(now_ms))

    # ---- other requests -----------------------------------------------------------------------------------

    def delete_records(
        self, offsets: Mapping[TopicPartition, int], timeout_ms: int = PRODUCE_TIMEOUT_MS
    ) -> Future[dict[TopicPartition, DeleteRecordsResult]]:
        """Delete the records below these offsets (-1: the high watermark) on all replicas (KIP-107)."""
        results: dict[TopicPartition, DeleteRecordsResult] = {}
        waiting: dict[TopicPartition, DeleteRecordsPartitionStatus] = {}
        for topic_partition, wanted in offsets.items():
            try:
                partition = self.partitions.get_or_error(topic_partition)
                offset, _ = partition.delete_records_on_leader(wanted)
            except KreplicaError as error:
                self._check_storage(topic_partition, error)
                results[topic_partition] = DeleteRecordsResult(error=error)
                continue
            waiting[topic_partition] = DeleteRecordsPartitionStatus(partition, offset)
        operation = DelayedDeleteRecords(results, waiting)
        self.delayed.await_deletion(operation, timeout_ms)
        for status in waiting.values():
            self.delayed.operations.moved(status.partition)
        return operation.future

    def last_offset_for_leader_epoch(
        self, topic_partition: TopicPartition, leader_epoch: int, current_leader_epoch: int | None = None
    ) -> EpochEndOffset:
        """Return the end of a leader epoch. Raises as `Partition.last_offset_for_leader_epoch`."""
        partition = self.partitions.get_or_error(topic_partition)
        return partition.last_offset_for_leader_epoch(current_leader_epoch, leader_epoch)

    def fetch_offset_for_timestamp(
        self,
        topic_partition: TopicPartition,
        timestamp: int,
        isolation: str = "high_watermark",
        current_leader_epoch: int | None = None,
    ) -> TimestampOffset:
        """Return the first record at or after `timestamp`; see `Partition.fetch_offset_for_timestamp`."""
        partition = self.partitions.get_or_error(topic_partition)
        return partition.fetch_offset_for_timestamp(timestamp, isolation, current_leader_epoch)

    # ---- disks --------------------------------------------------------------------------------------------

    def _check_storage(self, topic_partition: TopicPartition, error: KreplicaError) -> None:
        """Handle an error that may come from a disk.

        If a log has failed, or the disk refused an operation, the whole directory goes offline. A full disk
        or a damaged range is not a failure.
        """
        log = self.log_manager.get_log(topic_partition)
        if isinstance(error, KafkaStorageError) and log is not None:
            directory = log.parent_directory
            failure = error if isinstance(error, StorageIOError) else log.failure
            if failure is not None:
                self.handle_log_directory_failure(directory, failure)
            elif isinstance(error, StorageFull):
                self.full_disks.refused(directory, topic_partition, error)

    def handle_log_directory_failure(self, path: str, error: BaseException) -> None:
        """Take the partitions of a failed directory offline until the broker restarts."""
        self._take_offline(self.log_manager.fail(path, error))

    def disk_hangs(self, path: str, error: KreplicaError) -> None:
        """Take a directory offline whose disk hangs in an append, and fail the appends that wait for it."""
        logs = [log for log in self.log_manager.logs() if log.parent_directory == path]
        self.handle_log_directory_failure(path, error)
        for log in logs:
            self.appends.finish(AppendQueue.of(log).give_up(error))

    def _take_offline(self, gone: list[TopicPartition]) -> None:
        with self._role_lock:
            self.fetchers.remove_fetcher_for_partitions(gone)
            for topic_partition in gone:
                self.untaken.discard(topic_partition)
                partition = self.partitions.take_offline(topic_partition)
                if partition is not None:
                    self._close(partition, is_offline=True)
        self._run_due_actions()

    def _mend_stopped(self, partition: Partition, damage: Damage, data: bytes | None) -> None:
        """Fill the range at which recovery stopped, or truncate the log there, and open the log again."""
        topic_partition = partition.topic_partition
        with self._role_lock:
            known = partition.leader_and_isr
            if known is None or partition.log is None or partition.log.stopped_at != damage:
                raise LogCleaningAborted(f"{topic_partition}: its role changed during the repair")
            storage = partition.log.local.storage
            if data is None:
                mend = partial(cut_stopped, storage, damage)
            else:
                mend = partial(splice_stopped, storage, damage, data)
            failure: KreplicaError | None = None
            try:
                self.log_manager.reopen_log(topic_partition, mend)
            except KreplicaError as error:
                # The log was opened again nevertheless, so the partition must take its role with it.
                failure = error
            log = self.log_manager.get_log(topic_partition)
            if log is None:
                # The log could not be opened again, so its directory is offline.
                self._loop.post(partial(self._take_offline, [topic_partition]))
            else:
                self._resume(partition, known, log, failure)
            if failure is not None:
                raise failure
        self._run_due_actions()

    def _resume(
        self, partition: Partition, known: LeaderAndIsr, log: UnifiedLog, failure: KreplicaError | None
    ) -> None:
        """Take the role again with the log that was reopened after a repair. `failure`: why the repair
        failed."""
        if known.leader != self.broker_id:
            partition.make_follower(known, log)
            self._fetch_from_leader(partition, known)
            return
        try:
            self._lead(partition, known, log)
        except KreplicaError:
            # A log that is still damaged cannot lead. The failure of the repair has the reason.
            if failure is None:
                raise
