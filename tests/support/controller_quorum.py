"""Controllers and brokers over a real metadata quorum, on simulated machines.

A controller is a voter with a QuorumController. A broker is an observer without logs, which registers and
sends heartbeats. Both follow the metadata log and expose what they have applied. Node ids: controllers from
101 on, brokers from 1 on; with `combined`, every node is both, from 1 on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kreplica.broker.broker_lifecycle_manager import BrokerLifecycleManager, BrokerState
from kreplica.broker.controller_apis import ControllerApis
from kreplica.broker.node_config import BrokerConfig
from kreplica.common.future import Future
from kreplica.common.metrics import MetricRegistry
from kreplica.common.types import TopicPartition, Uuid
from kreplica.controller.controller_config import ControllerConfig
from kreplica.controller.feature_control import SUPPORTED_FEATURES
from kreplica.controller.quorum_controller import QuorumController
from kreplica.metadata.cluster_metadata import ClusterMetadata, MetadataDelta
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.metadata.image_writer import ImageWriter
from kreplica.metadata.metadata_loader import MetadataLoader
from kreplica.metadata.metadata_store import MemoryImageDirectory
from kreplica.metadata.registrations import PartitionRegistration
from kreplica.metadata.snapshot_generator import SnapshotGenerator
from kreplica.raft.kafka_metadata_log import KafkaMetadataLog
from kreplica.raft.kafka_raft_client import KafkaRaftClient
from kreplica.raft.quorum_state import FileBasedStateStore
from kreplica.raft.raft_config import RaftConfig
from kreplica.raft.raft_listener import LeaderAndEpoch
from kreplica.raft.voter_set import ReplicaKey, VoterNode, VoterSet
from kreplica.sim.machines import BrokerPorts, SimBroker
from kreplica.sim.network import LinkConditions, SimEndpoint, SimNetwork
from kreplica.sim.scheduler import NANOSECONDS_PER_MS, Incarnation, SimScheduler, VirtualTime
from tests.support.one_controller import directory_of, topic_creation

CLUSTER_ID = "simulated-cluster-----"
CLIENT_ID = 2_000
# The settings that ARCHITECTURE recommends for nodes in one process.
RAFT_CONFIG = RaftConfig(
    quorum_election_timeout_ms=100,
    quorum_fetch_timeout_ms=500,
    quorum_election_backoff_max_ms=100,
    quorum_append_linger_ms=0,
    quorum_request_timeout_ms=250,
)
CONTROLLER_CONFIG = ControllerConfig(
    broker_session_timeout_ms=200,
    broker_session_hint_ms=75,
    broker_session_failover_ms=700,
    broker_session_max_timeout_ms=1_600,
    broker_session_decay_ms=30_000,
)
BROKER_CONFIG = BrokerConfig(
    broker_heartbeat_interval_ms=30, broker_heartbeat_timeout_ms=100, broker_registration_retry_backoff_ms=20
)


@dataclass(slots=True)
class Setup:
    """The configuration that all nodes share."""

    voters: VoterSet
    raft: RaftConfig = RAFT_CONFIG
    controller: ControllerConfig = CONTROLLER_CONFIG
    broker: BrokerConfig = BROKER_CONFIG
    snapshot_bytes: int = 20 << 20


def metadata_directory_of(node_id: int) -> Uuid:
    """Return the id of the directory with a node's metadata log."""
    return Uuid(b"metadata" + node_id.to_bytes(8, "big"))


def setup_of(controllers: Sequence[int], **changes: Any) -> Setup:
    """Return a setup with these controllers as voters."""
    return Setup(
        VoterSet(VoterNode(ReplicaKey(each, metadata_directory_of(each)), (), 0, 1) for each in controllers),
        **changes,
    )


