"""PartitionReassignment: moves a partition to other replicas (KIP-455).

During a reassignment the partition has its target replicas, in the requested order, followed by those to be
removed. It completes when all added replicas are in sync, and at least min.insync.replicas of the target.
Then one record removes the old replicas and elects another leader if the leader is removed. A cancelled
reassignment returns to the replicas before it.

The record that removes replicas increases the leader epoch. The leader then forgets their progress, so that a
replica that is added again at once, and is empty, is not taken for what it was. Owned by the controller's
loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from kreplica.common.errors import InvalidReplicaAssignment, NoReassignmentInProgress
from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.controller.controller_context import (
    PartitionContext,
    PartitionState,
    ReplicaState,
)
from kreplica.controller.leader_selectors import ReassignedPartitionLeaderSelector
from kreplica.controller.replica_state_machine import Machines


class PartitionReassignment:
    """Starts, cancels and completes reassignments of partitions."""

    def __init__(
        self,
        machines: Machines,
    ) -> None:
        self._context, self._batch, self._partitions, self._replicas = machines
        self._selector = ReassignedPartitionLeaderSelector(self._context)

    def start(self, partition: PartitionContext, target: Sequence[int]) -> None:
        """Move the partition to the brokers `target`, in this order.

        It replaces a reassignment in progress. Replicas that the replaced one added are removed at the end of
        the new one, since some of them may be in the ISR.
        """
        with self._batch.collected():
            current = partition.leader_and_isr
            settled = [each for each in current.replicas if each not in current.adding_replicas]
            adding = tuple(replica for replica in target if replica not in settled)
            removing = tuple(replica for replica in current.replicas if replica not in target)
            self._assign(partition, (*target, *removing), adding=adding, removing=removing)
            self.complete_if_possible(partition)

    def cancel(self, partition: PartitionContext) -> None:
        """Return to the replicas before the reassignment.

        Raises NoReassignmentInProgress, and InvalidReplicaAssignment if too few of them have all committed
        records and the topic does not allow unclean elections.
        """
        current = partition.leader_and_isr
        if not (current.adding_replicas or current.removing_replicas):
            raise NoReassignmentInProgress(f"{partition.topic_partition} is not being reassigned")
        before = tuple(each for each in current.replicas if each not in current.adding_replicas)
        with self._batch.collected():
            settings = self._context.settings.of(partition.topic_partition.topic)
            whole = sorted({*current.isr, *current.elr})
            left = [each for each in whole if each in before]
            is_clean = len(left) >= min(settings.min_insync_replicas, len(whole), len(before))
            if not (is_clean or settings.unclean_leader_election_enable):
                raise InvalidReplicaAssignment(
                    f"{partition.topic_partition}: to cancel would leave {left} of the replicas {whole} that"
                    " have all committed records: enable unclean leader election, or wait until more are in"
                    " sync"
                )
            self._assign(partition, before, adding=(), removing=())
            self._elect_if_leader_went(partition)

    def complete_if_possible(self, partition: PartitionContext) -> bool:
        """Complete the reassignment if all added replicas and enough of the target are in sync.

        Returns True if it was completed.
        """
        current = partition.leader_and_isr
        if not (current.adding_replicas or current.removing_replicas):
            return False
        stays = tuple(each for each in current.replicas if each not in current.removing_replicas)
        in_sync = [replica for replica in current.isr if replica in stays]
        if not in_sync or not set(current.adding_replicas) <= set(in_sync):
            return False
        # With fewer, one power failure could take records that all of them had acknowledged. Kafka does not
        # wait.
        wanted = self._context.settings.of(partition.topic_partition.topic).min_insync_replicas
        if len(in_sync) < min(wanted, len(stays)):
            return False
        if not self._can_lead(partition, stays):
            return False
        with self._batch.collected():
            self._assign(partition, stays, adding=(), removing=())
            self._elect_if_leader_went(partition)
        return True

    def _can_lead(self, partition: PartitionContext, stays: tuple[int, ...]) -> bool:
        """Return whether one of the staying replicas leads or may lead."""
        current = partition.leader_and_isr
        return current.leader in (*stays, NO_LEADER) or any(
            replica in current.isr and self._context.is_acceptable_leader(partition, replica)
            for replica in stays
        )

    def _assign(
        self,
        partition: PartitionContext,
        replicas: tuple[int, ...],
        *,
        adding: tuple[int, ...],
        removing: tuple[int, ...],
    ) -> None:
        context, current = self._context, partition.leader_and_isr
        before, isr = current.replicas, current.isr
        gone = [replica for replica in before if replica not in replicas]
        come = [replica for replica in replicas if replica not in before]
        change = self._batch.change_of(partition)
        change.set_assignment(
            replicas,
            adding=adding,
            removing=removing,
            directories=[(replica, context.default_directory(replica)) for replica in come],
        )
        if any(replica in isr for replica in gone):
            change.set_isr(
                tuple(replica for replica in isr if replica not in gone),
                min_isr=context.min_isr(partition.topic_partition.topic),
            )
        self._stop_old_replicas(partition, gone)
        self._start_new_replicas(partition, come)

    def _start_new_replicas(self, partition: PartitionContext, replicas: list[int]) -> None:
        self._replicas.handle_state_changes([(partition, each) for each in replicas], ReplicaState.NEW)
        for replica in replicas:
            online = self._context.is_replica_online(partition, replica)
            state = ReplicaState.ONLINE if online else ReplicaState.OFFLINE
            self._replicas.handle_state_changes([(partition, replica)], state)

    def _stop_old_replicas(self, partition: PartitionContext, replicas: list[int]) -> None:
        stopped = [(partition, each) for each in replicas]
        for state in (
            ReplicaState.OFFLINE,
            ReplicaState.DELETION_STARTED,
            ReplicaState.DELETION_SUCCESSFUL,
            ReplicaState.NON_EXISTENT,
        ):
            self._replicas.handle_state_changes(stopped, state)

    def _elect_if_leader_went(self, partition: PartitionContext) -> None:
        current = partition.leader_and_isr
        if current.leader == NO_LEADER or current.leader in current.replicas:
            return
        failures = self._partitions.handle_state_changes([partition], PartitionState.ONLINE, self._selector)
        if failures:
            # No replica that stays and is in sync may lead now.
            self._partitions.handle_state_changes([partition], PartitionState.OFFLINE)
            self._partitions.handle_state_changes([partition], PartitionState.ONLINE)
