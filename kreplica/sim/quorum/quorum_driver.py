"""QuorumDriver: a quorum alone under random load and faults from one seed, with every invariant checked.

The seed decides the number of members and the parameters of the run. After the faults there must be one
leader, every member must have all that is committed, and every caller must be answered. Thread rule: one
thread.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Container, Iterator

from kreplica.common.errors import BufferExhausted, IllegalSnapshotId, NotLeader, UnexpectedEpoch
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.raft.voter_set import ReplicaKey
from kreplica.sim.driver import Driver
from kreplica.sim.faults import CALM
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.load import Load
from kreplica.sim.quorum.quorum_checker import QuorumObserver
from kreplica.sim.quorum.quorum_faults import LostMajority, QuorumFaults, QuorumOperator
from kreplica.sim.quorum.sim_quorum import QuorumNode, SimQuorum
from kreplica.sim.story import QuorumStory, Story

# After this many fetch timeouts a member would have asked for another change.
SETTLED_FETCH_TIMEOUTS = 4
EXPECTED = (
    *("acknowledged", "rejected", "elected", "pre-votes", "candidates", "resigned", "truncations"),
    *("snapshots", "snapshots installed", "logs begun anew", "voters added", "voters removed"),
    *("kills", "power cuts", "splits", "one-way cuts", "two-way cuts", "pauses", "date jumps"),
    *("shutdowns in order", "bad networks", "pages written back", "slow disks", "connections broken"),
    *("disks replaced", "voters wiped", "starts refused", "snapshots refused", "stopped for good"),
    *("messages lost", "messages duplicated", "joined", "moved"),
)


class QuorumLoad(Load):
    """The clients of a quorum: appends, snapshots, and the operator's changes of voters and endpoints."""

    def __init__(
        self, checker: QuorumObserver, operator: QuorumOperator, counts: Counter[str], random: random.Random
    ) -> None:
        super().__init__(lambda callback: callback, counts, random)
        self._quorum = checker.quorum
        self._checker = checker
        self._operator = operator
        self._values = 0
        self.kinds = {self._append: 80, self._snapshot: 10, self._move: 3, operator.change_voters: 7}

    def _move(self) -> None:
        if self._quorum.setup.endpoints:
            self._operator.move_a_node()
        else:
            self._operator.change_voters()

    def _append(self) -> None:
        leading = [i for i in self._quorum.alive if self._quorum.client(i).leader_and_epoch.leader_id == i]
        if not leading:
            return
        node = self._quorum.node(self._random.choice(leading))
        epoch = node.client.leader_and_epoch.epoch
        count = self._random.choice((1, 1, 1, 2, 4))
        values = [f"v{number}" for number in range(self._values + 1, self._values + 1 + count)]
        self._values += count
        try:
            last = self._quorum.append(node.node_id, *values)
        except (NotLeader, UnexpectedEpoch, BufferExhausted):
            return
        for offset, value in enumerate(values, last - count + 1):
            self._checker.appended(node, epoch, offset, value)

    def _snapshot(self) -> None:
        alive = self._quorum.alive
        if not alive:
            return
        node = self._quorum.node(self._random.choice(alive))
        if node.applied.offset == 0:
            return
        if self._random.random() < 0.3:
            self._snapshot_elsewhere(node)
            return
        try:
            node.snapshot()
        except IllegalSnapshotId:
            # It has this snapshot already.
            return
        self._counts["snapshots"] += 1

    def _snapshot_elsewhere(self, node: QuorumNode) -> None:
        """Ask for a snapshot at a random offset and epoch; it is legal only at the end of a committed batch,
        with that batch's epoch (KAFKA-14618)."""
        end = self._random.randrange(node.applied.offset + 3)
        epoch = node.log.epoch_before(end) or 0
        epoch += self._random.choice((0, 0, 0, 1, -1))
        known = self._checker.values
        fact = self._checker.views[node.node_id].fact_at(end)
        is_batch = fact is not None and fact.epoch == epoch
        is_legal = is_batch and node.log.start_offset < end <= node.log.high_watermark
        if is_legal and end > node.applied.offset:
            # It is committed there, but the node has not applied it: no program has the values yet.
            return
        try:
            node.snapshot(OffsetAndEpoch(end, epoch), [known[at] for at in sorted(known) if at < end])
        except IllegalSnapshotId:
            self._counts["snapshots refused"] += 1
            return
        self._counts["snapshots"] += 1
        if not is_legal:
            made = f"node {node.node_id} makes one at {end} of epoch {epoch}"
            raise InvariantViolated("LegalSnapshot", made)


