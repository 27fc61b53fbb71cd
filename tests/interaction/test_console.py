"""The console of a real node: what its API shows of a cluster, and over HTTP whom it answers."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from kreplica.cluster import Cluster
from kreplica.common.metrics import MetricRegistry
from kreplica.runtime.console import Console, ConsoleAccess
from tests.support.polling import wait_until

WAIT_S = 30
OPEN = ConsoleAccess(hosts=frozenset(), passwords={})


class Asked:
    """Asks a console as a browser of this machine does, without a network."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.status = ""
        self.headers: dict[str, str] = {}

    def __call__(self, path: str, /, method: str = "GET", host: str = "127.0.0.1:1", **query: object) -> Any:
        environ = {
            "PATH_INFO": path,
            "QUERY_STRING": urlencode(query),
            "HTTP_HOST": host,
            "REQUEST_METHOD": method,
        }
        content = b"".join(self._console.answer(environ, self._start))
        return json.loads(content) if self.headers["Content-Type"].startswith("application/json") else content

    def _start(self, status: str, headers: list[tuple[str, str]]) -> None:
        self.status, self.headers = status, dict(headers)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(3, tmp_path_factory.mktemp("console") / "data") as cluster:
        cluster.create_topic("orders", 2, config={"retention.ms": 3_600_000})
        for number in range(5):
            cluster.append("orders", [f"value {number}".encode()], partition=1).result(WAIT_S)
        yield cluster


@pytest.fixture
def ask(cluster: Cluster) -> Asked:
    return Asked(Console(cluster.node(1), OPEN))


def test_the_overview_counts_what_the_metadata_has(cluster: Cluster, ask: Asked) -> None:
    found = ask("/api/overview")
    assert ask.status == "200 OK"
    assert [each["id"] for each in found["brokers"]] == [1, 2, 3]
    assert (found["node_id"], found["controller"]) == (1, cluster.node(1).active_controller())
    assert (found["topics"], found["partitions"]) == (1, 2)
    assert sum(each["leaders"] for each in found["brokers"]) == 2
    assert all(disk["total_bytes"] >= disk["usable_bytes"] > 0 for disk in found["disks"])


def test_topics_and_partitions_have_leaders_and_offsets(cluster: Cluster, ask: Asked) -> None:
    assert [each["name"] for each in ask("/api/topics", search="ORD")["topics"]] == ["orders"]
    assert ask("/api/topics", search="nothing") == {"topics": [], "total": 0}
    wait_until(
        lambda: ask("/api/topic", name="orders")["partitions"][1]["high_watermark"] == 5,
        "the replica has all",
    )
    partition = ask("/api/topic", name="orders")["partitions"][1]
    assert partition["leader"] == cluster.partition("orders", 1).leader
    assert sorted(partition["isr"]) == [1, 2, 3]
    assert ask("/api/topic", name="nothing")["kind"] == "UnknownTopicOrPartition"
    assert ask.status.startswith("404")


def test_messages_of_a_partition_are_read_from_this_node_s_replica(ask: Asked) -> None:
    def read() -> list[str]:
        found = ask("/api/messages", topic="orders", partition=1, offset=0, contains="value")
        return [each["value"]["text"] for each in found["messages"]]

    wait_until(lambda: read() == [f"value {number}" for number in range(5)], "the replica has all")
    assert "partition is missing" in ask("/api/messages", topic="orders")["error"]
    assert ask.status.startswith("400")


def test_the_history_shows_replicas_that_leave_and_return(cluster: Cluster, ask: Asked) -> None:
    leader = cluster.partition("orders", 0).leader
    victim = next(each for each in (2, 3) if each != leader)
    cluster.kill(victim)
    cluster._wait(lambda: victim not in cluster.partition("orders", 0).isr, WAIT_S, "it is out of sync")
    cluster.start(victim)
    cluster._wait(lambda: victim in cluster.partition("orders", 0).isr, WAIT_S, "it is in sync")

    def isrs() -> list[list[int]]:
        changes = ask("/api/history", topic="orders", partition=0)["changes"]
        return [sorted(each["isr"]) for each in changes]

    without = sorted({1, 2, 3} - {victim})
    wait_until(lambda: isrs()[-1] == [1, 2, 3] and without in isrs(), "the node has read the log")


