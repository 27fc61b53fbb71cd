"""A quorum in one process with real threads: a node that waits for its disk lets the others run.

No node runs in two threads at once. The disks are simulated, and belong to one node each: a second thread in
a node would break them.
"""

from __future__ import annotations

import os
import random
import threading
import time
from itertools import count

import pytest

from kreplica.common.config import MetadataLogConfig
from kreplica.common.errors import NotLeader, UnexpectedEpoch
from kreplica.raft.raft_config import RaftConfig
from kreplica.raft.voter_set import ReplicaKey, VoterNode, VoterSet
from kreplica.runtime.clock import SystemClock
from kreplica.runtime.local_network import LocalNetwork
from kreplica.sim.machines import DIRECTORY, BrokerPorts, SimWorkers
from kreplica.sim.quorum.sim_quorum import QuorumNode, QuorumSetup, Witness, directory_id_of, record_of
from kreplica.sim.storage import SimStorage

IDS = (1, 2, 3)
# Only a quorum that is stuck waits so long.
PATIENCE = 20
# Fetches wait at the leader for as long as nothing is new.
CONFIG = RaftConfig(
    quorum_election_timeout_ms=100,
    quorum_fetch_timeout_ms=20_000,
    quorum_election_backoff_max_ms=50,
    quorum_append_linger_ms=0,
)


class Disk(SimStorage):
    """One node's. `meet`: where all nodes have to be while they flush, if it is set."""

    def __init__(self):
        super().__init__()
        self.make_directory(DIRECTORY)
        self.meet = None
        self.is_used = threading.Lock()
        self.overlaps = 0
        self.before = self.look

    def look(self, operation, path):
        if not self.is_used.acquire(blocking=False):
            self.overlaps += 1
            return
        try:
            # Let another thread in, if one can be.
            os.sched_yield()
            if self.meet is not None and operation == "flush" and path.endswith(".log"):
                self.meet.wait(PATIENCE)
        finally:
            self.is_used.release()


class Quorum:
    """Three voters that have elected a leader."""

    def __init__(self, failures):
        self.network = LocalNetwork(on_error=lambda name, error: failures.append((name, error)))
        self.disks = {node_id: Disk() for node_id in IDS}
        self.nodes = {}
        keys = [ReplicaKey(node_id, directory_id_of(node_id)) for node_id in IDS]
        voters = VoterSet(VoterNode(key, (), 0, 1) for key in keys)
        setup = QuorumSetup(voters, config=CONFIG, log_config=MetadataLogConfig(), directory_ids=dict(keys))
        setup.on_fatal = lambda node_id, error: failures.append((node_id, error))
        for node_id in IDS:
            endpoint = self.network.join(node_id)
            ports = BrokerPorts(
                broker_id=node_id,
                broker_epoch=0,
                directories=[DIRECTORY],
                storage=self.disks[node_id],
                clock=SystemClock(),
                scheduler=endpoint,
                transport=endpoint,
                workers=SimWorkers(),
                random=random.Random(node_id),
                loop=endpoint.loop,
            )
            node = self.nodes[node_id] = QuorumNode(ports, setup, Witness())
            self.network.register(endpoint, node.handle)
            node.startup()
        self.network.start()

    def until(self, condition):
        limit = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < limit
            os.sched_yield()

    def leader(self):
        """A node that leads and knows what is committed."""
        found = []

        def look():
            found[:] = [
                node
                for node in self.nodes.values()
                if node.client.leader_and_epoch.leader_id == node.node_id and node.client.high_watermark
            ]
            return found

        self.until(look)
        return found[0]

    def append(self, value):
        """Whether a leader has taken it."""
        client = self.leader().client
        try:
            with self.network.draining():
                client.schedule_append(client.leader_and_epoch.epoch, [record_of(value)])
        except (NotLeader, UnexpectedEpoch):
            return False
        return True

    def close(self):
        self.network.shutdown()
        for node in self.nodes.values():
            node.shutdown()


@pytest.fixture
def quorum():
    failures = []
    quorum = Quorum(failures)
    yield quorum
    for disk in quorum.disks.values():
        disk.meet = None
    quorum.close()
    assert failures == []
    assert [disk.overlaps for disk in quorum.disks.values()] == [0, 0, 0]


def test_all_three_flush_one_batch_at_once(quorum):
    leader = quorum.leader()
    meet = threading.Barrier(len(IDS))
    for number in range(10):
        # Both wait for what is next, so they get it before the leader's own disk has it.
        quorum.until(lambda: len(leader.client._context.fetches) == 2)
        for disk in quorum.disks.values():
            disk.meet = meet
        assert quorum.append(f"v{number}")
        # Each would wait for the others in vain, were they flushed one after the other.
        quorum.until(lambda: all(len(node.values) == number + 1 for node in quorum.nodes.values()))  # noqa: B023


def test_many_threads_append_while_leaders_change(quorum):
    taken = [[] for _ in range(4)]

    def append(thread):
        for number in range(60):
            value = f"{thread}/{number}"
            while not quorum.append(value):
                pass
            taken[thread].append(value)
            if (thread, number % 20) == (0, 19):
                leader = quorum.leader().client
                leader.resign(leader.leader_and_epoch.epoch)

    threads = [threading.Thread(target=append, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    # What one that resigns has taken may be lost: the last one has all, once something of its is there.
    for number in count():
        quorum.append(f"end {number}")
        if any(value.startswith("end") for value in quorum.leader().values):
            break
    quorum.until(lambda: len({tuple(node.values) for node in quorum.nodes.values()}) == 1)
    values = quorum.leader().values
    assert len(set(values)) == len(values)
    for thread in range(4):
        # A leader that resigns may lose what it has taken, and nothing changes its order.
        own = [value for value in values if value.startswith(f"{thread}/")]
        assert own == [value for value in taken[thread] if value in own]
    assert len(values) > 60
