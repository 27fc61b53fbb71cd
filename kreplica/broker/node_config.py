"""NodeConfig and NodePorts: what a node is, and the machine it runs on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kreplica.broker.broker_config import BrokerConfig
from kreplica.broker.socket_server_config import SocketServerConfig
from kreplica.common.config import CleanerConfig, LogConfig, LogManagerConfig, MetadataLogConfig
from kreplica.common.errors import InvalidConfig
from kreplica.common.ports import Clock, Disk, Loop, Random, Scheduler, Storage, Transport, Workers
from kreplica.controller.controller_config import ControllerConfig
from kreplica.coordinator.group_config import GroupConfig
from kreplica.metadata.image_writer import ImageDirectory
from kreplica.metadata.records import Endpoint
from kreplica.raft.raft_config import RaftConfig
from kreplica.raft.voter_set import VoterSet
from kreplica.replica.replica_config import ReplicaConfig

Role = Literal["broker", "controller"]
BOTH: frozenset[Role] = frozenset({"broker", "controller"})


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """A node of cluster `cluster_id` with its directories, which must be formatted (node_format).

    `voters`: from controller.quorum.voters, None if the metadata log names them (KIP-853). `bootstrap_ids`:
    the ids, below 0, under which the transport reaches controller.quorum.bootstrap.servers.
    `metadata_directory`: has the metadata log, by default the first of `directories`. `endpoints`: the
    broker's addresses; clients use the first, other nodes the last. `controller_endpoints`: addresses for the
    quorum; empty if nodes find each other by id. Raises InvalidConfig for an impossible node.
    """

    node_id: int
    cluster_id: str
    directories: tuple[str, ...]
    roles: frozenset[Role] = BOTH
    metadata_directory: str = ""
    voters: VoterSet | None = None
    bootstrap_ids: tuple[int, ...] = ()
    endpoints: Sequence[Endpoint] = ()
    controller_endpoints: Sequence[Endpoint] = ()
    raft: RaftConfig = field(default_factory=RaftConfig)
    controller: ControllerConfig = field(default_factory=ControllerConfig)
    broker: BrokerConfig = field(default_factory=BrokerConfig)
    replica: ReplicaConfig = field(default_factory=ReplicaConfig)
    group: GroupConfig = field(default_factory=GroupConfig)
    log: LogConfig = field(default_factory=LogConfig)
    log_manager: LogManagerConfig = field(default_factory=LogManagerConfig)
    cleaner: CleanerConfig = field(default_factory=CleanerConfig)
    metadata_log: MetadataLogConfig = field(default_factory=MetadataLogConfig)
    server: SocketServerConfig = field(default_factory=SocketServerConfig)

    def __post_init__(self) -> None:
        if self.node_id < 0:
            raise InvalidConfig(f"node.id={self.node_id} is below the minimum of 0")
        if not self.roles or not self.roles <= BOTH:
            raise InvalidConfig(f"process.roles={sorted(self.roles)} must be broker, controller, or both")
        if not self.directories:
            raise InvalidConfig("a node needs a log directory (log.dirs)")
        interval_ms, session_ms = (
            self.broker.broker_heartbeat_interval_ms,
            self.controller.broker_session_timeout_ms,
        )
        if interval_ms >= session_ms:
            raise InvalidConfig(
                f"broker.heartbeat.interval.ms={interval_ms} is not below"
                f" broker.session.timeout.ms={session_ms}: brokers would be fenced between their heartbeats"
            )
        self.raft.require_log_takes_batches(self.metadata_log.log_segment_bytes)
        if not self.metadata_directory:
            object.__setattr__(self, "metadata_directory", self.directories[0])

    @property
    def all_directories(self) -> tuple[str, ...]:
        """Every directory that the node locks, without duplicates."""
        return tuple(dict.fromkeys((self.metadata_directory, *self.directories)))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePorts:
    """The machine, for one run of a node.

    `loop(name)` makes a Loop. `image(path)` returns the directory of the metadata image for `path`.
    `disk(directory)`: makes the appends of a log directory; without it the caller of an append does.
    """

    storage: Storage
    clock: Clock
    scheduler: Scheduler
    transport: Transport
    workers: Workers
    random: Random
    loop: Callable[[str], Loop]
    image: Callable[[str], ImageDirectory]
    disk: Callable[[str], Disk] | None = None
