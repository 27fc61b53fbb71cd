"""QuorumNode: a member of a simulated quorum, and the state machine that its committed log is applied to.

The machine's state is the list of all values that were committed, which is also what its snapshots hold. A
listener of the checker's is told what the client tells this one. Thread rule: one thread, as the simulator.
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
from kreplica.raft.file_based_state_store import FileBasedStateStore
from kreplica.raft.kafka_metadata_log import KafkaMetadataLog
from kreplica.raft.kafka_raft_client import KafkaRaftClient
from kreplica.raft.membership import Membership
from kreplica.raft.raft_client import LeaderAndEpoch
from kreplica.raft.raft_config import RaftConfig
from kreplica.raft.snapshot_reader import RecordsSnapshotReader
from kreplica.raft.voter_set import VoterSet
from kreplica.sim.node import DIRECTORY, BrokerPorts

LOG_DIRECTORY = f"{DIRECTORY}/__cluster_metadata-0"
CLUSTER_ID = "sim-quorum"
# Whole timeouts pass in few events.
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
# So small that logs begin anew at snapshots all the time.
LOG_CONFIG = MetadataLogConfig(log_segment_bytes=1 << 10, max_retention_bytes=1, max_retention_ms=200)


class Witness(Protocol):
    """Is told what listeners of the quorum's members are told."""

    def committed(self, node: QuorumNode, offset: int, epoch: int, value: str) -> None: ...

    def loaded(self, node: QuorumNode, snapshot_id: OffsetAndEpoch, values: list[str]) -> None: ...

    def leader_told(self, node: QuorumNode, leader: LeaderAndEpoch) -> None: ...


def record_of(value: str) -> ApiMessageAndVersion[MetadataRecord]:
    """A record that holds the value."""
    return ApiMessageAndVersion(
        ConfigRecord(resource_type=2, resource_name="t", name="value", value=value), 0
    )


def value_of(record: ApiMessageAndVersion[MetadataRecord]) -> str:
    """The value that a record holds."""
    message = record.message
    assert isinstance(message, ConfigRecord)
    assert message.value is not None
    return message.value


@dataclass(slots=True)
class QuorumSetup:
    """What all members have in common, and `directory_ids` that each keeps.

    `known_voters`: what a node was configured with, where that is not `voters`. `on_fatal`: told who cannot
    go on, and why; without it, that ends the run.
    """

    voters: VoterSet
    config: RaftConfig = RAFT_CONFIG
    log_config: MetadataLogConfig = LOG_CONFIG
    cluster_id: str = CLUSTER_ID
    directory_ids: dict[int, Uuid] = field(default_factory=dict)
    known_voters: dict[int, VoterSet] = field(default_factory=dict)
    # Members without the role of a controller: the quorum does not let them vote, and they never lead.
    brokers: set[int] = field(default_factory=set)
    # Observers that ask by themselves to become voters.
    auto_join: set[int] = field(default_factory=set)
    # Whom a member asks whose own log names no voters, and who was configured with none.
    bootstrap: tuple[int, ...] = ()
    # Where each listens from its next start on.
    endpoints: dict[int, VoterEndpoint] = field(default_factory=dict)
    on_fatal: Callable[[int, BaseException], None] | None = None

    def endpoints_of(self, node_id: int) -> tuple[VoterEndpoint, ...]:
        """The node's listeners; none where nodes know each other by their ids alone."""
        found = self.endpoints.get(node_id)
        return () if found is None else (found,)

    def move(self, node_id: int, port: int) -> None:
        """Let the node listen on another port from its next start on."""
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
        """Make a snapshot of all that is applied, under its own id or another one, or of these values.

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
        """Nothing is under way here."""


MakeNode = Callable[[BrokerPorts], QuorumNode]
