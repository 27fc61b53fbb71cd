"""The faults for users' own tests: each does what it says, and its block undoes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kreplica
from kreplica.cluster.checked_cluster import CheckedCluster
from kreplica.common.errors import ClusterClosed, InvalidRequest, OffsetOutOfRange
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
    assert not cluster.is_cut(leader, other)


def test_messages_that_are_delayed_arrive_in_order(cluster: CheckedCluster) -> None:
    with faults.delayed(cluster, 5):
        assert [put(cluster, b"b"), put(cluster, b"c")] == [1, 2]
    assert cluster.delay_ms == 0
    for wrong in (-1, float("nan"), 1e9):
        with pytest.raises(ValueError, match="delay_ms"), faults.delayed(cluster, wrong):
            pass
    assert cluster.delay_ms == 0


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


def test_replicas_that_rotted_heal_before_they_are_compared(cluster: CheckedCluster) -> None:
    other = follower(cluster)
    cluster.check()
    faults.rot(cluster, "orders", 0, 0, broker=other)
    cluster.check()
    assert list(verify(FileStorage(), f"{cluster.directory}/node-{other}/orders-0")) == []


def test_a_node_that_the_block_starts_again_keeps_running(cluster: CheckedCluster) -> None:
    with faults.killed(cluster, 2):
        cluster.start(2)
    assert cluster.is_running(2)
    with faults.paused(cluster, 3):
        cluster.resume(3)
        cluster.kill(3)
    assert not cluster.is_running(3)
    with faults.paused(cluster, 2), faults.killed(cluster, 2):
        pass
    assert cluster.is_running(2)
    cluster.start(3)


@pytest.mark.parametrize("kind", ["cluster", "simulation"])
def test_the_end_of_a_fault_leaves_those_around_it(kind: str, request: pytest.FixtureRequest) -> None:
    broken = request.getfixturevalue(kind)
    with faults.cut(broken, 1, 2, both_ways=False):
        with faults.isolated(broken, 1), faults.delayed(broken, 1):
            assert broken.is_cut(2, 1)
            assert broken.is_cut(1, 3)
        assert broken.is_cut(1, 2)
        assert not broken.is_cut(2, 1)
        assert not broken.is_cut(3, 1)
    assert not broken.is_cut(1, 2)


def test_delays_add_up(cluster: CheckedCluster, simulation: kreplica.Simulation) -> None:
    with faults.delayed(cluster, 2):
        with faults.delayed(cluster, 3.5):
            assert cluster.delay_ms == 5.5
        assert cluster.delay_ms == 2
    assert cluster.delay_ms == 0
    before = simulation.now_ms
    with faults.delayed(simulation, 20), faults.delayed(simulation, 30):
        simulation.append("orders", [b"b"], partition=0).result()
    assert simulation.now_ms >= before + 100
    before = simulation.now_ms
    simulation.append("orders", [b"c"], partition=0).result()
    assert simulation.now_ms < before + 50


@pytest.mark.parametrize("kind", ["cluster", "simulation"])
def test_faults_of_nodes_that_do_not_exist_are_refused(kind: str, request: pytest.FixtureRequest) -> None:
    broken = request.getfixturevalue(kind)
    text: Any = "0"
    for wrong in (99, "1", None):
        for fault in (faults.killed, faults.paused, faults.isolated, faults.full_disk):
            with pytest.raises(InvalidRequest, match=r"there is no node .*\[1, 2, 3\]"), fault(broken, wrong):
                pass
        with pytest.raises(InvalidRequest, match="there is no node"), faults.cut(broken, 1, wrong):
            pass
    with pytest.raises(InvalidRequest, match="node 2 has no link to itself"), faults.cut(broken, 2, 2):
        pass
    for delay_ms in ("5", None):
        with pytest.raises(TypeError, match="delay_ms must be a number"), faults.delayed(broken, delay_ms):
            pass
    if kind == "cluster":
        with pytest.raises(InvalidRequest, match="there is no node 99"):
            faults.rot(broken, "orders", 0, 0, broker=99)
        with pytest.raises(TypeError, match="offset must be a number"):
            faults.rot(broken, "orders", 0, text, broker=1)


def test_a_closed_cluster_has_no_faults(tmp_path: Path) -> None:
    with CheckedCluster(3, tmp_path) as closed:
        closed.create_topic("orders")
    for fault in (faults.killed, faults.paused, faults.isolated, faults.full_disk, faults.delayed):
        with pytest.raises(ClusterClosed), fault(closed, 1):
            pass
    with pytest.raises(ClusterClosed), faults.cut(closed, 1, 2):
        pass
    with pytest.raises(ClusterClosed):
        faults.rot(closed, "orders", 0, 0, broker=1)


def test_a_simulation_has_the_same_faults(simulation: kreplica.Simulation) -> None:
    other = follower(simulation)
    with faults.full_disk(simulation, other), faults.delayed(simulation, 20):
        simulation.append("orders", [b"b"], partition=0).result()
    with faults.killed(simulation, other):
        simulation.append("orders", [b"c"], partition=0).result()
    with faults.isolated(simulation, other):
        simulation.run_for(100)
    assert [record.value for record in simulation.read("orders", 0)] == [b"a", b"b", b"c"]
