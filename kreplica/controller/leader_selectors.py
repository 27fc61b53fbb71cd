"""Leader selectors: choose the leader of a partition, one class for each kind of election.

A selector returns a leader and an ISR and changes nothing. It raises NoReplicaOnline if no replica can lead,
StateChangeFailed if the requested one cannot, and ElectionNotNeeded if it already leads. All selectors prefer
replicas in the order of assignment.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from kreplica.common.errors import ElectionNotNeeded, NoReplicaOnline, StateChangeFailed
from kreplica.controller.controller_context import ControllerContext, PartitionContext


class LeaderSelection(NamedTuple):
    """The new leader and ISR. `unclean`: the leader may miss committed records."""

    leader: int
    isr: tuple[int, ...]
    unclean: bool = False


class PartitionLeaderSelector(Protocol):
    """Chooses the leader of a partition."""

    def select_leader(self, partition: PartitionContext) -> LeaderSelection: ...


class OfflinePartitionLeaderSelector:
    """Elects the leader of a partition that has lost it. It takes the first of these that exists:

    1. the current leader, if it is in sync and alive after all;
    2. the first live replica of the ISR; the live members of the ISR stay in it;
    3. the first live replica of the ELR (KIP-966);
    4. the last known leader, if the ISR and the ELR are empty, which is unclean;
    5. the first live replica, if unclean.leader.election.enable or `always_unclean` is set.

    Otherwise it raises NoReplicaOnline.
    """

    def __init__(self, context: ControllerContext, *, always_unclean: bool = False) -> None:
        self._context = context
        self._always_unclean = always_unclean

    def select_leader(self, partition: PartitionContext) -> LeaderSelection:
        context, current = self._context, partition.leader_and_isr
        live = [replica for replica in current.replicas if context.is_acceptable_leader(partition, replica)]
        isr = tuple([replica for replica in current.isr if context.is_replica_online(partition, replica)])
        if current.leader in isr and current.leader in live:
            return LeaderSelection(current.leader, isr)
        for replica in live:
            if replica in isr:
                return LeaderSelection(replica, isr)
        if not isr:
            for replica in live:
                if replica in current.elr:
                    return LeaderSelection(replica, (replica,))
            if not current.isr and not current.elr:
                for replica in live:
                    if current.last_known_elr == (replica,):
                        return LeaderSelection(replica, (replica,), unclean=True)
        return self._unclean(partition, live)

    def _unclean(self, partition: PartitionContext, live: list[int]) -> LeaderSelection:
        current = partition.leader_and_isr
        settings = self._context.settings.of(partition.topic_partition.topic)
        if not live:
            raise NoReplicaOnline(
                f"{partition.topic_partition}: none of its replicas {list(current.replicas)} is alive"
            )
        if not (settings.unclean_leader_election_enable or self._always_unclean):
            raise NoReplicaOnline(
                f"{partition.topic_partition}: no live replica is in its ISR {list(current.isr)} or ELR "
                f"{list(current.elr)}, and unclean leader election is disabled"
            )
        return LeaderSelection(live[0], (live[0],), unclean=True)


class ReassignedPartitionLeaderSelector:
    """Elects a leader that stays after a reassignment: the first new replica that is alive and in sync."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context

    def select_leader(self, partition: PartitionContext) -> LeaderSelection:
        current = partition.leader_and_isr
        for replica in current.replicas:
            stays = replica not in current.removing_replicas
            if stays and replica in current.isr and self._context.is_acceptable_leader(partition, replica):
                return LeaderSelection(replica, current.isr)
        raise NoReplicaOnline(
            f"{partition.topic_partition}: none of its new replicas {list(current.replicas)} is alive and "
            f"in the ISR {list(current.isr)}"
        )


class PreferredReplicaPartitionLeaderSelector:
    """Elects the first assigned replica if it is alive and in sync."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context

    def select_leader(self, partition: PartitionContext) -> LeaderSelection:
        current = partition.leader_and_isr
        preferred = current.replicas[0]
        if current.leader == preferred:
            raise ElectionNotNeeded(f"{partition.topic_partition}: {preferred} is already the leader")
        if preferred in current.isr and self._context.is_acceptable_leader(partition, preferred):
            return LeaderSelection(preferred, current.isr)
        raise StateChangeFailed(
            f"{partition.topic_partition}: the preferred leader {preferred} must be alive and in the ISR "
            f"{list(current.isr)}"
        )


class HandoverLeaderSelector:
    """Elects another leader because the current one cannot go on.

    It takes the next live replica of the ISR in the order of assignment, so that repeated handovers reach all
    of them. The former leader stays in the ISR until it reports what it lacks.
    """

    def __init__(self, context: ControllerContext) -> None:
        self._context = context

    def select_leader(self, partition: PartitionContext) -> LeaderSelection:
        current = partition.leader_and_isr
        place = current.replicas.index(current.leader)
        for replica in current.replicas[place + 1 :] + current.replicas[:place]:
            if replica in current.isr and self._context.is_acceptable_leader(partition, replica):
                return LeaderSelection(replica, current.isr)
        raise StateChangeFailed(
            f"{partition.topic_partition}: no replica but {current.leader} is alive and in the ISR "
            f"{list(current.isr)}"
        )


class ControlledShutdownLeaderSelector:
    """Elects another leader because the current one is shutting down: the first live replica of the ISR that
    stays.

    Brokers that are shutting down leave the ISR.
    """

    def __init__(self, context: ControllerContext) -> None:
        self._context = context

    def select_leader(self, partition: PartitionContext) -> LeaderSelection:
        current, leaving = partition.leader_and_isr, self._context.shutting_down_broker_ids
        isr = tuple(replica for replica in current.isr if replica not in leaving)
        for replica in current.replicas:
            if replica in isr and self._context.is_acceptable_leader(partition, replica):
                return LeaderSelection(replica, isr)
        raise StateChangeFailed(
            f"{partition.topic_partition}: no other replica of the ISR {list(current.isr)} stays, since"
            f" brokers {sorted(leaving)} are shutting down"
        )
