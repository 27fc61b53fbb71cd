"""Full disks of whole nodes: no node ends, no acknowledged record is lost, and all goes on once there is room
again."""

from __future__ import annotations

import pytest

from kreplica.common.errors import KreplicaError
from kreplica.common.types import TopicPartition
from kreplica.sim.nodes.node_checker import NodeChecker
from kreplica.sim.nodes.node_cluster import NodeCluster

PARTITION = TopicPartition("t", 0)
NODES = (1, 2, 3)
SETTING = "leader.replication.throttled.replicas"


class Stage:
    """Three nodes, each broker and controller; none of them may end."""

    def __init__(self) -> None:
        self.cluster = NodeCluster(seed=1)
        self.cluster.boot()
        self.create("t")
        # A change of the metadata that has no room on a broker's disk is an error there, and made later.
        NodeChecker(self.cluster).is_harmed = lambda _: True

    def create(self, topic: str) -> None:
        admin = self.cluster.client.admin
        self.cluster.result(admin.create_topic(topic, partitions=1, config={"min.insync.replicas": 2}))

    def change(self) -> None:
        """Let the metadata log grow by more than it has allocated ahead."""
        for count in range(850, 874):
            value = ",".join(["0:1"] * count)
            self.cluster.result(self.cluster.client.admin.alter_config("t", {SETTING: value}))

    def produce(self, value: bytes) -> int:
        sent = self.cluster.client.producer.send(PARTITION, [value], timeout_ms=5_000)
        return self.cluster.result(sent).base_offset

    def values(self) -> list[bytes | None]:
        fetched = self.cluster.result(self.cluster.client.fetcher.fetch(PARTITION, 0, timeout_ms=5_000))
        return [record.value for batch in fetched.batches() for record in batch]

    def fill(self, *nodes: int, full: bool = True) -> None:
        for node in nodes:
            self.cluster.brokers[node].storage.full = full

    def is_well(self) -> bool:
        partition = self.cluster.partition("t")
        return partition is not None and len(partition.isr) == 3 and self.cluster.is_ready()


@pytest.fixture
def at() -> Stage:
    return Stage()


def test_no_node_ends_where_no_disk_has_room(at: Stage) -> None:
    assert at.produce(b"a") == 0
    at.fill(*NODES)
    with pytest.raises(KreplicaError) as refused:
        at.change()
    assert refused.value.retriable
    at.cluster.pass_time(20_000)
    assert at.cluster.fatal == []
    at.fill(*NODES, full=False)
    assert at.cluster.run_until(at.is_well)
    at.change()
    at.create("later")
    at.produce(b"b")
    assert at.values() == [b"a", b"b"]
    assert at.cluster.fatal == []


def test_another_voter_leads_where_the_active_controller_has_no_room(at: Stage) -> None:
    full = at.cluster.controller
    assert full is not None
    at.fill(full)
    at.change()
    assert at.cluster.controller not in (None, full)
    at.fill(full, full=False)
    assert at.cluster.run_until(at.is_well)
    assert at.cluster.fatal == []


def test_a_majority_without_room_goes_on_once_one_of_them_has_some(at: Stage) -> None:
    first = at.cluster.controller
    others = [node for node in NODES if node != first]
    at.fill(*others)
    with pytest.raises(KreplicaError):
        at.change()
    at.fill(others[0], full=False)
    assert at.cluster.run_until(lambda: at.cluster.controller is not None)
    at.change()
    at.fill(others[1], full=False)
    assert at.cluster.run_until(at.is_well)
    assert at.cluster.fatal == []


def test_a_voter_without_room_sends_no_vote_before_it_is_on_its_disk(at: Stage) -> None:
    first = at.cluster.controller
    assert first is not None
    others = [node for node in NODES if node != first]
    at.fill(*others)
    at.cluster.kill(first)
    # The two that are left are a majority, and neither can put a vote on its disk.
    assert not at.cluster.run_until(lambda: at.cluster.controller is not None, 5_000)
    at.fill(*others, full=False)
    assert at.cluster.run_until(lambda: at.cluster.controller is not None)
    at.cluster.start(first)
    assert at.cluster.run_until(at.is_well)
    assert at.cluster.fatal == []
