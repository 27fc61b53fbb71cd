"""Which replica leads next: one selector for each reason to ask.

A selector looks at a partition as it is and gives a leader and the replicas in sync, or raises
NoReplicaOnline where there is nobody, StateChangeFailed where the one that was asked for cannot, and
ElectionNotNeeded where it does already. It changes nothing. The first in the order of assignment comes first,
everywhere.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from kreplica.common.errors import ElectionNotNeeded, NoReplicaOnline, StateChangeFailed
from kreplica.controller.controller_context import ControllerContext, PartitionContext


class LeaderSelection(NamedTuple):
    """Who leads, and who is in sync; `unclean`: the leader may lack what was committed."""

    leader: int
    isr: tuple[int, ...]
    unclean: bool = False


class PartitionLeaderSelector(Protocol):
    """See the module."""

    def select_leader(self, partition: PartitionContext) -> LeaderSelection: ...


class OfflinePartitionLeaderSelector:
    """For a partition that has lost its leader. In this order:

    the current leader, if it is in sync and alive after all; the first live replica in sync, and those alive
    of the ISR stay in it; where none is, the first live one that is eligible though out of sync (KIP-966);
    where nobody was eligible, the last known leader, which is unclean; and where the topic allows it
    (unclean.leader.election.enable), or `always_unclean` says so, the first live replica. Else
    NoReplicaOnline.
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
                f"{partition.topic_partition}: no replica of {list(current.replicas)} is alive"
            )
        if not (settings.unclean_leader_election_enable or self._always_unclean):
            raise NoReplicaOnline(
                f"{partition.topic_partition}: nobody of the ISR {list(current.isr)} and of those eligible "
                f"{list(current.elr)} is alive, and unclean leader election is off"
            )
        return LeaderSelection(live[0], (live[0],), unclean=True)


class ReassignedPartitionLeaderSelector:
    """For a partition whose leader is not among the replicas that it is to have: the first of these that is
    alive and in sync.
    """

    def __init__(self, context: ControllerContext) -> None:
        self._context = context

    def select_leader(self, partition: PartitionContext) -> LeaderSelection:
        current = partition.leader_and_isr
        for replica in current.replicas:
            stays = replica not in current.removing_replicas
            if stays and replica in current.isr and self._context.is_acceptable_leader(partition, replica):
                return LeaderSelection(replica, current.isr)
        raise NoReplicaOnline(
            f"{partition.topic_partition}: nobody of the new replicas {list(current.replicas)} is alive and "
            f"in the ISR {list(current.isr)}"
        )


class PreferredReplicaPartitionLeaderSelector:
    """The first of the assigned replicas, if it is alive and in sync."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context

    def select_leader(self, partition: PartitionContext) -> LeaderSelection:
        current = partition.leader_and_isr
        preferred = current.replicas[0]
        if current.leader == preferred:
            raise ElectionNotNeeded(f"{partition.topic_partition}: {preferred} leads already")
        if preferred in current.isr and self._context.is_acceptable_leader(partition, preferred):
            return LeaderSelection(preferred, current.isr)
        raise StateChangeFailed(
            f"{partition.topic_partition}: the preferred leader {preferred} is not alive and in the ISR "
            f"{list(current.isr)}"
        )


class HandoverLeaderSelector:
    """For a partition whose leader cannot go on: another replica that is alive and in sync, the next one in
    the order of assignment, so that it comes to all of them where several cannot. The former leader stays in
    the ISR until it says itself what it lacks.
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
            f"{partition.topic_partition}: nobody but {current.leader} is alive and in the ISR "
            f"{list(current.isr)}"
        )


class ControlledShutdownLeaderSelector:
    """For a partition whose leader is about to leave: the first live replica in sync that stays; those that
    leave are out of the ISR then.
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
            f"{partition.topic_partition}: nobody else of the ISR {list(current.isr)} stays; shutting down "
            f"are {sorted(leaving)}"
        )
