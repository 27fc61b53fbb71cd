"""SimQuorum: a metadata quorum alone, voters and observers, under one virtual clock.

A QuorumNode is one life of a member, and the state machine to which its committed log is applied: the list of
all committed values. Everything is an event of `scheduler`; all randomness comes from `seed`. Thread rule:
one thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from kreplica.common.config import MetadataLogConfig
from kreplica.common.dataclass import dataclass, field
from kreplica.common.future import Future
from kreplica.common.metrics import MetricRegistry
from kreplica.common.types import Uuid
from kreplica.metadata.batch_reader import BatchReader
from kreplica.metadata.control_records import VoterEndpoint
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.metadata.records import ConfigRecord, MetadataRecord
from kreplica.metadata.serde import ApiMessageAndVersion
from kreplica.raft.epoch_state import LeaderState
from kreplica.raft.kafka_metadata_log import KafkaMetadataLog
from kreplica.raft.kafka_raft_client import KafkaRaftClient
from kreplica.raft.quorum_state import FileBasedStateStore
from kreplica.raft.raft_config import Membership, RaftConfig
from kreplica.raft.raft_listener import LeaderAndEpoch
from kreplica.raft.snapshots import RecordsSnapshotReader
from kreplica.raft.voter_set import ReplicaKey, VoterNode, VoterSet
from kreplica.sim.machines import DIRECTORY, BrokerPorts, SimBroker, SimMachines
from kreplica.sim.network import LinkConditions, SimEndpoint
from kreplica.sim.scheduler import Incarnation

LOG_DIRECTORY = f"{DIRECTORY}/__cluster_metadata-0"
CLUSTER_ID = "sim-quorum"
# Short timeouts, so that they expire within few events.
RAFT_CONFIG = RaftConfig(
    quorum_election_timeout_ms=100,
    quorum_fetch_timeout_ms=200,
    quorum_fetch_wait_max_ms=50,
    quorum_election_backoff_max_ms=100,
    quorum_append_linger_ms=5,
    quorum_request_timeout_ms=200,
    quorum_retry_backoff_ms=20,
    quorum_max_batch_size_bytes=768,
    metadata_log_cleanup_interval_ms=300,
)
# So small that logs continually start anew at snapshots.
LOG_CONFIG = MetadataLogConfig(log_segment_bytes=1 << 10, max_retention_bytes=1, max_retention_ms=200)


class Witness:
    """Receives the notifications that listeners of the quorum's members get. This one ignores them."""

    def committed(self, node: QuorumNode, offset: int, epoch: int, value: str) -> None: ...

    def loaded(self, node: QuorumNode, snapshot_id: OffsetAndEpoch, values: list[str]) -> None: ...

    def leader_told(self, node: QuorumNode, leader: LeaderAndEpoch) -> None: ...


def record_of(value: str) -> ApiMessageAndVersion[MetadataRecord]:
    """Return a record with the value."""
    return ApiMessageAndVersion(
        ConfigRecord(resource_type=2, resource_name="t", name="value", value=value), 0
    )


def value_of(record: ApiMessageAndVersion[MetadataRecord]) -> str:
    """Return the value of a record."""
    message = record.message
    assert isinstance(message, ConfigRecord)
    assert message.value is not None
    return message.value


@dataclass(slots=True)
class QuorumSetup:
    """The configuration of all members, and the `directory_ids` of each.

    `known_voters`: the configured voters of a node, if they differ from `voters`. `on_fatal`: called with a
    node and its fatal error; without it, the error ends the run.
    """

    voters: VoterSet
    config: RaftConfig = RAFT_CONFIG
    log_config: MetadataLogConfig = LOG_CONFIG
    cluster_id: str = CLUSTER_ID
    directory_ids: dict[int, Uuid] = field(default_factory=dict)
    known_voters: dict[int, VoterSet] = field(default_factory=dict)
    # Members without the controller role: they must not vote, and never lead.
    brokers: set[int] = field(default_factory=set)
    # Observers that ask on their own to become voters.
    auto_join: set[int] = field(default_factory=set)
    # The nodes that a member asks if neither its log nor its configuration names voters.
    bootstrap: tuple[int, ...] = ()
    # The endpoint of each node from its next start on.
    endpoints: dict[int, VoterEndpoint] = field(default_factory=dict)
    on_fatal: Callable[[int, BaseException], None] | None = None

    def endpoints_of(self, node_id: int) -> tuple[VoterEndpoint, ...]:
        """Return the node's endpoint; empty if nodes know each other by id only."""
        found = self.endpoints.get(node_id)
        return () if found is None else (found,)

    def move(self, node_id: int, port: int) -> None:
        """Move the node to another port from its next start on."""
        self.endpoints[node_id] = VoterEndpoint(name="CONTROLLER", host=f"node-{node_id}", port=port)


