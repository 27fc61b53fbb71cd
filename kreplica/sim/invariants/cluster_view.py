"""ClusterView: what is true of a simulated cluster, for the invariants to compare with what is promised.

For each partition it knows the committed log: what the replicas that had a high watermark at an offset held
below it. `look` brings it up to date after an event and tells which partitions are touched; it costs what has
changed, not what there is.

An election may void what was committed: an unclean one, or that of the last replica in sync after a power cut
took from its log. The committed log is cut to what the new leader holds, when it is elected and once more
when it begins to lead, since it may be cut by the leader before until then. The others are excused from there
on until they have cut off what is void, at the latest when the controller takes them into the ISR again.
Thread rule: one thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from kreplica.common.leader_and_isr import NO_LEADER, LeaderAndIsr
from kreplica.common.types import TopicPartition, Uuid
from kreplica.log.checkpoint import REPLICATION_CHECKPOINT
from kreplica.sim.invariants.controllers_word import ControllersWord
from kreplica.sim.invariants.replica_view import Cell, ReplicaView
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.node import DIRECTORY, SimBroker

MARKS = f"{DIRECTORY}/{REPLICATION_CHECKPOINT}"


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


class ClusterView:
    """The view of `brokers`, of all partitions that `word`, their controller's, speaks of."""

    def __init__(self, brokers: Mapping[int, SimBroker], word: ControllersWord) -> None:
        self.brokers = brokers
        self.word = word
        self.partitions: dict[TopicPartition, PartitionView] = {}
        self._noted: dict[TopicPartition, PartitionView] = {}  # what was seen between two events
        self._lives: dict[int, int] = {}  # the number of the life that was last seen, by broker
        # The epoch in which each broker's life is registered, -1 in none yet; and that of the life before.
        self._epochs: dict[int, int] = {}
        self._former_epochs: dict[int, int] = {}

    def look(self, broker_ids: Iterable[int] | None = None) -> list[PartitionView]:
        """See what has changed on these brokers (None: on all), and what was decided: the partitions that
        this touched."""
        touched, self._noted = self._noted, {}
        # What a new leader holds has to be known when it is elected.
        for broker_id in self.brokers if broker_ids is None else broker_ids:
            for view in self._look_at(broker_id):
                touched[view.topic_partition] = view
        for view in self._decisions():
            touched[view.topic_partition] = view
        for view in touched.values():
            view.taken_over()
        return [view for at, view in touched.items() if self.partitions.get(at) is view]

    def note_decisions(self) -> None:
        """See what was decided, and how the brokers stand now: where one event has several decisions, each of
        them counts."""
        for broker_id in self.brokers:
            for view in self._look_at(broker_id):
                self._noted[view.topic_partition] = view
        for view in self._decisions():
            self._noted[view.topic_partition] = view

    def done(self, touched: Iterable[PartitionView]) -> None:
        """The touched partitions were checked: what comes next is compared with how they are now."""
        for view in touched:
            view.changed.clear()
            view.was_decided = False

    def acknowledged(
        self, topic_partition: TopicPartition, offset: int, values: Sequence[bytes | None]
    ) -> None:
        """A producer was told that its values are committed, the first one at `offset`."""
        view = self.partitions[topic_partition]
        for at, value in enumerate(values, offset):
            view.acked[at] = value
            view.acks_to_check.append(at)

    def consumed(
        self, topic_partition: TopicPartition, records: Sequence[tuple[int, int, bytes | None]]
    ) -> None:
        """A consumer was given records: (offset, leader epoch, value) of each. Raises InvariantViolated where
        one is not what is committed there."""
        view = self.partitions[topic_partition]
        for offset, epoch, value in records:
            if offset < len(view.committed) and view.committed[offset] is None:
                # Below where the first to get there began, or what a power cut brought back.
                continue
            cell = view.committed[offset] if offset < len(view.committed) else None
            found = Cell(epoch, 0 if cell is None else cell.crc, value)
            if cell is None or found != cell:
                raise InvariantViolated(
                    "ConsistentRead",
                    f"a consumer got {value!r} at offset {offset}, committed is {cell}; {view}",
                )
            view.consumed[offset] = cell
            view.reads_to_check.append(offset)

    # ---- within -------------------------------------------------------------------------------------------

    def _decisions(self) -> Iterator[PartitionView]:
        for at, state in self.word.decisions():
            view = self.partitions.get(at)
            if view is not None and (state is None or view.topic_id != state.topic_id):
                del self.partitions[at]
                view = None
            if state is None:
                continue
            if view is None:
                view = self.partitions[at] = PartitionView(at, state.topic_id)
                for broker_id in self.brokers:
                    self._add_replica(view, broker_id)
            needed = min(self.word.min_insync_replicas(at.topic), len(state.replicas))
            view.least_min_isr = min(view.least_min_isr, needed)
            self._decided(view, state)
            yield view

    def _decided(self, view: PartitionView, state: LeaderAndIsr) -> None:
        former, leader = view.decided, state.leader
        view.former, view.decided = former, state
        view.was_decided = True
        is_elected = former is not None and state.leader_epoch != former.leader_epoch
        if is_elected and leader != NO_LEADER and self.word.makes_void(view, state):
            # What it holds now: it may have come back since the last look.
            self._look_at_one(view, leader)
            view.void(leader, state.leader_epoch)
            view.members.pop(leader, None)
        view.forget_what_came_back(leader)
        self._note_members(view, state)

    def _note_members(self, view: PartitionView, state: LeaderAndIsr) -> None:
        epochs = self.word.broker_epochs
        before = {**view.eligible, **view.members}
        # A new leader's ISR is as of now; one that the leader asked for keeps who was in it.
        view.members = {each: before.get(each, epochs.get(each, -1)) for each in state.isr}
        view.eligible = {each: before.get(each, epochs.get(each, -1)) for each in state.elr}
        view.members_at[state.partition_epoch] = view.members
        for broker_id in state.isr:
            replica = view.replicas.get(broker_id)
            if replica is None or broker_id in before:
                continue
            replica.is_anew = False
            if not view.is_awaited and replica.broker_epoch == epochs.get(broker_id):
                view.trust(replica)

    def _look_at(self, broker_id: int) -> Iterator[PartitionView]:
        broker = self.brokers[broker_id]
        number = broker.life.number if broker.is_alive else -broker.life.number
        former = self._lives.get(broker_id, 0)
        is_new = former != number
        self._lives[broker_id] = number
        epoch = self.word.epoch_of(broker_id, broker.program) if broker.is_alive else -1
        if broker.is_alive:
            self._note_epoch(broker_id, epoch, is_new=is_new)
        for view in self.partitions.values():
            replica = view.replicas.get(broker_id)
            if replica is None:
                replica = self._add_replica(view, broker_id)
            elif is_new and broker.is_alive:
                if former > 0:
                    # It was down and up again in one event.
                    replica.end(lost=broker.lost_power)
                replica.begin(broker.program, has_marks=broker.storage.exists(MARKS))
            elif is_new:
                replica.end(lost=broker.lost_power)
            if broker.is_alive:
                replica.broker_epoch = epoch
            if self._see(view, replica) or is_new:
                yield view

    def _note_epoch(self, broker_id: int, epoch: int, *, is_new: bool) -> None:
        if is_new:
            self._former_epochs[broker_id] = self._epochs.get(broker_id, -1)
            self._epochs[broker_id] = -1
        if epoch == self._epochs[broker_id]:
            return
        former = self._former_epochs[broker_id]
        if self._epochs[broker_id] == -1 != former and self.brokers[broker_id].was_stopped:
            for view in self.partitions.values():
                view.goes_on(broker_id, former, epoch)
        self._epochs[broker_id] = epoch

    def _look_at_one(self, view: PartitionView, broker_id: int) -> None:
        replica = view.replicas.get(broker_id)
        if replica is not None:
            self._see(view, replica)

    def _add_replica(self, view: PartitionView, broker_id: int) -> ReplicaView:
        broker = self.brokers[broker_id]
        replica = view.replicas[broker_id] = ReplicaView(broker_id, view.topic_partition, view.topic_id)
        if broker.is_alive:
            replica.begin(broker.program)
            replica.broker_epoch = self.word.epoch_of(broker_id, broker.program)
            self._see(view, replica)
        return replica

    def _see(self, view: PartitionView, replica: ReplicaView) -> bool:
        changed = replica.look()
        if replica.is_leader and len(replica.member_epochs) != len(replica.isr):
            # It may hear of its ISR long after that was decided; a script's word may be nobody's
            # decision.
            epochs = self.word.broker_epochs
            decided = view.members_at.get(replica.partition.partition_epoch, {})
            for each in replica.isr:
                replica.member_epochs[each] = decided.get(each, epochs.get(each, -1))
        if changed and replica not in view.changed:
            view.changed.append(replica)
        return changed