class ClusterNode:
    """One life of a node: a member of the quorum, and a controller, a broker, or both."""

    def __init__(self, ports: BrokerPorts, setup: Setup, *, is_broker: bool, life: int) -> None:
        self.node_id = node_id = ports.broker_id
        self.metrics = MetricRegistry()
        directory = f"{ports.directories[0]}/__cluster_metadata-0"
        self.log = KafkaMetadataLog.open(directory, storage=ports.storage, clock=ports.clock)
        raft_loop = ports.loop("raft")
        self.client = KafkaRaftClient(
            setup.raft,
            node_id=node_id,
            directory_id=metadata_directory_of(node_id),
            cluster_id=CLUSTER_ID,
            voters=setup.voters,
            log=self.log,
            state_store=FileBasedStateStore(ports.storage, directory),
            clock=ports.clock,
            random=ports.random,
            transport=ports.transport,
            loop=raft_loop,
            metrics=self.metrics,
            on_fatal=_raise,
        )
        self.loader = MetadataLoader(
            ImageWriter(MemoryImageDirectory(), CLUSTER_ID, ports.loop("image")),
            loop=raft_loop,
            high_watermark=lambda: self.client.high_watermark,
        )
        self.snapshots = SnapshotGenerator(
            self.client.create_snapshot,
            lambda: self.loader.bytes_applied,
            clock=ports.clock,
            loop=raft_loop,
            metadata_log_max_record_bytes_between_snapshots=setup.snapshot_bytes,
        )
        self.controller: QuorumController | None = None
        self.apis: ControllerApis | None = None
        self.lifecycle: BrokerLifecycleManager | None = None
        if node_id in setup.voters.voter_ids:
            self._add_controller(ports, setup)
        if is_broker:
            self._add_broker(ports, setup, life)
        ports.transport.watch_connections(self._connection_lost)

    def _add_controller(self, ports: BrokerPorts, setup: Setup) -> None:
        self.controller = QuorumController(
            setup.controller,
            node_id=self.node_id,
            cluster_id=CLUSTER_ID,
            quorum=self.client,
            metadata=lambda: self.loader.published,
            in_transaction=lambda: self.loader.metadata.in_transaction,
            clock=ports.clock,
            random=ports.random,
            loop=ports.loop("controller"),
            metrics=self.metrics,
        )
        self.client.watch_commits(self.controller.on_commit)
        self.apis = ControllerApis(self.controller)

    def _add_broker(self, ports: BrokerPorts, setup: Setup, life: int) -> None:
        self.lifecycle = BrokerLifecycleManager(
            setup.broker,
            self.node_id,
            cluster_id=CLUSTER_ID,
            incarnation_id=Uuid((self.node_id << 32 | life).to_bytes(16, "big")),
            directories=[directory_of(self.node_id)],
            controller=lambda: self.client.leader_and_epoch.leader_id,
            metadata_offset=lambda: self.loader.applied.offset - 1,
            transport=ports.transport,
            clock=ports.clock,
            loop=ports.loop("lifecycle"),
            features=SUPPORTED_FEATURES,
        )

    def _connection_lost(self, node_id: int) -> None:
        self.client.connection_lost(node_id)
        if self.controller is not None:
            self.controller.connection_lost(node_id)

    # ---- the program --------------------------------------------------------------------------------------

    def startup(self) -> None:
        applied = self.loader.startup(self.log.end_offset, lambda _offset: None)
        self.client.register(self.loader, next_offset=applied.offset)
        publishers: list[Any] = [self.snapshots, self]
        if self.controller is not None:
            publishers.append(self.controller)
        self.loader.install_publishers(publishers)
        self.client.initialize()
        if self.lifecycle is not None:
            self.lifecycle.start()
            self.lifecycle.set_ready_to_unfence()

    def shutdown(self) -> None:
        if self.controller is not None:
            self.controller.close()
        self.client.close()
        self.log.close()

    def handle(self, request: Any) -> Future[Any]:
        if self.apis is not None and self.apis.takes(request):
            return self.apis.handle(request)
        return self.client.handle_inbound(request)

    # ---- a publisher of the loader ------------------------------------------------------------------------

    def on_metadata_update(
        self, _delta: MetadataDelta, _metadata: ClusterMetadata, _applied: OffsetAndEpoch
    ) -> None:
        """Do nothing with the update; tests read the loader."""

    def on_leader_change(self, _leader: LeaderAndEpoch) -> None:
        """Nothing here acts on it."""


