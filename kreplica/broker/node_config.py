"""NodeConfig and NodePorts: what a node is, and the machine it runs on.

Settings are named as Kafka's with dots for underscores. Times are in ms, sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from kreplica.common.config import CleanerConfig, LogConfig, LogManagerConfig, MetadataLogConfig
from kreplica.common.connection_limits import CREATION_RATE, KINDS, MAX_CONNECTIONS, OVERRIDES, PER_IP
from kreplica.common.dataclass import dataclass, field
from kreplica.common.errors import InvalidConfig
from kreplica.common.ports import Clock, Disk, Loop, Random, Scheduler, Storage, Transport, Workers
from kreplica.common.settings import BOOLEAN, TEXT, Settings, int32, int64, one_of, optional, setting
from kreplica.common.types import INT32_MAX
from kreplica.controller.controller_config import ControllerConfig
from kreplica.coordinator.group_config import GroupConfig
from kreplica.coordinator.share_coordinator_config import ShareCoordinatorConfig
from kreplica.coordinator.transaction_config import TransactionConfig
from kreplica.metadata.image_writer import ImageDirectory
from kreplica.metadata.records import Endpoint
from kreplica.metadata.watches import Watches
from kreplica.raft.raft_config import RaftConfig
from kreplica.raft.voter_set import VoterSet
from kreplica.replica.replica_config import ReplicaConfig
from kreplica.security.delegation_token import DelegationTokenConfig
from kreplica.security.peer import USER

Role = Literal["broker", "controller"]
BOTH: frozenset[Role] = frozenset({"broker", "controller"})


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(Settings):
    """The settings of a broker as a member of its cluster. Defaults are Kafka's. Raises InvalidConfig."""

    broker_heartbeat_interval_ms: int = setting(
        2_000, int32(1), "How often a broker sends a heartbeat; below broker.session.timeout.ms."
    )
    broker_heartbeat_timeout_ms: int = setting(
        4_500,
        int32(1),
        "Timeout of a heartbeat; it is then retried, maybe at another controller.",
        is_ours=True,
    )
    broker_registration_retry_backoff_ms: int = setting(
        100, int32(1), "Pause before a registration is retried.", is_ours=True
    )
    initial_broker_registration_timeout_ms: int = setting(
        60_000, int32(1), "A broker exits if it cannot register for this long after its start."
    )
    broker_rack: str | None = setting(
        None,
        optional(TEXT),
        "Rack of the broker, for the placement of replicas and for reads from near replicas.",
    )
    auto_create_topics_enable: bool = setting(
        True, BOOLEAN, "Create a missing topic when a client requests its metadata or writes to it."
    )


STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizerConfig(Settings):
    """Whether clients need rights, and who has all of them. Raises InvalidConfig."""

    authorizer_class_name: str = setting(
        "",
        one_of(("", STANDARD_AUTHORIZER)),
        "The class named so decides by ACLs who may do what. If empty, everyone may do everything.",
    )
    super_users: str = setting(
        "",
        TEXT,
        "Who may do everything, such as User:admin;User:node-1. The nodes have to be among them.",
    )
    allow_everyone_if_no_acl_found: bool = setting(
        False, BOOLEAN, "Allow everyone to use a resource that no ACL is about."
    )

    @property
    def principals_above_rules(self) -> frozenset[str]:
        """The super users: those between semicolons, without blanks around them (KAFKA-14962)."""
        return frozenset(text for each in self.super_users.split(";") if (text := each.strip()))

    def check_together(self) -> None:
        """Raise InvalidConfig for a super user who is no principal, or if nothing asks for rights."""
        for each in self.principals_above_rules:
            kind, _, name = each.partition(":")
            if not kind or not name:
                raise InvalidConfig(f"super.users: {each[:80]!r} must be TYPE:NAME, such as User:admin")
            if kind != USER:
                raise InvalidConfig(
                    f"super.users: {each[:80]!r} has the type {kind[:40]!r}, and every client is a {USER}"
                )
            if f",{USER}:" in name.replace(" ", ""):
                raise InvalidConfig(f"super.users: {each[:80]!r} has a comma; semicolons separate principals")
        if not self.authorizer_class_name and (self.super_users or self.allow_everyone_if_no_acl_found):
            raise InvalidConfig(
                "super.users and allow.everyone.if.no.acl.found need authorizer.class.name="
                f"{STANDARD_AUTHORIZER}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaConfig(Settings):
    """How the quotas of clients are measured. Defaults are Kafka's. Raises InvalidConfig."""

    quota_window_num: int = setting(
        11, int32(1), "Number of samples over which the quotas of clients are measured."
    )
    quota_window_size_seconds: int = setting(1, int32(1), "Duration of each sample.")
    controller_quota_window_num: int = setting(
        11, int32(1), "Number of samples whose partitions a client may create or delete at once."
    )
    controller_quota_window_size_seconds: int = setting(1, int32(1), "Duration of each of these samples.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketServerConfig(Settings):
    """The limits of a node's listeners. Most of them are unlimited by default in Kafka.

    `queued_max_request_bytes`: see MemoryPool. Raises InvalidConfig.
    """

    socket_request_max_bytes: int = setting(100 << 20, int32(1), "Maximum size of a request.")
    max_connections: int = setting(
        1_000,
        KINDS[MAX_CONNECTIONS],
        "Maximum number of connections of the node, and of each listener. With the prefix of a listener:"
        " of that one.",
    )
    max_connections_per_ip: int = setting(
        500, KINDS[PER_IP], "Maximum number of connections from one address."
    )
    max_connections_per_ip_overrides: str = setting(
        "", KINDS[OVERRIDES], "The same for single addresses, such as 10.0.0.1:200,10.0.0.2:300."
    )
    max_connection_creation_rate: int = setting(
        INT32_MAX,
        KINDS[CREATION_RATE],
        "Maximum number of new connections of the node in a second. With the prefix of a listener: of that"
        " one.",
    )
    queued_max_request_bytes: int = setting(
        256 << 20, int64(1), "Maximum memory for the requests of all connections of a listener."
    )
    connections_max_idle_ms: int = setting(
        600_000,
        int64(1),
        "Close a connection after this long without a request, with an incomplete request, or with an answer"
        " that is not read.",
    )
    max_in_flight_requests: int = setting(
        64,
        int32(1),
        "Maximum number of requests in flight of a connection; then it is not read.",
        is_ours=True,
    )
    max_in_flight_bytes: int = setting(
        16 << 20,
        int64(1),
        "Maximum size of requests in flight of a connection; then it is not read.",
        is_ours=True,
    )
    max_unsent_bytes: int = setting(
        1 << 20,
        int64(1),
        "Maximum size of unread answers of a connection; then it is not read.",
        is_ours=True,
    )

    def check_together(self) -> None:
        """Raise InvalidConfig if one request may take more memory than all together."""
        if self.queued_max_request_bytes < self.socket_request_max_bytes:
            raise InvalidConfig(
                f"queued.max.request.bytes={self.queued_max_request_bytes} is below"
                f" socket.request.max.bytes={self.socket_request_max_bytes}: one request may take that much"
            )
        if not self.max_connections_per_ip and not self.max_connections_per_ip_overrides:
            raise InvalidConfig(
                "max.connections.per.ip=0 refuses all connections: give max.connections.per.ip.overrides, too"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """A node of cluster `cluster_id` with its directories, which must be formatted (node_directories).

    `voters`: from controller.quorum.voters, None if the metadata log names them (KIP-853). `bootstrap_ids`:
    the ids, below 0, under which the transport reaches controller.quorum.bootstrap.servers.
    `metadata_directory`: has the metadata log, by default the first of `directories`. `endpoints`: the
    broker's listeners, each with the address that its clients connect to. `inter_broker_listener`: the name
    of the one that other brokers use; "" for the first. `controller_endpoints`: addresses for the quorum;
    empty if nodes find each other by id. `controller_listener`: the name of the listener by which nodes
    connect to controllers; "" for the first. Raises InvalidConfig for an impossible node.
    """

    node_id: int
    cluster_id: str
    directories: tuple[str, ...]
    roles: frozenset[Role] = BOTH
    metadata_directory: str = ""
    voters: VoterSet | None = None
    bootstrap_ids: tuple[int, ...] = ()
    endpoints: Sequence[Endpoint] = ()
    inter_broker_listener: str = ""
    controller_endpoints: Sequence[Endpoint] = ()
    controller_listener: str = ""
    raft: RaftConfig = field(default_factory=RaftConfig)
    controller: ControllerConfig = field(default_factory=ControllerConfig)
    broker: BrokerConfig = field(default_factory=BrokerConfig)
    replica: ReplicaConfig = field(default_factory=ReplicaConfig)
    group: GroupConfig = field(default_factory=GroupConfig)
    transaction: TransactionConfig = field(default_factory=TransactionConfig)
    share_coordinator: ShareCoordinatorConfig = field(default_factory=ShareCoordinatorConfig)
    log: LogConfig = field(default_factory=LogConfig)
    log_manager: LogManagerConfig = field(default_factory=LogManagerConfig)
    cleaner: CleanerConfig = field(default_factory=CleanerConfig)
    metadata_log: MetadataLogConfig = field(default_factory=MetadataLogConfig)
    server: SocketServerConfig = field(default_factory=SocketServerConfig)
    quota: QuotaConfig = field(default_factory=QuotaConfig)
    authorizer: AuthorizerConfig = field(default_factory=AuthorizerConfig)
    delegation_token: DelegationTokenConfig = field(default_factory=DelegationTokenConfig)

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
    `watches`: those of the cluster, which get every change of the metadata.
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
    watches: Watches | None = None
