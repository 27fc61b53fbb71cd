"""QuorumOperator: a careful operator of a running quorum, who changes voters and replaces disks.

A lost disk loses its voter's votes. Where voters have directory ids, the new disk is a new replica: it
observes until the lost voter is removed and it is added (KIP-853). The operator never loses the disks of more
than a minority of the voters, counting those already lost, and then lets no two changes overlap. Static
voters are known by their ids only: a node with a new disk votes again, so only a node that has promised
nothing unknown to the others gets one. Thread rule: one thread.
"""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from functools import partial
from typing import Any

from kio.schema.add_raft_voter.v1.request import AddRaftVoterRequest, Listener
from kio.schema.remove_raft_voter.v0.request import RemoveRaftVoterRequest

from kreplica.common.errors import InvalidSnapshot, SnapshotMissing
from kreplica.common.future import Future
from kreplica.common.wire import uuid_of
from kreplica.raft.kafka_raft_client import KafkaRaftClient
from kreplica.raft.snapshots import parse_snapshot_name
from kreplica.raft.voter_set import ReplicaKey, VoterSet
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.quorum.quorum_node import CLUSTER_ID, LOG_DIRECTORY
from kreplica.sim.quorum.quorum_observer import QuorumObserver
from kreplica.sim.quorum.sim_quorum import SimQuorum

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
