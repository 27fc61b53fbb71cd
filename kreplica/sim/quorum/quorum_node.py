"""QuorumNode: a member of a simulated quorum, and the state machine to which its committed log is applied.

The machine's state, and the contents of its snapshots, is the list of all committed values. The checker gets
all notifications that the client sends to this listener. Thread rule: one thread, as the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kreplica.common.config import MetadataLogConfig
from kreplica.common.future import Future
from kreplica.common.metrics import MetricRegistry
from kreplica.common.types import Uuid
from kreplica.metadata.control_records import VoterEndpoint
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.metadata.records import ConfigRecord, MetadataRecord
from kreplica.metadata.serde import ApiMessageAndVersion
from kreplica.raft.batch_reader import BatchReader
from kreplica.raft.kafka_metadata_log import KafkaMetadataLog
from kreplica.raft.kafka_raft_client import KafkaRaftClient
from kreplica.raft.quorum_state import FileBasedStateStore
from kreplica.raft.raft_config import Membership, RaftConfig
from kreplica.raft.raft_listener import LeaderAndEpoch
from kreplica.raft.snapshots import RecordsSnapshotReader
from kreplica.raft.voter_set import VoterSet
from kreplica.sim.node import DIRECTORY, BrokerPorts

LOG_DIRECTORY = f"{DIRECTORY}/__cluster_metadata-0"
CLUSTER_ID = "sim-quorum"
# Short timeouts, so that they expire within few events.
RAFT_CONFIG = RaftConfig(
    quorum_election_timeout_ms=100,
    quorum_fetch_timeout_ms=200,
    quorum_election_backoff_max_ms=100,
    quorum_append_linger_ms=5,
    quorum_request_timeout_ms=200,
    quorum_retry_backoff_ms=20,
    quorum_max_batch_size_bytes=768,
    metadata_log_cleanup_interval_ms=300,
)
# So small that logs continually start anew at snapshots.
LOG_CONFIG = MetadataLogConfig(log_segment_bytes=1 << 10, max_retention_bytes=1, max_retention_ms=200)


class Witness(Protocol):
    """Receives the notifications that listeners of the quorum's members get."""

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


MakeNode = Callable[[BrokerPorts], QuorumNode]
