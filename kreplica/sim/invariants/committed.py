"""Invariants about committed records: 7, 8, 10, 11 and 22 of docs/SIMULATOR.md. No state; one thread."""

from __future__ import annotations

from typing import ClassVar

from kreplica.sim.invariants.partition_view import PartitionView
from kreplica.sim.invariants.replica_view import ReplicaView
from kreplica.sim.invariants.violation import InvariantViolated


class LogMatching:
    """8. Two replicas are identical below the lesser of their high watermarks.

    Each is compared with the committed log, which holds what the first replica to reach an offset held.
    """

    name: ClassVar[str] = "LogMatching"

    def check(self, partition: PartitionView) -> None:
        for replica in partition.changed:
            if not replica.is_running or replica.log is None:
                continue
            if (replica.is_excused or replica.is_harmed) and _has_cut(partition, replica):
                partition.trust(replica)
                if replica.log_end >= len(partition.committed):
                    replica.is_harmed = False
            partition.commit(replica)
            end = min(replica.high_watermark, replica.excused_from)
            if not partition.agrees(replica, end):
                at = partition.difference(replica, end)
                facts = f"{replica} ends below its high watermark"
                if at is not None:
                    facts = (
                        f"{replica} holds {replica.cells[at]} at {at}, committed is {partition.committed[at]}"
                    )
                raise InvariantViolated(self.name, f"{facts}; {partition}")


def _has_cut(partition: PartitionView, replica: ReplicaView) -> bool:
    # It follows in the unclean leader's epoch or a later one, and holds nothing void.
    leader = partition.leader
    if leader is None or replica.leader_epoch < max(partition.unclean_epoch, 0):
        # Without a role in this life it follows no leader, and its leader may still count on what it lost.
        return False
    if replica.log.stopped_at is not None:
        # It does not know yet how much of the following records was committed.
        return False
    if replica.log_start < replica.log_end <= leader.log_start:
        # Nothing of it can be compared: the leader has deleted everything it holds.
        return False
    end = min(len(replica.cells), len(leader.cells))
    start = max(replica.log_start, leader.log_start)
    return replica.cells[start:end] == leader.cells[start:end] and replica.high_watermark <= len(leader.cells)


class LeaderCompleteness:
    """7. The controller's leader holds everything committed, and every acknowledged value."""

    name: ClassVar[str] = "LeaderCompleteness"

    def check(self, partition: PartitionView) -> None:
        leader = partition.leader
        if leader is None or leader not in partition.changed:
            return
        if not partition.agrees(leader, len(partition.committed)):
            at = partition.difference(leader, len(partition.committed))
            what = f"ends at {leader.log_end}" if at is None else f"holds {leader.cells[at]} at {at}"
            raise InvariantViolated(self.name, f"{leader} {what}; {partition}")
        partition.to_check(leader)
        unchecked, partition.acks_to_check = partition.acks_to_check, []
        for offset in unchecked:
            value = partition.acked[offset]
            cell = leader.cells[offset] if offset < leader.log_end else None
            if offset >= leader.log_start and (cell is None or cell.value != value):
                facts = f"{leader} holds {cell} at {offset}, acknowledged was {value!r}; {partition}"
                raise InvariantViolated(self.name, facts)


class NoCommittedRecordLost:
    """10. An acknowledged value is on some broker, while fewer than min.insync.replicas lost power.

    A replica counts as having lost power until it has fetched again what it lost. If that many have, a value
    that no broker has is no longer required.
    """

    name: ClassVar[str] = "NoCommittedRecordLost"

    def check(self, partition: PartitionView) -> None:
        leader = partition.leader
        if leader is not None and leader.log_start > leader.former_log_start:
            # A value that a leader has deleted is not required, even if another log begins lower again.
            for offset in [offset for offset in partition.acked if offset < leader.log_start]:
                del partition.acked[offset]
            partition.acks_to_check = [each for each in partition.acks_to_check if each in partition.acked]
        for replica in partition.changed:
            shrunk_to, replica.shrunk_to = replica.shrunk_to, None
            if shrunk_to is None:
                continue
            gone = [offset for offset in partition.acked if offset >= shrunk_to]
            for offset in gone:
                self._require_held(partition, offset)

    def _require_held(self, partition: PartitionView, offset: int) -> None:
        value = partition.acked[offset]
        for replica in partition.replicas.values():
            cells = replica.cells
            cell = cells[offset] if offset < len(cells) else None
            if offset < replica.log_start or (cell is not None and cell.value == value):
                return
        harmed = sum(replica.is_harmed for replica in partition.replicas.values())
        if harmed >= partition.least_min_isr:
            del partition.acked[offset]
            partition.acks_to_check = [each for each in partition.acks_to_check if each != offset]
            return
        raise InvariantViolated(
            self.name, f"{value!r} at {offset} was acknowledged, but no broker has it; {partition}"
        )


class Durable:
    """22. What a log reported as flushed survives a power cut."""

    name: ClassVar[str] = "Durable"

    def check(self, partition: PartitionView) -> None:
        for replica in partition.changed:
            lost, replica.lost_from_disk = replica.lost_from_disk, None
            if lost is not None:
                facts = f"{replica} ends at {lost} after a power cut, but had flushed more; {partition}"
                raise InvariantViolated(self.name, facts)


class NothingAfterFailure:
    """A log whose disk has refused an operation accepts no further appends (KAFKA-10778)."""

    name: ClassVar[str] = "NothingAfterFailure"

    def check(self, partition: PartitionView) -> None:
        for replica in partition.changed:
            if replica.grew_after_failure:
                raise InvariantViolated(self.name, f"{replica} still accepts appends; {partition}")


class ConsistentRead:
    """11. What a consumer got at an offset stays there, on every later leader.

    ClusterView.consumed checks at the time of the read that it was committed.
    """

    name: ClassVar[str] = "ConsistentRead"

    def check(self, partition: PartitionView) -> None:
        leader = partition.leader
        if leader is None or leader not in partition.changed:
            return
        partition.to_check(leader)
        unchecked, partition.reads_to_check = partition.reads_to_check, []
        for offset in unchecked:
            cell = partition.consumed[offset]
            found = leader.cells[offset] if offset < leader.log_end else None
            if offset >= leader.log_start and found != cell:
                facts = f"{leader} holds {found} at {offset}, a consumer got {cell}; {partition}"
                raise InvariantViolated(self.name, facts)
