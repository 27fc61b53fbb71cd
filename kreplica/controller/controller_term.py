"""ControllerTerm: all state of the active controller in one epoch, created at its fail-over.

It holds the context with its uncommitted records, the state machines over it, the sessions and the controls.
It is dropped as a whole when leadership is lost, so that nothing of one epoch acts in a later one: a lost
term refuses to append, and so does the quorum. Owned by the controller's loop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol, TypeVar

from kreplica.common.errors import NotController, NotLeader, UnexpectedEpoch
from kreplica.common.ports import Clock, Random
from kreplica.controller.acl_control import AclControl
from kreplica.controller.broker_change import BrokerChange
from kreplica.controller.broker_heartbeat_manager import BrokerHeartbeatManager
from kreplica.controller.client_quota_control import ClientQuotaControl
from kreplica.controller.cluster_control import ClusterControl, ProducerIdControl
from kreplica.controller.configuration_control import CheckSettings, ConfigurationControl
from kreplica.controller.controller_broker_request_batch import (
    Append,
    ControllerBrokerRequestBatch,
    ControllerResult,
)
from kreplica.controller.controller_config import ControllerConfig
from kreplica.controller.controller_context import ControllerContext
from kreplica.controller.delegation_token_control import DelegationTokenControl
from kreplica.controller.feature_control import FeatureControl
from kreplica.controller.partition_reassignment import PartitionReassignment
from kreplica.controller.partition_state_machine import (
    LEADER_IMBALANCE_PER_BROKER_PERCENTAGE,
    PartitionStateMachine,
    PreferredReplicaLeaderElection,
)
from kreplica.controller.replica_state_machine import Machines, ReplicaStateMachine
from kreplica.controller.replication_control import ReplicationControl
from kreplica.controller.scram_control import ScramControl
from kreplica.controller.state_change_logger import StateChangeLogger
from kreplica.controller.topic_deletion_manager import TopicDeletionManager
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.records import (
    AbortTransactionRecord,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    MetadataRecord,
    PartitionChangeRecord,
)
from kreplica.metadata.serde import ApiMessageAndVersion, in_lowest_version
from kreplica.security.delegation_token import DelegationTokenConfig


class StateMachines:
    """The state machines and controls over one context, wired together.

    `append(epoch, records)`: see ControllerBrokerRequestBatch. The other arguments have Kafka's names.
    """

    def __init__(
        self,
        context: ControllerContext,
        append: Append,
        state_change_logger: StateChangeLogger,
        random: Random,
        *,
        num_partitions: int = 1,
        default_replication_factor: int = 1,
        leader_imbalance_per_broker_percentage: int = LEADER_IMBALANCE_PER_BROKER_PERCENTAGE,
    ) -> None:
        state_change_logger.epoch = context.epoch
        self.context = context
        self.batch = ControllerBrokerRequestBatch(context, append, state_change_logger)
        self.partitions = PartitionStateMachine(context, self.batch, state_change_logger)
        self.replicas = ReplicaStateMachine(context, self.batch, state_change_logger)
        machines = Machines(context, self.batch, self.partitions, self.replicas)
        self.topic_deletion = TopicDeletionManager(machines)
        self.reassignment = PartitionReassignment(machines)
        self.broker_change = BrokerChange(machines, self.topic_deletion, self.reassignment)
        self.preferred_election = PreferredReplicaLeaderElection(
            context, self.partitions, imbalance_percentage=leader_imbalance_per_broker_percentage
        )
        self.replication_control = ReplicationControl(
            machines,
            self.reassignment,
            self.preferred_election,
            self.topic_deletion,
            state_change_logger,
            random,
            num_partitions=num_partitions,
            default_replication_factor=default_replication_factor,
        )

    def startup(self) -> None:
        """Determine the states of replicas and partitions, elect missing leaders, and continue reassignments.

        All of it is one batch.
        """
        with self.batch.collected():
            self.replicas.startup()
            self.partitions.startup()
            for partition in list(self.context.partitions_being_reassigned):
                self.reassignment.complete_if_possible(partition)


T = TypeVar("T")
NO_OFFSET = -1
UNCLEAN_LEADER_ELECTION = "unclean.leader.election.enable"
# Each of these records is a decision of its own, so an event of these alone may take several batches. An
# example is the fence of a broker with hundreds of thousands of partitions. If only the first batches are
# committed, the next controller decides the rest, at its fail-over or when the broker's session ends. Kafka
# splits these too.
STANDING_ALONE = (PartitionChangeRecord, BrokerRegistrationChangeRecord)


class Quorum(Protocol):
    """The part of KafkaRaftClient that a controller uses."""

    @property
    def next_offset(self) -> int: ...

    def schedule_append(
        self,
        epoch: int,
        records: Sequence[ApiMessageAndVersion[MetadataRecord]],
        *,
        expected_base_offset: int | None = None,
        is_atomic: bool = True,
    ) -> int: ...

    def resign(self, epoch: int) -> None: ...


class ControllerTerm:
    """The controller's state in one epoch. Implements `cluster_control.RecordWriter` for the current
    event.
    """

    def __init__(
        self,
        config: ControllerConfig,
        epoch: int,
        metadata: ClusterMetadata,
        *,
        cluster_id: str,
        unclean_leader_election_enable: bool,
        fixed_settings: Collection[str],
        check_group_settings: CheckSettings,
        quorum: Quorum,
        state_change_logger: StateChangeLogger,
        clock: Clock,
        random: Random,
        tokens: DelegationTokenConfig,
    ) -> None:
        self.epoch = epoch
        self.is_lost = False
        # The newest record of this epoch. Answers wait until it is committed.
        self.last_offset = NO_OFFSET
        self._quorum = quorum
        self._expected_offset: int | None = None
        self._after_append: list[Callable[[int], object]] = []
        self.context = ControllerContext(
            metadata,
            epoch,
            quorum.next_offset - 1,
            unclean_leader_election_enable=unclean_leader_election_enable,
        )
        self.machines = StateMachines(
            self.context,
            self._append,
            state_change_logger,
            random,
            num_partitions=config.num_partitions,
            default_replication_factor=config.default_replication_factor,
            leader_imbalance_per_broker_percentage=config.leader_imbalance_per_broker_percentage,
        )
        self.heartbeats = BrokerHeartbeatManager(config)
        self.cluster = ClusterControl(
            cluster_id, self.context, self.heartbeats, self.machines.broker_change, self, clock
        )
        metadata = self.context.metadata
        self.configs = ConfigurationControl(metadata, fixed_settings, check_group_settings)
        self.producer_ids = ProducerIdControl(metadata)
        self.features = FeatureControl(metadata)
        self.scram = ScramControl(metadata)
        self.acls = AclControl(metadata, random)
        self.quotas = ClientQuotaControl(metadata)
        self.delegation_tokens = DelegationTokenControl(tokens, metadata, clock, random)

    # ---- one event ----------------------------------------------------------------------------------------

    def run(self, operation: Callable[[ControllerTerm], T | ControllerResult[T]]) -> T:
        """Run the operation as one event. Everything it writes is appended atomically.

        If the operation raises, that is raised and nothing has changed. Raises UnexpectedBaseOffset if the
        event has to be repeated, NotController if this epoch is over.
        """
        self._expected_offset = None
        self._after_append.clear()
        with self.machines.batch.collected():
            result = operation(self)
            if isinstance(result, ControllerResult):
                for record in result.records:
                    self.machines.batch.add_record(*record)
                result = result.response
        actions = list(self._after_append)
        last = self.next_offset - 1
        for action in actions:
            action(last)
        return result

    def alter_configs(self, change: ControllerResult[T]) -> ControllerResult[T]:
        """Return `change`, and retry elections after it if it sets unclean.leader.election.enable.

        Partitions without a leader may get one then, without waiting for the next round.
        """
        if any(
            isinstance(each.message, ConfigRecord) and each.message.name == UNCLEAN_LEADER_ELECTION
            for each in change.records
        ):
            self.after_append(lambda _: self.machines.partitions.trigger_online_partition_state_change())
        return change

    def abort_transaction(self, reason: str) -> None:
        """Abort a transaction of the metadata log that an earlier controller left open (KIP-868).

        The context has not applied the transaction, so only the log needs the record.
        """
        self._append(self.epoch, [in_lowest_version(AbortTransactionRecord(reason=reason))])

    def _append(self, epoch: int, records: Sequence[ApiMessageAndVersion[MetadataRecord]]) -> int:
        if self.is_lost:
            raise NotController(f"the controller's epoch {epoch} is over")
        try:
            last = self._quorum.schedule_append(
                epoch,
                records,
                expected_base_offset=self._expected_offset,
                is_atomic=not all(isinstance(record.message, STANDING_ALONE) for record in records),
            )
        except (NotLeader, UnexpectedEpoch) as error:
            self.is_lost = True
            raise NotController(f"the controller's epoch {epoch} is over: {error}") from error
        self.last_offset = last
        return last

    # ---- RecordWriter -------------------------------------------------------------------------------------

    @property
    def next_offset(self) -> int:
        """The offset of the event's first record, unless the quorum appends a record of its own before it."""
        return self._quorum.next_offset

    def add(self, message: MetadataRecord) -> None:
        """Write the record with the others of the event."""
        self.machines.batch.add_record(*in_lowest_version(message))

    def add_last(self, message: MetadataRecord) -> None:
        """Write the record after all others of the event."""
        self.machines.batch.add_last_record(*in_lowest_version(message))

    def expect_offset(self, offset: int) -> None:
        """Repeat the event if its first record would get an offset other than `offset`."""
        self._expected_offset = offset

    def after_append(self, action: Callable[[int], object]) -> None:
        """Call `action` with the offset of the last record after all are appended, else never."""
        self._after_append.append(action)
