"""PartitionView: what is true of one partition of a simulated cluster. Thread rule: one thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kreplica.common.leader_and_isr import LeaderAndIsr
from kreplica.common.types import TopicPartition, Uuid
from kreplica.sim.invariants.replica_view import Cell, ReplicaView


class PartitionView:
    """One partition: its replicas by broker, the controller's word, and what is committed, acknowledged and
    read.

    `unclean_epoch`: the leader epoch of the last election that made something void, -1 if there was none;
    `is_awaited`: nobody leads in that epoch or a later one yet. `least_min_isr`: the lowest
    min.insync.replicas that its topic ever had. `members`: the broker epoch in which each member of the
    controller's ISR came into it; a member that was started anew since does not count. `eligible`: the same
    of the ELR. `members_at`: `members` by partition epoch.
    """

    def __init__(self, topic_partition: TopicPartition, topic_id: Uuid) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.replicas: dict[int, ReplicaView] = {}
        self.decided: LeaderAndIsr | None = None
        self.former: LeaderAndIsr | None = None  # what was decided before the last change
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
        self._completed_epoch = -1  # that leader was compared with all but what is to be checked
        self.changed: list[ReplicaView] = []  # by the last event
        self.was_decided = False  # by the last event

    def __str__(self) -> str:
        replicas = "; ".join(str(replica) for replica in self.replicas.values() if replica.is_running)
        decided = self.decided
        word = "" if decided is None else f"; leader {decided.leader}, ISR {decided.isr} by the controller"
        return f"{self.topic_partition}: {replicas}{word}; committed below {len(self.committed)}"

    @property
    def leader(self) -> ReplicaView | None:
        """The leader that the controller has chosen, once it knows that it is, and runs."""
        if self.decided is None:
            return None
        replica = self.replicas.get(self.decided.leader)
        if replica is None or not replica.is_leader or replica.leader_epoch != self.decided.leader_epoch:
            return None
        return replica

    def to_check(self, leader: ReplicaView) -> None:
        """A leader that was not looked at before must have all that was acknowledged and read."""
        if leader.leader_epoch != self._completed_epoch:
            self._completed_epoch = leader.leader_epoch
            self.acks_to_check = list(self.acked)
            self.reads_to_check = list(self.consumed)

    def goes_on(self, broker_id: int, former_epoch: int, epoch: int) -> None:
        """The broker, which was stopped in order, is registered anew: it is what it was."""
        for members in (self.members, self.eligible):
            if members.get(broker_id) == former_epoch:
                members[broker_id] = epoch

    def leaders(self) -> Iterator[ReplicaView]:
        """All that believe they lead."""
        for replica in self.replicas.values():
            if replica.is_leader:
                yield replica

    def counted(self, members: Mapping[int, int]) -> Iterator[ReplicaView]:
        """Of the members of an ISR those that run, in the life in which they became members."""
        for broker_id, broker_epoch in members.items():
            replica = self.replicas.get(broker_id)
            if replica is None or replica.log is None:
                continue
            if self.is_awaited and self.decided is not None and broker_id == self.decided.leader:
                # Until it begins to lead, the leader before may cut its log to whatever that one has.
                continue
            if replica.is_running and replica.broker_epoch == broker_epoch:
                yield replica

    def agrees(self, replica: ReplicaView, end: int) -> bool:
        """Whether the replica holds what is committed below `end`, as far as both go back."""
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
        """The first offset below `end` at which the replica holds another record than what is committed."""
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
        """What the replica holds below its high watermark is committed. Where it holds nothing, the mark only
        says where its log begins."""
        end = min(replica.high_watermark, len(replica.cells))
        if (
            end > max(len(self.committed), replica.log_start)
            and replica.leader_epoch >= self.unclean_epoch
            and not replica.is_excused
        ):
            # What it has deleted it does not hold.
            absent = min(max(replica.log_start - len(self.committed), 0), end - len(self.committed))
            self.committed += [None] * absent
            self.committed += replica.cells[len(self.committed) : end]

    def void(self, leader: int, epoch: int) -> None:
        """`leader` was elected though it may lack something: what it does not hold is not committed any
        more."""
        self.unclean_epoch = epoch
        self.is_awaited = True
        self._cut_to(self.replicas.get(leader))

    def taken_over(self) -> None:
        """Whoever leads since something was made void has all that is committed, as of now."""
        if not self.is_awaited:
            return
        for leader in self.leaders():
            if leader.leader_epoch >= self.unclean_epoch:
                self.is_awaited = False
                self._cut_to(leader)
                leader.excuse_no_longer()
                leader.is_harmed = False
                leader.deleted_before = 0
                # They may have come back already, and not change any more.
                self.changed += [
                    each for each in self.replicas.values() if each.is_excused and each not in self.changed
                ]

    def _cut_to(self, chosen: ReplicaView | None) -> None:
        kept = 0
        if chosen is not None:
            # All that it holds counts from now on, also what a power cut has brought back.
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
        """It has cut off what was void, as far as its leader's log goes back.

        Where it begins before that, it may hold other records there until it has heard of the leader's log
        start; the leader has deleted its own, and knows no epochs of them.
        """
        leader = self.leader
        if leader is not None and self.difference(replica, leader.log_start) is not None:
            replica.deleted_before = max(replica.deleted_before, leader.log_start)
        replica.excuse_no_longer()

    def forget_what_came_back(self, leader: int) -> None:
        """Where a power cut gave a new leader back what was deleted, nobody is held to what was there."""
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
