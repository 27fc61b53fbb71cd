"""The pytest plugin: a cluster for each test, held to its promises afterwards."""

from __future__ import annotations

import pytest

from kreplica.cluster import checked_cluster, promises
from kreplica.cluster.checked_cluster import CheckedCluster
from kreplica.cluster.promises import BrokenPromise

pytest_plugins = ["pytester"]


@pytest.mark.parametrize("is_lost", [False, True])
def test_the_fixture_and_its_marker(pytester, monkeypatch, is_lost):
    monkeypatch.setattr(checked_cluster, "SETTLE_TIMEOUT", 0.5 if is_lost else 20)
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.mark.kreplica(brokers=1, serve=True)
        def test_it(kreplica_cluster):
            assert kreplica_cluster.bootstrap_servers.startswith("127.0.0.1:")
            kreplica_cluster.create_topic("orders", replication_factor=1)
            assert kreplica_cluster.nodes == [1]
            kreplica_cluster.append("orders", [b"v"], partition=0).result(timeout=20)
            if {is_lost}:
                broker = kreplica_cluster.node(1).broker
                broker.replica_manager.partitions.get(("orders", 0)).local_log.truncate_fully_and_start_at(0)
        """
    )
    pytester.makepyprojecttoml("[tool.pytest.ini_options]\naddopts = '--import-mode=importlib'")
    ran = pytester.runpytest_inprocess("-p", "kreplica.testing", "-p", "no:cacheprovider")
    ran.assert_outcomes(passed=1, errors=int(is_lost))
    if is_lost:
        ran.stdout.fnmatch_lines(["*BrokenPromise*"])


@pytest.fixture
def cluster(tmp_path):
    with CheckedCluster(3, tmp_path) as cluster:
        cluster.create_topic("orders", config={"min.insync.replicas": 2})
        yield cluster


def put(cluster, value):
    cluster.append("orders", [value], partition=0).result(20)


def test_a_cluster_is_well_after_all_that_may_happen(cluster):
    put(cluster, b"a")
    cluster.kill(cluster.partition("orders").leader)
    put(cluster, b"b")
    cluster.check()
    dead = next(node_id for node_id in cluster.nodes if not cluster.describe()["nodes"][node_id]["is_alive"])
    cluster.start(dead)
    cluster.pause(dead)
    put(cluster, b"c")
    cluster.check()


def test_replicas_that_differ_are_found(cluster, monkeypatch):
    put(cluster, b"a")
    cluster.check()
    view = cluster.partition("orders")
    follower = next(each for each in view.isr if each != view.leader)
    log = cluster.node(follower).broker.replica_manager.partitions.get(("orders", 0)).local_log
    true = promises._records
    monkeypatch.setattr(promises, "_records", lambda *at: [] if at[0] is log else true(*at))
    with pytest.raises(BrokenPromise, match=r"differ within \[0, 1\)"):
        cluster.check(timeout=0.2)


def test_what_was_acknowledged_and_is_gone_is_found(cluster):
    put(cluster, b"a")
    cluster._promises._acknowledged[("orders", 0)] = 7
    with pytest.raises(BrokenPromise, match=r"acknowledged up to 7, but the leader's high watermark is 1"):
        cluster.check(timeout=0.2)


def test_a_task_that_failed_is_told(cluster):
    cluster.failures.append(("a loop", ValueError("why")))
    with pytest.raises(BrokenPromise, match="why"):
        cluster.check()
