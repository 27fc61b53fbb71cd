"""NodeCluster: whole nodes under one virtual clock, with their quorum, controller, brokers, logs and images.

Nodes can be started, stopped cleanly, killed, cut from power and paused; network and disks fail as in
SimMachines. Everything is an event of `scheduler`; all randomness comes from `seed`. A node with a fatal
error ends as its process would; `fatal` has the error. Thread rule: one thread.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from kreplica.broker.framed_requests import FramedRequests
from kreplica.broker.node import CONTROLLED_SHUTDOWN_MS, Node
from kreplica.broker.node_config import BOTH, BrokerConfig, NodeConfig, NodePorts, Role
from kreplica.broker.node_directories import directory_ids, format_node
from kreplica.broker.node_settings import with_settings
from kreplica.client.client import Client
from kreplica.client.client_config import ClientConfig, ConsumerConfig
from kreplica.common.config import MetadataLogConfig
from kreplica.common.dataclass import replace
from kreplica.common.errors import BrokerNotAvailable, RequestTimedOut, UnsupportedVersion
from kreplica.common.future import Future, failed
from kreplica.common.message_reader import MessageReader, read_message
from kreplica.common.message_writer import MessageWriter, write_message
from kreplica.common.ports import Random
from kreplica.common.types import TopicPartition, Uuid
from kreplica.controller.controller_config import ControllerConfig
from kreplica.coordinator.group_config import GroupConfig
from kreplica.coordinator.share_coordinator_config import ShareCoordinatorConfig
from kreplica.coordinator.transaction_config import TransactionConfig
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.image_writer import ImageDirectory
from kreplica.metadata.metadata_store import MemoryImageDirectory
from kreplica.metadata.registrations import PartitionRegistration
from kreplica.metadata.watches import Watches
from kreplica.raft.kafka_metadata_log import KafkaMetadataLog
from kreplica.raft.kafka_raft_client import KafkaRaftClient
from kreplica.raft.raft_config import RaftConfig
from kreplica.raft.voter_set import ReplicaKey, VoterNode, VoterSet
from kreplica.replica.replica_config import ReplicaConfig
from kreplica.sim.cluster import CLUSTER_ID, LOG_CONFIG
from kreplica.sim.machines import DIRECTORY, BrokerPorts, SimMachines
from kreplica.sim.network import LinkConditions, SimEndpoint
from kreplica.sim.scheduler import Incarnation, VirtualClock

# The first id of dedicated controllers.
FIRST_CONTROLLER_ID = 1001
# More voters make every metadata commit slower.
MOST_COMBINED_VOTERS = 3

# Short timeouts, so that they expire within few events.
RAFT_CONFIG = RaftConfig(
    quorum_election_timeout_ms=100,
    quorum_fetch_timeout_ms=300,
    quorum_fetch_wait_max_ms=75,
    quorum_election_backoff_max_ms=100,
    quorum_append_linger_ms=5,
    quorum_request_timeout_ms=200,
    quorum_retry_backoff_ms=20,
    quorum_max_batch_size_bytes=4_096,
    metadata_log_cleanup_interval_ms=300,
)
CONTROLLER_CONFIG = ControllerConfig(
    broker_session_timeout_ms=300,
    broker_session_hint_ms=100,
    broker_session_max_timeout_ms=1_200,
    broker_session_decay_ms=2_000,
    leader_imbalance_check_interval_seconds=1,
    unclean_leader_election_interval_ms=300,
)
BROKER_CONFIG = BrokerConfig(
    broker_heartbeat_interval_ms=50,
    broker_heartbeat_timeout_ms=100,
    broker_registration_retry_backoff_ms=20,
)
REPLICA_CONFIG = ReplicaConfig(
    replica_lag_time_max_ms=300,
    replica_fetch_wait_max_ms=50,
    replica_fetch_backoff_ms=30,
    replica_socket_timeout_ms=150,
    replica_high_watermark_checkpoint_interval_ms=300,
)
GROUP_CONFIG = GroupConfig(
    group_min_session_timeout_ms=100,
    group_initial_rebalance_delay_ms=50,
    group_consumer_min_session_timeout_ms=100,
    group_consumer_session_timeout_ms=500,
    group_consumer_min_heartbeat_interval_ms=10,
    group_consumer_heartbeat_interval_ms=50,
    group_consumer_assignment_interval_ms=0,
    group_share_min_session_timeout_ms=100,
    group_share_session_timeout_ms=500,
    group_share_min_heartbeat_interval_ms=10,
    group_share_heartbeat_interval_ms=50,
    group_share_assignment_interval_ms=0,
    offsets_load_buffer_size=4_096,
    offsets_topic_num_partitions=4,
    offsets_topic_segment_bytes=1 << 20,
)
TRANSACTION_CONFIG = TransactionConfig(
    transaction_abort_timed_out_transaction_cleanup_interval_ms=100,
    transaction_state_log_num_partitions=4,
    transaction_state_log_segment_bytes=1 << 20,
    transaction_state_log_load_buffer_size=4_096,
)
# One batch of the metadata log holds a topic of a few partitions at most.
SHARE_COORDINATOR_CONFIG = ShareCoordinatorConfig(
    share_coordinator_state_topic_num_partitions=4,
    share_coordinator_state_topic_segment_bytes=1 << 20,
    share_coordinator_load_buffer_size=4_096,
)
# So small that a node which was away for a moment has to install a snapshot.
METADATA_LOG_CONFIG = MetadataLogConfig(
    log_segment_bytes=4_096,
    max_retention_bytes=1,
    max_retention_ms=200,
    log_max_record_bytes_between_snapshots=3_000,
)


def roles_of(brokers: int, controllers: int, standbys: int = 0) -> dict[int, frozenset[Role]]:
    """Return the roles of brokers 1 to `brokers` and of `controllers` plus `standbys` dedicated controllers.

    The ids of controllers start at 1001. With 0 controllers, the first three brokers (one, of fewer than
    three) are controllers, too.
    """
    combined = 0 if controllers else MOST_COMBINED_VOTERS if brokers >= MOST_COMBINED_VOTERS else 1
    roles: dict[int, frozenset[Role]] = {
        node_id: BOTH if node_id <= combined else frozenset({"broker"}) for node_id in range(1, brokers + 1)
    }
    for node_id in range(FIRST_CONTROLLER_ID, FIRST_CONTROLLER_ID + controllers + standbys):
        roles[node_id] = frozenset({"controller"})
    return roles


def node_config(
    node_id: int, roles: frozenset[Role], replication_factor: int, settings: Mapping[str, object]
) -> NodeConfig:
    """Return the configuration of a node; `settings` by Kafka's names. Raises InvalidConfig."""
    config = NodeConfig(
        node_id=node_id,
        cluster_id=CLUSTER_ID,
        directories=(DIRECTORY,),
        roles=roles,
        raft=RAFT_CONFIG,
        controller=replace(CONTROLLER_CONFIG, default_replication_factor=replication_factor),
        broker=BROKER_CONFIG,
        replica=REPLICA_CONFIG,
        group=GROUP_CONFIG,
        transaction=TRANSACTION_CONFIG,
        share_coordinator=SHARE_COORDINATOR_CONFIG,
        log=LOG_CONFIG,
        metadata_log=METADATA_LOG_CONFIG,
    )
    return with_settings(config, settings)


