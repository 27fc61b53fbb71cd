"""`kreplica cluster`, `broker` and `partition` at a running cluster."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kreplica.cli import reassignment
from kreplica.cli.app import app
from kreplica.cli.cluster_admin import FOLLOWER_REPLICAS, LEADER_REPLICAS, ClusterAdmin
from kreplica.cluster import Cluster
from kreplica.common.errors import (
    BrokerIdNotRegistered,
    BrokerNotAvailable,
    InvalidFile,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    NetworkException,
    NoReassignmentInProgress,
    ReassignmentInProgress,
    UnknownTopicOrPartition,
)
from tests.support.ports import free_ports
from tests.support.sockets import until

WAIT_S = 60
VALUE = bytes(1000)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(4, tmp_path_factory.mktemp("operators") / "data", serve=True) as cluster:
        yield cluster


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(4, tmp_path / "data", serve=True) as cluster:
        yield cluster


def run(cluster: Cluster, *arguments: str) -> Any:
    environment = {"KREPLICA_BOOTSTRAP": cluster.bootstrap_servers}
    return CliRunner().invoke(app, arguments, env=environment)


def facts(cluster: Cluster, *arguments: str, exit_code: int = 0) -> list[dict[str, Any]]:
    result = run(cluster, *arguments, "--json")
    assert result.exit_code == exit_code, (result.output, result.exception)
    return [json.loads(line) for line in result.stdout.splitlines()]


def create(cluster: Cluster, topic: str, *assignment: list[int]) -> None:
    """Create a topic with these replicas, and 100 records of 1000 bytes in each partition."""
    cluster.create_topic(topic, assignment=dict(enumerate(assignment)))
    for number in range(len(assignment)):
        cluster.append(topic, [VALUE] * 100, partition=number).result(WAIT_S)


def replicas(cluster: Cluster, topic: str) -> list[list[int]]:
    return [each["replicas"] for each in facts(cluster, "partition", "list", topic)]


def leaders(cluster: Cluster, topic: str) -> list[int]:
    return [each["leader"] for each in facts(cluster, "partition", "list", topic)]


def test_a_cluster_is_described(cluster: Cluster) -> None:
    create(cluster, "described", [1, 2], [2, 3])
    [fact] = facts(cluster, "cluster", "info")
    assert (fact["brokers"], fact["brokers_up"], fact["voters"]) == (4, 4, [1, 2, 3])
    assert fact["partitions"] >= 2
    assert fact["bytes"] >= 200_000
    assert fact["features"]["metadata.version"] > 20
    table = run(cluster, "cluster", "info").stdout
    assert f"cluster {fact['cluster_id']}" in table
    assert "4 of 4 up" in table


def test_brokers_are_listed_with_their_disks(cluster: Cluster) -> None:
    found = facts(cluster, "broker", "list")
    assert [(each["id"], each["state"], each["out_of_sync"]) for each in found] == [
        (number, "up", 0) for number in (1, 2, 3, 4)
    ]
    for broker in found:
        [disk] = broker["directories"]
        assert disk["total_bytes"] > disk["usable_bytes"] > 0
        assert (disk["error"], disk["logs"]) == (None, broker["replicas"])
    assert "%" in run(cluster, "broker", "list").stdout


def test_partitions_are_listed_with_what_is_the_matter(cluster: Cluster) -> None:
    create(cluster, "listed", [1, 2], [2, 3])
    found = facts(cluster, "partition", "list", "listed:1")
    assert [(each["partition"], each["replicas"], each["states"]) for each in found] == [(1, [2, 3], [])]
    assert found[0]["bytes"] >= 100_000
    assert "listed" in run(cluster, "partition", "list", "listed").stdout
    assert facts(cluster, "partition", "list", "--state", "offline") == []
    assert "has no such partitions" in run(cluster, "partition", "list", "--state", "offline").stdout
    assert isinstance(run(cluster, "partition", "list", "absent").exception, UnknownTopicOrPartition)
    create(cluster, "__like_offsets", [1, 2])
    names = [each["topic"] for each in facts(cluster, "partition", "list")]
    assert "__like_offsets" not in names
    assert "and 1 of internal topics (--internal)" in run(cluster, "partition", "list").stdout
    assert [each["topic"] for each in facts(cluster, "partition", "list", "--internal")][
        -1
    ] == "__like_offsets"
    assert len(facts(cluster, "partition", "list", "__like_offsets")) == 1
    cluster.delete_topic("__like_offsets")
    mistaken = run(cluster, "partition", "list", "--state", "asleep")
    assert (mistaken.exit_code, "'asleep' is no state" in mistaken.output) == (2, True)


def test_a_move_is_only_planned_without_execute(cluster: Cluster) -> None:
    create(cluster, "planned", [1, 2])
    change, *brokers = facts(cluster, "partition", "move", "planned", "--to", "3,2")
    assert (change["replicas"], change["new_replicas"], change["bytes"] > 100_000) == ([1, 2], [3, 2], True)
    difference = {each["broker"]: each["new_replicas"] - each["replicas"] for each in brokers}
    assert {each: gain for each, gain in difference.items() if gain} == {1: -1, 3: 1}
    shown = run(cluster, "partition", "move", "planned", "--to", "3,2")
    assert "1 replica to copy" in shown.stdout
    assert "--execute" in shown.stderr
    assert replicas(cluster, "planned") == [[1, 2]]


def test_replicas_move_and_their_new_leader_leads(cluster: Cluster, tmp_path: Path) -> None:
    create(cluster, "moved", [1, 2], [1, 2])
    saved = tmp_path / "before.json"
    to = ("partition", "move", "moved", "--to", "4,3")
    found = facts(cluster, *to, "--execute", "--wait", "--throttle", "100MiB", "--save", str(saved))
    assert {each["partition"] for each in found if each["what"] == "moved"} == {0, 1}
    assert (replicas(cluster, "moved"), leaders(cluster, "moved")) == ([[4, 3], [4, 3]], [4, 4])
    with ClusterAdmin(cluster.bootstrap_servers) as admin:
        settings = {each.value for _, each in admin.topic_settings((LEADER_REPLICAS, FOLLOWER_REPLICAS))}
    assert settings == {""}
    assert "nothing has to move" in run(cluster, *to).stderr
    assert run(cluster, *to, "--json").stdout == ""
    back = run(cluster, "partition", "move", "--file", str(saved), "--execute", "--wait")
    assert back.exit_code == 0
    assert replicas(cluster, "moved") == [[1, 2], [1, 2]]


def test_moves_may_begin_a_few_at_a_time(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    create(cluster, "few", *[[1, 2]] * 5)
    begun: list[int] = []
    reassign = ClusterAdmin.reassign

    def counted(admin: ClusterAdmin, layout: Any) -> Any:
        begun.append(len(layout))
        return reassign(admin, layout)

    monkeypatch.setattr(ClusterAdmin, "reassign", counted)
    to = ("partition", "move", "few", "--to", "3,4", "--execute", "--batch", "2")
    assert "--batch: needs --wait" in run(cluster, *to).output
    found = facts(cluster, *to, "--wait")
    assert {each["partition"] for each in found if each["what"] == "moved"} == set(range(5))
    assert begun == [2, 2, 1]
    assert replicas(cluster, "few") == [[3, 4]] * 5
    with monkeypatch.context() as late:
        late.setattr(reassignment, "follow", lambda *_: 1)
        stopped = run(
            cluster, "partition", "move", "few", "--to", "1,2", "--execute", "--wait", "--batch", "2"
        )
    assert stopped.exit_code == 1
    assert "not begun: 3 partitions; run the command again" in stopped.stderr
    assert run(cluster, "partition", "wait").exit_code == 0
    assert sorted(replicas(cluster, "few")) == [[1, 2], [1, 2], [3, 4], [3, 4], [3, 4]]


def test_a_move_is_followed_later_and_cancelled(cluster: Cluster) -> None:
    create(cluster, "stopped", [1, 2])
    # A throttle of one byte a second holds back all fetches but the first.
    for _ in range(8):
        cluster.append("stopped", [VALUE] * 1000, partition=0).result(WAIT_S)
    begun = run(cluster, "partition", "move", "stopped", "--to", "3,2", "--execute", "--throttle", "1")
    assert (begun.exit_code, "partition wait" in begun.stderr) == (0, True)
    [moving] = facts(cluster, "partition", "list", "--state", "moving")
    assert (moving["topic"], moving["adding"], moving["removing"]) == ("stopped", [3], [1])
    late = run(cluster, "partition", "wait", "--timeout", "0")
    assert (late.exit_code, "1 partition still to move: stopped-0" in late.stderr) == (1, True)
    again = run(cluster, "partition", "move", "stopped", "--to", "4,2")
    assert isinstance(again.exception, ReassignmentInProgress)
    assert isinstance(run(cluster, "cluster", "rebalance").exception, ReassignmentInProgress)
    notes = {each["check"]: each["status"] for each in facts(cluster, "cluster", "health")}
    assert notes["partitions that move"] == "note"
    [planned] = facts(cluster, "partition", "cancel")
    assert (planned["topic"], planned["done"]) == ("stopped", False)
    cancelled = run(cluster, "partition", "cancel", "stopped:0", "--execute")
    assert (cancelled.exit_code, "removed the throttle" in cancelled.stderr) == (0, True)
    # The preferred leader is another one afterwards, as in Kafka.
    assert list(map(set, replicas(cluster, "stopped"))) == [{1, 2}]
    assert isinstance(run(cluster, "partition", "cancel").exception, NoReassignmentInProgress)


@pytest.mark.parametrize(
    ("to", "text"),
    [("1,1", "name a broker twice"), ("1,9", "there is no broker 9; the cluster has the brokers 1, 2, 3, 4")],
)
def test_replicas_that_cannot_be_are_refused(cluster: Cluster, to: str, text: str) -> None:
    create(cluster, f"refused-{to[-1]}", [1, 2])
    refused = run(cluster, "partition", "move", f"refused-{to[-1]}", "--to", to)
    assert isinstance(refused.exception, InvalidReplicaAssignment)
    assert text in str(refused.exception)


def test_wrong_arguments_and_files_are_refused(cluster: Cluster, tmp_path: Path) -> None:
    for arguments in ((), ("orders",), ("orders", "--to", "a"), ("--to", "1", "--throttle", "fast")):
        assert run(cluster, "partition", "move", *arguments).exit_code == 2
    assert run(cluster, "partition", "elect", "--unclean").exit_code == 2
    file = tmp_path / "wrong.json"
    file.write_text('{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[]}]}')
    refused = run(cluster, "partition", "move", "--file", str(file)).exception
    assert isinstance(refused, InvalidFile)
    assert '"replicas":[1,2]' in str(refused)


def test_preferred_leaders_are_elected(cluster: Cluster) -> None:
    create(cluster, "elected", [1, 2], [2, 1])
    cluster.stop(1)
    until(lambda: leaders(cluster, "elected") == [2, 2])
    cluster.start(1)
    until(lambda: facts(cluster, "partition", "list", "elected")[0]["states"] == ["not preferred"])
    [plan] = facts(cluster, "partition", "elect", "elected")
    assert (plan["partition"], plan["leader"], plan["new_leader"], plan["done"]) == (0, 2, 1, False)
    assert run(cluster, "partition", "elect", "elected").exit_code == 0
    assert leaders(cluster, "elected") == [2, 2]
    [done] = facts(cluster, "partition", "elect", "elected", "--execute")
    assert (done["done"], done["problem"]) == (True, None)
    until(lambda: leaders(cluster, "elected") == [1, 2])
    assert "all leaders are the preferred ones" in run(cluster, "partition", "elect", "elected").stdout
    unneeded = run(cluster, "partition", "elect", "elected", "--unclean")
    assert "all of these partitions have a leader" in unneeded.stdout


def test_health_is_an_exit_code(cluster: Cluster) -> None:
    create(cluster, "healthy", [3], [3])
    create(cluster, "safe", [1, 3], [3, 1])
    assert run(cluster, "cluster", "health", "--wait", str(WAIT_S)).exit_code == 0
    assert "is healthy" in run(cluster, "cluster", "health").stdout
    cluster.stop(3)
    until(lambda: leaders(cluster, "healthy") == [-1, -1])
    found = {each["check"]: each for each in facts(cluster, "cluster", "health", exit_code=1)}
    assert found["brokers that are down"]["examples"] == ["3"]
    assert found["partitions without a leader"]["examples"][:2] == ["healthy-0", "healthy-1"]
    assert "safe-0" in found["under-replicated partitions"]["examples"]
    assert found["under-replicated partitions"]["remedy"]
    shown = run(cluster, "cluster", "health")
    assert (shown.exit_code, "is NOT healthy" in shown.stdout) == (1, True)
    states = {each["id"]: each["state"] for each in facts(cluster, "broker", "list")}
    assert states == {1: "up", 2: "up", 3: "down", 4: "up"}
    assert isinstance(run(cluster, "cluster", "rebalance").exception, BrokerNotAvailable)
    [lost] = facts(cluster, "partition", "elect", "healthy:0", "--unclean", "--execute", exit_code=1)
    assert "start one of them" in lost["problem"]
    to_down = run(cluster, "partition", "move", "safe", "--to", "1,3")
    assert to_down.exit_code == 0, "replicas on a broker that is down may stay there"
    cluster.start(3)
    assert run(cluster, "cluster", "health", "--wait", str(WAIT_S)).exit_code == 0


def test_an_unclean_election_makes_a_replica_lead_that_lags(cluster: Cluster) -> None:
    create(cluster, "unclean", [3, 4])
    cluster.stop(4)
    until(lambda: facts(cluster, "partition", "list", "unclean")[0]["isr"] == [3])
    cluster.append("unclean", [VALUE], partition=0).result(WAIT_S)
    cluster.stop(3)
    cluster.start(4)
    until(lambda: leaders(cluster, "unclean") == [-1])
    until(lambda: facts(cluster, "broker", "list")[3]["state"] == "up")
    [plan] = facts(cluster, "partition", "elect", "unclean", "--unclean")
    assert (plan["new_leader"], plan["problem"]) == (4, None)
    assert "loses the records" in run(cluster, "partition", "elect", "unclean", "--unclean").stderr
    [done] = facts(cluster, "partition", "elect", "unclean", "--unclean", "--execute")
    assert done["done"]
    until(lambda: leaders(cluster, "unclean") == [4])
    cluster.start(3)
    assert run(cluster, "cluster", "health", "--wait", str(WAIT_S)).exit_code == 0


def test_loads_become_even(cluster: Cluster) -> None:
    create(cluster, "uneven", *[[1, 2]] * 6)
    plan = facts(cluster, "cluster", "rebalance", "uneven")
    assert replicas(cluster, "uneven") == [[1, 2]] * 6
    assert [each["new_replicas"] for each in plan if each["what"] == "change"]
    result = run(cluster, "cluster", "rebalance", "uneven", "--execute", "--wait")
    assert result.exit_code == 0, result.output
    assert Counter(each for row in replicas(cluster, "uneven") for each in row) == {1: 3, 2: 3, 3: 3, 4: 3}
    assert set(Counter(leaders(cluster, "uneven")).values()) <= {1, 2}
    assert "nothing has to move" in run(cluster, "cluster", "rebalance", "uneven").stderr


def test_only_leaders_change_places(cluster: Cluster) -> None:
    create(cluster, "led", [1, 2], [1, 2])
    found = facts(cluster, "cluster", "rebalance", "led", "--leaders-only", "--execute", "--wait")
    assert sum(each["bytes"] for each in found if each["what"] == "change") == 0
    assert sorted(leaders(cluster, "led")) == [1, 2]
    assert [set(row) for row in replicas(cluster, "led")] == [{1, 2}, {1, 2}]


def test_no_broker_is_said_with_its_address_and_what_to_do() -> None:
    address = f"127.0.0.1:{free_ports(1)}"
    for command in (("cluster", "health"), ("broker", "list"), ("partition", "wait", "--timeout", "0")):
        error = CliRunner().invoke(app, [*command, "-b", address]).exception
        assert isinstance(error, NetworkException)
        assert str(error).startswith(f"{address}: ")
        assert "is a broker running there?" in str(error)


def test_a_broker_leaves(own_cluster: Cluster) -> None:
    cluster = own_cluster
    create(cluster, "wide", [1, 2, 3, 4])
    refused = run(cluster, "broker", "decommission", "4").exception
    assert isinstance(refused, InvalidReplicationFactor)
    assert "start another broker" in str(refused)
    assert run(cluster, "partition", "move", "wide", "--to", "4,2", "--execute", "--wait").exit_code == 0
    assert isinstance(run(cluster, "broker", "decommission", "9").exception, BrokerIdNotRegistered)
    planned = run(cluster, "broker", "decommission", "4")
    assert (planned.exit_code, "--execute" in planned.stderr) == (0, True)
    running = run(cluster, "broker", "decommission", "4", "--execute")
    assert (running.exit_code, "stop it" in running.stderr) == (1, True), running.output
    assert [each["replicas"] for each in facts(cluster, "broker", "list") if each["id"] == 4] == [0]
    cluster.stop(4)
    until(lambda: facts(cluster, "broker", "list")[3]["state"] == "down")
    assert "--execute unregisters it" in run(cluster, "broker", "decommission", "4").stdout
    [gone] = facts(cluster, "broker", "decommission", "4", "--execute")
    assert (gone["what"], gone["broker"], gone["is_voter"]) == ("unregistered", 4, False)
    assert [each["id"] for each in facts(cluster, "broker", "list")] == [1, 2, 3]
