"""The tools for tests: a cluster for each test, which is checked afterwards, and replayed scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from kreplica.cluster import checked_cluster, promises
from kreplica.cluster.checked_cluster import CheckedCluster
from kreplica.cluster.promises import BrokenPromise
from kreplica.common.errors import EligibleLeadersNotAvailable
from kreplica.testing import replay
from tests.mutants.mutants import switched_on
from tests.support.polling import wait_until

pytest_plugins = ["pytester"]

TRANSCRIPTS = Path(__file__).parents[1] / "interaction" / "transcripts"


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


def test_tests_of_a_session_share_a_cluster(pytester):
    pytester.makepyfile(
        """
        import pytest
        from confluent_kafka import Producer

        @pytest.fixture(scope="session")
        def kreplica_session_arguments():
            return {"brokers": 1, "config": {"num.partitions": 1}}

        @pytest.mark.parametrize("text", ["a", "b c"])
        def test_it(kreplica_bootstrap_servers, kreplica_session_cluster, kreplica_topic, text):
            producer = Producer({"bootstrap.servers": kreplica_bootstrap_servers})
            producer.produce(kreplica_topic, text)
            assert producer.flush(20) == 0
            found = kreplica_session_cluster.read(kreplica_topic, 0)
            assert [record.value.decode() for record in found] == [text]
            assert len(kreplica_session_cluster.describe()["topics"]) == 1
        """
    )
    pytester.makepyprojecttoml("[tool.pytest.ini_options]\naddopts = '--import-mode=importlib'")
    ran = pytester.runpytest_inprocess("-p", "kreplica.testing", "-p", "no:cacheprovider")
    ran.assert_outcomes(passed=2)


def test_what_a_test_does_wrong_is_said_by_its_own_failure(pytester):
    pytester.makepyfile(
        """
        import pytest

        def test_that_deletes_its_topic(kreplica_session_cluster, kreplica_topic):
            kreplica_session_cluster.delete_topic(kreplica_topic)

        @pytest.mark.kreplica(1)
        def test_of_one_broker(kreplica_cluster):
            assert kreplica_cluster.nodes == [1]

        @pytest.mark.kreplica(broker=3)
        def test_of_a_misspelt_argument(kreplica_cluster):
            pass

        @pytest.mark.kreplica(config={"min.insync.replica": 2})
        def test_of_a_misspelt_setting(kreplica_cluster):
            pass
        """
    )
    pytester.makepyprojecttoml("[tool.pytest.ini_options]\naddopts = '--import-mode=importlib'")
    ran = pytester.runpytest_inprocess("-p", "kreplica.testing", "-p", "no:cacheprovider")
    ran.assert_outcomes(passed=2, errors=2)
    ran.stdout.fnmatch_lines(["E *got an unexpected keyword argument 'broker'"])
    ran.stdout.fnmatch_lines(["E *there is no setting 'min.insync.replica'; is it 'min.insync.replicas'?"])
    assert "raised in repr()" not in ran.stdout.str()


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


def lose_uncleanly(cluster, elect):
    """Acknowledge a record that only the leader has, and let a replica without it lead."""
    put(cluster, b"a")
    view = cluster.partition("orders")
    leader, *others = view.isr
    for other in others:
        cluster.kill(other)
    wait_until(lambda: view.isr == (leader,), "a leader on its own")
    cluster.append("orders", [b"lost"], partition=0).result(20)
    cluster.kill(leader)
    for other in others:
        cluster.start(other)
    elect()
    wait_until(lambda: view.leader in others, "another leader")
    cluster.check()
    assert [record.value for record in cluster.read("orders", 0)] == [b"a"]
    # What is acknowledged from then on is a promise again.
    put(cluster, b"b")
    cluster._promises._acknowledged[("orders", 0)] += 5
    with pytest.raises(BrokenPromise, match="acknowledged up to"):
        cluster.check(timeout=0.2)


@pytest.mark.parametrize("of_topic", [True, False])
def test_what_an_allowed_unclean_election_lost_is_no_broken_promise(tmp_path, of_topic):
    allowed = {"unclean.leader.election.enable": True}
    with CheckedCluster(3, tmp_path, controllers=1, config={} if of_topic else allowed) as cluster:
        cluster.create_topic("orders", config=allowed if of_topic else {})
        lose_uncleanly(cluster, lambda: None)


def test_what_was_lost_by_an_unclean_election_on_request_is_no_broken_promise(tmp_path):
    with CheckedCluster(3, tmp_path, controllers=1) as cluster:
        cluster.create_topic("orders")

        def is_elected():
            try:
                cluster.elect("orders", 0, "unclean")
            except EligibleLeadersNotAvailable:
                return False
            return True

        def elect():
            # Until the controller knows that the leader is dead, there is no need for an election.
            wait_until(lambda: cluster.partition("orders").leader is None, "no leader")
            wait_until(is_elected, "the others are back")

        lose_uncleanly(cluster, elect)


def test_a_failed_task_breaks_a_check(cluster):
    cluster.failures.append(("a loop", ValueError("why")))
    with pytest.raises(BrokenPromise, match="why"):
        cluster.check()


def test_a_script_is_returned_with_what_its_commands_print_now():
    commands = "# A broker of its own.\nbrokers 1\ntopic orders 1\nproduce m1\n"
    printed = "----\nm1: acknowledged at offset 0\n"
    assert replay(commands) == replay(commands + "----\nwhat it printed before\n") == commands + printed


def test_a_script_that_cannot_run_is_refused_with_its_line():
    with pytest.raises(ValueError, match=r"line 2, 'dance': there is no command 'dance'"):
        replay("brokers 1\ndance\n")


def test_a_script_that_breaks_an_invariant_fails():
    script = TRANSCRIPTS / "kip_101_truncation_to_the_high_watermark.txt"
    with switched_on("cut_to_the_mark"), pytest.raises(AssertionError, match="LeaderCompleteness"):
        replay(script.read_text())
