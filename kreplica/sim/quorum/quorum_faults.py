"""QuorumFaults: the faults of the machines of a quorum and of their network, one at a time.

QuorumOperator is a careful operator, who changes voters and replaces disks; LostMajority is the end of some
runs, in which most disks are lost. Thread rule: one thread.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from kio.schema.add_raft_voter.v1.request import AddRaftVoterRequest, Listener
from kio.schema.remove_raft_voter.v0.request import RemoveRaftVoterRequest

from kreplica.common.errors import FatalTruncation, InvalidSnapshot, SnapshotMissing
from kreplica.common.future import Future
from kreplica.common.wire import uuid_of
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.raft.kafka_metadata_log import KafkaMetadataLog
from kreplica.raft.kafka_raft_client import KafkaRaftClient
from kreplica.raft.raft_messages import make_vote_request
from kreplica.raft.snapshots import parse_snapshot_name
from kreplica.raft.voter_set import ReplicaKey, VoterSet
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.network import LinkConditions
from kreplica.sim.quorum.quorum_checker import QuorumChecker, QuorumObserver
from kreplica.sim.quorum.sim_quorum import CLUSTER_ID, LOG_DIRECTORY, NoWitness, SimQuorum

CATCH_UP_MS = 200
# A request in flight for longer than this was lost.
SETTLED_MS = 300


class QuorumOperator:
    """The operator of `quorum`; `counts` has what was done."""

    def __init__(self, checker: QuorumObserver, random: random.Random, counts: Counter[str]) -> None:
        self.quorum: SimQuorum = checker.quorum
        self._checker = checker
        self._random = random
        self._counts = counts
        self._asked: list[Future[Any]] = []
        self._asked_ms = 0
        # Set while it waits for all pending changes before it replaces a disk.
        self._wants_disk = False

    @property
    def waiting(self) -> int:
        """The number of requested changes without a response."""
        self._asked = [answer for answer in self._asked if not answer.done()]
        return len(self._asked)

    @property
    def is_static(self) -> bool:
        """Whether the voters are configured, and never change."""
        return not self.quorum.setup.voters.supports(1)

    # ---- voters -------------------------------------------------------------------------------------------

    def change_voters(self) -> None:
        """Ask the leader, ready or not, to add or remove a voter."""
        leader = self.quorum.leader
        if leader is None or self.is_static or self._wants_disk:
            return
        voters = self.quorum.client(leader).voters
        lost, outside = self._lost(voters), [i for i in self.quorum.machines if i not in voters.voters]
        if lost:
            # A voter without its disk is removed first, and alone: a majority of the remaining ones must be
            # up.
            if not self.waiting:
                self._remove(leader, voters, self._random.choice(lost))
        elif outside and (len(voters) < 2 or self._random.random() < 0.5):
            self._add(leader, self._random.choice(outside))
        elif len(voters) > 1:
            self._remove(leader, voters, self._random.choice(sorted(voters.voters)))

    def _lost(self, voters: VoterSet) -> list[int]:
        """Return the voters that have lost their disks."""
        ids = self.quorum.setup.directory_ids
        return [
            node.voter_key.node_id
            for node in voters
            if not node.is_voter(ReplicaKey(node.voter_key.node_id, ids[node.voter_key.node_id]))
        ]

    def _add(self, leader: int, node_id: int) -> None:
        request = AddRaftVoterRequest(
            cluster_id=CLUSTER_ID,
            timeout=timedelta(milliseconds=CATCH_UP_MS),  # type: ignore[arg-type]
            voter_id=node_id,  # type: ignore[arg-type]
            voter_directory_id=uuid_of(self.quorum.setup.directory_ids[node_id]),
            listeners=tuple(
                Listener(name=each.name, host=each.host, port=each.port)  # type: ignore[arg-type]
                for each in self.quorum.setup.endpoints_of(node_id)
            ),
        )
        self._ask(leader, request, "voters added")

    def _remove(self, leader: int, voters: VoterSet, node_id: int) -> None:
        request = RemoveRaftVoterRequest(
            cluster_id=CLUSTER_ID,
            voter_id=node_id,  # type: ignore[arg-type]
            voter_directory_id=uuid_of(voters.voters[node_id].voter_key.directory_id),
        )
        self._ask(leader, request, "voters removed")

    def _ask(self, leader: int, request: Any, what: str) -> None:
        answer = self.quorum.send(leader, request)
        self._asked.append(answer)
        self._asked_ms = self.quorum.now_ms()
        answer.add_done_callback(partial(self._answered, what))

    def _answered(self, what: str, answer: Future[Any]) -> None:
        if answer.exception() is None and not answer.result().error_code:
            self._counts[what] += 1

    def move_a_node(self) -> None:
        """Move a node that is down to another endpoint."""
        setup = self.quorum.setup
        down = [node_id for node_id in setup.endpoints if node_id not in self.quorum.alive]
        if down:
            setup.move(self._random.choice(down), self._random.randrange(1, 1 << 16))
            self._counts["moved"] += 1

    # ---- disks --------------------------------------------------------------------------------------------

    def replace_disk(self) -> None:
        """Lose a disk and give its node a new one, once no change of the voters is pending."""
        if self.is_static:
            return
        leader = self.quorum.leader
        is_settled = not self.waiting and self.quorum.now_ms() >= self._asked_ms + SETTLED_MS
        if leader is None or not is_settled or not self._knows_all(leader):
            self._wants_disk = True
            return
        self._wants_disk = False
        voters = self.quorum.client(leader).voters
        lost = self._lost(voters)
        spare = len(voters) - voters.majority - len(lost)
        may_go = [i for i in self.quorum.machines if spare > 0 or i not in voters.voters or i in lost]
        if may_go:
            self._lose_disk(self._random.choice(may_go), voters)

    def _knows_all(self, leader: int) -> bool:
        """Return whether the leader knows everything committed, and its voters are committed."""
        client: KafkaRaftClient = self.quorum.client(leader)
        mark = client.high_watermark
        return (
            mark is not None
            and mark >= self._checker.committed_end
            and mark > client.voters_offset
            and not self.quorum.machines[leader].is_paused
        )

    def _lose_disk(self, node_id: int, voters: VoterSet) -> None:
        machine = self.quorum.machines[node_id]
        if machine.is_alive:
            self._end(node_id)
        if self._random.random() < 0.6 and self._damage_snapshots(node_id):
            # It could start without the snapshots, because the log has everything.
            return
        self._checker.forget_disk(node_id)
        self.quorum.wipe(node_id, voters)
        self._counts["disks replaced"] += 1
        if self._random.random() < 0.5:
            self.quorum.start(node_id)

    def _end(self, node_id: int) -> None:
        self._checker.forget(node_id)
        machine = self.quorum.machines[node_id]
        machine.power_cut(self._random) if self._random.random() < 0.5 else machine.kill()

    def _damage_snapshots(self, node_id: int) -> bool:
        """Lose the snapshots of a node that is down, or the end of the last one; return whether it then
        starts.

        If data is missing it must neither start nor change its disk.
        """
        storage = self.quorum.machines[node_id].storage
        if not storage.is_directory(LOG_DIRECTORY):
            return False
        found = [each for each in storage.list_directory(LOG_DIRECTORY) if parse_snapshot_name(each)]
        if not found:
            return False
        latest = f"{LOG_DIRECTORY}/{max(found)}"
        is_cut = self._random.random() < 0.5
        if is_cut:
            data = storage.read_file(latest)
            storage.write_file_atomically(latest, data[: self._random.randrange(len(data))])
        else:
            for name in found:
                storage.remove(f"{LOG_DIRECTORY}/{name}")
            storage.sync_directory(LOG_DIRECTORY)
        self._counts["snapshots cut" if is_cut else "snapshots lost"] += 1
        return self._starts(node_id, is_cut)

    def _starts(self, node_id: int, is_cut: bool) -> bool:
        machine = self.quorum.machines[node_id]
        before = _files(machine.storage)
        try:
            self.quorum.start(node_id)
        except (SnapshotMissing, InvalidSnapshot) as refused:
            if _files(machine.storage) != before:
                raise InvariantViolated(
                    "SnapshotAtLogStart", f"node {node_id} is refused, and its disk changed: {refused}"
                ) from refused
            self._counts["starts refused"] += 1
            return False
        if is_cut:
            raise InvariantViolated("SnapshotAtLogStart", f"node {node_id} starts on a snapshot that is cut")
        return True

    def replace_static_disks(self) -> bool:
        """Replace the disks of a minority of static voters by empty ones and start them; return whether it
        did.

        Only in a healthy quorum: the others have every record on disk, and know the epoch's leader.
        """
        voters = sorted(self.quorum.setup.voters.voters)
        spare = (len(voters) - 1) // 2
        if not self.is_static or not spare:
            return False
        views = [self._checker.views[node_id] for node_id in voters]
        if any(view.durable_end < self._checker.committed_end for view in views):
            return False
        for node_id in self._random.sample(voters, self._random.randrange(1, spare + 1)):
            self._end(node_id)
            self._checker.forget_disk(node_id)
            self.quorum.wipe(node_id)
            self.quorum.start(node_id)
            self._counts["voters wiped"] += 1
        return True


def _files(storage: Any) -> dict[str, bytes]:
    if not storage.is_directory(LOG_DIRECTORY):
        return {}
    paths = [f"{LOG_DIRECTORY}/{name}" for name in storage.list_directory(LOG_DIRECTORY)]
    return {path: storage.read_file(path) for path in paths if not storage.is_directory(path)}


# The time for the empty nodes to elect a leader, and for the others to learn of it.
LIMIT_MS = 10_000


class LostMajority:
    """The loss of most disks of a healthy quorum. `run` raises InvariantViolated if committed records are
    cut."""

    def __init__(self, checker: QuorumChecker, random: random.Random) -> None:
        self.quorum: SimQuorum = checker.quorum
        self._checker = checker
        voters = sorted(self.quorum.setup.voters.voters)
        self._wiped = random.sample(voters, len(voters) // 2 + 1)
        self._logs: dict[int, KafkaMetadataLog] = {
            node_id: self.quorum.node(node_id).log
            for node_id in self.quorum.machines
            if node_id not in self._wiped
        }
        self._marks = {node_id: log.high_watermark for node_id, log in self._logs.items()}
        self._stopped: set[int] = set()

    def run(self) -> int:
        """Lose the disks, and watch the other nodes; return how many of them stopped."""
        quorum, scheduler = self.quorum, self.quorum.scheduler
        quorum.network.tap, quorum.witness = None, NoWitness()
        scheduler.after_event = lambda _: self._check()
        quorum.setup.on_fatal = self._cannot_go_on
        for node_id in self._logs:
            quorum.isolate(node_id)
        for node_id in self._wiped:
            quorum.kill(node_id)
            quorum.wipe(node_id)
            quorum.start(node_id)
        self._elect(max(quorum.client(node_id).quorum.epoch for node_id in self._logs) + 1)
        quorum.network.heal_all()
        if not quorum.run_until(lambda: self._stopped == self._logs.keys(), LIMIT_MS):
            raise InvariantViolated(
                "CommittedKept", f"of {sorted(self._logs)} only {self._stopped} refuse who has nothing"
            )
        return len(self._stopped)

    def _elect(self, epoch: int) -> None:
        """Wait until the nodes with lost disks have a leader in an epoch after this one."""
        quorum, ids = self.quorum, self.quorum.setup.directory_ids
        candidate = min(self._logs)
        for voter in self._wiped:
            # A late request for votes in that epoch, from a node that had asked before.
            key, asker = ReplicaKey(voter, ids[voter]), ReplicaKey(candidate, ids[candidate])
            quorum.send(
                voter, make_vote_request(CLUSTER_ID, key, asker, epoch, OffsetAndEpoch(0, 0), pre_vote=False)
            )

        def is_elected() -> bool:
            leader = quorum.leader_among(self._wiped)
            return leader is not None and quorum.client(leader).quorum.epoch > epoch

        assert quorum.run_until(is_elected, LIMIT_MS)

    def _check(self) -> None:
        for node_id, log in self._logs.items():
            if log.end_offset < self._marks[node_id]:
                raise InvariantViolated(
                    "CommittedKept",
                    f"node {node_id} cuts its log to {log.end_offset}; committed is {self._marks[node_id]}",
                )

    def _cannot_go_on(self, node_id: int, error: BaseException) -> None:
        if node_id not in self._logs or not isinstance(error, FatalTruncation):
            raise error
        self._stopped.add(node_id)


CALM = LinkConditions(delay_us=(100, 2_000))


class QuorumFaults:
    """`forget(node_id)` is called before a node ends, because its pending appends may be committed or not.

    `replace_disk()` is called as one of the faults.
    """

    def __init__(
        self,
        quorum: SimQuorum,
        random: random.Random,
        counts: Counter[str],
        forget: Callable[[int], None],
        replace_disk: Callable[[], None],
    ) -> None:
        self.quorum = quorum
        self._random = random
        self._counts = counts
        self._forget = forget
        self._all = (
            *(self._kill, self._kill, self._power_cut, self._power_cut, self._restart, self._restart),
            *(self._restart, self._split, self._cut_one_way, self._heal_network, self._heal_network),
            *(self._pause, self.resume, self.resume, self._worsen_network, self._jump_date),
            *(self._slow_disk, self._shut_down, self._lose_connections, replace_disk, replace_disk),
        )

    def strike(self) -> None:
        """Inject one random fault."""
        self._random.choice(self._all)()

    def _one(self, node_ids: list[int]) -> int | None:
        return self._random.choice(node_ids) if node_ids else None

    # ---- machines -----------------------------------------------------------------------------------------

    def _kill(self) -> None:
        node_id = self._one(self.quorum.alive)
        if node_id is not None:
            self._forget(node_id)
            self.quorum.kill(node_id, hint=self._random.random() < 0.5)
            self._counts["killed"] += 1

    def _power_cut(self) -> None:
        node_id = self._one(self.quorum.alive)
        if node_id is not None:
            self._forget(node_id)
            chance = self._random if self._random.random() < 0.7 else None
            self.quorum.machines[node_id].power_cut(chance)
            self._counts["power cuts"] += 1

    def _restart(self) -> None:
        dead = [i for i, machine in self.quorum.machines.items() if not machine.is_alive]
        node_id = self._one(dead)
        if node_id is not None:
            self.quorum.start(node_id)

    def _pause(self) -> None:
        running = [i for i in self.quorum.alive if not self.quorum.machines[i].is_paused]
        node_id = self._one(running)
        if node_id is not None:
            self.quorum.machines[node_id].pause()
            self._counts["paused"] += 1

    def resume(self) -> None:
        """Resume all paused nodes."""
        for machine in self.quorum.machines.values():
            if machine.is_alive and machine.is_paused:
                machine.resume()

    def _jump_date(self) -> None:
        machine = self._random.choice(list(self.quorum.machines.values()))
        machine.clock.jump_date(self._random.choice((-3_600_000, -50, 50, 3_600_000)))
        self._counts["dates changed"] += 1

    def _slow_disk(self) -> None:
        machine = self._random.choice(list(self.quorum.machines.values()))
        machine.flush_us = self._random.choice((0, 500, 20_000))
        self._counts["slow disks"] += 1

    def _shut_down(self) -> None:
        """Shut a node down cleanly: it hands over, then stops."""
        node_id = self._one([i for i in self.quorum.alive if not self.quorum.machines[i].is_paused])
        if node_id is None:
            return
        machine, life = self.quorum.machines[node_id], self.quorum.machines[node_id].life
        self._counts["shutdowns"] += 1

        def stop(_: Future[None]) -> None:
            # In an event of its own, not within the client's step.
            self.quorum.scheduler.add("fault", "stopped", partial(self._stop, node_id), incarnation=life)

        machine.program.client.shutdown(300).add_done_callback(stop)

    def _stop(self, node_id: int) -> None:
        self._forget(node_id)
        self.quorum.machines[node_id].stop()

    # ---- the network --------------------------------------------------------------------------------------

    def _split(self) -> None:
        """Split the nodes into two parts that cannot reach each other."""
        ids = list(self.quorum.machines)
        self._random.shuffle(ids)
        border = self._random.randrange(1, len(ids)) if len(ids) > 1 else 0
        for one in ids[:border]:
            for other in ids[border:]:
                self.quorum.network.cut(one, other)
        self._counts["partitions"] += border > 0

    def _cut_one_way(self) -> None:
        if len(self.quorum.machines) > 1:
            sender, receiver = self._random.sample(list(self.quorum.machines), 2)
            self.quorum.network.cut(sender, receiver, both_ways=False)
            self._counts["one-way cuts"] += 1

    def end(self) -> None:
        """End all faults, and start every node."""
        self.quorum.network.set_conditions(CALM)
        self.resume()
        for machine in self.quorum.machines.values():
            machine.flush_us = 0
        self.quorum.start()

    def _heal_network(self) -> None:
        self.quorum.network.heal_all()

    def _worsen_network(self) -> None:
        self.quorum.network.set_conditions(
            LinkConditions(
                delay_us=(100, self._random.choice((2_000, 20_000, 120_000))),
                loss=self._random.choice((0.0, 0.02, 0.2)),
                duplication=self._random.choice((0.0, 0.05, 0.3)),
                in_order=self._random.random() < 0.5,
            )
        )

    def _lose_connections(self) -> None:
        node_id = self._one(self.quorum.alive)
        if node_id is not None:
            self.quorum.network.disconnect(node_id)
            for other in self.quorum.alive:
                self.quorum.client(other).connection_lost(node_id)
            self._counts["connections lost"] += 1
