"""QuorumDriver: one random run of a quorum alone, with faults, appends, snapshots and voter changes.

The seed decides the number of members and the parameters of the run. Twice the faults end, and within a
bounded time the quorum must be healthy: one leader, every member has all that is committed, every caller was
answered. The same seed gives the same run. Thread rule: one thread.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from kreplica.common.errors import BufferExhausted, IllegalSnapshotId, NotLeader, UnexpectedEpoch
from kreplica.common.ports import NANOSECONDS_PER_MS
from kreplica.common.rare_collections import rare_collections
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.raft.voter_set import ReplicaKey
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.quorum.quorum_checker import QuorumObserver
from kreplica.sim.quorum.quorum_faults import CALM, LostMajority, QuorumFaults, QuorumOperator
from kreplica.sim.quorum.sim_quorum import QuorumNode, SimQuorum

ROUNDS = 2
# The time of several elections, and longer than any request waits.
HEALED_WITHIN_MS = 4_000
LOOKS_EVERY_MS = 20
# After this many fetch timeouts a member would have asked for another change.
SETTLED_FETCH_TIMEOUTS = 4
# What must happen in any large number of runs; see `counts`.
EXPECTED = (
    *("acknowledged", "rejected", "elected", "pre-votes", "candidates", "resigned", "truncations"),
    *("snapshots", "snapshots installed", "logs begun anew", "voters added", "voters removed"),
    *("killed", "power cuts", "partitions", "one-way cuts", "paused", "dates changed", "shutdowns"),
    *("disks replaced", "voters wiped", "starts refused", "snapshots refused", "stopped for good"),
    *("messages lost", "messages twice", "slow disks", "connections lost", "joined", "moved"),
)


class QuorumDriver:
    """One run. `counts` has what happened in it; many runs together must show each of EXPECTED."""

    def __init__(self, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self._random = random.Random(f"{seed}/driver")
        voters = self._random.choice((1, 3, 3, 3, 5, 5))
        self.quorum = SimQuorum(
            voters,
            self._random.choice((0, 1, 2)),
            seed=seed,
            dynamic=self._random.random() < 0.75,
            conditions=CALM,
        )
        self._let_some_join_or_not(random.Random(f"{seed}/membership"))
        self.checker = QuorumObserver(self.quorum, self.counts)
        self._operator = QuorumOperator(self.checker, self._random, self.counts)
        self._faults = QuorumFaults(
            self.quorum, self._random, self.counts, self.checker.forget, self._operator.replace_disk
        )
        self._append_every_ms = self._random.choice((5, 20, 60))
        self._strike_every_ms = self._random.choice((40, 120, 400))
        self._is_calm = True
        self._values = 0
        self.quorum.start()
        self.checker.check()

    def _let_some_join_or_not(self, chance: random.Random) -> None:
        """In some runs let members join on their own, have endpoints, or be brokers that must not vote."""
        setup, members = self.quorum.setup, sorted(self.quorum.machines)
        observers = [node_id for node_id in members if node_id not in setup.voters.voters]
        if chance.random() < 0.4:
            setup.brokers.update(observers[:1])
        if setup.voters.supports(1) and chance.random() < 0.4:
            setup.auto_join.update(set(members) - setup.brokers)
            for node_id in members:
                setup.move(node_id, 9_093)

    @rare_collections()
    def run(self, events: int = 1_500) -> None:
        """Run this number of events, and check that the quorum recovers. Raises InvariantViolated."""
        scheduler = self.quorum.scheduler
        for number in range(ROUNDS):
            self._is_calm = False
            self._later(self._append_every_ms, self._operate)
            self._later(self._strike_every_ms, self._strike)
            while scheduler.events < events * (number + 1) // ROUNDS:
                if scheduler.step() is None:
                    raise AssertionError("nothing is left to happen")
            self._heal()
            if self._operator.replace_static_disks():
                # Members must get everything again, from a leader that may be the same.
                self._heal()
        if self._operator.is_static and len(self.quorum.setup.voters) > 1 and self._random.random() < 0.5:
            self.counts["stopped for good"] += LostMajority(self.checker, self._random).run()
        self.counts["messages lost"] += self.quorum.network.counts["lost"]
        self.counts["messages twice"] += self.quorum.network.counts["duplicated"]

    def _later(self, mean_ms: int, action: Any) -> None:
        delay_ns = int(self._random.expovariate(1 / mean_ms) * NANOSECONDS_PER_MS)
        # A client's action runs in its node's loop; the effect of a fault is not known beforehand.
        kind = "client" if action == self._operate else "fault"
        self.quorum.scheduler.add(kind, action.__name__, action, delay_ns=delay_ns)

    # ---- load ---------------------------------------------------------------------------------------------

    def _operate(self) -> None:
        if self._is_calm:
            return
        self._later(self._append_every_ms, self._operate)
        alive = self.quorum.alive
        if not alive:
            return
        chance = self._random.random()
        if chance < 0.8:
            self._append()
        elif chance < 0.9:
            self._snapshot(self._random.choice(alive))
        elif chance < 0.93 and self.quorum.setup.endpoints:
            self._operator.move_a_node()
        else:
            self._operator.change_voters()

    def _append(self) -> None:
        leading = [i for i in self.quorum.alive if self.quorum.client(i).leader_and_epoch.leader_id == i]
        if not leading:
            return
        node = self.quorum.node(self._random.choice(leading))
        epoch = node.client.leader_and_epoch.epoch
        count = self._random.choice((1, 1, 1, 2, 4))
        values = [f"v{number}" for number in range(self._values + 1, self._values + 1 + count)]
        self._values += count
        try:
            last = self.quorum.append(node.node_id, *values)
        except (NotLeader, UnexpectedEpoch, BufferExhausted):
            return
        for offset, value in enumerate(values, last - count + 1):
            self.checker.appended(node, epoch, offset, value)

    def _snapshot(self, node_id: int) -> None:
        node = self.quorum.node(node_id)
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
        self.counts["snapshots"] += 1

    def _snapshot_elsewhere(self, node: QuorumNode) -> None:
        """Ask for a snapshot at a random offset and epoch; it is legal only at the end of a committed batch,
        with that batch's epoch (KAFKA-14618)."""
        end = self._random.randrange(node.applied.offset + 3)
        epoch = node.log.epoch_before(end) or 0
        epoch += self._random.choice((0, 0, 0, 1, -1))
        known = self.checker.values
        fact = self.checker.views[node.node_id].fact_at(end)
        is_batch = fact is not None and fact.epoch == epoch
        is_legal = is_batch and node.log.start_offset < end <= node.log.high_watermark
        try:
            node.snapshot(OffsetAndEpoch(end, epoch), [known[at] for at in sorted(known) if at < end])
        except IllegalSnapshotId:
            self.counts["snapshots refused"] += 1
            return
        self.counts["snapshots"] += 1
        if not is_legal:
            made = f"node {node.node_id} makes one at {end} of epoch {epoch}"
            raise InvariantViolated("LegalSnapshot", made)

    def _strike(self) -> None:
        if self._is_calm:
            return
        self._later(self._strike_every_ms, self._strike)
        self._faults.strike()

    # ---- after the faults ---------------------------------------------------------------------------------

    def _heal(self) -> None:
        # Run it as an event, so that every invariant is checked after it.
        scheduler = self.quorum.scheduler
        scheduler.add("fault", "heal", self._end_faults)
        scheduler.run_until(lambda: self._is_calm)
        if not self._becomes_well():
            raise InvariantViolated(
                "Liveness", f"{HEALED_WITHIN_MS} ms after all faults: {'; '.join(self._what_ails())}"
            )
        if self.quorum.setup.auto_join:
            self._require_voters_stay()

    def _require_voters_stay(self) -> None:
        """Check that the voters stay the same: no member leaves and joins again forever."""
        before = self._voters_offset()
        self.quorum.pass_time(SETTLED_FETCH_TIMEOUTS * self.quorum.setup.config.quorum_fetch_timeout_ms)
        if self._voters_offset() != before:
            raise InvariantViolated(
                "VotersSettle", f"all is well, and the voters changed at {before} and {self._voters_offset()}"
            )

    def _voters_offset(self) -> int:
        leader = self.quorum.leader
        return -1 if leader is None else self.quorum.client(leader).voters_offset

    def _end_faults(self) -> None:
        self._is_calm = True
        self._faults.end()

    def _becomes_well(self) -> bool:
        stop_ms = self.quorum.now_ms() + HEALED_WITHIN_MS
        while self.quorum.now_ms() < stop_ms:
            # A node may just have been shutting down.
            self.quorum.start()
            self.quorum.pass_time(LOOKS_EVERY_MS)
            if not self._what_ails():
                return True
        return False

    def _what_ails(self) -> list[str]:
        """Return what is wrong with the quorum, empty if it is healthy."""
        leader = self.quorum.leader
        if leader is None:
            return ["no leader", *map(str, self.checker.views.values())]
        client, ails = self.quorum.client(leader), []
        if client.high_watermark != client.log.end_offset:
            ails.append(f"the leader {leader} has committed {client.high_watermark}")
        for node_id in self.quorum.machines:
            if node_id not in self.quorum.alive:
                ails.append(f"node {node_id} is down")
                continue
            other = self.quorum.client(node_id)
            if other.leader_and_epoch != client.leader_and_epoch:
                ails.append(f"node {node_id} follows {other.leader_and_epoch}")
            if other.log.end_offset != client.log.end_offset:
                ails.append(f"node {node_id} ends at {other.log.end_offset}")
        ails += self._membership_ails(leader)
        ails += self.checker.missing(self.quorum.alive)
        ails += [f"{value} waits" for value in self.checker.pending]
        if self._operator.waiting:
            ails.append(f"{self._operator.waiting} changes of the voters wait")
        return ails

    def _membership_ails(self, leader: int) -> list[str]:
        """Return which nodes should vote and do not, and which voters have a wrong endpoint in their record.

        A leader does not update its own record, but passes it on when another one leads.
        """
        setup, voters = self.quorum.setup, self.quorum.client(leader).voters
        ails = []
        for node_id in sorted(setup.auto_join):
            key = ReplicaKey(node_id, setup.directory_ids[node_id])
            if not voters.contains(key):
                ails.append(f"node {node_id} is no voter of {voters!r}")
            elif node_id != leader and voters.voters[node_id].endpoints != setup.endpoints_of(node_id):
                ails.append(f"node {node_id} is said to listen at {voters.voters[node_id].endpoints}")
        if setup.auto_join and not ails:
            self.counts["joined"] += len(set(voters.voters) - set(setup.voters.voters))
        return ails
