"""QuorumFaults: the faults of a random run of a quorum alone.

Besides the faults that all clusters have: the nodes are split into two parts, and a careful operator changes
the voters and replaces disks. LostMajority is the end of some runs, in which most disks are lost. Thread
rule: one thread.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from kreplica.common.errors import FatalTruncation, InvalidSnapshot, SnapshotMissing
from kreplica.common.future import Future
from kreplica.common.messages.quorum import AddRaftVoterRequest, Listener, RemoveRaftVoterRequest
from kreplica.common.wire import uuid_of
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.raft.kafka_metadata_log import KafkaMetadataLog
from kreplica.raft.kafka_raft_client import KafkaRaftClient
from kreplica.raft.raft_messages import make_vote_request
from kreplica.raft.snapshots import parse_snapshot_name
from kreplica.raft.voter_set import ReplicaKey, VoterSet
from kreplica.sim.faults import CALM, Faults
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.quorum.quorum_checker import QuorumChecker, QuorumObserver
from kreplica.sim.quorum.sim_quorum import CLUSTER_ID, LOG_DIRECTORY, SimQuorum, Witness

CATCH_UP_MS = 200
# A request in flight for longer than this was lost.
SETTLED_MS = 300
SPLIT_MS = 1_000


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
            timeout=timedelta(milliseconds=CATCH_UP_MS),
            voter_id=node_id,
            voter_directory_id=uuid_of(self.quorum.setup.directory_ids[node_id]),
            listeners=tuple(
                Listener(name=each.name, host=each.host, port=each.port)
                for each in self.quorum.setup.endpoints_of(node_id)
            ),
        )
        self._ask(leader, request, "voters added")

    def _remove(self, leader: int, voters: VoterSet, node_id: int) -> None:
        request = RemoveRaftVoterRequest(
            cluster_id=CLUSTER_ID,
            voter_id=node_id,
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

    def replace_disk(self) -> int | None:
        """Lose a disk and give its node a new one, once no change of the voters is pending.

        Returns the node, which is down or runs; None if no disk may be lost now.
        """
        if self.is_static:
            return None
        leader = self.quorum.leader
        is_settled = not self.waiting and self.quorum.now_ms() >= self._asked_ms + SETTLED_MS
        if leader is None or not is_settled or not self._knows_all(leader):
            self._wants_disk = True
            return None
        self._wants_disk = False
        voters = self.quorum.client(leader).voters
        lost = self._lost(voters)
        spare = len(voters) - voters.majority - len(lost)
        may_go = [i for i in self.quorum.machines if spare > 0 or i not in voters.voters or i in lost]
        if not may_go:
            return None
        node_id = self._random.choice(may_go)
        self._lose_disk(node_id, voters)
        return node_id

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
        if self._random.random() < 0.5:
            self.quorum.power_cut(node_id, self._random)
        else:
            self.quorum.kill(node_id)

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
        quorum.network.tap, quorum.witness = None, Witness()
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


# The weights of the kinds of faults.
FAULTS: Mapping[str, int] = {
    "kill": 3,
    "power cut": 3,
    "shutdown": 1,
    "pause": 2,
    "split": 2,
    "cut": 2,
    "bad network": 2,
    "broken connections": 1,
    "date jump": 1,
    "slow disk": 1,
    "written pages": 1,
    "another disk": 3,
}


class QuorumFaults(Faults):
    """The faults of `cluster`; `operator` replaces its disks."""

    CONDITIONS = CALM
    REPAIR_MS = 400
    SHUTDOWN_MS = 300
    SLOW_FLUSHES_US = (0, 500, 20_000)
    DATE_JUMPS_MS = (-3_600_000, -50, 50, 3_600_000)
    WORST_DELAYS_US = (2_000, 20_000, 120_000)
    CHANCES = (0.0, 0.05, 0.3)
    BAD_FOR_MS = 1_000
    _cluster: SimQuorum

    def __init__(
        self, cluster: SimQuorum, operator: QuorumOperator, counts: Counter[str], random: random.Random
    ) -> None:
        super().__init__(cluster, counts, random, FAULTS)
        self._operator = operator
        self.kinds |= {"split": self._split, "cut": self._cut, "another disk": self._change_disk}

    def _kill(self, node_id: int) -> None:
        super()._kill(node_id)
        if self._random.random() < 0.5:
            self._cluster.lose_connections(node_id)

    def _change_disk(self, _: int) -> None:
        replaced = self._operator.replace_disk()
        if replaced is not None:
            self._start_later(replaced)

    def _split(self, _: int) -> None:
        """Split the nodes into two parts that cannot reach each other."""
        ids = self._ids
        self._random.shuffle(ids)
        border = self._random.randrange(1, len(ids)) if len(ids) > 1 else 0
        for one in ids[:border]:
            for other in ids[border:]:
                self._cluster.cut(one, other)
        self._counts["splits"] += border > 0
        self.later(SPLIT_MS, "all are connected", self._cluster.heal_all)

    def _cut(self, node_id: int) -> None:
        others = self._others(node_id)
        if others:
            self.cut_link(node_id, self._random.choice(others), 500)

    def _disconnect(self, node_id: int) -> None:
        super()._disconnect(node_id)
        self._cluster.lose_connections(node_id)