# A client's request completes or fails within a second or two of virtual time.
CLIENT_CONFIG = ClientConfig(
    delivery_timeout_ms=1_000,
    request_timeout_ms=300,
    default_api_timeout_ms=1_000,
    retry_backoff_ms=20,
    fetch_max_wait_ms=50,
)
# Sessions, and the rebalances after them, end within a second or two as well.
CONSUMER_CONFIG = ConsumerConfig(
    session_timeout_ms=500,
    heartbeat_interval_ms=50,
    max_poll_interval_ms=2_000,
    auto_commit_interval_ms=100,
    metadata_max_age_ms=500,
)


class SimClient(Client):
    """The client with the id `client_id`, which no node has.

    `nodes()`: the nodes it may ask; `controllers()`: those that may be the active controller.
    """

    def __init__(
        self,
        machines: SimMachines,
        client_id: int,
        nodes: Callable[[], Sequence[int]],
        controllers: Callable[[], Sequence[int]],
        config: ClientConfig = CLIENT_CONFIG,
    ) -> None:
        self.client_id = client_id
        self.clock = VirtualClock(machines.time)
        life = Incarnation(client_id)
        self.endpoint: SimEndpoint = machines.network.join(life)
        machines.network.register(life, _no_handler)
        loop = machines.scheduler.loop(life, "client")
        super().__init__(
            nodes,
            controllers,
            transport=self.endpoint,
            loop=loop,
            clock=self.clock,
            random=random.Random(f"client {client_id}"),
            config=config,
        )
        self.life = life


