"""PartitionView: the true state of one partition of a simulated cluster. Thread rule: one thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kreplica.common.leader_and_isr import LeaderAndIsr
from kreplica.common.types import TopicPartition, Uuid
from kreplica.sim.invariants.replica_view import Cell, ReplicaView


class PartitionView:
    """A partition: its replicas by broker, the controller's decision, and committed, acknowledged and read
    records.

    `unclean_epoch`: the leader epoch of the last election that voided records, -1 if none.
    `is_awaited`: no replica leads in that epoch or a later one yet. `least_min_isr`: the lowest
    min.insync.replicas that its topic ever had. `members`: the broker epoch in which each member of the
    controller's ISR joined it; a member that was restarted since does not count. `eligible`: the same for
    the ELR. `members_at`: `members` by partition epoch.
    """

    def __init__(self, topic_partition: TopicPartition, topic_id: Uuid) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.replicas: dict[int, ReplicaView] = {}
        self.decided: LeaderAndIsr | None = None
        self.former: LeaderAndIsr | None = None  # the decision before the last change
        self.members: dict[int, int] = {}
        self.eligible: dict[int, int] = {}
        self.members_at: dict[int, dict[int, int]] = {}
        self.unclean_epoch = -1
        self.is_awaited = False
        self.least_min_isr = 1 << 30
        self.committed: list[Cell | None] = []
        self.acked: dict[int, bytes | None] = {}  # value by offset
        self.consumed: dict[int, Cell] = {}  # by offset
        self.acks_to_check: list[int] = []  # offsets
        self.reads_to_check: list[int] = []
        self._completed_epoch = -1  # in which the leader was compared with everything acknowledged and read
        self.changed: list[ReplicaView] = []  # by the last event
        self.was_decided = False  # by the last event

    def __str__(self) -> str:
        replicas = "; ".join(str(replica) for replica in self.replicas.values() if replica.is_running)
        decided = self.decided
        word = "" if decided is None else f"; leader {decided.leader}, ISR {decided.isr} by the controller"
        return f"{self.topic_partition}: {replicas}{word}; committed below {len(self.committed)}"

    @property
    def leader(self) -> ReplicaView | None:
        """The leader that the controller has chosen, if it runs and knows that it leads."""
        if self.decided is None:
            return None
        replica = self.replicas.get(self.decided.leader)
        if replica is None or not replica.is_leader or replica.leader_epoch != self.decided.leader_epoch:
            return None
        return replica

    def to_check(self, leader: ReplicaView) -> None:
        """Make a new leader be compared with everything that was acknowledged and read."""
        if leader.leader_epoch != self._completed_epoch:
            self._completed_epoch = leader.leader_epoch
            self.acks_to_check = list(self.acked)
            self.reads_to_check = list(self.consumed)

    def goes_on(self, broker_id: int, former_epoch: int, epoch: int) -> None:
        """Keep the membership of a broker that was stopped cleanly and registers again: it has lost
        nothing."""
        for members in (self.members, self.eligible):
            if members.get(broker_id) == former_epoch:
                members[broker_id] = epoch

    def leaders(self) -> Iterator[ReplicaView]:
        """Yield all replicas that believe to lead."""
        for replica in self.replicas.values():
            if replica.is_leader:
                yield replica

    def counted(self, members: Mapping[int, int]) -> Iterator[ReplicaView]:
        """Yield the members of an ISR that still run in the life in which they joined it."""
        for broker_id, broker_epoch in members.items():
            replica = self.replicas.get(broker_id)
            if replica is None or replica.log is None:
                continue
            if self.is_awaited and self.decided is not None and broker_id == self.decided.leader:
                # Until it begins to lead, the previous leader may still truncate its log.
                continue
            if replica.is_running and replica.broker_epoch == broker_epoch:
                yield replica

    def agrees(self, replica: ReplicaView, end: int) -> bool:
        """Return whether the replica holds what is committed below `end`, where both have records."""
        end = min(end, len(self.committed))
        cells = replica.cells
        if replica.agreed >= end:
            return True
        if len(cells) < end:
            return False
        start = max(replica.agreed, replica.log_start, replica.deleted_before)
        if cells[start:end] != self.committed[start:end] and self.difference(replica, end) is not None:
            return False
        replica.agreed = end
        return True

    def difference(self, replica: ReplicaView, end: int) -> int | None:
        """Return the first offset below `end` at which the replica's record differs from the committed
        one."""
        start = max(replica.agreed, replica.log_start, replica.deleted_before)
        return self._difference(replica, start, end)

    def _difference(self, replica: ReplicaView, start: int, end: int) -> int | None:
        cells, committed = replica.cells, self.committed
        for offset in range(start, min(end, len(cells), len(committed))):
            ours, theirs = cells[offset], committed[offset]
            if ours != theirs and ours is not None and theirs is not None:
                return offset
        return None

    def commit(self, replica: ReplicaView) -> None:
        """Add what the replica holds below its high watermark to the committed records.

        If it holds nothing, its high watermark only says where its log begins.
        """
        end = min(replica.high_watermark, len(replica.cells))
        if (
            end > max(len(self.committed), replica.log_start)
            and replica.leader_epoch >= self.unclean_epoch
            and not replica.is_excused
        ):
            # It does not hold what it has deleted.
            absent = min(max(replica.log_start - len(self.committed), 0), end - len(self.committed))
            self.committed += [None] * absent
            self.committed += replica.cells[len(self.committed) : end]

    def void(self, leader: int, epoch: int) -> None:
        """Take in an election of a leader that may lack records: what it does not hold is no longer
        committed."""
        self.unclean_epoch = epoch
        self.is_awaited = True
        self._cut_to(self.replicas.get(leader))

    def taken_over(self) -> None:
        """After an election that voided records, let the log of the new leader define what is committed."""
        if not self.is_awaited:
            return
        for leader in self.leaders():
            if leader.leader_epoch >= self.unclean_epoch:
                self.is_awaited = False
                self._cut_to(leader)
                leader.excuse_no_longer()
                leader.is_harmed = False
                leader.deleted_before = 0
                # They may already agree, and not change again.
                self.changed += [
                    each for each in self.replicas.values() if each.is_excused and each not in self.changed
                ]

    def _cut_to(self, chosen: ReplicaView | None) -> None:
        kept = 0
        if chosen is not None:
            # From now on everything it holds counts, also what a power cut has brought back.
            at = self._difference(chosen, chosen.log_start, len(self.committed))
            kept = min(len(self.committed), len(chosen.cells) if at is None else at)
        del self.committed[kept:]
        for known in (self.acked, self.consumed):
            for offset in [offset for offset in known if offset >= kept]:
                del known[offset]
        self.acks_to_check = [offset for offset in self.acks_to_check if offset < kept]
        self.reads_to_check = [offset for offset in self.reads_to_check if offset < kept]
        for replica in self.replicas.values():
            replica.agreed = min(replica.agreed, kept)
            if replica is not chosen:
                replica.excuse_from(kept if chosen is None else min(kept, replica.parts_from(chosen)))

    def trust(self, replica: ReplicaView) -> None:
        """End the replica's excuse: it has truncated what was void, as far as its leader's log reaches back.

        If it begins before that, it may hold other records there until it learns the leader's log start: the
        leader has deleted its own, and knows no epochs for them.
        """
        leader = self.leader
        if leader is not None and self.difference(replica, leader.log_start) is not None:
            replica.deleted_before = max(replica.deleted_before, leader.log_start)
        replica.excuse_no_longer()

    def forget_what_came_back(self, leader: int) -> None:
        """Forget what was committed where a power cut gave a new leader deleted records back."""
        chosen = self.replicas.get(leader)
        if chosen is None:
            return
        deleted = chosen.deleted_before
        end = min(deleted, len(self.committed)) if deleted > chosen.log_start else 0
        self.committed[:end] = [None] * end
        for known in (self.acked, self.consumed):
            for offset in [offset for offset in known if offset < end]:
                del known[offset]
        self.acks_to_check = [offset for offset in self.acks_to_check if offset >= end]
        self.reads_to_check = [offset for offset in self.reads_to_check if offset >= end]
