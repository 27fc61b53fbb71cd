"""Bits that rot under whole nodes: replicas heal each other, and an operator helps where they cannot."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from kreplica.client.fetcher import EARLIEST
from kreplica.common.types import TopicPartition
from kreplica.sim.faults import flip_a_bit
from kreplica.sim.machines import DIRECTORY
from kreplica.sim.nodes.node_checker import NodeChecker
from kreplica.sim.nodes.node_cluster import NodeCluster
from kreplica.sim.nodes.node_faults import NodeFaults

AT = TopicPartition("t", 0)


class Rotting:
    """A cluster of three with one partition of the replicas 1 and 2, where 1 leads."""

    def __init__(self) -> None:
        self.cluster = NodeCluster(seed=1)
        self.checker = NodeChecker(self.cluster)
        self.counts: Counter[str] = Counter()
        self.faults = NodeFaults(self.cluster, self.checker, self.counts, Random(1))
        # What a node cannot do for the rot on its disk is no violation.
        self.checker.is_harmed = lambda _: True
        self.cluster.boot()
        created = self.cluster.client.admin.create_topic(
            "t", assignment={0: [1, 2]}, config={"min.insync.replicas": 1}
        )
        self.cluster.result(created)

    def produce(self, *values: bytes) -> None:
        self.cluster.result(self.cluster.client.producer.send(AT, values, timeout_ms=5_000))
        end = self.log(1).log_end_offset
        running = [each for each in (1, 2) if self.cluster.node(each) is not None]
        assert self.cluster.run_until(lambda: all(self.log(each).high_watermark == end for each in running))

    def read(self) -> list[bytes]:
        fetched = self.cluster.result(self.cluster.client.fetcher.fetch(AT, 0, timeout_ms=5_000))
        return [record.value for batch in fetched.batches() for record in batch]

    def isr(self) -> set[int]:
        return set(self.cluster.partition("t").isr)

    def log(self, node_id: int):
        return self.cluster.node(node_id).broker.log_manager.get_log(AT)


@pytest.fixture
def rotting():
    return Rotting()


def test_replicas_heal_what_has_rotted(rotting):
    rotting.produce(b"a")
    rotting.faults.rot(1)
    assert rotting.faults.struck == {1}
    rotting.faults.heal()
    assert rotting.log(1).damages
    assert rotting.cluster.run_until(lambda: not rotting.log(1).damages and rotting.isr() == {1, 2})
    rotting.faults.healed()
    assert rotting.counts["rotten ranges made whole"] == 1
    assert rotting.faults.struck == set()
    assert rotting.read() == [b"a"]


@pytest.mark.parametrize("why", ["empty", "no replica", "no broker", "failing", "down"])
def test_nothing_rots_that_could_not_be_healed(rotting, why):
    if why != "empty":
        rotting.produce(b"a")
    if why == "failing":
        rotting.faults.failing.add(2)
    if why == "down":
        rotting.cluster.kill(2)
    rotting.faults.rot({"no replica": 3, "no broker": 1001}.get(why, 1))
    assert rotting.faults.struck == set()


def test_an_operator_elects_another_where_the_only_one_in_sync_stopped_at_rot(rotting):
    rotting.produce(b"a")
    rotting.cluster.kill(2)
    assert rotting.cluster.run_until(lambda: rotting.isr() == {1})
    # Of this, 2 has nothing.
    rotting.produce(b"b")
    rotting.log(1).flush()
    rotting.log(1).flush_state()
    rotting.cluster.kill(1)
    assert flip_a_bit(rotting.cluster.brokers[1].storage, DIRECTORY, AT, 1)
    rotting.cluster.start(1)
    rotting.cluster.start(2)
    assert rotting.cluster.run_until(rotting.cluster.is_ready)
    rotting.faults.heal()
    assert rotting.cluster.run_until(lambda: rotting.isr() == {1, 2})
    assert rotting.counts["elections past rot"] == 1
    assert rotting.read() == [b"a"]


def test_an_operator_deletes_what_only_the_leader_had_not_deleted(rotting):
    rotting.produce(b"a")
    rotting.faults.rot(1)
    rotting.log(2).maybe_increment_log_start_offset(1)
    rotting.faults.heal()
    assert rotting.log(1).damages
    assert rotting.cluster.run_until(lambda: rotting.log(1).log_start_offset == 1)
    assert rotting.counts["deletions past rot"] == 1
    rotting.produce(b"b")
    assert rotting.cluster.result(rotting.cluster.client.fetcher.offset(AT, EARLIEST)) == 1