class ControllerQuorum:
    """The machines of a cluster on one virtual clock, all started, with unfenced brokers."""

    def __init__(
        self,
        controllers: int = 3,
        brokers: int = 3,
        *,
        combined: bool = False,
        seed: int = 1,
        shuffle: bool = False,
        conditions: LinkConditions | None = None,
        **settings: Any,
    ) -> None:
        self.time = VirtualTime()
        chance = random.Random(seed)
        self.scheduler = SimScheduler(self.time, chance, shuffle=shuffle)
        self.scheduler.name = f"seed {seed}, "
        self.network = SimNetwork(
            self.scheduler, chance, conditions or LinkConditions(delay_us=(50, 200), in_order=True)
        )
        self.broker_ids = list(range(1, brokers + 1))
        self.controller_ids = (
            self.broker_ids[:controllers] if combined else list(range(101, 101 + controllers))
        )
        self.setup = setup_of(self.controller_ids, **settings)
        self._lives = 0
        self.machines = {
            node_id: SimBroker(node_id, self.scheduler, self.network, self._make, self._next_life, str(seed))
            for node_id in dict.fromkeys([*self.controller_ids, *self.broker_ids])
        }
        self.endpoint: SimEndpoint = self.network.join(Incarnation(CLIENT_ID))
        self.start(*self.machines)
        assert self.run_until(lambda: all(self.is_unfenced(each) for each in self.broker_ids))

    def _next_life(self) -> int:
        self._lives += 1
        return self._lives

    def _make(self, ports: BrokerPorts) -> ClusterNode:
        is_broker = ports.broker_id in self.broker_ids
        return ClusterNode(ports, self.setup, is_broker=is_broker, life=ports.broker_epoch)

    # ---- nodes --------------------------------------------------------------------------------------------

    def node(self, node_id: int) -> ClusterNode:
        program = self.machines[node_id].program
        assert isinstance(program, ClusterNode)
        return program

    @property
    def alive(self) -> list[int]:
        return [node_id for node_id, machine in self.machines.items() if machine.is_alive]

    @property
    def active(self) -> int | None:
        """The node that is the active controller of the newest epoch."""
        found = [
            (self.node(each).client.leader_and_epoch.epoch, each)
            for each in self.controller_ids
            if self.machines[each].is_alive and self._controller(each).is_active
        ]
        return max(found)[1] if found else None

    def _controller(self, node_id: int) -> QuorumController:
        controller = self.node(node_id).controller
        assert controller is not None
        return controller

    def lifecycle(self, broker_id: int) -> BrokerLifecycleManager:
        lifecycle = self.node(broker_id).lifecycle
        assert lifecycle is not None
        return lifecycle

    def is_unfenced(self, broker_id: int) -> bool:
        lifecycle = self.lifecycle(broker_id)
        return lifecycle.state is BrokerState.RUNNING and not lifecycle.is_fenced

    def metadata(self, node_id: int | None = None) -> ClusterMetadata:
        """Return the committed metadata of a node, by default of the active controller."""
        chosen = node_id or self.active
        assert chosen is not None
        return self.node(chosen).loader.published

    def partition(self, topic: str, number: int = 0, node_id: int | None = None) -> PartitionRegistration:
        found = self.metadata(node_id).partition(TopicPartition(topic, number))
        assert found is not None
        return found

    # ---- actions of a script ------------------------------------------------------------------------------

    def start(self, *node_ids: int) -> None:
        for node_id in node_ids:
            self.machines[node_id].start()

    def kill(self, node_id: int) -> None:
        """End the node as kill -9 does: the others see the connections close."""
        self.machines[node_id].kill()

    def lose_power(self, node_id: int) -> None:
        """Cut the node's power: the others get no notification."""
        self.machines[node_id].power_cut()

    def send(self, request: Any, to: int | None = None, *, timeout_ms: int = 1_000) -> Future[Any]:
        """Send a client's request, by default to the active controller."""
        receiver = to or self.active
        assert receiver is not None
        return self.endpoint.send(receiver, request, timeout_ms=timeout_ms)

    def ask(self, request: Any, to: int | None = None) -> Any:
        """Return the response to a client's request."""
        future = self.send(request, to)
        assert self.run_until(future.done)
        return future.result(timeout=0)

    def create_topic(self, name: str, *assignments: Sequence[int], **configs: str) -> None:
        (result,) = self.ask(topic_creation(name, *assignments, **configs)).topics
        assert int(result.error_code) == 0, result.error_message

    def pass_time(self, duration_ms: int) -> None:
        self.scheduler.run_for(duration_ms)

    def run_until(self, condition: Callable[[], object], limit_ms: int = 5_000) -> bool:
        """Run events until the condition holds; returns False if it does not in time."""
        return self.scheduler.run_until(lambda: bool(condition()), limit_ms)

    def until(self, condition: Callable[[], object], limit_ms: int = 5_000) -> int:
        """Return how many ms pass until the condition holds."""
        begun_ns = self.time.now_ns
        assert self.run_until(condition, limit_ms), f"not within {limit_ms} ms"
        return (self.time.now_ns - begun_ns) // NANOSECONDS_PER_MS

    def leader_known_to(self, broker_ids: Sequence[int], topic: str, leader: int) -> Callable[[], bool]:
        """Return a condition: all of these brokers know that `leader` leads the topic's first partition."""
        return partial(self._is_known, broker_ids, topic, leader)

    def _is_known(self, broker_ids: Sequence[int], topic: str, leader: int) -> bool:
        known = [self.metadata(each).partition(TopicPartition(topic, 0)) for each in broker_ids]
        return all(partition is not None and partition.leader == leader for partition in known)


def _raise(error: BaseException) -> None:
    raise error
