"""ClusterView: the true state of a simulated cluster, which invariants compare with its guarantees.

For each partition it knows the committed log: what replicas with a high watermark at an offset held below it.
`look` updates the view after an event and returns the touched partitions; its cost depends on what has
changed.

An election may void committed records: an unclean election, or that of the last replica in sync after a power
cut truncated its log. The committed log is then cut to what the new leader holds: at the election, and again
when it begins to lead, since the previous leader may truncate it until then. From there on the other replicas
are excused until they have truncated what is void, at the latest when the controller adds them to the ISR
again. Thread rule: one thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from kreplica.common.leader_and_isr import NO_LEADER, LeaderAndIsr
from kreplica.common.types import TopicPartition
from kreplica.log.checkpoint import REPLICATION_CHECKPOINT
from kreplica.sim.invariants.controllers_word import ControllersWord
from kreplica.sim.invariants.partition_view import PartitionView
from kreplica.sim.invariants.replica_view import Cell, ReplicaView
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.node import DIRECTORY, SimBroker

MARKS = f"{DIRECTORY}/{REPLICATION_CHECKPOINT}"


class ClusterView:
    """The view of `brokers`, of all partitions that the controller's decisions (`word`) mention."""

    def __init__(self, brokers: Mapping[int, SimBroker], word: ControllersWord) -> None:
        self.brokers = brokers
        self.word = word
        self.partitions: dict[TopicPartition, PartitionView] = {}
        self._noted: dict[TopicPartition, PartitionView] = {}  # seen between two events
        self._lives: dict[int, int] = {}  # the number of the last life seen, by broker
        # The epoch in which each broker's life is registered, -1 for none yet; and that of the previous life.
        self._epochs: dict[int, int] = {}
        self._former_epochs: dict[int, int] = {}

    def look(self, broker_ids: Iterable[int] | None = None) -> list[PartitionView]:
        """Update the view of these brokers (None: all) and of the decisions; return the touched
        partitions."""
        touched, self._noted = self._noted, {}
        # The new leader's contents must be known when it is elected.
        for broker_id in self.brokers if broker_ids is None else broker_ids:
            for view in self._look_at(broker_id):
                touched[view.topic_partition] = view
        for view in self._decisions():
            touched[view.topic_partition] = view
        for view in touched.values():
            view.taken_over()
        return [view for at, view in touched.items() if self.partitions.get(at) is view]

    def note_decisions(self) -> None:
        """Take in decisions and the brokers' current state; called if one event has several decisions,
        because each of them counts."""
        for broker_id in self.brokers:
            for view in self._look_at(broker_id):
                self._noted[view.topic_partition] = view
        for view in self._decisions():
            self._noted[view.topic_partition] = view

    def done(self, touched: Iterable[PartitionView]) -> None:
        """Prepare for the next check, which compares with the current state."""
        for view in touched:
            view.changed.clear()
            view.was_decided = False

    def acknowledged(
        self, topic_partition: TopicPartition, offset: int, values: Sequence[bytes | None]
    ) -> None:
        """Record that a producer was notified that its values are committed, the first one at `offset`."""
        view = self.partitions[topic_partition]
        for at, value in enumerate(values, offset):
            view.acked[at] = value
            view.acks_to_check.append(at)

    def consumed(
        self, topic_partition: TopicPartition, records: Sequence[tuple[int, int, bytes | None]]
    ) -> None:
        """Record what a consumer got: (offset, leader epoch, value) of each record.

        Raises InvariantViolated if a record differs from the committed one.
        """
        view = self.partitions[topic_partition]
        for offset, epoch, value in records:
            if offset < len(view.committed) and view.committed[offset] is None:
                # Below the start of the first replica seen there, or brought back by a power cut.
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

    # ---- internals ----------------------------------------------------------------------------------------

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
            # Its current contents: it may have restarted since the last look.
            self._look_at_one(view, leader)
            view.void(leader, state.leader_epoch)
            view.members.pop(leader, None)
        view.forget_what_came_back(leader)
        self._note_members(view, state)

    def _note_members(self, view: PartitionView, state: LeaderAndIsr) -> None:
        epochs = self.word.broker_epochs
        before = {**view.eligible, **view.members}
        # After an election the ISR counts as of now; a leader's proposal keeps the members it had.
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
                    # It went down and up again in one event.
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
            # It may learn of its ISR long after the decision, and a script may set an ISR that was never
            # decided.
            epochs = self.word.broker_epochs
            decided = view.members_at.get(replica.partition.partition_epoch, {})
            for each in replica.isr:
                replica.member_epochs[each] = decided.get(each, epochs.get(each, -1))
        if changed and replica not in view.changed:
            view.changed.append(replica)
        return changed
