"""The faults for users' own tests: each does what it says, and its block undoes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kreplica
from kreplica.cluster.checked_cluster import CheckedCluster
from kreplica.common.errors import InvalidRequest, OffsetOutOfRange
from kreplica.log.verify import verify
from kreplica.runtime.storage import FileStorage
from kreplica.testing import faults
from tests.support.polling import wait_until


@pytest.fixture
def cluster(tmp_path: Path) -> Any:
    with CheckedCluster(3, tmp_path) as cluster:
        cluster.create_topic("orders", config={"min.insync.replicas": 2})
        put(cluster, b"a")
        yield cluster
        cluster.check()


@pytest.fixture
def simulation() -> Any:
    with kreplica.Simulation(seed=3, brokers=3) as sim:
        sim.create_topic("orders", config={"min.insync.replicas": 2})
        sim.append("orders", [b"a"], partition=0).result()
        yield sim
        sim.check()


def put(cluster: Any, value: bytes) -> int:
    return cluster.append("orders", [value], partition=0).result(20).base_offset  # type: ignore[no-any-return]


def follower(cluster: Any) -> int:
    view = cluster.partition("orders")
    return next(each for each in view.replicas if each != view.leader)


def test_nodes_that_are_killed_or_paused_come_back(cluster: CheckedCluster) -> None:
    leader = cluster.partition("orders").leader
    assert leader is not None
    with faults.killed(cluster, leader):
        assert not cluster.is_running(leader)
        assert put(cluster, b"b") == 1
    assert cluster.is_running(leader)
    other = follower(cluster)
    with faults.paused(cluster, other):
        assert cluster.describe()["nodes"][other]["is_paused"]
        put(cluster, b"c")
    assert not cluster.describe()["nodes"][other]["is_paused"]
    with pytest.raises(InvalidRequest), faults.paused(cluster, 99):
        pass


def test_cut_links_heal(cluster: CheckedCluster) -> None:
    other = follower(cluster)
    with faults.isolated(cluster, other):
        put(cluster, b"b")
        wait_until(lambda: other not in cluster.partition("orders").isr, "it leaves the ISR")
    wait_until(lambda: other in cluster.partition("orders").isr, "it returns to the ISR")
    leader = cluster.partition("orders").leader
    assert leader is not None
    with faults.cut(cluster, leader, other):
        pass
    assert not cluster._network.cut_links


def test_messages_that_are_delayed_arrive_in_order(cluster: CheckedCluster) -> None:
    with faults.delayed(cluster, 5):
        assert [put(cluster, b"b"), put(cluster, b"c")] == [1, 2]
    assert cluster._network.gate is None
    for wrong in (-1, float("nan"), 1e9):
        with pytest.raises(ValueError, match="delay_ms"), faults.delayed(cluster, wrong):
            pass


def test_a_full_disk_takes_the_node_out_of_the_isr_and_lets_it_return(cluster: CheckedCluster) -> None:
    other = follower(cluster)
    with faults.full_disk(cluster, other):
        put(cluster, b"b" * 200_000)
        wait_until(lambda: other not in cluster.partition("orders").isr, "it leaves the ISR")
    wait_until(lambda: other in cluster.partition("orders").isr, "it returns to the ISR")
    with pytest.raises(ValueError, match="state must be one of"):
        cluster.set_disk(other, "broken")  # type: ignore[arg-type]


def test_rot_damages_one_replica(cluster: CheckedCluster) -> None:
    other = follower(cluster)
    put(cluster, b"b")
    wait_until(lambda: cluster.partition("orders").high_watermark == 2, "both are committed")
    faults.rot(cluster, "orders", 0, 1, broker=other)
    damaged = f"{cluster.directory}/node-{other}/orders-0"
    sound = f"{cluster.directory}/node-{cluster.partition('orders').leader}/orders-0"
    assert [each.kind for each in verify(FileStorage(), damaged)] == ["InvalidCrc"]
    assert list(verify(FileStorage(), sound)) == []
    with pytest.raises(OffsetOutOfRange):
        faults.rot(cluster, "orders", 0, 2, broker=other)
    faults.rot(cluster, "orders", 0, 1, broker=other)  # the same bit again: the record is as it was


def test_a_simulation_has_the_same_faults(simulation: kreplica.Simulation) -> None:
    other = follower(simulation)
    with faults.full_disk(simulation, other), faults.delayed(simulation, 20):
        simulation.append("orders", [b"b"], partition=0).result()
    with faults.killed(simulation, other):
        simulation.append("orders", [b"c"], partition=0).result()
    with faults.isolated(simulation, other):
        simulation.run_for(100)
    assert [record.value for record in simulation.read("orders", 0)] == [b"a", b"b", b"c"]
