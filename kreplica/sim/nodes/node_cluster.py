"""NodeCluster: whole nodes under one virtual clock, with their quorum, controller, brokers, logs and images.

Nodes can be started, stopped cleanly, killed, cut from power and paused; network and disks fail as in
SimMachines. Everything is an event of `scheduler`; all randomness comes from `seed`. A node with a fatal
error ends as its process would; `fatal` has the error. Thread rule: one thread.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from kreplica.broker.node import CONTROLLED_SHUTDOWN_MS, Node
from kreplica.broker.node_config import NodeConfig
from kreplica.broker.node_directories import directory_ids, format_node
from kreplica.common.errors import KafkaStorageError, RequestTimedOut
from kreplica.common.future import Future
from kreplica.common.ports import Random
from kreplica.common.types import TopicPartition, Uuid
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.metadata_store import MemoryImageDirectory
from kreplica.metadata.registrations import PartitionRegistration
from kreplica.raft.voter_set import ReplicaKey, VoterNode, VoterSet
from kreplica.sim.machines import SimMachines
from kreplica.sim.network import LinkConditions
from kreplica.sim.node import BrokerPorts
from kreplica.sim.nodes.node_program import NodeProgram
from kreplica.sim.nodes.node_settings import node_config, roles_of
from kreplica.sim.nodes.sim_client import SimClient
from kreplica.sim.nodes.wire_copy import wire_copy

T = TypeVar("T")

FIRST_CLIENT_ID = 2001
DEFAULT_REPLICATION_FACTOR = 3
CONDITIONS = LinkConditions(delay_us=(100, 1_000))


class NodeCluster(SimMachines):
    """A cluster of `brokers` brokers with formatted, empty disks; `boot` starts them.

    `controllers`: the number of dedicated controllers, which form the quorum; their ids start at 1001. With
    0, the first three brokers are the quorum. `standbys`: the number of further controllers, which are not
    voters at first. `as_bytes`: whether messages cross the network as bytes; None: the seed decides.
    `settings`: of every node, by Kafka's names. Otherwise as SimMachines. Raises InvalidConfig.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        controllers: int = 0,
        standbys: int = 0,
        seed: int = 1,
        shuffle: bool = True,
        conditions: LinkConditions = CONDITIONS,
        as_bytes: bool | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(seed=seed, shuffle=shuffle, conditions=conditions)
        self.as_bytes = random.Random(f"{seed}/wire").random() < 0.5 if as_bytes is None else as_bytes
        if self.as_bytes:
            self.network.carry = wire_copy
        # (node, fatal error), in the order they happened; and the reaction to one.
        self.fatal: list[tuple[int, BaseException]] = []
        self.on_fatal: Callable[[int, BaseException], object] = lambda node_id, _: self.kill(node_id)
        self.configs: dict[int, NodeConfig] = {}
        self.images: dict[int, MemoryImageDirectory] = {}
        self.clients: list[SimClient] = []
        factor = min(brokers, DEFAULT_REPLICATION_FACTOR)
        for node_id, roles in roles_of(brokers, controllers, standbys).items():
            self.configs[node_id] = node_config(node_id, roles, factor, settings or {})
        # The nodes that may be voters; at first all but the standbys are.
        self.controllers = [n for n, config in self.configs.items() if "controller" in config.roles]
        self.broker_ids = [n for n, config in self.configs.items() if "broker" in config.roles]
        for node_id in self.configs:
            self.images[node_id] = MemoryImageDirectory()
            self.add_machine(node_id, partial(self._program, node_id), lambda: 0)
        self.directory_ids: dict[int, Uuid] = {}  # of the metadata directories
        self._format(len(self.controllers) - standbys)

    def _program(self, node_id: int, ports: BrokerPorts) -> NodeProgram:
        return NodeProgram(
            self.configs[node_id], ports, self.images[node_id], partial(self._cannot_go_on, node_id)
        )

    def _format(self, count: int) -> None:
        """Format all disks; the first `count` controllers are the first voters."""
        chance = random.Random(f"{self.seed}/format")
        disks = {n: self.brokers[n].storage for n in self.configs}
        ids = {n: directory_ids(config, disks[n], chance) for n, config in self.configs.items()}
        self.directory_ids = {n: ids[n][config.metadata_directory] for n, config in self.configs.items()}
        voters = VoterSet(
            VoterNode(ReplicaKey(n, self.directory_ids[n]), (), 0, 1) for n in self.controllers[:count]
        )
        for node_id, config in self.configs.items():
            clock = self.brokers[node_id].clock
            format_node(config, ids[node_id], storage=disks[node_id], clock=clock, initial_voters=voters)

    # ---- life cycle ---------------------------------------------------------------------------------------

    def boot(self, limit_ms: int = 10_000) -> None:
        """Start every node that does not run, and wait until all brokers may lead. Raises AssertionError if
        not."""
        for node_id, machine in self.brokers.items():
            if not machine.is_alive:
                self.start(node_id)
        assert self.run_until(self.is_ready, limit_ms), f"not ready after {limit_ms} ms"

    def is_ready(self) -> bool:
        """Return whether every node runs, and every broker may lead."""
        nodes = [self.node(node_id) for node_id in self.configs]
        return all(node is not None and node.ready.done() for node in nodes)

    def shut_down(self, node_id: int, timeout_ms: int = CONTROLLED_SHUTDOWN_MS) -> Future[None]:
        """Shut the node down cleanly; done when it has stopped. It may be killed earlier."""
        node, life = self.node(node_id), self.brokers[node_id].life
        assert node is not None, f"node {node_id} does not run"
        stopped: Future[None] = Future()

        def stop() -> None:
            try:
                self.stop(node_id)
            except KafkaStorageError:
                # Its files could not be closed cleanly; the process ends anyway.
                self.kill(node_id)
            stopped.set_result(None)

        def left(_: Future[None]) -> None:
            # Stop it in an event of its own, not within one of the node's.
            self.scheduler.add("fault", f"node {node_id} stops", stop, incarnation=life)

        node.shutdown(timeout_ms).add_done_callback(left)
        return stopped

    def power_cut(self, broker_id: int, chance: Random | None = None, *, keeps_names: bool = False) -> None:
        """As SimMachines.power_cut; the image's last write may be lost, too."""
        super().power_cut(broker_id, chance, keeps_names=keeps_names)
        if chance is None or chance.randrange(2):
            self.images[broker_id].store.lose_last_write()

    def _cannot_go_on(self, node_id: int, error: BaseException) -> None:
        self.fatal.append((node_id, error))
        # In an event of its own, not within the node's.
        life = self.brokers[node_id].life
        dies = partial(self.on_fatal, node_id, error)
        self.scheduler.add("fault", f"node {node_id} dies", dies, incarnation=life)

    # ---- nodes and their metadata -------------------------------------------------------------------------

    def node(self, node_id: int) -> Node | None:
        """Return the node that runs there, None if none does."""
        program = self.brokers[node_id].program
        return None if program is None else program.node

    def live(self) -> list[Node]:
        """Return all running nodes, including paused ones."""
        return [node for node_id in self.configs if (node := self.node(node_id)) is not None]

    @property
    def controller(self) -> int | None:
        """The active controller's node; of two that believe to be it, the one with the later epoch."""
        active = [n for n in self.live() if n.controller is not None and n.controller.is_active]
        newest = max(active, key=lambda node: node.raft.leader_and_epoch.epoch, default=None)
        return None if newest is None else newest.config.node_id

    def voters(self) -> list[int]:
        """Return the voters as the active controller knows them; without one, all nodes that may be
        voters."""
        active = self.controller
        node = None if active is None else self.node(active)
        return list(self.controllers) if node is None else sorted(node.raft.voters.voters)

    def metadata(self) -> ClusterMetadata:
        """Return the metadata of the node that has applied the most. AssertionError if no node runs."""
        live = self.live()
        assert live, "no node runs"
        return max(live, key=lambda node: node.loader.applied.offset).loader.published

    def partition(self, topic: str, partition: int = 0) -> PartitionRegistration | None:
        """Return a partition's registration, from the running node that has applied the most."""
        return self.metadata().partition(TopicPartition(topic, partition))

    # ---- clients ------------------------------------------------------------------------------------------

    def add_client(self) -> SimClient:
        """Add a client. It knows the ids of all nodes, but not which of them run."""
        client = SimClient(
            self, FIRST_CLIENT_ID + len(self.clients), lambda: self.broker_ids, lambda: self.controllers
        )
        self.clients.append(client)
        return client

    @property
    def client(self) -> SimClient:
        """The first client."""
        return self.clients[0] if self.clients else self.add_client()

    def result(self, future: Future[T], limit_ms: int = 10_000) -> T:
        """Run events until the future is done, and return its result.

        Raises what it failed with, and RequestTimedOut if it is not done in time.
        """
        if not self.run_until(future.done, limit_ms):
            raise RequestTimedOut(f"not done within {limit_ms} ms")
        return future.result()

    def run_until(self, condition: Callable[[], bool], limit_ms: int = 10_000) -> bool:
        """Run events until the condition holds; returns False if it does not within `limit_ms`."""
        return self.scheduler.run_until(condition, limit_ms)