class QuorumNode:
    """One life of a member: the program that a SimBroker runs, and its client's listener."""

    def __init__(self, ports: BrokerPorts, setup: QuorumSetup, witness: Witness) -> None:
        self.node_id = ports.broker_id
        self.values: list[str] = []
        self.applied = OffsetAndEpoch(0, 0)
        self.leader = LeaderAndEpoch(None, -1)
        self.metrics = MetricRegistry()
        self._witness = witness
        storage = ports.storage
        self.log = KafkaMetadataLog.open(
            LOG_DIRECTORY, storage=storage, clock=ports.clock, config=setup.log_config
        )
        self.store = FileBasedStateStore(storage, LOG_DIRECTORY)
        self.client = KafkaRaftClient(
            setup.config,
            node_id=self.node_id,
            directory_id=setup.directory_ids[self.node_id],
            cluster_id=setup.cluster_id,
            voters=setup.known_voters.get(self.node_id, setup.voters),
            log=self.log,
            state_store=self.store,
            clock=ports.clock,
            random=ports.random,
            transport=ports.transport,
            loop=ports.loop("raft"),
            metrics=self.metrics,
            on_fatal=self._cannot_go_on,
            membership=Membership(
                can_be_voter=self.node_id not in setup.brokers,
                endpoints=setup.endpoints_of(self.node_id),
                auto_join=self.node_id in setup.auto_join,
                bootstrap=tuple(each for each in setup.bootstrap if each != self.node_id),
                is_controller=lambda node_id: node_id not in setup.brokers,
            ),
        )
        self._setup = setup

    def _cannot_go_on(self, error: BaseException) -> None:
        if self._setup.on_fatal is None:
            raise error
        self._setup.on_fatal(self.node_id, error)

    # ---- the program --------------------------------------------------------------------------------------

    def startup(self) -> None:
        self.client.register(self)
        self.client.initialize()

    def shutdown(self) -> None:
        self.client.close()
        self.log.close()

    def leave(self, timeout_ms: int) -> Future[None]:
        """Hand over, so that the member can be shut down when this is done."""
        return self.client.shutdown(timeout_ms)

    def handle(self, request: Any) -> Future[Any]:
        return self.client.handle_inbound(request)

    def snapshot(
        self, snapshot_id: OffsetAndEpoch | None = None, values: Sequence[str] | None = None
    ) -> None:
        """Make a snapshot of all applied values, under its own id or `another` one, or of the given values.

        Raises IllegalSnapshotId.
        """
        writer = self.client.create_snapshot(snapshot_id or self.applied)
        writer.append([record_of(value) for value in (self.values if values is None else values)])
        writer.freeze()

    # ---- the listener -------------------------------------------------------------------------------------

    def handle_commit(self, reader: BatchReader) -> None:
        for batch in reader:
            assert batch.base_offset == self.applied.offset, (self.applied, batch)
            for offset, record in enumerate(batch.records, batch.base_offset):
                value = value_of(record)
                self.values.append(value)
                self._witness.committed(self, offset, batch.epoch, value)
            self.applied = OffsetAndEpoch(batch.last_offset + 1, batch.epoch)

    def handle_load_snapshot(self, reader: RecordsSnapshotReader) -> None:
        self.values = [value_of(record) for batch in reader for record in batch.records]
        self.applied = reader.snapshot_id
        self._witness.loaded(self, reader.snapshot_id, self.values)

    def handle_leader_change(self, leader: LeaderAndEpoch) -> None:
        self.leader = leader
        self._witness.leader_told(self, leader)

    def begin_shutdown(self) -> None:
        """Do nothing: no work is in progress here."""


CLIENT_ID = 2000


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
        self.witness: Witness = Witness()
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
            super().start(node_id)

    def kill(self, node_id: int, *, hint: bool = False) -> None:
        """End the node as kill -9 does. With `hint` the others notice that its connections closed."""
        super().kill(node_id)
        if hint:
            self.lose_connections(node_id)

    def lose_connections(self, node_id: int) -> None:
        """Let the other nodes notice that their connections to the node closed."""
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