def test_configs_leave_out_what_is_secret_and_name_their_source(ask: Asked) -> None:
    found = {each["name"]: each for each in ask("/api/configs", type="topic", name="orders")["configs"]}
    assert (found["retention.ms"]["value"], found["retention.ms"]["source"]) == ("3600000", "topic")
    assert found["cleanup.policy"]["is_default"]
    assert "is not one of topic, broker, group" in ask("/api/configs", type="cluster", name="x")["error"]
    assert "knows the settings of itself" in ask("/api/configs", type="broker", name="2")["error"]


def test_quorum_acls_groups_and_damage_are_plain(cluster: Cluster) -> None:
    leader = cluster.node(1).active_controller()
    assert leader is not None
    ask = Asked(Console(cluster.node(leader), OPEN))
    quorum = ask("/api/quorum")
    assert sorted(each["id"] for each in quorum["replicas"] if each["role"] != "observer") == quorum["voters"]
    assert ask("/api/acls") == {"is_enforced": False, "total": 0, "acls": []}
    assert ask("/api/groups") == {"total": 0, "groups": []}
    assert ask("/api/group", id="nothing")["kind"] == "GroupIdNotFound"
    damage = ask("/api/damage")
    assert (damage["ranges"], damage["offline"]) == ([], [])


def test_a_group_of_another_node_is_said_to_be_there(cluster: Cluster) -> None:
    cluster.create_topic("used", 1)
    cluster.append("used", [b"v"]).result(WAIT_S)
    for _ in cluster.consume("used", "billing", timeout=2):
        pass
    asked = {node: Asked(Console(cluster.node(node), OPEN)) for node in cluster.nodes}
    found = {node: ask("/api/group", id="billing") for node, ask in asked.items()}
    (coordinator,) = (node for node, each in found.items() if "error" not in each)
    for node, each in found.items():
        if node != coordinator:
            assert each["error"].endswith(f"if there is one, the console of node {coordinator} shows it")
    assert asked[1]("/api/topics")["topics"][-1]["name"] == "__consumer_offsets"
    cluster.delete_topic("used")


def test_other_hosts_methods_and_paths_are_refused(ask: Asked) -> None:
    for host in ("evil.example", ""):
        assert "does not name this machine" in ask("/api/overview", host=host)["error"]
        assert ask.status.startswith("421")
    assert "only reads" in ask("/api/overview", method="POST")["error"]
    assert ask.status.startswith("405")
    assert "there are overview, topics" in ask("/api/secrets")["error"]
    assert b"<title>kreplica console</title>" in ask("/console")
    assert "default-src 'none'" in ask.headers["Content-Security-Policy"]


def test_over_http_the_console_wants_its_password(cluster: Cluster) -> None:
    pytest.importorskip("prometheus_client")
    from kreplica.runtime.prometheus import MetricsListener

    listener = MetricsListener("127.0.0.1", 0)
    try:
        url = f"http://127.0.0.1:{listener.port}"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{url}/console", timeout=WAIT_S)
        access = ConsoleAccess(hosts=frozenset(), passwords={"ada": "lovelace"})
        console = Console(cluster.node(1), access)
        listener.show(MetricRegistry(), livez=list, ready=list, console=console)
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            urllib.request.urlopen(f"{url}/api/overview", timeout=WAIT_S)
        assert refused.value.headers["WWW-Authenticate"].startswith("Basic ")
        refused.value.close()
        request = urllib.request.Request(
            f"{url}/api/overview", headers={"Authorization": "Basic YWRhOmxvdmVsYWNl"}
        )
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            assert json.load(answer)["node_id"] == 1
        with urllib.request.urlopen(f"{url}/health", timeout=WAIT_S) as answer:
            assert json.load(answer)["status"] == "ok"
    finally:
        listener.close()


def test_a_node_that_has_ended_says_so(tmp_path: Path) -> None:
    with Cluster(1, tmp_path / "data") as cluster:
        cluster.create_topic("t")
        cluster.append("t", [b"a"]).result(WAIT_S)
        ask = Asked(Console(cluster.node(1), OPEN))
    for path in ("/api/overview", "/api/messages", "/api/history", "/api/groups", "/api/quorum"):
        assert ask(path, topic="t", partition=0)["error"] == "the node is starting or has stopped"
        assert ask.status.startswith("503")