def _no_handler(request: Any) -> Future[Any]:
    return failed(UnsupportedVersion(f"a client is asked {request!r}"))


class NodeProgram:
    """Runs a node; `on_fatal(error)` is called when the node has a fatal error."""

    def __init__(
        self,
        config: NodeConfig,
        ports: BrokerPorts,
        image: ImageDirectory,
        on_fatal: Callable[[BaseException], None],
        watches: Watches | None = None,
    ) -> None:
        node_ports = NodePorts(
            storage=ports.storage,
            clock=ports.clock,
            scheduler=ports.scheduler,
            transport=ports.transport,
            workers=ports.workers,
            random=ports.random,
            loop=ports.loop,
            image=lambda _: image,
            watches=watches,
        )
        self.node = Node(config, node_ports, on_fatal)
        self._requests = FramedRequests(self.node.handle, self.node, self.node, self.node.handle)

    def startup(self) -> None:
        self.node.startup()

    def shutdown(self) -> None:
        """Close all files cleanly; for a clean departure call `leave` before."""
        self.node.close()

    def leave(self, timeout_ms: int) -> Future[None]:
        """Hand over, so that the node can be shut down when this is done."""
        return self.node.shutdown(timeout_ms)

    def handle(self, request: Any) -> Future[Any]:
        return self._requests.handle(request)

    def handle_frame(self, frame: memoryview) -> Future[Any]:
        """Answer a request's frame; see FramedRequests."""
        return self._requests.handle_frame(frame)

    @property
    def client(self) -> KafkaRaftClient:
        """The node's member of the quorum."""
        return self.node.raft

    @property
    def log(self) -> KafkaMetadataLog:
        """The node's metadata log."""
        log: Any = self.node.raft.log
        assert isinstance(log, KafkaMetadataLog)
        return log

    @property
    def log_manager(self) -> Any:
        """The broker's log manager. Raises BrokerNotAvailable if the node has no broker."""
        return self._broker.log_manager

    @property
    def replica_manager(self) -> Any:
        """The broker's replica manager. Raises BrokerNotAvailable if the node has no broker."""
        return self._broker.replica_manager

    @property
    def _broker(self) -> Any:
        if self.node.broker is None:
            raise BrokerNotAvailable(f"node {self.node.config.node_id} is not a broker")
        return self.node.broker


def wire_copy(body: Any) -> Any:
    """Return the message encoded and decoded again.

    None (no response at all) and requests of the simulator's own clients are returned unchanged. Raises
    InvalidRequest for values that a field cannot hold.
    """
    kind = type(body)
    if not hasattr(kind, "__api_key__"):
        return body
    writer = MessageWriter()
    write_message(body, writer)
    reader = MessageReader(b"".join(writer.buffers()))
    reader.int32()  # the frame's size
    read = read_message(kind, reader)
    assert not reader.left, f"{kind.__name__}: {reader.left} encoded bytes were not decoded"
    return read


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
        watches: Watches | None = None,
    ) -> None:
        super().__init__(seed=seed, shuffle=shuffle, conditions=conditions)
        self.as_bytes = random.Random(f"{seed}/wire").random() < 0.5 if as_bytes is None else as_bytes
        if self.as_bytes:
            self.network.carry = wire_copy
        # (node, fatal error), in the order they happened; and the reaction to one.
        self.fatal: list[tuple[int, BaseException]] = []
        self.on_fatal: Callable[[int, BaseException], object] = lambda node_id, _: self.kill(node_id)
        self.watches = watches
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
            self.configs[node_id],
            ports,
            self.images[node_id],
            partial(self._cannot_go_on, node_id),
            self.watches,
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
        return super().shut_down(node_id, timeout_ms)

    def power_cut(self, broker_id: int, chance: Random | None = None, *, keeps_names: bool = False) -> None:
        """Cut the machine's power as SimMachines does; the image's last write may be lost, too."""
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
