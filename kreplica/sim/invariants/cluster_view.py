"""ClusterView: what is true of a simulated cluster, for the invariants to compare with what is promised.

For each partition it knows the committed log: what the replicas that had a high watermark at an offset held
below it. `look` brings it up to date after an event and tells which partitions are touched; it costs what has
changed, not what there is. An unclean election may void what was committed: the log is cut to what the new
leader holds, and replicas that hold more are excused until they have cut it off. Thread rule: one thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from kreplica.common.leader_and_isr import NO_LEADER, LeaderAndIsr, LeaderRecoveryState
from kreplica.common.types import TopicPartition
from kreplica.sim.cluster import SimCluster
from kreplica.sim.invariants.replica_view import Cell, ReplicaView
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.scheduler import WORLD, SimEvent


class PartitionView:
    """One partition: its replicas by broker, the controller's word, and what is committed, acknowledged and
    read.

    `unclean_epoch`: the leader epoch of the last unclean election, -1 if there was none. `members`: the
    broker epoch in which each member of the controller's ISR came into it; a member that was started anew
    since does not count.
    """

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.replicas: dict[int, ReplicaView] = {}
        self.decided: LeaderAndIsr | None = None
        self.former: LeaderAndIsr | None = None  # what was decided before the last change
        self.members: dict[int, int] = {}
        self.unclean_epoch = -1
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

    def leaders(self) -> Iterator[ReplicaView]:
        """All that believe they lead, but for those that an unclean election has made void."""
        for replica in self.replicas.values():
            if replica.is_leader and replica.leader_epoch >= self.unclean_epoch:
                yield replica

    def counted(self, members: Mapping[int, int]) -> Iterator[ReplicaView]:
        """Of the members of an ISR those that run, in the life in which they became members."""
        for broker_id, broker_epoch in members.items():
            replica = self.replicas.get(broker_id)
            if replica is None or replica.log is None or replica.excused:
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
        start = max(replica.agreed, replica.log_start)
        if cells[start:end] != self.committed[start:end] and self.difference(replica, end) is not None:
            return False
        replica.agreed = end
        return True

    def difference(self, replica: ReplicaView, end: int) -> int | None:
        """The first offset below `end` at which the replica holds another record than what is committed."""
        cells, committed = replica.cells, self.committed
        for offset in range(max(replica.agreed, replica.log_start), min(end, len(cells), len(committed))):
            ours, theirs = cells[offset], committed[offset]
            if ours != theirs and ours is not None and theirs is not None:
                return offset
        return None

    def commit(self, replica: ReplicaView) -> None:
        """What the replica holds below its high watermark is committed."""
        end = min(replica.high_watermark, len(replica.cells))
        if end > len(self.committed) and replica.leader_epoch >= self.unclean_epoch and not replica.excused:
            self.committed += replica.cells[len(self.committed) : end]

    def void(self, leader: int, epoch: int) -> None:
        """`leader` was elected though it was not in sync: what it does not hold is not committed any more."""
        self.unclean_epoch = epoch
        chosen = self.replicas.get(leader)
        kept = 0
        if chosen is not None:
            at = self.difference(chosen, len(self.committed))
            kept = min(len(self.committed), len(chosen.cells) if at is None else at)
        del self.committed[kept:]
        for offset in [offset for offset in self.acked if offset >= kept]:
            del self.acked[offset]
        self.acks_to_check.clear()
        for offset in [offset for offset in self.consumed if offset >= kept]:
            del self.consumed[offset]
        self.reads_to_check.clear()
        for replica in self.replicas.values():
            replica.agreed = min(replica.agreed, kept)
            # Of one that is down nobody knows what it will find on its disk.
            replica.excused = replica.broker_id != leader


class ClusterView:
    """The view of `cluster`, of all partitions that its controller knows."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.partitions: dict[TopicPartition, PartitionView] = {}
        self._lives: dict[int, int] = {}  # the number of the life that was last seen, by broker

    def look(self, event: SimEvent | None) -> list[PartitionView]:
        """See what the event has changed (None: whatever has): the partitions that it touched."""
        touched: dict[TopicPartition, PartitionView] = {}
        for view in self._decisions():
            touched[view.topic_partition] = view
        node_id = WORLD if event is None else event.node_id
        brokers = self.cluster.brokers
        for broker_id in brokers if node_id not in brokers else (node_id,):
            for view in self._look_at(broker_id):
                touched[view.topic_partition] = view
        return list(touched.values())

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
        it was given another one at the offset before, or one that is not committed."""
        view = self.partitions[topic_partition]
        for offset, epoch, value in records:
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
        controller = self.cluster.controller
        for topic_partition, state in controller.partitions.items():
            view = self.partitions.get(topic_partition)
            if view is None:
                view = self.partitions[topic_partition] = PartitionView(topic_partition)
            if state is view.decided:
                continue
            view.former, view.decided = view.decided, state
            view.was_decided = True
            self._note_members(view, state)
            if view.former is not None and _is_unclean(view.former, state):
                # What it holds now: it may have come back since the last look.
                yield from self._look_at(state.leader)
                view.void(state.leader, state.leader_epoch)
            yield view

    def _note_members(self, view: PartitionView, state: LeaderAndIsr) -> None:
        epochs = self.cluster.controller.broker_epochs
        before = view.members
        # A new leader's ISR is as of now; one that the leader asked for keeps who was in it.
        view.members = {each: before.get(each, epochs.get(each, -1)) for each in state.isr}

    def _look_at(self, broker_id: int) -> Iterator[PartitionView]:
        broker = self.cluster.brokers[broker_id]
        number = broker.life.number if broker.is_alive else -broker.life.number
        is_new = self._lives.get(broker_id) != number
        self._lives[broker_id] = number
        for view in self.partitions.values():
            replica = view.replicas.get(broker_id)
            if replica is None:
                replica = view.replicas[broker_id] = ReplicaView(broker_id, view.topic_partition)
                if broker.is_alive:
                    replica.begin(broker.program, self.cluster.controller.broker_epochs[broker_id])
            elif is_new and broker.is_alive:
                replica.begin(broker.program, self.cluster.controller.broker_epochs[broker_id])
            elif is_new:
                replica.end(lost=broker.lost_power)
            changed = replica.look()
            if replica.is_leader and len(replica.member_epochs) != len(replica.isr):
                epochs = self.cluster.controller.broker_epochs
                for each in replica.isr:
                    replica.member_epochs.setdefault(each, epochs.get(each, -1))
            if changed or is_new:
                view.changed.append(replica)
                yield view


def _is_unclean(former: LeaderAndIsr, state: LeaderAndIsr) -> bool:
    # Also where the controller says so of a member of the ISR: one that came back with less than it had.
    recovering = LeaderRecoveryState.RECOVERING
    begins_recovery = recovering is state.leader_recovery_state is not former.leader_recovery_state
    was_out_of_sync = state.leader not in (*former.isr, NO_LEADER)
    return state.leader_epoch > former.leader_epoch and (was_out_of_sync or begins_recovery)
