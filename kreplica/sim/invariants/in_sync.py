"""Invariants about the ISR: 1 to 4 and 14 of docs/SIMULATOR.md. No state; one thread."""

from __future__ import annotations

from typing import ClassVar

from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.sim.invariants.partition_view import PartitionView
from kreplica.sim.invariants.replica_view import ReplicaView
from kreplica.sim.invariants.violation import InvariantViolated


class WeakIsr:
    """1. Each member of the ISR of a replica that believes to lead holds its records below its high
    watermark."""

    name: ClassVar[str] = "WeakIsr"

    def check(self, partition: PartitionView) -> None:
        for leader in partition.leaders():
            for member in partition.counted(leader.member_epochs):
                if leader.leader_epoch < partition.unclean_epoch <= member.leader_epoch:
                    # It follows the leader of an unclean election, and may start over there.
                    continue
                if leader.leader_epoch < member.leader_epoch and leader.high_watermark <= leader.log_start:
                    # Everything committed is deleted: a follower of a later leader may start over there, too.
                    continue
                if member.is_anew and member.broker_id not in partition.members:
                    # A former leader has not learned that it was removed.
                    continue
                _require_same(self.name, partition, leader, member)


class StrongIsr:
    """2. As 1, for each member of the controller's ISR."""

    name: ClassVar[str] = "StrongIsr"

    def check(self, partition: PartitionView) -> None:
        for leader in partition.leaders():
            for member in partition.counted(partition.members):
                _require_same(self.name, partition, leader, member)


def _require_same(name: str, partition: PartitionView, leader: ReplicaView, member: ReplicaView) -> None:
    end = min(leader.high_watermark, leader.excused_from, member.excused_from)
    if not partition.agrees(member, end):
        at = partition.difference(member, end)
        what = f"ends at {member.log_end}" if at is None else f"holds {member.cells[at]} at {at}"
        raise InvariantViolated(name, f"{leader} counts on {member}, which {what}; {partition}")


class LeaderInIsr:
    """3. A leader is in its ISR; the controller's leader is in the controller's ISR."""

    name: ClassVar[str] = "LeaderInIsr"

    def check(self, partition: PartitionView) -> None:
        decided = partition.decided
        if decided is not None and decided.leader != NO_LEADER and decided.leader not in decided.isr:
            raise InvariantViolated(self.name, f"the controller's leader is not in its ISR; {partition}")
        for leader in partition.leaders():
            if leader.broker_id not in leader.isr:
                raise InvariantViolated(
                    self.name, f"{leader} is not in its own ISR {leader.isr}; {partition}"
                )


class ValidHighWatermark:
    """4. No member of the controller's ISR ends below the leader's high watermark."""

    name: ClassVar[str] = "ValidHighWatermark"

    def check(self, partition: PartitionView) -> None:
        leader = partition.leader
        if leader is None:
            return
        for member in partition.counted(partition.members):
            if member.log_end < leader.high_watermark:
                raise InvariantViolated(self.name, f"{member} ends below the HW of {leader}; {partition}")


class IsrGrowth:
    """14. A replica joining an ISR has everything committed, reaches into the leader's epoch, and fetched in
    it."""

    name: ClassVar[str] = "IsrGrowth"

    def check(self, partition: PartitionView) -> None:
        for leader in partition.changed:
            state = leader.state
            if leader.is_leader and state is not None and state[1].is_inflight:
                for broker_id in set(leader.maximal_isr) - set(leader.isr):
                    self._require_fit(partition, leader, broker_id)

    def _require_fit(self, partition: PartitionView, leader: ReplicaView, broker_id: int) -> None:
        replica = partition.replicas.get(broker_id)
        known = leader.partition.replica(broker_id)
        if known is None:
            raise InvariantViolated(self.name, f"{leader} admits {broker_id}, no replica; {partition}")
        pending = leader.state[1]
        # The controller refuses a replica that was restarted since the proposal (KIP-903).
        proposed = dict(zip(pending.sent.isr, pending.isr_broker_epochs, strict=True)).get(broker_id)
        if known.broker_epoch == proposed and not known.fetched_in_epoch:
            raise InvariantViolated(
                self.name, f"{leader} admits {broker_id} before it has fetched; {partition}"
            )
        if replica is None or not replica.is_running or replica.broker_epoch != proposed:
            return
        if replica.leader_epoch > leader.leader_epoch:
            # It has followed another leader since it fetched here; the controller knows a later epoch, and
            # refuses.
            return
        decided = partition.decided
        if (
            decided is not None
            and decided.leader_epoch > leader.leader_epoch
            and broker_id not in decided.replicas
        ):
            # It is no longer a replica, and has deleted its log: the controller refuses here, too.
            return
        epoch_start = leader.state[0].epoch_start_offset
        if replica.log_end < max(leader.high_watermark, epoch_start):
            facts = f"{leader}, whose epoch begins at {epoch_start}, admits {replica}; {partition}"
            raise InvariantViolated(self.name, facts)
