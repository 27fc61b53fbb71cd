"""The invariants, with their numbers in docs/SIMULATOR.md.

An invariant checks one partition that an event has touched. `partition.changed` lists the replicas that have
changed; `partition.was_decided` is set after a new decision of the controller. It raises InvariantViolated,
or returns. Thread rule: one thread.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.sim.invariants.cluster_view import PartitionView
from kreplica.sim.invariants.replica_view import ReplicaView
from kreplica.sim.invariants.violation import InvariantViolated


class Invariant(Protocol):
    """A rule. `name`: as in the specifications."""

    name: ClassVar[str]

    def check(self, partition: PartitionView) -> None:
        """Check what the last event has touched. Raises InvariantViolated."""
        ...


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


class OneFetcher:
    """13. A leader fetches its partition from no broker; a follower fetches only from its leader."""

    name: ClassVar[str] = "OneFetcher"

    def check(self, partition: PartitionView) -> None:
        for replica in partition.changed:
            if not replica.is_running or replica.state is None:
                continue
            fetchers = replica.program.replica_manager.fetchers
            at = partition.topic_partition
            if at in replica.program.replica_manager.untaken:
                # It should lead, but its full disk has no room to record that.
                continue
            if any(at in fetcher.failed for fetcher in fetchers):
                continue
            found = [fetcher.leader.leader_id for fetcher in fetchers if fetcher.state_of(at) is not None]
            follows = not replica.is_leader and replica.leader not in (NO_LEADER, replica.broker_id)
            # If recovery stopped at rot, it fetches only what is damaged until that is repaired.
            follows = follows and (replica.log is None or replica.log.stopped_at is None)
            decided = partition.decided
            if not found and decided is not None and replica.leader_epoch < decided.leader_epoch:
                # Its leader answered that the epoch is over; it will learn of the next one.
                continue
            if found != ([replica.leader] if follows else []):
                raise InvariantViolated(self.name, f"{replica} fetches from {found}; {partition}")


class NeverBack:
    """15. A replica's high watermark and leader epoch never go back while its broker lives. No life begins
    with a high watermark below one that was in the checkpoint (KAFKA-1647).

    Exceptions: an unclean election, a power cut that brought back what is now truncated, and a follower that
    has dropped everything to start again above its end.
    """

    name: ClassVar[str] = "NeverBack"

    def check(self, partition: PartitionView) -> None:
        for replica in partition.changed:
            if not replica.is_running or replica.log is None:
                continue
            if replica.leader_epoch < replica.former_epoch:
                facts = f"{replica} was in epoch {replica.former_epoch}; {partition}"
                raise InvariantViolated(self.name, facts)
            went_back = replica.high_watermark < replica.former_high_watermark
            if went_back and not _may_go_back(partition, replica):
                facts = f"the HW of {replica} was {replica.former_high_watermark}; {partition}"
                raise InvariantViolated(self.name, facts)
            self._check_start(partition, replica)

    def _check_start(self, partition: PartitionView, replica: ReplicaView) -> None:
        began_with, replica.began_with = replica.began_with, None
        if began_with is not None:
            if began_with < replica.kept_mark and not _may_go_back(partition, replica):
                facts = f"{replica} begins below {replica.kept_mark}, with which it began before; {partition}"
                raise InvariantViolated(self.name, facts)
            if replica.is_from_checkpoint:
                replica.kept_mark = began_with
        replica.kept_mark = min(replica.kept_mark, replica.high_watermark)


def _may_go_back(partition: PartitionView, replica: ReplicaView) -> bool:
    is_empty = replica.log_start == replica.log_end
    if replica.log_start == replica.high_watermark and (
        is_empty or replica.log_start != replica.former_log_start
    ):
        return True
    leader = partition.leader
    # A leader knows no epochs of what it has deleted: a follower that asks where to truncate may get too high
    # an offset, and starts again at the start of the leader's log.
    is_behind = leader is not None and replica.log_end <= leader.log_start
    return replica.high_watermark >= replica.excused_from or (replica.is_excused and is_behind)
