"""Node: a broker, a controller, or both, on one machine; connects the parts of all layers below.

    KafkaRaftClient ──commits──▶ MetadataLoader ──deltas──▶ QuorumController
                                       │
                                       └──────▶ BrokerMetadataPublisher ──roles──▶ Broker

`startup` opens the node's directories and returns when its logs are loaded. The node then works on its own,
and `ready` is resolved when its broker may lead. Requests of nodes and clients arrive through `handle`. A
node that fails calls `on_fatal` and answers nothing after that; its owner closes or abandons it.

Ownership: the node owns its logs and its image, and the locks of its directories. Thread rule: one thread
calls `startup`, `close` and `abandon`; any thread may call the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import InvalidStateError
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

from kreplica._core.fetch_lane import FetchLane
from kreplica._core.produce_lane import ProduceLane
from kreplica.broker.assignments_manager import AssignmentsManager
from kreplica.broker.audit import CHANGES, audited
from kreplica.broker.auto_topic_creation_manager import AutoTopicCreationManager
from kreplica.broker.broker import Broker
from kreplica.broker.broker_lifecycle_manager import BrokerLifecycleManager, BrokerState
from kreplica.broker.broker_metadata_publisher import BrokerMetadataPublisher
from kreplica.broker.client_quotas import ClientQuotas
from kreplica.broker.config_helper import ConfigHelper
from kreplica.broker.connection_settings import ConnectionSettings
from kreplica.broker.controller_apis import REFUSALS, ControllerApis, refusal
from kreplica.broker.controller_registration_manager import FIRST_VERSION, ControllerRegistrationManager
from kreplica.broker.coordinator_topic import CoordinatorPublisher
from kreplica.broker.gatekeeper import Gatekeeper
from kreplica.broker.group_apis import (
    GROUP_KEY,
    SHARE_KEY,
    TRANSACTION_KEY,
    GroupApis,
    GroupPublisher,
    make_groups,
    offsets_topic,
)
from kreplica.broker.handover_requests import HandoverRequests
from kreplica.broker.kraft_metadata_cache import KRaftMetadataCache
from kreplica.broker.metadata_apis import MetadataApis, SuspectedBrokers
from kreplica.broker.node_config import NodeConfig, NodePorts
from kreplica.broker.node_directories import bootstrap_credentials, check_files, read_properties
from kreplica.broker.node_settings import OF_PROCESS, known_names
from kreplica.broker.producer_id_manager import ProducerIdManager
from kreplica.broker.request_context import IN_PROCESS, RequestContext
from kreplica.broker.share_fetch_apis import ShareFetchApis, make_shares
from kreplica.broker.share_state_apis import SharePublisher, make_share_coordinator, share_state_topic
from kreplica.broker.transaction_apis import make_transactions, transaction_topic
from kreplica.broker.unsupported_apis import HANDLERS, HANDLERS_WITH_ACLS
from kreplica.common.dataclass import replace
from kreplica.common.errors import (
    BrokerNotAvailable,
    InvalidConfig,
    InvalidFile,
    KreplicaError,
    NotController,
)
from kreplica.common.future import Future, failed, resolved
from kreplica.common.messages.administration import (
    DescribeAclsRequest,
    DescribeConfigsRequest,
    ListConfigResourcesRequest,
)
from kreplica.common.messages.data import FetchRequest, MetadataRequest, ProduceRequest
from kreplica.common.messages.quorum import (
    AddRaftVoterRequest,
    BeginQuorumEpochRequest,
    DescribeQuorumRequest,
    EndQuorumEpochRequest,
    FetchSnapshotRequest,
    RemoveRaftVoterRequest,
    UpdateRaftVoterRequest,
    VoteRequest,
)
from kreplica.common.messages.quotas import DescribeClientQuotasRequest
from kreplica.common.messages.users import (
    DescribeDelegationTokenRequest,
    DescribeUserScramCredentialsRequest,
)
from kreplica.common.metrics import MetricRegistry
from kreplica.common.ports import DirectoryLock, Loop
from kreplica.common.types import Uuid
from kreplica.controller.acl_control import describe_acls
from kreplica.controller.client_quota_control import describe_quotas
from kreplica.controller.delegation_token_control import describe_tokens
from kreplica.controller.feature_control import METADATA_VERSION, SUPPORTED_FEATURES
from kreplica.controller.quorum_controller import QuorumController
from kreplica.controller.scram_control import describe_credentials
from kreplica.coordinator.group_coordinator import GroupCoordinator
from kreplica.coordinator.group_settings import check_group_settings
from kreplica.coordinator.transaction_coordinator import TransactionCoordinator
from kreplica.log.file_names import CLUSTER_METADATA_DIRECTORY
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.control_records import VoterEndpoint
from kreplica.metadata.image_writer import ImageWriter
from kreplica.metadata.metadata_loader import MetadataLoader
from kreplica.metadata.records import Endpoint, UserScramCredentialRecord
from kreplica.metadata.snapshot_generator import SnapshotGenerator
from kreplica.raft.kafka_metadata_log import KafkaMetadataLog
from kreplica.raft.kafka_raft_client import KafkaRaftClient
from kreplica.raft.quorum_state import FileBasedStateStore
from kreplica.raft.raft_config import Membership
from kreplica.raft.raft_messages import is_of_metadata_log
from kreplica.raft.voter_set import VoterSet
from kreplica.security.delegation_token import TokenCredentials, TokenLogin, parse_principal
from kreplica.security.peer import THIS_PROCESS, Peer
from kreplica.security.scram_credential import ScramCredential, ScramMechanism, UnknownUsers
from kreplica.security.standard_authorizer import StandardAuthorizer
from kreplica.share.persister import SharePersister

LOGGER = logging.getLogger(__name__)

# It is beside the metadata log, where Kafka ignores it.
IMAGE = "kreplica.image"
QUORUM_REQUESTS = frozenset(
    {
        VoteRequest,
        BeginQuorumEpochRequest,
        EndQuorumEpochRequest,
        FetchSnapshotRequest,
        DescribeQuorumRequest,
        AddRaftVoterRequest,
        RemoveRaftVoterRequest,
        UpdateRaftVoterRequest,
    }
)
# The requests that producers, consumers and followers send all the time.
DATA_REQUESTS = frozenset({ProduceRequest, FetchRequest})
# How long a stopping node waits to hand over its leaderships, and then that of the quorum.
CONTROLLED_SHUTDOWN_MS = 5_000
# If no controller is known for this long, it cannot hand over: the other nodes of the quorum are gone.
NO_CONTROLLER_MS = 1_000
LOOK_EVERY_MS = 50
# How many records of the metadata log a healthy broker may not have applied yet. It is always a bit behind.
MOST_RECORDS_BEHIND = 1_000


class Node:
    """One node, of the roles that `config` names, on the machine that `ports` give access to.

    `on_fatal(error)` is called once, in the quorum's loop, when the node fails.
    """

    def __init__(
        self,
        config: NodeConfig,
        ports: NodePorts,
        on_fatal: Callable[[BaseException], None] | None = None,
    ) -> None:
        self.config = config
        self.metrics = MetricRegistry()
        # Resolved when the broker may lead, or at once if the node is not a broker. Fails if that cannot
        # happen.
        self.ready: Future[None] = Future()
        self.failure: BaseException | None = None
        self.controller: QuorumController | None = None
        self.broker: Broker | None = None
        self.lifecycle: BrokerLifecycleManager | None = None
        self._cache = KRaftMetadataCache(config.inter_broker_listener)
        self._ports = ports
        self._on_fatal = on_fatal
        self._locks: list[DirectoryLock] = []
        self._log: KafkaMetadataLog | None = None
        self._raft: KafkaRaftClient | None = None
        self._raft_loop: Loop | None = None
        self._loader: MetadataLoader | None = None
        self._image: ImageWriter | None = None
        self.publisher: BrokerMetadataPublisher | None = None
        self._groups: GroupApis | None = None
        self._group_publisher: GroupPublisher | None = None
        self._transaction_publisher: CoordinatorPublisher | None = None
        self._transactions: TransactionCoordinator | None = None
        self._share_publisher: SharePublisher | None = None
        # Stores the states of share partitions with the coordinators of the cluster; None without a broker.
        self.share_persister: SharePersister | None = None
        self._shares: ShareFetchApis | None = None
        # Handlers that need the client and version of a request, by its type.
        self._handlers_in_context: dict[type[Any], Callable[[Any, RequestContext], Future[Any]]] = {}
        self._controller_apis: ControllerApis | None = None
        self._metadata_apis: MetadataApis | None = None
        # A suspected broker is fenced in this time, even if it was the controller and a new one is elected
        # first.
        patience_ms = config.controller.broker_session_hint_ms + 4 * config.raft.quorum_election_timeout_ms
        self._suspected = SuspectedBrokers(ports.clock, patience_ms)
        self.quotas = ClientQuotas(config.quota, ports.clock, self.metrics)
        self.connections = ConnectionSettings(config.node_id, config.server)
        self._gatekeeper: Gatekeeper | None = None
        self._unsupported = HANDLERS
        if config.authorizer.authorizer_class_name:
            self._unsupported = HANDLERS_WITH_ACLS
            self._gatekeeper = Gatekeeper(
                config.authorizer,
                lambda: self.loader.published,
                creates_topics=config.broker.auto_create_topics_enable,
            )
        # Resolved when the access rules are known, or at once where everyone may do everything.
        self.knows_rules: Future[None] = resolved(None)
        if self._gatekeeper is not None:
            self.knows_rules = self._gatekeeper.knows_rules
        self._handlers: dict[type[Any], Callable[[Any], Future[Any]]] = {}
        secret = config.delegation_token.delegation_token_secret_key
        self._token_credentials = None if secret is None else TokenCredentials(secret)
        # The users that the node was formatted with, as in the metadata.
        self._first_users: Mapping[tuple[str, int], UserScramCredentialRecord] = {}
        # What users look like who do not exist, by mechanism, and the users that they were made after.
        self._disguises: dict[ScramMechanism, UnknownUsers | None] = {}
        self._disguised: object = None
        self._knows_cluster = False  # the whole metadata has been published since the start
        # Take requests that need no decision, while this node answers any; else None.
        self.produce_lane: ProduceLane | None = None
        self.fetch_lane: FetchLane | None = None
        self._shutdown: Future[None] | None = None
        # Whether requests are accepted: from the start of the quorum's member until the end.
        self.is_open = False

    # ---- start --------------------------------------------------------------------------------------------

    def listens_at(self, ports: Mapping[str, int]) -> None:
        """Advertise these ports of listeners, by name, where the configuration asks for any port: 0.

        Called before `startup`.
        """
        config = self.config

        def with_port(endpoint: Endpoint) -> Endpoint:
            if endpoint.port:
                return endpoint
            # A listener that the quorum shares with brokers has the name of controllers' listeners there.
            name = endpoint.name if endpoint.name in ports else config.inter_broker_listener
            return Endpoint(
                name=endpoint.name,
                host=endpoint.host,
                port=ports[name],
                security_protocol=endpoint.security_protocol,
            )

        self.config = replace(
            config,
            endpoints=tuple(map(with_port, config.endpoints)),
            controller_endpoints=tuple(map(with_port, config.controller_endpoints)),
        )

    def startup(self) -> None:
        """Open everything and join the cluster.

        Raises the following before it changes anything on disk: LogDirLocked if another node uses a
        directory, InvalidFile (not formatted, another node's, or a checkpoint that is cut short),
        InconsistentClusterId, UnsupportedVersion (of the file quorum-state), InconsistentVoterSet,
        SnapshotMissing, InvalidSnapshot. It may also raise DamagedLog and KafkaStorageError. After any error,
        everything is released.
        """
        try:
            directory_id = self._open_directories()
            check_files(self.config, self._ports.storage)
            first_users = bootstrap_credentials(self.config, self._ports.storage)
            self._first_users = {(each.name, each.mechanism): each for each in first_users}
            self._open_quorum(directory_id)
            if "broker" in self.config.roles:
                self._make_broker()
            if "controller" in self.config.roles:
                self._make_controller()
            self.loader.install_publishers([self._registration()])
            self.raft.initialize()
            if not self.raft.voters.voters and not self.config.bootstrap_ids:
                raise InvalidConfig(
                    "the node does not know its quorum: set controller.quorum.voters or"
                    " controller.quorum.bootstrap.servers"
                )
            self.is_open = True
            if self.broker is not None:
                self._start_broker(self.broker)
            else:
                self._resolve_ready(None)
        except BaseException:
            self.abandon()
            raise

    def _open_directories(self) -> Uuid:
        storage, config = self._ports.storage, self.config
        for path in config.all_directories:
            if path == config.metadata_directory and not storage.is_directory(path):
                raise InvalidFile(f"{path} is not formatted")
            storage.make_directory(path)
            self._locks.append(storage.lock_directory(path))
        found = {path: read_properties(config, storage, path) for path in config.all_directories}
        properties = found[config.metadata_directory]
        if properties is None:
            raise InvalidFile(f"{config.metadata_directory} is not formatted")
        return properties.directory_id or Uuid.ZERO

    def _open_quorum(self, directory_id: Uuid) -> None:
        config, ports = self.config, self._ports
        directory = f"{config.metadata_directory}/{CLUSTER_METADATA_DIRECTORY}"
        self._log = log = KafkaMetadataLog.open(
            directory, storage=ports.storage, clock=ports.clock, config=config.metadata_log
        )
        self._raft_loop = loop = ports.loop("raft")
        self._raft = raft = KafkaRaftClient(
            config.raft,
            node_id=config.node_id,
            directory_id=directory_id,
            cluster_id=config.cluster_id,
            voters=config.voters or (VoterSet.unknown() if config.bootstrap_ids else None),
            log=log,
            state_store=FileBasedStateStore(ports.storage, directory),
            clock=ports.clock,
            random=ports.random,
            transport=ports.transport,
            loop=loop,
            metrics=self.metrics,
            on_fatal=self._fail,
            disk=None if ports.disk is None else ports.disk(directory),
            membership=self._membership(),
        )
        self._image = ImageWriter(
            ports.image(f"{config.metadata_directory}/{IMAGE}"), config.cluster_id, ports.loop("image")
        )
        self._loader = MetadataLoader(
            self._image,
            loop=loop,
            high_watermark=lambda: raft.high_watermark,
            metrics=self.metrics,
            watches=ports.watches,
        )
        applied = self._loader.startup(log.end_offset, log.epoch_before)
        first = [] if self._gatekeeper is None else [self._gatekeeper]
        self._loader.install_publishers(
            [*first, self.quotas, self.connections, self._snapshot_generator(loop)]
        )
        raft.register(self._loader, next_offset=applied.offset)
        ports.transport.watch_connections(self._connection_lost)

    def _membership(self) -> Membership:
        config = self.config
        return Membership(
            can_be_voter="controller" in config.roles,
            endpoints=tuple(
                VoterEndpoint(name=each.name, host=each.host, port=each.port)
                for each in config.controller_endpoints
            ),
            listener=config.controller_listener,
            auto_join=config.raft.quorum_auto_join_enable,
            bootstrap=config.bootstrap_ids,
            is_controller=self._is_controller,
        )

    def _is_controller(self, node_id: int) -> bool:
        metadata = self.loader.published
        known = metadata.controllers.get(node_id)
        if known is None:
            # Before that version controllers did not register.
            return metadata.features.get(METADATA_VERSION, 0) < FIRST_VERSION
        # A node that is no longer a controller has registered without listeners.
        return bool(known.end_points) or not self.config.controller_endpoints

    def _snapshot_generator(self, loop: Loop) -> SnapshotGenerator:
        settings = self.config.metadata_log
        return SnapshotGenerator(
            self.raft.create_snapshot,
            lambda: self.loader.bytes_applied,
            clock=self._ports.clock,
            loop=loop,
            metadata_log_max_record_bytes_between_snapshots=settings.log_max_record_bytes_between_snapshots,
            metadata_log_max_snapshot_interval_ms=settings.log_max_snapshot_interval_ms,
        )

    def _make_controller(self) -> None:
        config, ports, loader = self.config, self._ports, self.loader
        self.controller = QuorumController(
            config.controller,
            node_id=config.node_id,
            cluster_id=config.cluster_id,
            quorum=self.raft,
            metadata=lambda: loader.published,
            in_transaction=lambda: loader.metadata.in_transaction,
            unclean_leader_election_enable=config.log.unclean_leader_election_enable,
            fixed_settings=frozenset(known_names(config)).union(OF_PROCESS),
            check_group_settings=lambda settings: check_group_settings(settings, config.group),
            tokens=config.delegation_token,
            credentials=list(self._first_users.values()),
            clock=ports.clock,
            random=ports.random,
            loop=ports.loop("controller"),
            metrics=self.metrics,
        )
        # As in Kafka, these are answered by controllers that are no brokers, too.
        self._handlers = {**_described(lambda: loader.published), **self._handlers}
        self.raft.watch_commits(self.controller.on_commit)
        self._controller_apis = ControllerApis(self.controller, self.quotas.mutation)
        loader.install_publishers([self.controller])

    def _registration(self) -> ControllerRegistrationManager:
        config, ports = self.config, self._ports
        has_role = "controller" in config.roles
        return ControllerRegistrationManager(
            config.node_id,
            incarnation_id=Uuid.generate(ports.random),
            endpoints=config.controller_endpoints or config.endpoints if has_role else None,
            controller=self.active_controller,
            transport=ports.transport,
            loop=ports.loop("controller-registration"),
        )

    def _make_broker(self) -> None:
        config, ports = self.config, self._ports
        cache = self._cache
        cache.on_image = self._check_ready
        assignments = AssignmentsManager(
            config.node_id,
            broker_epoch=self._broker_epoch,
            controller=self.active_controller,
            transport=ports.transport,
            loop=ports.loop("assignments"),
        )
        self.broker = broker = Broker(
            config.node_id,
            config.directories,
            cluster_id=config.cluster_id,
            storage=ports.storage,
            clock=ports.clock,
            scheduler=ports.scheduler,
            workers=ports.workers,
            random=ports.random,
            transport=ports.transport,
            new_loop=ports.loop,
            metadata_cache=cache,
            broker_epoch=self._broker_epoch,
            controller=self.active_controller,
            config=config.log,
            log_manager_config=config.log_manager,
            cleaner_config=config.cleaner,
            replica_config=config.replica,
            metrics=self.metrics,
            locked=config.all_directories,
            disk=ports.disk,
        )
        self.publisher = BrokerMetadataPublisher(
            config.node_id,
            cache=cache,
            replica_manager=broker.replica_manager,
            loop=ports.loop("publisher"),
            disk_loop=ports.loop("new-logs"),
            metrics=self.metrics,
            on_assignment=assignments.on_assignment,
        )
        broker.replica_manager.alter_log_dirs.on_assignment = assignments.on_assignment
        handovers = HandoverRequests(
            controller=self.active_controller, transport=ports.transport, loop=ports.loop("handovers")
        )
        broker.replica_manager.peers.on_wants_handover = handovers.ask
        creation = AutoTopicCreationManager(
            self.active_controller, transport=ports.transport, loop=ports.loop("topic-creation")
        )
        self._metadata_apis = apis = MetadataApis(
            config.cluster_id,
            lambda: cache.metadata,
            self.active_controller,
            self._suspected.current,
            creation.create if config.broker.auto_create_topics_enable else None,
        )
        producer_ids = ProducerIdManager(
            config.node_id,
            broker_epoch=self._broker_epoch,
            controller=self.active_controller,
            transport=ports.transport,
            loop=ports.loop("producer-ids"),
        )
        offsets = offsets_topic(config.group, cache, ports, self.active_controller)
        transactions = transaction_topic(config.transaction, cache, ports, self.active_controller)
        share_states = share_state_topic(config.share_coordinator, cache, ports, self.active_controller)
        share_apis, self._share_publisher, self.share_persister = make_share_coordinator(
            config.node_id,
            config.share_coordinator,
            ports,
            replicas=broker.replica_manager,
            cache=cache,
            topic=share_states,
        )
        self._groups, self._group_publisher = make_groups(
            broker,
            config.group,
            ports,
            cache=cache,
            topics={GROUP_KEY: offsets, TRANSACTION_KEY: transactions, SHARE_KEY: share_states},
            persister=self.share_persister,
            creation=creation,
        )
        transaction_apis, self._transaction_publisher = make_transactions(
            broker,
            config.transaction,
            ports,
            cache=cache,
            topic=transactions,
            offsets=offsets,
            groups=self._groups.coordinator,
            new_producer_id=producer_ids.generate,
        )
        self._transactions = transaction_apis.coordinator
        self._shares = make_shares(
            config.node_id,
            config.group,
            ports,
            replicas=broker.replica_manager,
            persister=self.share_persister,
            cache=cache,
            creation=creation,
            metrics=self.metrics,
        )
        if self._gatekeeper is not None:
            self._gatekeeper.sessions = broker.replica_manager.fetches.sessions.by_id
            self._gatekeeper.share_sessions = self._shares.manager.sessions.by_member
        self._handlers_in_context = {
            **apis.handlers_in_context,
            **self._groups.handlers_in_context,
            **self._shares.handlers,
            **transaction_apis.handlers,
            DescribeDelegationTokenRequest: lambda request, context: resolved(
                describe_tokens(request, context.principal, config.delegation_token, cache.metadata)
            ),
        }
        configs = ConfigHelper(config, lambda: cache.metadata)
        self._handlers = {
            DescribeConfigsRequest: configs.handle_describe_configs,
            ListConfigResourcesRequest: configs.handle_list_config_resources,
            **_described(lambda: cache.metadata),
            DescribeClientQuotasRequest: lambda request: resolved(describe_quotas(request, cache.metadata)),
            **self._groups.handlers,
            **share_apis.handlers,
        }

    def _start_broker(self, broker: Broker) -> None:
        config, ports, publisher = self.config, self._ports, self.publisher
        assert publisher is not None
        broker.startup()
        logs = broker.log_manager
        self.lifecycle = lifecycle = BrokerLifecycleManager(
            config.broker,
            config.node_id,
            cluster_id=config.cluster_id,
            incarnation_id=Uuid.generate(ports.random),
            directories=list(logs.directory_ids.values()),
            controller=self.active_controller,
            metadata_offset=publisher.metadata_offset,
            transport=ports.transport,
            clock=ports.clock,
            loop=ports.loop("lifecycle"),
            endpoints=config.endpoints,
            features=SUPPORTED_FEATURES,
            previous_broker_epoch=logs.previous_broker_epoch,
        )
        logs.on_directory_failed = lifecycle.propagate_directory_failure
        publisher.on_applied = lifecycle.metadata_applied
        lifecycle.caught_up.add_done_callback(lambda _: lifecycle.set_ready_to_unfence())
        lifecycle.registered.add_done_callback(self._registered)
        lifecycle.unfenced.add_done_callback(lambda _: self._check_ready())
        lifecycle.start()

    def _registered(self, registered: Future[int]) -> None:
        error = registered.exception()
        if error is not None:
            self._fail(error)
            return
        # The roles of this broker's last run do not count: it may have lost records since. The controller has
        # taken them away with the registration (KIP-966).
        publishers = [
            *(self.publisher, self._group_publisher, self._transaction_publisher, self._share_publisher)
        ]
        epoch, known = registered.result(), [each for each in publishers if each is not None]
        assert len(known) == len(publishers)
        assert self._raft_loop is not None
        self._raft_loop.post(lambda: self.loader.install_publishers(known, from_offset=epoch + 1))

    def _check_ready(self) -> None:
        # Wait until this broker knows that it is unfenced. A client that asks before finds no broker, and
        # librdkafka retries only minutes later.
        lifecycle, own = self.lifecycle, self._cache.metadata.brokers.get(self.config.node_id)
        if lifecycle is None or not lifecycle.unfenced.done() or own is None or own.fenced:
            return
        if not self._is_registered_as_controller():
            self._resolve_ready(None)

    def _is_registered_as_controller(self) -> bool:
        """Return whether the metadata still names this node as a controller although it no longer is one."""
        known = self._cache.metadata.controllers.get(self.config.node_id)
        return "controller" not in self.config.roles and known is not None and bool(known.end_points)

    def _resolve_ready(self, error: BaseException | None) -> None:
        # The first call wins: a broker may be unfenced while its node fails.
        with suppress(InvalidStateError):
            if error is None:
                self.ready.set_result(None)
            else:
                self.ready.set_exception(error)

    # ---- queries and requests -----------------------------------------------------------------------------

    @property
    def raft(self) -> KafkaRaftClient:
        """The node's member of the quorum. It exists after `startup`."""
        assert self._raft is not None
        return self._raft

    @property
    def transaction_coordinator(self) -> TransactionCoordinator | None:
        """The coordinator of the node's broker; None without a broker."""
        return self._transactions

    @property
    def group_coordinator(self) -> GroupCoordinator | None:
        """The coordinator of the node's broker; None without a broker."""
        return None if self._groups is None else self._groups.coordinator

    @property
    def loader(self) -> MetadataLoader:
        """The node's view of the cluster's metadata. It exists after `startup`."""
        assert self._loader is not None
        return self._loader

    def handle(self, request: Any, context: RequestContext = IN_PROCESS) -> Future[Any]:
        """Answer a request, from the client in `context`, as far as its rights go.

        The future fails with UnsupportedVersion if this node has no handler for it, and with
        BrokerNotAvailable if the node has failed or is still starting.
        """
        peer = context.peer
        if peer is THIS_PROCESS or not self.is_open:
            return self._handle(request, context)
        if self._gatekeeper is None:
            done = self._handle(request, context)
        else:
            done = self._gatekeeper.admit(request, context, self._handle)
        return audited(request, peer, done) if type(request) in CHANGES else done

    def _handle(self, request: Any, context: RequestContext) -> Future[Any]:
        kind = type(request)
        if self.failure is not None or self._raft is None or not self.is_open:
            return failed(BrokerNotAvailable(f"node {self.config.node_id} has failed or is still starting"))
        if kind in QUORUM_REQUESTS or (kind is FetchRequest and is_of_metadata_log(request)):
            return self._raft.handle_inbound(request)
        if kind in DATA_REQUESTS and self._knows_cluster and self.broker is not None:
            # Fast path for Produce and Fetch, which no other part of the node handles.
            if kind is ProduceRequest:
                return self.broker.apis.handle_produce(request, context)
            return self.broker.apis.handle_fetch(request, context)
        unsupported = self._unsupported.get(kind)
        if unsupported is not None:
            return unsupported(request)
        if self._controller_apis is not None and self._controller_apis.takes(request):
            return self._controller_apis.handle(request, context)
        if self.broker is not None and not self._has_published():
            return failed(BrokerNotAvailable(f"node {self.config.node_id} is still loading its logs"))
        in_context = self._handlers_in_context.get(kind)
        if in_context is not None:
            return in_context(request, context)
        handler = self._handlers.get(kind)
        if handler is not None:
            return handler(request)
        if kind in REFUSALS:
            return resolved(refusal(request, NotController()))
        if self.broker is None:
            return failed(BrokerNotAvailable(f"node {self.config.node_id} is not a broker"))
        return self.broker.handle(request)

    def _has_published(self) -> bool:
        # Before this broker has metadata it would answer that every topic is unknown, and clients give up
        # then.
        if not self._knows_cluster:
            self._knows_cluster = self.publisher is not None and self.publisher.first_published.done()
            if self._knows_cluster and self.broker is not None and self.is_open and self.failure is None:
                self.produce_lane = self.broker.replica_manager.appends.lane
                self.fetch_lane = self.broker.replica_manager.fetches.lane
        return self._knows_cluster

    def client_gone(self, connection: object) -> None:
        """Note that a client's connection, the one in the context of its requests, is closed."""
        if self._shares is not None and self.is_open:
            self._shares.client_gone(connection)

    def is_leader_in_doubt(self, request: MetadataRequest) -> bool:
        """Return whether a leader in the request may have failed, and another one may be elected soon."""
        return self._metadata_apis is not None and self._metadata_apis.is_leader_in_doubt(request)

    @property
    def rules(self) -> StandardAuthorizer | None:
        """The access rules in force; None if everyone may do everything."""
        return None if self._gatekeeper is None else self._gatekeeper.rules

    def may_act_as_node(self, peer: Peer) -> bool:
        """Return whether the client may do what nodes do, such as forwarding the requests of others."""
        return self._gatekeeper is None or self._gatekeeper.may_act_as_node(peer)

    def _published(self) -> ClusterMetadata:
        """Return the metadata. Raises BrokerNotAvailable before the node is open."""
        if not self.is_open:
            raise BrokerNotAvailable(f"node {self.config.node_id} is still starting")
        return self.loader.published

    def topic_id(self, topic: str) -> Uuid | None:
        """Return the id of the topic, or None. Raises BrokerNotAvailable before the node is open."""
        found = self._published().topics.get(topic)
        return None if found is None else found.topic_id

    def scram_credential(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        """Return the user's credential, or None. Raises BrokerNotAvailable before the node is open."""
        found = self._scram_records().get((user, mechanism.value))
        return None if found is None else _credential_of(found)

    def unknown_users(self, mechanism: ScramMechanism) -> UnknownUsers | None:
        """Return what users look like who do not exist, as `scram_credential`; None if there are no users."""
        records = self._scram_records()
        if records is not self._disguised:
            self._disguised, self._disguises = records, {}
        if mechanism not in self._disguises:
            known = {
                user: _credential_of(each)
                for (user, code), each in records.items()
                if code == mechanism.value
            }
            self._disguises[mechanism] = UnknownUsers.like(known)
        return self._disguises[mechanism]

    def _scram_records(self) -> Mapping[tuple[str, int], UserScramCredentialRecord]:
        metadata = self._published()
        # Before the cluster's first records are known, which is after nodes have logged in to each other.
        return metadata.scram_credentials if metadata.features else self._first_users

    def token_login(self, mechanism: ScramMechanism, token_id: str) -> TokenLogin | None:
        """Return how a delegation token logs in, or None if there is no such token.

        Raises BrokerNotAvailable before the node is open.
        """
        found = self._published().delegation_tokens.get(token_id)
        if found is None or self._token_credentials is None:
            return None
        owner = parse_principal(found.owner)._replace(token_authenticated=True)
        credential = self._token_credentials.credential(mechanism, token_id)
        return TokenLogin(credential, owner, min(found.expiration_timestamp, found.max_timestamp))

    def finalized_features(self) -> tuple[int, Mapping[str, int]]:
        """Return an epoch that rises when a feature changes, and the levels of the cluster's features.

        As Kafka's, the epoch is the offset of the metadata; it is -1 as long as this node knows no level.
        """
        if not self.is_open:
            return -1, {}
        # In this order: levels may be newer than their epoch, and never older.
        epoch = self.loader.applied.offset
        levels = self.loader.published.features
        return epoch if levels else -1, levels

    def what_keeps_from_serving(self) -> list[str]:
        """Return the reasons why clients should use other nodes now; empty if this node can serve them."""
        if self.failure is not None:
            return [f"the node has failed: {self.failure}"]
        if not self.is_open:
            return ["the node is starting or has stopped"]
        reasons = [] if self.active_controller() is not None else ["no controller is known"]
        if self.broker is not None:
            reasons += self._what_keeps_broker_from_serving()
        return reasons

    def _what_keeps_broker_from_serving(self) -> Iterator[str]:
        lifecycle, publisher = self.lifecycle, self.publisher
        if lifecycle is None or lifecycle.broker_epoch() < 0:
            yield "the broker is not registered"
        if publisher is None or not publisher.first_published.done():
            yield "the broker is still loading its logs"
            return
        if lifecycle is not None:
            if lifecycle.state in (BrokerState.PENDING_CONTROLLED_SHUTDOWN, BrokerState.SHUTTING_DOWN):
                yield "the broker is shutting down"
            elif lifecycle.is_fenced:
                yield "the controller has fenced the broker"
        behind = (self.raft.high_watermark or 0) - 1 - publisher.metadata_offset()
        if behind > MOST_RECORDS_BEHIND:
            yield f"the broker is {behind} records behind the cluster's metadata"

    def _broker_epoch(self) -> int:
        return -1 if self.lifecycle is None else self.lifecycle.broker_epoch()

    def voters(self) -> tuple[int, frozenset[int]] | None:
        """Return the offset and the ids of the newest voters that this node knows; None if it does not
        run.
        """
        raft = self._raft
        return None if raft is None or not self.is_open else (raft.voters_offset, raft.voters.voter_ids)

    def voter_address(self, node_id: int) -> tuple[str, int] | None:
        """Return the voter's address from the metadata log or the quorum; None if it is unknown."""
        return None if self._raft is None else self._raft.address_of(node_id)

    def active_controller(self) -> int | None:
        """Return the node id of the active controller; None if this node does not know it."""
        return None if self._raft is None else self._raft.leader_and_epoch.leader_id

    def is_cut_off(self) -> bool:
        """Return whether too few voters seem to run for this node to be or to have an active controller."""
        return self._raft is not None and self._raft.is_cut_off

    def _connection_lost(self, node_id: int) -> None:
        self._suspected.connection_lost(node_id)
        if self._raft is not None:
            self._raft.connection_lost(node_id)
        if self.controller is not None:
            self.controller.connection_lost(node_id)
        if self.lifecycle is not None:
            self.lifecycle.connection_lost(node_id)

    def _fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
            self.produce_lane = self.fetch_lane = None
            # The message of an expected error, such as directories of another cluster, says what to do.
            unforeseen = None if isinstance(error, KreplicaError) else error
            LOGGER.error("node %d cannot go on: %s", self.config.node_id, error, exc_info=unforeseen)
            self._resolve_ready(error)
            if self._on_fatal is not None:
                self._on_fatal(error)

    # ---- stop ---------------------------------------------------------------------------------------------

    def shutdown(self, timeout_ms: int = CONTROLLED_SHUTDOWN_MS) -> Future[None]:
        """Stop in order: hand over the partitions that this broker leads, then the quorum's leadership.

        The first step waits for at most `timeout_ms`, the second for NO_CONTROLLER_MS, which is more than an
        election takes. Neither waits once the node is cut off: nodes that stop together do not wait for each
        other. Then the future is done, and the owner closes the node.
        """
        if self._shutdown is None:
            self._shutdown = Future()
            if self.broker is not None:
                self.broker.replica_manager.events.begin_shutdown()
            ControlledShutdown(self, timeout_ms, self._ports.loop("shutdown"), self._shutdown).begin()
        return self._shutdown

    def close(self) -> None:
        """Close all files in order. No task of the node may run any longer.

        Raises KafkaStorageError, but releases everything even then.
        """
        try:
            if self._shares is not None:
                self._shares.manager.shutdown()
            if self.broker is not None:
                self.broker.shutdown()
        finally:
            self._release(in_order=True)

    def abandon(self) -> None:
        """Release all files as they are, like the death of the process: nothing is written.

        No task of the node may run any longer.
        """
        if self.broker is not None:
            self.broker.log_manager.abandon()
        self._release(in_order=False)

    def _release(self, *, in_order: bool) -> None:
        if not self.ready.done():
            node_id = self.config.node_id
            self._resolve_ready(BrokerNotAvailable(f"node {node_id} was stopped before it was ready"))
        self.is_open = False
        self.produce_lane = self.fetch_lane = None
        raft, log, image, locks = self._raft, self._log, self._image, self._locks
        self._raft, self._log, self._image, self._locks = None, None, None, []
        # In reverse order. Each is released even if releasing another one fails.
        with ExitStack() as stack:
            for lock in locks:
                stack.callback(lock.release)
            for each in (image, log):
                if each is not None:
                    stack.callback(each.close if in_order else each.abandon)
            if raft is not None:
                stack.callback(raft.close)


def _credential_of(record: UserScramCredentialRecord) -> ScramCredential:
    return ScramCredential(record.salt, record.stored_key, record.server_key, record.iterations)


def _described(metadata: Callable[[], ClusterMetadata]) -> dict[type[Any], Callable[[Any], Future[Any]]]:
    """Return the handlers that describe users and access rules."""
    return {
        DescribeUserScramCredentialsRequest: lambda request: resolved(
            describe_credentials(request, metadata())
        ),
        DescribeAclsRequest: lambda request: resolved(describe_acls(request, metadata())),
    }


class ControlledShutdown:
    """The shutdown of one node. Each step starts when the one before is done or has timed out."""

    def __init__(self, node: Node, timeout_ms: int, loop: Any, done: Future[None]) -> None:
        self._node = node
        self._timeout_ms = timeout_ms
        self._loop = loop
        self._done = done
        self._has_left = False

    def begin(self) -> None:
        """Ask the controller to move the leaders away."""
        lifecycle = self._node.lifecycle
        if lifecycle is None or not self._node.ready.done():
            self._loop.post(self._leave_quorum)
            return
        self._node.raft.prepare_shutdown()
        moved = lifecycle.begin_controlled_shutdown()
        leave = self._once(moved, self._leave_quorum, self._timeout_ms)
        self._watch_controller(leave, NO_CONTROLLER_MS)

    def _once(self, future: Future[Any], step: Callable[[], None], timeout_ms: int) -> Callable[[], None]:
        """Return a function that takes the step unless it was taken already."""
        began = [False]

        def run() -> None:
            if not began[0]:
                began[0] = True
                step()

        future.add_done_callback(lambda _: self._loop.post(run))
        self._loop.post_later(run, timeout_ms)
        return run

    def _watch_controller(self, leave: Callable[[], None], left_ms: int) -> None:
        if self._node.is_cut_off():
            # No controller can move the leaders, usually because the other nodes stop as well.
            leave()
        elif self._node.active_controller() is not None:
            left_ms = NO_CONTROLLER_MS
        elif left_ms <= 0:
            leave()
        if not self._has_left:
            self._loop.post_later(
                partial(self._watch_controller, leave, left_ms - LOOK_EVERY_MS), LOOK_EVERY_MS
            )

    def _leave_quorum(self) -> None:
        self._has_left = True
        if self._node.lifecycle is not None:
            self._node.lifecycle.close()
        patience_ms = min(self._timeout_ms, NO_CONTROLLER_MS)
        left = self._node.raft.shutdown(patience_ms)
        self._once(left, lambda: self._done.set_result(None), patience_ms)
