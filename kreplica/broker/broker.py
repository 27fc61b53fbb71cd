"""Broker: the logs and replicas of one node, wired together from a set of ports.

It owns its LogManager and its ReplicaManager. Requests of nodes and clients arrive through `handle`. Roles
arrive through the ReplicaManager, or through `become_leader_or_follower` where logs have to be created.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

from kreplica.broker.kafka_apis import KafkaApis
from kreplica.broker.replica_apis import ReplicaApis
from kreplica.common.config import CleanerConfig, LogConfig, LogManagerConfig
from kreplica.common.errors import KreplicaError, StorageIOError, UnsupportedVersion
from kreplica.common.future import Future, failed
from kreplica.common.leader_and_isr import LeaderAndIsr
from kreplica.common.metrics import MetricRegistry
from kreplica.common.ports import (
    Cancellable,
    Clock,
    Disk,
    Loop,
    Random,
    Scheduler,
    Storage,
    Transport,
    Workers,
)
from kreplica.common.types import TopicPartition
from kreplica.log.log_loader import NewLog
from kreplica.log.log_manager import LogManager
from kreplica.replica.metadata_cache import MetadataCache
from kreplica.replica.replica_config import ReplicaConfig
from kreplica.replica.replica_manager import ReplicaManager

LOGGER = logging.getLogger(__name__)

# How many checks are made in the time that a disk has.
LOOKS = 10


class DiskWatch:
    """Detects a disk that hangs while the loop goes on. `on_failure(path, error)`: its directory is offline.

    Each log directory of `log_manager` has a disk thread. If one has been busy with the same operation for
    longer than `log.dir.stall.timeout.ms`, its directory goes offline, as after an error. The next heartbeat
    notifies the controller, which moves the leaders away. Thread rule: the loop.
    """

    def __init__(
        self, log_manager: LogManager, loop: Loop, on_failure: Callable[[str, KreplicaError], None]
    ) -> None:
        self._log_manager = log_manager
        self._loop = loop
        self._on_failure = on_failure
        self._limit_ms = log_manager.settings.log_dir_stall_timeout_ms
        self._timer: Cancellable | None = None

    def start(self) -> None:
        """Start the checks, unless the loop itself makes the appends and there are no disk threads."""
        if self._log_manager.disk is not None:
            self._timer = self._loop.post_later(self._look, max(1, self._limit_ms // LOOKS))

    def stop(self) -> None:
        """Stop the checks."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        disk = self._log_manager.disk
        assert disk is not None
        for path in list(self._log_manager.directory_ids):
            waiting_ms = disk(path).waiting_ms
            if waiting_ms > self._limit_ms:
                self._give_up(path, waiting_ms)
        self.start()

    def _give_up(self, path: str, waiting_ms: float) -> None:
        error = StorageIOError(f"{path}: the disk has hung in one append for {waiting_ms:.0f} ms")
        LOGGER.error("%s", error)
        self._on_failure(path, error)


class Broker:
    """The broker `broker_id` of cluster `cluster_id`, with its logs in `directories`.

    `broker_epoch()`: the epoch of its registration. `controller()`: the active controller's node id, None if
    unknown. `new_loop(name)`: makes a Loop for one of its objects. `config`: the configuration of logs
    without their own; `configs`: by topic. `locked`, `disk`: see LogManager. `handlers`: by type of request.
    """

    def __init__(
        self,
        broker_id: int,
        directories: Sequence[str],
        *,
        cluster_id: str,
        storage: Storage,
        clock: Clock,
        scheduler: Scheduler,
        workers: Workers,
        random: Random,
        transport: Transport,
        new_loop: Callable[[str], Loop],
        metadata_cache: MetadataCache,
        broker_epoch: Callable[[], int],
        controller: Callable[[], int | None],
        config: LogConfig | None = None,
        configs: Mapping[str, LogConfig] | None = None,
        replica_config: ReplicaConfig | None = None,
        log_manager_config: LogManagerConfig | None = None,
        cleaner_config: CleanerConfig | None = None,
        metrics: MetricRegistry | None = None,
        locked: Container[str] = (),
        disk: Callable[[str], Disk] | None = None,
    ) -> None:
        self.broker_id = broker_id
        self.metrics = metrics or MetricRegistry()
        self._broker_epoch = broker_epoch
        self.log_manager = LogManager(
            directories,
            cluster_id=cluster_id,
            node_id=broker_id,
            storage=storage,
            clock=clock,
            scheduler=scheduler,
            workers=workers,
            random=random,
            config=config or LogConfig(),
            configs=configs,
            settings=log_manager_config,
            cleaner=cleaner_config,
            locked=locked,
            disk=disk,
        )
        self.replica_manager = ReplicaManager(
            replica_config or ReplicaConfig(),
            broker_id=broker_id,
            broker_epoch=broker_epoch,
            log_manager=self.log_manager,
            metadata_cache=metadata_cache,
            controller=controller,
            transport=transport,
            clock=clock,
            scheduler=scheduler,
            new_loop=new_loop,
            random=random,
            metrics=self.metrics,
        )
        self._disk_watch = DiskWatch(
            self.log_manager, new_loop("disk-watch"), self.replica_manager.disk_hangs
        )
        self.apis = KafkaApis(self.replica_manager, metadata_cache)
        self.replica_apis = ReplicaApis(self.replica_manager, clock)
        self.handlers: dict[type[Any], Callable[[Any], Future[Any]]] = {
            **self.apis.handlers,
            **self.replica_apis.handlers,
        }

    def startup(self) -> None:
        """Load the logs and start the periodic work. Raises as LogManager.startup."""
        self.log_manager.startup()
        self.replica_manager.startup()
        self._disk_watch.start()

    def shutdown(self) -> None:
        """Stop fetches, fail waiting requests, and close all logs, in this order."""
        self._disk_watch.stop()
        self.replica_manager.shutdown()
        self.log_manager.shutdown(self._broker_epoch())

    def handle(self, request: Any) -> Future[Any]:
        """Answer a request.

        The future fails with UnsupportedVersion if there is no handler for it.
        """
        handler = self.handlers.get(type(request))
        if handler is None:
            return failed(UnsupportedVersion(f"no handler for {type(request).__name__}"))
        return handler(request)

    def become_leader_or_follower(
        self, states: Iterable[LeaderAndIsr], controller_epoch: int = 0
    ) -> dict[TopicPartition, KreplicaError | None]:
        """Create the missing logs and take the roles that the controller has assigned.

        For callers that do not place logs themselves, unlike the BrokerMetadataPublisher. Returns each
        partition's error or None. A role whose log could not be created is not retried. Raises
        StaleControllerEpoch as `ReplicaManager.become_leader_or_follower`.
        """
        states = list(states)
        logs = self.log_manager.get_or_create_logs(filter(None, map(self._missing_log, states)))
        errors = {at: log for at, log in logs.items() if isinstance(log, KreplicaError)}
        placed = [state for state in states if state.topic_partition not in errors]
        return {**errors, **self.replica_manager.become_leader_or_follower(placed, controller_epoch)}

    def _missing_log(self, state: LeaderAndIsr) -> NewLog | None:
        partitions = self.replica_manager.partitions
        # The log of an offline partition is on a disk that has failed.
        if self.broker_id not in state.replicas or partitions.is_offline(state.topic_partition):
            return None
        partition = partitions.get(state.topic_partition)
        if partition is not None and partition.log is not None:
            return None
        return NewLog(state.topic_partition, state.topic_id)
