"""Three simulated brokers with one topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kreplica._core.batch_builder import BatchBuilder
from kreplica.broker.broker import Broker
from kreplica.common.leader_and_isr import LeaderAndIsr
from kreplica.common.types import TopicPartition
from kreplica.replica.partition import Partition
from kreplica.replica.replica_config import ReplicaConfig
from kreplica.replica.replica_manager import ReplicaManager
from kreplica.sim.cluster import LOG_CONFIG, SimCluster, broker_factory

TOPIC = "t"


def batch(*values: bytes) -> bytes:
    """Return a producer's batch of these values."""
    return bytes(BatchBuilder().build(list(values), now_ms=1_600_000_000_000))


class Replicas:
    """Brokers 1 to `brokers`, each a replica of every partition of the topic; broker 1 leads."""

    def __init__(
        self,
        *,
        brokers: int = 3,
        partitions: int = 1,
        settings: dict[str, object] | None = None,
        config: ReplicaConfig | None = None,
        with_disks: bool = False,
    ) -> None:
        self.cluster = SimCluster(broker_factory(config, with_disks=with_disks), shuffle=False)
        self.ids = tuple(range(1, brokers + 1))
        self.controller = self.cluster.controller
        self.controller.add_topic(TOPIC, LOG_CONFIG.replace(settings or {}))
        self.partitions = [TopicPartition(TOPIC, number) for number in range(partitions)]
        for broker_id in self.ids:
            self.cluster.add_broker(broker_id)
            self.cluster.start(broker_id)
        for topic_partition in self.partitions:
            self.notify(self.controller.create(topic_partition, self.ids))
        self.settle()

    def notify(self, state: LeaderAndIsr, to: Sequence[int] | None = None) -> None:
        """Send a decision to the running brokers."""
        for broker_id in self.ids if to is None else to:
            if self.cluster.brokers[broker_id].is_alive:
                self.broker(broker_id).become_leader_or_follower([state], self.controller.epoch)

    def elect(self, leader: int, isr: Sequence[int] | None = None, *, unclean: bool = False) -> None:
        for topic_partition in self.partitions:
            self.notify(self.controller.elect(topic_partition, leader, isr, unclean=unclean))

    def broker(self, broker_id: int = 1) -> Broker:
        program: Any = self.cluster.program(broker_id)
        assert isinstance(program, Broker)
        return program

    def manager(self, broker_id: int = 1) -> ReplicaManager:
        return self.broker(broker_id).replica_manager

    def partition(self, broker_id: int = 1, number: int = 0) -> Partition:
        return self.manager(broker_id).partitions.get_or_error(TopicPartition(TOPIC, number))

    def settle(self) -> None:
        """Run everything that needs no time."""
        self.cluster.settle()

    def pass_time(self, duration_ms: int) -> None:
        self.cluster.pass_time(duration_ms)

    def values(self, broker_id: int, number: int = 0) -> list[bytes | None]:
        """Return all values in a broker's log."""
        log = self.partition(broker_id, number).local_log
        return [record.value for each in log.batches(log.log_start_offset) for record in each]
