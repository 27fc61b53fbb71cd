"""Create real brokers on simulated machines, or on any that offer BrokerPorts. No state; any thread."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from kreplica.broker.broker import Broker
from kreplica.common.config import LogConfig
from kreplica.replica.partition import Partition
from kreplica.replica.replica_config import ReplicaConfig
from kreplica.sim.controller import CONTROLLER_ID, ScriptedController
from kreplica.sim.disk import SimDisk
from kreplica.sim.node import BrokerPorts

CLUSTER_ID = "simulated-cluster-----"
# Small enough for thousands of logs, large enough that segments roll only where a test wants it.
LONGEST_APPEND_MS = 6
LOG_CONFIG = LogConfig(segment_bytes=65_536, segment_index_bytes=4_096)


def broker_factory(
    replica_config: ReplicaConfig | None = None, *, with_disks: bool = False
) -> Callable[[BrokerPorts, ScriptedController], Broker]:
    """Return a function that creates brokers. `with_disks`: appends run on a disk thread, some ms later."""

    def make_broker(ports: BrokerPorts, controller: ScriptedController) -> Broker:
        broker = Broker(
            ports.broker_id,
            ports.directories,
            cluster_id=CLUSTER_ID,
            storage=ports.storage,
            clock=ports.clock,
            scheduler=ports.scheduler,
            workers=ports.workers,
            random=ports.random,
            transport=ports.transport,
            new_loop=ports.loop,
            metadata_cache=controller,
            broker_epoch=lambda: ports.broker_epoch,
            controller=lambda: CONTROLLER_ID,
            config=LOG_CONFIG,
            configs=controller.configs(),
            replica_config=replica_config,
            disk=cache(partial(_new_disk, ports)) if with_disks else None,
        )

        def wants_handover(partition: Partition, *_: object) -> None:
            controller.handover_wanted(ports.broker_id, partition.topic_partition)

        broker.replica_manager.peers.on_wants_handover = wants_handover
        return broker

    return make_broker


def _new_disk(ports: BrokerPorts, directory: str) -> SimDisk:
    return SimDisk(ports.loop(f"disk {directory}"), lambda: ports.random.randrange(LONGEST_APPEND_MS))