class QuorumDriver(Driver):
    """One random run of a quorum alone."""

    EXPECTED = EXPECTED
    # The time of several elections, and longer than any request waits.
    HEALED_WITHIN_MS = 4_000
    LOOK_MS = 20
    cluster: SimQuorum

    def __init__(self, seed: int, *, without: Container[int] = ()) -> None:
        super().__init__(seed, without)
        drawn = self._drawn = random.Random(f"{seed}/workload")
        cluster = self.cluster = SimQuorum(
            drawn.choice((1, 3, 3, 3, 5, 5)),
            drawn.choice((0, 1, 2)),
            seed=seed,
            dynamic=drawn.random() < 0.75,
            conditions=CALM,
        )
        self.operation_every_ms = drawn.choice((5, 20, 60))
        self.fault_every_ms = drawn.choice((40, 120, 400))
        self._let_some_join_or_not()
        self.checker = QuorumObserver(cluster, self.counts)
        self._operator = QuorumOperator(self.checker, self.actions.random, self.counts)
        self.load = QuorumLoad(self.checker, self._operator, self.counts, self.actions.random)
        self.faults = QuorumFaults(cluster, self._operator, self.counts, self.actions.random)
        cluster.start()
        self.checker.check()

    def _let_some_join_or_not(self) -> None:
        """In some runs let members join on their own, have endpoints, or be brokers that must not vote."""
        setup, members = self.cluster.setup, sorted(self.cluster.machines)
        observers = [node_id for node_id in members if node_id not in setup.voters.voters]
        if self._drawn.random() < 0.4:
            setup.brokers.update(observers[:1])
        if setup.voters.supports(1) and self._drawn.random() < 0.4:
            setup.auto_join.update(set(members) - setup.brokers)
            for node_id in members:
                setup.move(node_id, 9_093)

    def story(self) -> Story:
        return QuorumStory(self.cluster)

    def healed(self) -> None:
        if self.cluster.setup.auto_join:
            self._require_voters_stay()
        if self._operator.replace_static_disks():
            # Members must get everything again, from a leader that may be the same.
            self.require_well()

    def finish(self) -> None:
        if self._operator.is_static and len(self.cluster.setup.voters) > 1 and self._drawn.random() < 0.5:
            self.counts["stopped for good"] += LostMajority(self.checker, self._drawn).run()

    def _require_voters_stay(self) -> None:
        """Check that the voters stay the same: no member leaves and joins again forever."""
        before = self._voters_offset()
        self.cluster.pass_time(SETTLED_FETCH_TIMEOUTS * self.cluster.setup.config.quorum_fetch_timeout_ms)
        if self._voters_offset() != before:
            raise InvariantViolated(
                "VotersSettle", f"all is well, and the voters changed at {before} and {self._voters_offset()}"
            )

    def _voters_offset(self) -> int:
        leader = self.cluster.leader
        return -1 if leader is None else self.cluster.client(leader).voters_offset

    # ---- after the faults ---------------------------------------------------------------------------------

    def ails(self) -> Iterator[str]:
        leader = self.cluster.leader
        if leader is None:
            yield from ("no leader", *map(str, self.checker.views.values()))
            return
        client = self.cluster.client(leader)
        if client.high_watermark != client.log.end_offset:
            yield f"the leader {leader} has committed {client.high_watermark}"
        for node_id in self.cluster.machines:
            if node_id not in self.cluster.alive:
                yield f"node {node_id} is down"
                continue
            other = self.cluster.client(node_id)
            if other.leader_and_epoch != client.leader_and_epoch:
                yield f"node {node_id} follows {other.leader_and_epoch}"
            if other.log.end_offset != client.log.end_offset:
                yield f"node {node_id} ends at {other.log.end_offset}"
        yield from self._membership_ails(leader)
        yield from self.checker.missing(self.cluster.alive)
        yield from (f"{value} waits" for value in self.checker.pending)
        if self._operator.waiting:
            yield f"{self._operator.waiting} changes of the voters wait"

    def _membership_ails(self, leader: int) -> Iterator[str]:
        """Yield which nodes should vote and do not, and which voters have a wrong endpoint in their record.

        A leader does not update its own record, but passes it on when another one leads.
        """
        setup, voters = self.cluster.setup, self.cluster.client(leader).voters
        joined = True
        for node_id in sorted(setup.auto_join):
            key = ReplicaKey(node_id, setup.directory_ids[node_id])
            if not voters.contains(key):
                joined = False
                yield f"node {node_id} is no voter of {voters!r}"
            elif node_id != leader and voters.voters[node_id].endpoints != setup.endpoints_of(node_id):
                joined = False
                yield f"node {node_id} is said to listen at {voters.voters[node_id].endpoints}"
        if setup.auto_join and joined:
            self.counts["joined"] += len(set(voters.voters) - set(setup.voters.voters))
