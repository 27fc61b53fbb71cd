"""SimQuorum: a metadata quorum alone, voters and observers, under one virtual clock.

Everything is an event of `scheduler`; all randomness comes from `seed`. Thread rule: one thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from kreplica.common.future import Future
from kreplica.common.types import Uuid
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.raft.epoch_state import LeaderState
from kreplica.raft.kafka_raft_client import KafkaRaftClient
from kreplica.raft.raft_listener import LeaderAndEpoch
from kreplica.raft.voter_set import ReplicaKey, VoterNode, VoterSet
from kreplica.sim.machines import SimMachines
from kreplica.sim.network import LinkConditions, SimEndpoint
from kreplica.sim.node import BrokerPorts, SimBroker
from kreplica.sim.quorum.quorum_node import QuorumNode, QuorumSetup, Witness, record_of
from kreplica.sim.scheduler import Incarnation

CLIENT_ID = 2000


class NoWitness:
    """Ignores all notifications."""

    def committed(self, node: QuorumNode, offset: int, epoch: int, value: str) -> None: ...

    def loaded(self, node: QuorumNode, snapshot_id: OffsetAndEpoch, values: list[str]) -> None: ...

    def leader_told(self, node: QuorumNode, leader: LeaderAndEpoch) -> None: ...


def directory_id_of(node_id: int, disk: int = 0) -> Uuid:
    """Return the id of a node's directory; each new disk has another one."""
    return Uuid(bytes([*range(1, 9), 0, 0, 0, disk, *node_id.to_bytes(4, "big")]))


class SimQuorum(SimMachines):
    """Nodes 1 to `voters` vote, and `observers` more do not; none is started. `dynamic`: voters may
    change."""

    def __init__(
        self,
        voters: int = 3,
        observers: int = 0,
        *,
        seed: int = 1,
        shuffle: bool = True,
        dynamic: bool = True,
        conditions: LinkConditions | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(seed=seed, shuffle=shuffle, conditions=conditions)
        self.witness: Witness = NoWitness()
        # The number of disks each node had before its current one.
        self._disks: Counter[int] = Counter()
        ids = range(1, voters + 1)
        self.setup = QuorumSetup(
            VoterSet(
                VoterNode(ReplicaKey(i, directory_id_of(i) if dynamic else Uuid.ZERO), (), 0, int(dynamic))
                for i in ids
            ),
            **settings,
        )
        for node_id in range(1, voters + observers + 1):
            self.add_member(node_id)
        life = Incarnation(CLIENT_ID)
        self.client_endpoint: SimEndpoint = self.network.join(life)

    def add_member(self, node_id: int) -> None:
        """Add a machine with an empty disk."""
        self.setup.directory_ids.setdefault(node_id, directory_id_of(node_id))
        self.add_machine(node_id, self._make, lambda: 0)

    @property
    def machines(self) -> dict[int, SimBroker]:
        """All members by id, running or not."""
        return self.brokers

    def _make(self, ports: BrokerPorts) -> QuorumNode:
        return QuorumNode(ports, self.setup, self.witness)

    # ---- members ------------------------------------------------------------------------------------------

    def node(self, node_id: int) -> QuorumNode:
        """Return the program that runs there."""
        program = self.machines[node_id].program
        assert isinstance(program, QuorumNode)
        return program

    def client(self, node_id: int) -> KafkaRaftClient:
        return self.node(node_id).client

    @property
    def alive(self) -> list[int]:
        """The ids of the running nodes."""
        return [node_id for node_id, machine in self.machines.items() if machine.is_alive]

    @property
    def leader(self) -> int | None:
        """The leader of the newest epoch that has one."""
        return self.leader_among(self.alive)

    def leader_among(self, node_ids: Iterable[int]) -> int | None:
        """Return the one of these running nodes that leads the newest epoch."""
        led = [
            (self.client(i).quorum.epoch, i)
            for i in node_ids
            if isinstance(self.client(i).quorum.state, LeaderState)
        ]
        return max(led)[1] if led else None

    # ---- actions of a script ------------------------------------------------------------------------------

    def start(self, *node_ids: int) -> None:
        """Start these nodes, or all that do not run."""
        for node_id in node_ids or [i for i, machine in self.machines.items() if not machine.is_alive]:
            self.machines[node_id].start()

    def kill(self, node_id: int, *, hint: bool = False) -> None:
        """End the node as kill -9 does. With `hint` the others notice that its connections closed."""
        self.machines[node_id].kill()
        if hint:
            for other in self.alive:
                life = self.machines[other].life
                lost = partial(self.client(other).connection_lost, node_id)
                self.scheduler.add("connection", "closed", lost, incarnation=life)

    def wipe(self, node_id: int, known: VoterSet | None = None) -> None:
        """Give a node that is down an empty disk.

        `known`, with dynamic voters: the disk gets another id, and the node is configured with these voters.
        """
        self.machines[node_id].wipe()
        if known is not None:
            self.setup.known_voters[node_id] = known
            self._disks[node_id] += 1
            self.setup.directory_ids[node_id] = directory_id_of(node_id, self._disks[node_id])

    def append(self, node_id: int, *values: str) -> int:
        """Append the values in one batch on a leader; return the offset of the last one."""
        client = self.client(node_id)
        epoch = client.leader_and_epoch.epoch
        return client.schedule_append(epoch, [record_of(value) for value in values])

    def send(self, node_id: int, request: Any, *, timeout_ms: int = 1_000) -> Future[Any]:
        """Send a request as a client."""
        return self.client_endpoint.send(node_id, request, timeout_ms=timeout_ms)

    def isolate(self, node_id: int) -> None:
        """Cut the node off from all others."""
        for other in self.machines:
            if other != node_id:
                self.network.cut(node_id, other)

    def run_until(self, condition: Callable[[], object], limit_ms: int = 5_000) -> bool:
        """Run events until the condition holds; returns False if it does not in time."""
        return self.scheduler.run_until(lambda: bool(condition()), limit_ms)

    def elect(self) -> int:
        """Wait for a leader that has committed the first record of its epoch; return its id."""
        assert self.run_until(lambda: self.leader is not None and self.mark_is_known(self.leader))
        leader = self.leader
        assert leader is not None
        return leader

    def mark_is_known(self, node_id: int) -> bool:
        return self.client(node_id).high_watermark is not None
