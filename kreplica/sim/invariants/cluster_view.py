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
from typing import Any, Protocol

from kreplica.common.leader_and_isr import NO_LEADER, LeaderAndIsr, LeaderRecoveryState
from kreplica.common.types import TopicPartition, Uuid
from kreplica.log.checkpoint import REPLICATION_CHECKPOINT
from kreplica.sim.controller import ScriptedController
from kreplica.sim.invariants.replica_view import Cell, ReplicaView
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.machines import DIRECTORY, SimBroker

# A partition, and its current state by the controller; None if it no longer exists.
Decision = tuple[TopicPartition, LeaderAndIsr | None]


class ControllersWord(Protocol):
    @property
    def broker_epochs(self) -> Mapping[int, int]:
        """The epoch in which each broker is registered."""
        ...

    def decisions(self) -> Iterator[Decision]:
        """Yield the decisions since the last call, in order."""
        ...

    def epoch_of(self, broker_id: int, program: Any, /) -> int:
        """Return the epoch in which the running broker believes to be registered, -1 for none yet."""
        ...

    def topic_name(self, topic_id: Uuid) -> str | None:
        """Return the name of the topic with that id, None if there is no such topic."""
        ...

    def min_insync_replicas(self, topic: str) -> int:
        """Return the current min.insync.replicas of the topic."""
        ...

    def makes_void(self, view: PartitionView, state: LeaderAndIsr) -> bool:
        """Return whether `state`, which follows `view.former`, elects a leader that may lack committed
        records."""
        ...


class ScriptedWord:
    """The decisions of a ScriptedController."""

    def __init__(self, controller: ScriptedController) -> None:
        self._controller = controller
        self._told: dict[TopicPartition, LeaderAndIsr] = {}

    @property
    def broker_epochs(self) -> Mapping[int, int]:
        return self._controller.broker_epochs

    def decisions(self) -> Iterator[Decision]:
        for topic_partition, state in self._controller.partitions.items():
            if self._told.get(topic_partition) is not state:
                self._told[topic_partition] = state
                yield topic_partition, state

    def epoch_of(self, broker_id: int, _program: Any, /) -> int:
        """Return the epoch; a broker is registered when it starts."""
        return self._controller.broker_epochs.get(broker_id, -1)

    def topic_name(self, topic_id: Uuid) -> str | None:
        return self._controller.topic_name(topic_id)

    def min_insync_replicas(self, topic: str) -> int:
        return self._controller.topics[topic].config.min_insync_replicas

    def makes_void(self, view: PartitionView, state: LeaderAndIsr) -> bool:
        """Return whether the election was unclean, or elected from an ISR whose members have all lost data.

        If another member of the ISR is whole, nothing is excused.
        """
        former = view.former
        assert former is not None
        recovering = LeaderRecoveryState.RECOVERING
        if (
            state.leader not in former.isr
            or recovering is state.leader_recovery_state is not former.leader_recovery_state
        ):
            return True
        return all(view.replicas[each].is_harmed for each in former.isr)


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

    def leaders(self) -> list[ReplicaView]:
        """Return all replicas that believe to lead."""
        return [replica for replica in self.replicas.values() if replica.is_leader]

    def counted(self, members: Mapping[int, int]) -> list[ReplicaView]:
        """Return the members of an ISR that still run in the life in which they joined it."""
        # Until it begins to lead, the previous leader may still truncate its log.
        awaited = self.decided.leader if self.is_awaited and self.decided is not None else None
        replicas, found = self.replicas, []
        for broker_id, broker_epoch in members.items():
            replica = replicas.get(broker_id)
            if (
                replica is not None
                and replica.broker_epoch == broker_epoch
                and replica.is_running
                and replica.log is not None
                and broker_id != awaited
            ):
                found.append(replica)
        return found

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

    def ailment(self) -> str | None:
        """Return what is wrong with the partition while no fault is left, None if it is well."""
        leader, decided = self.leader, self.decided
        if leader is None or decided is None:
            return f"no leader; {self}"
        if len(decided.isr) < len(decided.replicas) or decided.elr:
            return f"the ISR is not full: {decided.isr}, ELR {decided.elr}, {leader.partition.state}; {self}"
        if decided.adding_replicas or decided.removing_replicas:
            return f"a reassignment is under way: {decided}; {self}"
        if leader.partition.state.is_inflight:
            return f"an AlterPartition is under way; {self}"
        replicas = [self.replicas[each] for each in decided.replicas]
        if {(each.log_end, each.high_watermark) for each in replicas} != {(leader.log_end, leader.log_end)}:
            return f"the replicas do not end together; {self}"
        # Records that another replica has deleted can no longer be fetched, but a leader's readers need them.
        start = max(each.log_start for each in replicas)
        for each in replicas:
            needed = leader.log_start if each is leader else start
            if any(damage.stop_offset > needed for damage in each.damages):
                return f"a range is damaged; {self}"
        if any(each.is_excused for each in replicas):
            return f"a replica has not come back to the committed log; {self}"
        return None

    def inequality(self) -> str | None:
        """Return how the replicas' logs differ, None if they are byte-equal."""
        logs = [replica.log for replica in self.replicas.values() if replica.log is not None]
        start = max(log.log_start_offset for log in logs)
        # A batch that begins earlier may have been removed with deleted records.
        first, *others = (
            [bytes(batch) for batch in log.batches(start) if batch.base_offset >= start] for log in logs
        )
        if any(other != first for other in others):
            return f"the replicas are not byte-equal from {start} on; {self}"
        return None


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

    def ails(self) -> Iterator[str]:
        """Yield what is wrong with brokers and partitions while no fault is left; nothing if all is well."""
        for broker_id, broker in self.brokers.items():
            if broker.program is None:
                continue
            # Followers' fetches always wait.
            delayed = broker.program.replica_manager.delayed
            for purgatory in (delayed.produce, delayed.delete_records):
                if purgatory.delayed:
                    yield f"{purgatory.delayed} operations wait at broker {broker_id}"
        for view in self.partitions.values():
            ailment = view.ailment()
            if ailment is not None:
                yield ailment

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
        is_alive = broker.is_alive
        epoch = self.word.epoch_of(broker_id, broker.program) if is_alive else -1
        if is_alive:
            self._note_epoch(broker_id, epoch, is_new=is_new)
        for view in self.partitions.values():
            replica = view.replicas.get(broker_id)
            if replica is None:
                replica = self._add_replica(view, broker_id)
            elif is_new and is_alive:
                if former > 0:
                    # It went down and up again in one event.
                    replica.end(lost=broker.lost_power)
                replica.begin(broker.program, has_marks=broker.storage.exists(MARKS))
            elif is_new:
                replica.end(lost=broker.lost_power)
            if is_alive:
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
        if not replica.look():
            return False
        if replica.is_leader and len(replica.member_epochs) != len(replica.isr):
            # It may learn of its ISR long after the decision, and a script may set an ISR that was never
            # decided.
            epochs = self.word.broker_epochs
            decided = view.members_at.get(replica.partition.partition_epoch, {})
            for each in replica.isr:
                replica.member_epochs[each] = decided.get(each, epochs.get(each, -1))
        if replica not in view.changed:
            view.changed.append(replica)
        return True
