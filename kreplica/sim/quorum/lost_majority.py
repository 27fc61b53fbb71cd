"""LostMajority: the end of a run in which a quorum of static voters loses a majority of its disks.

The nodes with empty disks elect one of them, which knows nothing. The others must not follow it: a node asked
to truncate records that it knows to be committed stops, and keeps them for an operator (KAFKA-12460). No
other invariant holds here. Thread rule: one thread.
"""

from __future__ import annotations

import random

from kreplica.common.errors import FatalTruncation
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.raft.kafka_metadata_log import KafkaMetadataLog
from kreplica.raft.raft_messages import make_vote_request
from kreplica.raft.voter_set import ReplicaKey
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.quorum.quorum_checker import QuorumChecker
from kreplica.sim.quorum.quorum_node import CLUSTER_ID
from kreplica.sim.quorum.sim_quorum import NoWitness, SimQuorum

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
