"""QuorumDriver: one random run of a quorum alone: faults, appends, snapshots and changes of the voters.

Each seed draws how many members there are and what the run is like. Twice the faults end, and all has to
become well within bounded time: one leader, everybody has all that is committed, whoever waits was answered.
The same seed gives the same run. Thread rule: one thread.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from kio.schema.add_raft_voter.v0.request import AddRaftVoterRequest
from kio.schema.remove_raft_voter.v0.request import RemoveRaftVoterRequest

from kreplica.common.errors import BufferExhausted, IllegalSnapshotId, NotLeader, UnexpectedEpoch
from kreplica.common.future import Future
from kreplica.common.wire import uuid_of
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.raft.epoch_state import EpochState
from kreplica.raft.raft_client import LeaderAndEpoch
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.network import LinkConditions
from kreplica.sim.quorum.quorum_checker import QuorumChecker
from kreplica.sim.quorum.quorum_node import CLUSTER_ID, QuorumNode
from kreplica.sim.quorum.sim_quorum import SimQuorum
from kreplica.sim.scheduler import NANOSECONDS_PER_MS

ROUNDS = 2
# Several elections' time, and longer than any request waits.
HEALED_WITHIN_MS = 4_000
LOOKS_EVERY_MS = 200
CALM = LinkConditions(delay_us=(100, 2_000))
# What has to happen in every larger number of runs; see `counts`.
EXPECTED = (
    *("acknowledged", "rejected", "elected", "pre-votes", "candidates", "resigned", "truncations"),
    *("snapshots", "snapshots installed", "logs begun anew", "voters added", "voters removed"),
    *("killed", "power cuts", "partitions", "one-way cuts", "paused", "dates changed", "shutdowns"),
    *("messages lost", "messages twice", "slow disks", "connections lost"),
)


@dataclass(frozen=True, slots=True)
class _Pending:
    """An append that waits: by which life of a node, in which epoch."""

    node: QuorumNode
    epoch: int
    offset: int
    value: str


class _Observed(QuorumChecker):
    """The checker, which also resolves what waits for a commit."""

    def __init__(self, quorum: SimQuorum, counts: Counter[str]) -> None:
        super().__init__(quorum)
        self.pending: dict[tuple[int, int], _Pending] = {}
        self.counts = counts

    def committed(self, node: QuorumNode, offset: int, epoch: int, value: str) -> None:
        super().committed(node, offset, epoch, value)
        waiting = self.pending.pop((node.node_id, offset), None)
        if waiting is None or waiting.node is not node:
            return
        if (waiting.epoch, waiting.value) == (epoch, value):
            self.acked[offset] = value
            self.counts["acknowledged"] += 1
        else:
            self.counts["rejected"] += 1

    def loaded(self, node: QuorumNode, snapshot_id: OffsetAndEpoch, values: list[str]) -> None:
        super().loaded(node, snapshot_id, values)
        self.counts["snapshots installed"] += 1

    def leader_told(self, node: QuorumNode, leader: LeaderAndEpoch) -> None:
        super().leader_told(node, leader)
        for key, waiting in list(self.pending.items()):
            if waiting.node is node and leader.epoch > waiting.epoch:
                del self.pending[key]
                self.counts["rejected"] += 1

    def forget(self, node_id: int) -> None:
        """The node is down: what it was given may be committed or not."""
        for key in [key for key in self.pending if key[0] == node_id]:
            del self.pending[key]


class QuorumDriver:
    """One run. `counts` tells what has happened in it; each of EXPECTED should, over many runs."""

    def __init__(self, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self._random = random.Random(f"{seed}/driver")
        voters = self._random.choice((1, 3, 3, 3, 5, 5))
        self.quorum = SimQuorum(
            voters,
            self._random.choice((0, 1, 2)),
            seed=seed,
            dynamic=self._random.random() < 0.8,
            conditions=CALM,
        )
        self.checker = _Observed(self.quorum, self.counts)
        self._append_every_ms = self._random.choice((5, 20, 60))
        self._strike_every_ms = self._random.choice((40, 120, 400))
        self._is_calm = True
        self._values = 0
        self._asked: list[Future[Any]] = []
        self._truncated: dict[int, int] = {}
        self._states: dict[int, EpochState] = {}
        self.quorum.start()
        self.checker.check()

    def run(self, events: int = 1_500) -> None:
        """Let so many events happen, and see that all becomes well. Raises InvariantViolated."""
        scheduler = self.quorum.scheduler
        for number in range(ROUNDS):
            self._is_calm = False
            self._later(self._append_every_ms, self._operate)
            self._later(self._strike_every_ms, self._strike)
            while scheduler.events < events * (number + 1) // ROUNDS:
                if scheduler.step() is None:
                    raise AssertionError("nothing is left to happen")
                self._observe()
            self._heal()
        self.counts["messages lost"] += self.quorum.network.counts["lost"]
        self.counts["messages twice"] += self.quorum.network.counts["duplicated"]

    def _later(self, mean_ms: int, action: Any) -> None:
        delay_ns = int(self._random.expovariate(1 / mean_ms) * NANOSECONDS_PER_MS)
        self.quorum.scheduler.add("fault", action.__name__, action, delay_ns=delay_ns)

    def _observe(self) -> None:
        """Count what has happened inside."""
        for node_id, view in self.checker.views.items():
            if view.end < self._truncated.get(node_id, 0):
                self.counts["truncations"] += 1
            self._truncated[node_id] = view.end
            node = view.node
            if node is None:
                continue
            if view.start > 0 and not self.counts["logs begun anew"]:
                self.counts["logs begun anew"] += 1
            state = node.client.quorum.state
            if self._states.get(node_id) is not state:
                self._states[node_id] = state
                name = {"leader": "elected", "prospective": "pre-votes", "candidate": "candidates"}
                self.counts[name.get(state.NAME, state.NAME)] += 1

    # ---- load ---------------------------------------------------------------------------------------------

    def _operate(self) -> None:
        if self._is_calm:
            return
        self._later(self._append_every_ms, self._operate)
        alive = self.quorum.alive
        if not alive:
            return
        chance = self._random.random()
        if chance < 0.85:
            self._append()
        elif chance < 0.93:
            self._snapshot(self._random.choice(alive))
        elif self.quorum.setup.voters.supports(1):
            self._change_voters()

    def _append(self) -> None:
        leading = [i for i in self.quorum.alive if self.quorum.client(i).leader_and_epoch.leader_id == i]
        if not leading:
            return
        node = self.quorum.node(self._random.choice(leading))
        epoch = node.client.leader_and_epoch.epoch
        self._values += 1
        value = f"v{self._values}"
        try:
            offset = self.quorum.append(node.node_id, value)
        except (NotLeader, UnexpectedEpoch, BufferExhausted):
            return
        self.checker.pending[node.node_id, offset] = _Pending(node, epoch, offset, value)

    def _snapshot(self, node_id: int) -> None:
        node = self.quorum.node(node_id)
        if node.applied.offset == 0:
            return
        try:
            node.snapshot()
        except IllegalSnapshotId:
            # It has this one already.
            return
        self.counts["snapshots"] += 1

    def _change_voters(self) -> None:
        leader = self.quorum.leader
        if leader is None:
            return
        voters = self.quorum.client(leader).voters
        outside = [i for i in self.quorum.machines if i not in voters.voters]
        request: Any
        if outside and (len(voters) < 2 or self._random.random() < 0.5):
            node_id, what = self._random.choice(outside), "voters added"
            request = AddRaftVoterRequest(
                cluster_id=CLUSTER_ID,
                timeout=timedelta(milliseconds=200),  # type: ignore[arg-type]
                voter_id=node_id,  # type: ignore[arg-type]
                voter_directory_id=uuid_of(self.quorum.setup.directory_ids[node_id]),
                listeners=(),
            )
        elif len(voters) > 1:
            node_id, what = self._random.choice(sorted(voters.voters)), "voters removed"
            request = RemoveRaftVoterRequest(
                cluster_id=CLUSTER_ID,
                voter_id=node_id,  # type: ignore[arg-type]
                voter_directory_id=uuid_of(self.quorum.setup.directory_ids[node_id]),
            )
        else:
            return
        answer = self.quorum.send(leader, request)
        self._asked.append(answer)
        answer.add_done_callback(partial(self._voters_changed, what))

    def _voters_changed(self, what: str, answer: Future[Any]) -> None:
        if answer.exception() is None and not answer.result().error_code:
            self.counts[what] += 1

    # ---- faults -------------------------------------------------------------------------------------------

    def _strike(self) -> None:
        if self._is_calm:
            return
        self._later(self._strike_every_ms, self._strike)
        faults = (
            *(self._kill, self._kill, self._power_cut, self._power_cut, self._restart, self._restart),
            *(self._restart, self._split, self._cut_one_way, self._heal_network, self._heal_network),
            *(self._pause, self._resume, self._resume, self._worsen_network, self._jump_date),
            *(self._slow_disk, self._shut_down, self._lose_connections),
        )
        self._random.choice(faults)()

    def _one(self, node_ids: list[int]) -> int | None:
        return self._random.choice(node_ids) if node_ids else None

    def _kill(self) -> None:
        node_id = self._one(self.quorum.alive)
        if node_id is not None:
            self.checker.forget(node_id)
            self.quorum.kill(node_id, hint=self._random.random() < 0.5)
            self.counts["killed"] += 1

    def _power_cut(self) -> None:
        node_id = self._one(self.quorum.alive)
        if node_id is not None:
            self.checker.forget(node_id)
            chance = self._random if self._random.random() < 0.7 else None
            self.quorum.machines[node_id].power_cut(chance)
            self.counts["power cuts"] += 1

    def _restart(self) -> None:
        dead = [i for i, machine in self.quorum.machines.items() if not machine.is_alive]
        node_id = self._one(dead)
        if node_id is not None:
            self.quorum.start(node_id)

    def _split(self) -> None:
        """Two parts that hear nothing of each other."""
        ids = list(self.quorum.machines)
        self._random.shuffle(ids)
        border = self._random.randrange(1, len(ids)) if len(ids) > 1 else 0
        for one in ids[:border]:
            for other in ids[border:]:
                self.quorum.network.cut(one, other)
        self.counts["partitions"] += border > 0

    def _cut_one_way(self) -> None:
        if len(self.quorum.machines) > 1:
            sender, receiver = self._random.sample(list(self.quorum.machines), 2)
            self.quorum.network.cut(sender, receiver, both_ways=False)
            self.counts["one-way cuts"] += 1

    def _heal_network(self) -> None:
        self.quorum.network.heal_all()

    def _pause(self) -> None:
        running = [i for i in self.quorum.alive if not self.quorum.machines[i].is_paused]
        node_id = self._one(running)
        if node_id is not None:
            self.quorum.machines[node_id].pause()
            self.counts["paused"] += 1

    def _resume(self) -> None:
        for machine in self.quorum.machines.values():
            if machine.is_alive and machine.is_paused:
                machine.resume()

    def _worsen_network(self) -> None:
        self.quorum.network.set_conditions(
            LinkConditions(
                delay_us=(100, self._random.choice((2_000, 20_000, 120_000))),
                loss=self._random.choice((0.0, 0.02, 0.2)),
                duplication=self._random.choice((0.0, 0.05, 0.3)),
                in_order=self._random.random() < 0.5,
            )
        )

    def _jump_date(self) -> None:
        machine = self._random.choice(list(self.quorum.machines.values()))
        machine.clock.jump_date(self._random.choice((-3_600_000, -50, 50, 3_600_000)))
        self.counts["dates changed"] += 1

    def _slow_disk(self) -> None:
        machine = self._random.choice(list(self.quorum.machines.values()))
        machine.flush_us = self._random.choice((0, 500, 20_000))
        self.counts["slow disks"] += 1

    def _shut_down(self) -> None:
        """In order: hand over, then stop."""
        node_id = self._one([i for i in self.quorum.alive if not self.quorum.machines[i].is_paused])
        if node_id is None:
            return
        machine, life = self.quorum.machines[node_id], self.quorum.machines[node_id].life
        self.counts["shutdowns"] += 1

        def stop(_: Future[None]) -> None:
            # Not from within the client's own step.
            self.quorum.scheduler.add("fault", "stopped", partial(self._stop, node_id), incarnation=life)

        machine.program.client.shutdown(300).add_done_callback(stop)

    def _stop(self, node_id: int) -> None:
        self.checker.forget(node_id)
        self.quorum.machines[node_id].stop()

    def _lose_connections(self) -> None:
        node_id = self._one(self.quorum.alive)
        if node_id is not None:
            self.quorum.network.disconnect(node_id)
            for other in self.quorum.alive:
                self.quorum.client(other).connection_lost(node_id)
            self.counts["connections lost"] += 1

    # ---- afterwards ---------------------------------------------------------------------------------------

    def _heal(self) -> None:
        # As an event, so that every invariant sees what it does.
        scheduler = self.quorum.scheduler
        scheduler.add("fault", "heal", self._end_faults)
        scheduler.run_until(lambda: self._is_calm)
        if not self._becomes_well():
            raise InvariantViolated(
                "Liveness", f"{HEALED_WITHIN_MS} ms after all faults: {'; '.join(self._what_ails())}"
            )

    def _end_faults(self) -> None:
        self._is_calm = True
        self.quorum.network.set_conditions(CALM)
        self._resume()
        for machine in self.quorum.machines.values():
            machine.flush_us = 0
        self.quorum.start()

    def _becomes_well(self) -> bool:
        stop_ms = self.quorum.now_ms() + HEALED_WITHIN_MS
        while self.quorum.now_ms() < stop_ms:
            # Somebody may be on his way out.
            self.quorum.start()
            until_ns = self.quorum.time.now_ns + LOOKS_EVERY_MS * NANOSECONDS_PER_MS
            if self.quorum.run_until(lambda: not self._what_ails(), limit_ms=LOOKS_EVERY_MS):
                return True
            # Where all wait for a slow disk, nothing happens that would let time pass.
            self.quorum.time.advance_to(until_ns)
        return False

    def _what_ails(self) -> list[str]:
        """What keeps the quorum from being well, in words."""
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
        ails += self.checker.missing(self.quorum.alive)
        ails += [f"{waiting.value} waits" for waiting in self.checker.pending.values()]
        ails += ["a change of the voters waits" for answer in self._asked if not answer.done()]
        return ails
