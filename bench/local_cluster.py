"""Three kreplica brokers in this process, each with its own directory, for the replication benchmarks.

A LocalNetwork carries their messages, real files hold their logs, and a scripted controller assigns leaders.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from kreplica.broker.broker import Broker
from kreplica.common.config import LogConfig
from kreplica.common.types import TopicPartition
from kreplica.controller.manual_controller import CONTROLLER_ID
from kreplica.runtime.clock import SystemClock
from kreplica.runtime.local_network import LocalNetwork
from kreplica.runtime.scheduler import ThreadWorkers
from kreplica.runtime.storage import FileStorage
from kreplica.sim.cluster import CLUSTER_ID
from kreplica.sim.controller import ScriptedController

BROKERS = (1, 2, 3)
TOPIC = "t"
PATIENCE = 60  # seconds


class LocalCluster:
    """Brokers 1, 2 and 3 under `directory`, or only those in `running`; broker 1 leads.

    As a context manager it shuts down on exit.
    """

    def __init__(self, directory: Path, running: Sequence[int] = BROKERS) -> None:
        self.network = LocalNetwork()
        self.controller = ScriptedController()
        self.controller.add_topic(TOPIC, LogConfig(min_insync_replicas=2))
        endpoint = self.network.join(CONTROLLER_ID)
        self.network.register(endpoint, self.controller.handle)
        self.network.start()
        self.broker_epochs = {broker_id: self.controller.register(broker_id) for broker_id in BROKERS}
        self.brokers = {broker_id: self._start(broker_id, directory) for broker_id in running}
        self._partitions = 0

    def _start(self, broker_id: int, directory: Path) -> Broker:
        endpoint, broker_epoch = self.network.join(broker_id), self.broker_epochs[broker_id]
        broker = Broker(
            broker_id,
            [str(directory / f"broker-{broker_id}")],
            cluster_id=CLUSTER_ID,
            storage=FileStorage(),
            clock=SystemClock(),
            scheduler=endpoint,
            workers=ThreadWorkers(),
            random=random.Random(broker_id),
            transport=endpoint,
            new_loop=endpoint.loop,
            metadata_cache=self.controller,
            broker_epoch=lambda: broker_epoch,
            controller=lambda: CONTROLLER_ID,
            configs=self.controller.configs(),
        )
        self.network.register(endpoint, broker.handle)
        broker.startup()
        return broker

    def new_partition(self) -> TopicPartition:
        """Create a partition with all three brokers as replicas."""
        made = TopicPartition(TOPIC, self._partitions)
        self._partitions += 1
        state = self.controller.create(made, BROKERS)
        with self.network.draining():
            for broker in self.brokers.values():
                assert broker.become_leader_or_follower([state]) == {made: None}
        return made

    def delete(self, partition: TopicPartition) -> None:
        """Delete the partition on all brokers."""
        with self.network.draining():
            for broker in self.brokers.values():
                broker.replica_manager.stop_replicas({partition: True})

    def append_one(self, partition: TopicPartition, value: bytes) -> None:
        """Append one record and wait until all in-sync replicas acknowledge it."""
        with self.network.draining():
            done = self.brokers[1].replica_manager.append_values(partition, [value])
        done.result(PATIENCE)

    def append_batches(self, partition: TopicPartition, batch: bytes, count: int, in_flight: int) -> None:
        """Append the same batch `count` times with acks=all, `in_flight` at a time; wait for all."""
        append, draining = self.brokers[1].replica_manager.append, self.network.draining
        waiting: deque[object] = deque()
        for first in range(0, count, in_flight):
            with draining():
                waiting.extend(append(partition, batch) for _ in range(min(in_flight, count - first)))
            while waiting:
                waiting.popleft().result(PATIENCE)

    def check(self, partition: TopicPartition) -> None:
        """Check that all three logs are equally long and all replicas stayed in sync."""
        replicas = [broker.replica_manager.partitions.get(partition) for broker in self.brokers.values()]
        assert len({replica.log_end_offset for replica in replicas if replica is not None}) == 1
        assert self.controller.partitions[partition].isr == BROKERS

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for broker in self.brokers.values():
            broker.shutdown()
        self.network.shutdown()
