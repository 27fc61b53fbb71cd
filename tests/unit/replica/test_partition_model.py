"""Three replicas under random roles, fetches, delays, restarts, clean elections: nothing committed is lost.

The controller is a few lines here: it hands out LeaderAndIsr, which each broker hears whenever it likes, and
answers AlterPartition by the rules that matter. Every message may be delayed, dropped or overtaken.
"""

from __future__ import annotations

import contextlib

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kreplica.common import errors
from kreplica.common.leader_and_isr import LeaderAndIsr
from kreplica.replica.partition import Partition
from kreplica.replica.partition_state import IsrChangeProposed, LogReadInfo, PartitionEffects
from tests.support.batches import build
from tests.support.partitions import (
    FETCH_BYTES,
    LAG_MS,
    Node,
    Replicas,
    append_as_follower,
    append_as_leader,
    truncation_offset,
)

IDS = st.sampled_from([1, 2, 3])
REFUSED = (
    errors.NotLeaderOrFollower,
    errors.FencedLeaderEpoch,
    errors.UnknownLeaderEpoch,
    errors.OffsetOutOfRange,
    errors.OffsetsOutOfOrder,
)


class ReplicaMachine(RuleBasedStateMachine):
    """The parts of a small cluster, and what a client was promised."""

    min_insync_replicas = 1

    def __init__(self) -> None:
        super().__init__()
        self.replicas = Replicas(3, min_insync_replicas=self.min_insync_replicas)
        self.value = 0
        self.committed: list[tuple[int, bytes | None]] = []
        self.proposals: list[tuple[Partition, IsrChangeProposed]] = []
        self.answers: list[tuple[Partition, IsrChangeProposed, LeaderAndIsr | errors.KreplicaError]] = []
        self.reads: list[tuple[int, Partition, LogReadInfo, int]] = []
        self.last_reads: dict[int, LogReadInfo] = {}
        self.marks: dict[int, tuple[Partition, int, int]] = {}

    @initialize()
    def begin(self) -> None:
        self.replicas.lead(1)

    def node(self, broker_id: int) -> Node:
        return self.replicas.node(broker_id)

    def act_on(self, partition: Partition, effects: PartitionEffects) -> None:
        if effects.isr_change is not None:
            self.proposals.append((partition, effects.isr_change))

    # ---- clients ----------------------------------------------------------------------------------------

    @rule(broker_id=IDS, acks=st.sampled_from([1, -1]))
    def append(self, broker_id: int, acks: int) -> None:
        self.value += 1
        records = build([b"%d" % self.value], now_ms=self.replicas.clock.now_ms)
        with contextlib.suppress(errors.NotLeaderOrFollower, errors.NotEnoughReplicas):
            append_as_leader(self.node(broker_id).partition, records, required_acks=acks)

    @rule(some=st.integers(1, 2 * LAG_MS))
    def wait(self, some: int) -> None:
        self.replicas.clock.now_ms += some

    # ---- followers --------------------------------------------------------------------------------------

    @rule(follower=IDS, completes=st.booleans())
    def fetch(self, follower: int, completes: bool) -> None:
        """Fetch from the broker that the follower takes for its leader, which may no longer lead."""
        node = self.node(follower)
        leader = node.partition.leader
        if leader in (-1, follower):
            return
        source, epoch = self.node(leader).partition, node.partition.leader_epoch
        try:
            read = source.fetch_records(
                node.log.log_end_offset,
                FETCH_BYTES,
                isolation="log_end",
                replica_id=follower,
                current_leader_epoch=epoch,
                last_fetched_epoch=node.log.latest_epoch,
            )
            self.reads.append((follower, source, read, self.replicas.brokers.epochs[follower]))
            self.last_reads[follower] = read
        except REFUSED:
            return
        if completes:
            self.note(len(self.reads) - 1)
            self.take(len(self.reads) - 1)

    @rule(follower=IDS, writes=st.booleans())
    def catch_up(self, follower: int, writes: bool) -> None:
        """Fetches without a delay between, so that a run comes somewhere."""
        if writes:
            self.append(self.replicas.known.leader, 1)
        for _ in range(3):
            self.fetch(follower, True)

    @precondition(lambda self: self.reads)
    @rule(which=st.integers(0, 1_000))
    def note(self, which: int) -> None:
        follower, leader, read, broker_epoch = self.reads[which % len(self.reads)]
        try:
            effects = leader.update_follower_fetch_state(
                follower, read, 0, self.replicas.clock.now_ms, broker_epoch
            )
        except errors.NotLeaderOrFollower:
            return
        self.act_on(leader, effects)

    @precondition(lambda self: self.reads)
    @rule(which=st.integers(0, 1_000))
    def take(self, which: int) -> None:
        follower, _, read, broker_epoch = self.reads.pop(which % len(self.reads))
        node = self.node(follower)
        if (
            broker_epoch != self.replicas.brokers.epochs[follower]
            or read is not self.last_reads[follower]
            or read.leader_epoch != node.partition.leader_epoch
            or read.fetch_offset != node.log.log_end_offset
        ):
            # A fetcher has one request in flight, and drops what it did not ask for in its present state.
            return
        partition = node.partition
        if read.diverging_epoch is not None:
            partition.truncate_to(truncation_offset(node.log, *read.diverging_epoch))
            return
        if read.records is not None:
            append_as_follower(partition, read.records, read.leader_epoch)
        partition.update_follower_high_watermark(read.high_watermark, read.leader_epoch)

    # ---- the controller ---------------------------------------------------------------------------------

    @rule(broker_id=IDS)
    def expire(self, broker_id: int) -> None:
        partition = self.node(broker_id).partition
        self.act_on(partition, partition.maybe_shrink_isr(self.replicas.clock.now_ms))

    @precondition(lambda self: self.proposals)
    @rule(which=st.integers(0, 1_000), is_lost=st.booleans(), is_answered=st.booleans())
    def decide(self, which: int, is_lost: bool, is_answered: bool) -> None:
        partition, proposed = self.proposals.pop(which % len(self.proposals))
        answer = self.controllers_answer(proposed)
        if is_lost:
            # The request is sent again, and finds its own change made.
            self.proposals.append((partition, proposed))
        elif is_answered:
            self.answers.append((partition, proposed, answer))
            self.answer(len(self.answers) - 1)
        else:
            self.answers.append((partition, proposed, answer))

    def controllers_answer(self, proposed: IsrChangeProposed) -> LeaderAndIsr | errors.KreplicaError:
        wanted, known, epochs = proposed.leader_and_isr, self.replicas.known, self.replicas.brokers.epochs
        if wanted.leader_epoch < known.leader_epoch:
            return errors.FencedLeaderEpoch()
        if wanted.partition_epoch < known.partition_epoch:
            return errors.InvalidUpdateVersion()
        registered = zip(wanted.isr, proposed.isr_broker_epochs, strict=True)
        if any(epoch not in (-1, epochs[broker_id]) for broker_id, epoch in registered):
            return errors.IneligibleReplica()
        return self.replicas.commit(proposed)

    @precondition(lambda self: self.answers)
    @rule(which=st.integers(0, 1_000))
    def answer(self, which: int) -> None:
        partition, proposed, answer = self.answers.pop(which % len(self.answers))
        self.act_on(partition, partition.handle_alter_partition_response(proposed.pending, answer))

    @rule(broker_id=IDS)
    def hear(self, broker_id: int) -> None:
        became = self.replicas.notify(broker_id)
        if not isinstance(became, bool):
            self.act_on(self.node(broker_id).partition, became.effects)

    @rule()
    def all_hear(self) -> None:
        for broker_id in self.replicas.ids:
            self.hear(broker_id)

    @precondition(lambda self: self.proposals)
    @rule()
    def decide_all(self) -> None:
        while self.proposals:
            self.decide(0, False, True)

    @rule(broker_id=IDS, is_heard=st.booleans())
    def elect(self, broker_id: int, is_heard: bool) -> None:
        if broker_id in self.replicas.known.isr:
            self.replicas.decide(leader=broker_id)
            if is_heard:
                self.all_hear()

    @rule(broker_id=IDS, power_cut=st.booleans())
    def restart(self, broker_id: int, power_cut: bool) -> None:
        """Register anew: the controller takes the broker out of the ISR, unless it is the only member."""
        known, node = self.replicas.known, self.node(broker_id)
        others = tuple(each for each in known.isr if each != broker_id)
        mark = 0 if power_cut else node.log.high_watermark
        if others:
            leader = {"leader": others[0]} if known.leader == broker_id else {}
            self.replicas.decide(isr=others, **leader)
        elif power_cut:
            return  # the last one that has it all
        elif known.leader == broker_id:
            self.replicas.decide(leader=broker_id)
        node.restart(power_cut=power_cut, high_watermark=mark)
        self.proposals = [each for each in self.proposals if each[0].broker_id != broker_id]
        self.answers = [each for each in self.answers if each[0].broker_id != broker_id]
        self.reads = [each for each in self.reads if each[1].broker_id != broker_id]

    # ---- what must hold ---------------------------------------------------------------------------------

    @invariant()
    def what_is_committed_stays(self) -> None:
        logs = {broker_id: node.records() for broker_id, node in self.replicas.nodes.items()}
        for broker_id, node in self.replicas.nodes.items():
            prefix = [record for record in logs[broker_id] if record[0] < node.log.high_watermark]
            shared = min(len(prefix), len(self.committed))
            assert prefix[:shared] == self.committed[:shared], (broker_id, prefix, self.committed)
            if node.partition.is_leader and len(prefix) > len(self.committed):
                self.committed = prefix
        for broker_id in self.replicas.known.isr:
            assert logs[broker_id][: len(self.committed)] == self.committed, (broker_id, self.replicas.known)

    @invariant()
    def marks_and_epochs_do_not_go_back(self) -> None:
        for broker_id, node in self.replicas.nodes.items():
            mark, epoch = node.log.high_watermark, node.partition.leader_epoch
            assert node.log.log_start_offset <= mark <= node.log.log_end_offset
            partition, former_mark, former_epoch = self.marks.get(broker_id, (None, 0, -1))
            if partition is node.partition:
                assert mark >= former_mark
                assert epoch >= former_epoch
            self.marks[broker_id] = (node.partition, mark, epoch)

    @invariant()
    def the_maximal_isr_holds_the_controllers(self) -> None:
        known = self.replicas.known
        leader = self.node(known.leader).partition if known.leader > 0 else None
        if leader is None or not leader.is_leader or leader.leader_epoch != known.leader_epoch:
            return
        state = leader.state
        if leader.partition_epoch == known.partition_epoch and not state.is_inflight:
            assert set(state.isr) == set(known.isr)
        # The controller may have removed a member that the leader still counts, but it adds none unasked.
        assert set(known.isr) <= set(state.maximal_isr)
        assert known.leader in state.isr

    @invariant()
    def a_watermark_is_the_high_watermark(self) -> None:
        for node in self.replicas.nodes.values():
            mark = node.partition.watermark
            assert mark.closed != node.partition.is_leader
            if node.partition.is_leader:
                assert mark.value == node.log.high_watermark


class MinIsrMachine(ReplicaMachine):
    min_insync_replicas = 2


TestReplicas = ReplicaMachine.TestCase
TestReplicas.settings = settings(max_examples=50, stateful_step_count=60)
TestReplicasUnderMinIsr = MinIsrMachine.TestCase
TestReplicasUnderMinIsr.settings = settings(max_examples=30, stateful_step_count=60)
