"""SimCluster: brokers, their network and a scripted controller under one virtual clock.

Thread rule: one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from kreplica.broker.broker import Broker
from kreplica.broker.framed_requests import FramedRequests
from kreplica.broker.message_conversion import TopicIds
from kreplica.common.config import LogConfig
from kreplica.common.future import Future
from kreplica.controller.manual_controller import CONTROLLER_ID
from kreplica.replica.partition import Partition
from kreplica.replica.replica_config import ReplicaConfig
from kreplica.sim.controller import ScriptedController
from kreplica.sim.disk import SimDisk
from kreplica.sim.machines import BrokerPorts, MakeBroker, SimBroker, SimMachines
from kreplica.sim.network import LinkConditions, SimEndpoint
from kreplica.sim.scheduler import Incarnation

CLUSTER_ID = "simulated-cluster-----"
# Small enough for thousands of logs, large enough that segments roll only where a test wants it.
LONGEST_APPEND_MS = 6
LOG_CONFIG = LogConfig(segment_bytes=65_536, segment_index_bytes=4_096)


class FramedBroker(Broker):
    """A broker that takes Produce and Fetch requests as frames, as its node would."""

    def __init__(self, *arguments: Any, topics: TopicIds, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.produce_lane = self.replica_manager.appends.lane
        self.fetch_lane = self.replica_manager.fetches.lane
        self.rules = None
        self._framed = FramedRequests(super().handle, self, topics)

    def handle(self, request: Any) -> Future[Any]:
        """Answer a request; see Broker."""
        return self._framed.handle(request)

    def handle_frame(self, frame: memoryview) -> Future[Any]:
        """Answer a request's frame; see FramedRequests."""
        return self._framed.handle_frame(frame)


def broker_factory(
    replica_config: ReplicaConfig | None = None, *, with_disks: bool = False
) -> Callable[[BrokerPorts, ScriptedController], Broker]:
    """Return a function that creates brokers. `with_disks`: appends run on a disk thread, some ms later."""

    def make_broker(ports: BrokerPorts, controller: ScriptedController) -> Broker:
        broker = FramedBroker(
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
            topics=controller,
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


# A client's id, which no broker has.
CLIENT_ID = 2000


class SimCluster(SimMachines):
    """A cluster without brokers; `add_broker` adds them.

    `make_broker(ports, controller)` creates a broker's program. Otherwise as SimMachines.
    """

    def __init__(
        self,
        make_broker: Callable[[BrokerPorts, ScriptedController], Any],
        *,
        seed: int = 1,
        shuffle: bool = True,
        conditions: LinkConditions | None = None,
    ) -> None:
        super().__init__(seed=seed, shuffle=shuffle, conditions=conditions)
        self.controller = ScriptedController()
        self._make_broker: MakeBroker = partial(_call_with, make_broker, self.controller)
        for node_id, handle in ((CONTROLLER_ID, self.controller.handle), (CLIENT_ID, _no_handler)):
            life = Incarnation(node_id)
            endpoint = self.network.join(life)
            self.network.register(life, handle)
        self.client: SimEndpoint = endpoint

    def add_broker(self, broker_id: int) -> SimBroker:
        """Add a machine with an empty disk, without starting it."""
        return self.add_machine(broker_id, self._make_broker, partial(self.controller.register, broker_id))

    def send(self, broker_id: int, request: Any, *, timeout_ms: int) -> Future[Any]:
        """Send a request as a client."""
        return self.client.send(broker_id, request, timeout_ms=timeout_ms)


def _call_with(
    make_broker: Callable[[BrokerPorts, ScriptedController], Any],
    controller: ScriptedController,
    ports: BrokerPorts,
) -> Any:
    return make_broker(ports, controller)


def _no_handler(request: Any) -> Future[Any]:
    raise AssertionError(f"a client is asked {request!r}")
