"""StateMachines: everything that decides about partitions and replicas in one term of the active controller.

Each fail-over makes a new one, with a new ControllerContext. It is dropped when leadership is lost. Owned by
the controller's loop.
"""

from __future__ import annotations

from kreplica.common.ports import Random
from kreplica.controller.alter_partition_control import AlterPartitionControl
from kreplica.controller.broker_change import BrokerChange
from kreplica.controller.controller_broker_request_batch import Append, ControllerBrokerRequestBatch
from kreplica.controller.controller_context import ControllerContext
from kreplica.controller.partition_creation import PartitionCreation
from kreplica.controller.partition_reassignment import PartitionReassignment
from kreplica.controller.partition_state_machine import (
    LEADER_IMBALANCE_PER_BROKER_PERCENTAGE,
    PartitionStateMachine,
    PreferredReplicaLeaderElection,
)
from kreplica.controller.replica_state_machine import ReplicaStateMachine
from kreplica.controller.replication_control import ReplicationControl
from kreplica.controller.state_change_logger import StateChangeLogger
from kreplica.controller.topic_control import TopicControl
from kreplica.controller.topic_deletion_manager import TopicDeletionManager


class StateMachines:
    """`append(epoch, records)`: see ControllerBrokerRequestBatch. The other arguments have Kafka's names."""

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
        machines = context, self.batch, self.partitions, self.replicas
        self.topic_deletion = TopicDeletionManager(*machines)
        self.reassignment = PartitionReassignment(*machines)
        self.creation = PartitionCreation(*machines)
        self.broker_change = BrokerChange(*machines, self.topic_deletion, self.reassignment)
        self.preferred_election = PreferredReplicaLeaderElection(
            context, self.partitions, imbalance_percentage=leader_imbalance_per_broker_percentage
        )
        self.replication_control = ReplicationControl(
            context,
            self.batch,
            self.partitions,
            self.reassignment,
            self.preferred_election,
            TopicControl(
                context,
                self.batch,
                self.creation,
                self.topic_deletion,
                random,
                num_partitions=num_partitions,
                default_replication_factor=default_replication_factor,
            ),
            AlterPartitionControl(context, self.batch, self.reassignment, state_change_logger),
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
