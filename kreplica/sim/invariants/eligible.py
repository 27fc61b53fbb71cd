"""Invariants about eligible replicas: 5, 6 and 12 of docs/SIMULATOR.md. No state; one thread."""

from __future__ import annotations

from typing import ClassVar

from kreplica.sim.invariants.partition_view import PartitionView
from kreplica.sim.invariants.violation import InvariantViolated


class QuorumSuperset:
    """5. A current leader without a pending proposal counts on exactly its ISR; and on every replica that the
    controller may elect, as long as it commits."""

    name: ClassVar[str] = "QuorumSuperset"

    def check(self, partition: PartitionView) -> None:
        leader, decided = partition.leader, partition.decided
        if leader is None or decided is None or leader.state is None:
            return
        maximal = set(leader.maximal_isr)
        if not leader.state[1].is_inflight and maximal != set(leader.isr):
            raise InvariantViolated(
                self.name, f"{leader} has nothing pending, and counts on {leader.maximal_isr}; {partition}"
            )
        if leader.partition.is_under_min_isr:
            return
        candidates = set(decided.isr) | set(decided.elr)
        if not candidates <= maximal:
            facts = f"{leader} counts on {leader.maximal_isr}, and {candidates - maximal} may be elected"
            raise InvariantViolated(self.name, f"{facts}; {partition}")


class CandidateCompleteness:
    """6. A running replica of the ISR or the ELR, which may be elected, holds everything committed."""

    name: ClassVar[str] = "CandidateCompleteness"

    def check(self, partition: PartitionView) -> None:
        end = len(partition.committed)
        for member in partition.counted({**partition.eligible, **partition.members}):
            if member.is_excused:
                continue
            if not partition.agrees(member, end):
                at = partition.difference(member, end)
                what = f"ends at {member.log_end}" if at is None else f"holds {member.cells[at]} at {at}"
                raise InvariantViolated(self.name, f"{member} may be elected, but {what}; {partition}")
