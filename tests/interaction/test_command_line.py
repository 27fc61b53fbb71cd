"""`kreplica topic`, `produce` and `consume` against three nodes over sockets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kreplica import Cluster
from kreplica.cli import stock_client
from kreplica.cli.app import app
from kreplica.cli.kafka_connection import any_broker
from kreplica.common.errors import KreplicaError, NetworkException
from kreplica.common.messages.administration import FeatureUpdateKey, UpdateFeaturesRequest
from tests.support.sockets import until
from tests.support.streams_member import StreamsMember, streams_group_is_shown_reset_and_deleted
from tests.support.tcp_cluster import CLUSTER_ID, TcpCluster


class CommandLine:
    """Runs `kreplica` in this process, with the cluster's address."""

    def __init__(self, bootstrap: str) -> None:
        self._environment = {"KREPLICA_BOOTSTRAP": bootstrap}

    def run(self, *arguments: str, stdin: bytes | None = None) -> Any:
        return CliRunner().invoke(app, arguments, env=self._environment, input=stdin)

    def ok(self, *arguments: str, stdin: bytes | None = None) -> str:
        result = self.run(*arguments, stdin=stdin)
        assert result.exit_code == 0, (result.output, result.exception)
        return result.stdout

    def facts(self, *arguments: str) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.ok(*arguments, "--json").splitlines()]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TcpCluster]:
    with TcpCluster(tmp_path_factory.mktemp("nodes"), brokers=3) as cluster:
        yield cluster


@pytest.fixture
def cli(cluster: TcpCluster) -> CommandLine:
    return CommandLine(cluster.bootstrap_servers)


def comes_to(cli: CommandLine, command: str, wanted: list[object], *names: str) -> None:
    """Ask until these of the topic's facts are so: a change is answered before each broker has heard of it,
    and any of them may be asked. A loaded machine may have had one fenced for a moment, too."""

    def is_so() -> bool:
        answer = cli.run(*command.split(), "--json")
        facts = [json.loads(line) for line in answer.stdout.splitlines()] if answer.exit_code == 0 else []
        found = [fact for fact in facts if fact.get("topic", "looked-at") == "looked-at"]
        return [[fact[name] for name in names] for fact in found] == wanted

    until(is_so)


def test_topics(cli: CommandLine, cluster: TcpCluster) -> None:
    created = cli.ok("topic", "create", "looked-at", "-p", "2", "-r", "3", "-c", "retention.ms=5000")
    assert created == f"created looked-at in cluster {CLUSTER_ID} at {cluster.bootstrap_servers}\n"
    comes_to(cli, "topic list", [[2, 3, 0]], "partitions", "replicas", "without_leader")
    places = ("partition", "log_start_offset", "high_watermark")
    comes_to(cli, "topic describe looked-at", [[0, 0, 0], [1, 0, 0]], *places)
    comes_to(cli, "topic list", [[0]], "under_replicated")
    until(lambda: "retention.ms=5000" in cli.run("topic", "describe", "looked-at").stdout)
    cli.ok("topic", "add-partitions", "looked-at", "3")
    cli.ok("topic", "config", "looked-at", "retention.ms=6000", "--drop", "cleanup.policy")
    until(lambda: "retention.ms=6000" in cli.run("topic", "describe", "looked-at").stdout)
    settings = {str(fact["name"]): fact for fact in cli.facts("topic", "config", "looked-at")}
    assert settings["retention.ms"]["set"] is True
    comes_to(cli, "topic describe looked-at", [[0], [1], [2]], "partition")
    (deleted,) = cli.facts("topic", "delete", "looked-at")
    assert deleted == {"topic": "looked-at", "done": "deleted", "cluster_id": CLUSTER_ID}
    until(lambda: cli.run("topic", "describe", "looked-at").exit_code == 1)


def test_one_record_is_not_many(cli: CommandLine) -> None:
    cli.ok("topic", "create", "one")
    assert cli.run("produce", "one", stdin=b"v").stderr.startswith("1 record acknowledged")


def test_lines_go_in_and_come_out(cli: CommandLine, cluster: TcpCluster, tmp_path: Path) -> None:
    cli.ok("topic", "create", "lines", "-p", "3", "-r", "3")
    lines = b"".join(b"k%d:v%d\n" % (i % 7, i) for i in range(2_000))
    result = cli.run("produce", "lines", "-k", ":", stdin=lines)
    assert result.exit_code == 0
    assert result.stderr.startswith("2,000 records acknowledged")
    assert f"lines in cluster {CLUSTER_ID} at " in result.stderr
    facts = cli.facts("consume", "lines")
    assert sorted(int(str(fact["value"])[1:]) for fact in facts) == list(range(2_000))
    homes = {(fact["key"], fact["partition"]) for fact in facts}
    assert len(homes) == 7  # a key has one partition
    assert all(fact["timestamp_type"] == "create" for fact in facts)

    values = cli.ok("consume", "lines", "--values", "-n", "10").splitlines()
    assert len(values) == 10
    later = cli.facts("consume", "lines", "-p", "1", "--from", "5")
    assert min(int(str(fact["offset"])) for fact in later) == 5
    assert {fact["partition"] for fact in later} == {1}
    assert cli.facts("consume", "lines", "--from", "@2100-01-01") == []
    ends = {fact["partition"]: int(str(fact["offset"])) + 1 for fact in facts}
    last = cli.facts("consume", "lines", "--from", "-2")
    wanted_last = {(partition, end - n) for partition, end in ends.items() for n in (1, 2)}
    assert {(fact["partition"], fact["offset"]) for fact in last} == wanted_last

    file = tmp_path / "lines.jsonl"
    file.write_text("".join(json.dumps(fact) + "\n" for fact in facts))
    cli.ok("topic", "create", "copy", "-p", "3", "-r", "3")
    summary = json.loads(
        cli.ok("produce", "copy", "--json", "--keep-partitions", "-f", str(file), "--summary-json")
    )
    assert (summary["records"], summary["unacknowledged"]) == (2_000, 0)
    copies = cli.facts("consume", "copy")
    shown = ("partition", "offset", "timestamp", "key", "value")
    assert sorted([[fact[name] for name in shown] for fact in copies], key=str) == sorted(
        [[fact[name] for name in shown] for fact in facts], key=str
    )

    directory = cluster.nodes[1].config.directories[0]
    found = cli.facts("consume", directory, "--topic", "lines", "--uncommitted")
    assert sorted(map(str, found)) == sorted(map(str, facts))
    found = cli.facts("consume", directory, "--topic", "lines", "--uncommitted", "--from", "-2")
    assert {(fact["partition"], fact["offset"]) for fact in found} == wanted_last


def test_what_is_no_text(cli: CommandLine) -> None:
    cli.ok("topic", "create", "bytes", "-r", "3")
    lines = b'{"key":null,"value_base64":"/w==","headers":[{"key":"h","value":null}],"timestamp":7}\n'
    lines += b'{"value":null}\n'
    cli.ok("produce", "bytes", "--json", stdin=lines)
    first, second = cli.facts("consume", "bytes")
    assert (first["key"], first["value_base64"], first["timestamp"]) == (None, "/w==", 7)
    assert first["headers"] == [{"key": "h", "value": None}]
    assert second["value"] is None


def test_what_cannot_be(cli: CommandLine) -> None:
    cli.ok("topic", "create", "refused", "-r", "3")
    for arguments in (("consume", "no-such-topic"), ("topic", "delete", "no-such-topic")):
        result = cli.run(*arguments)
        assert result.exit_code == 1
        assert "topic" in str(result.exception).lower()
    broken = cli.run("produce", "refused", "--json", stdin=b'{"value":"a"}\n{"value":\n')
    assert broken.exit_code == 1
    assert "line 2" in str(broken.exception)
    assert len(cli.facts("consume", "refused")) == 1  # what stood before it
    for usage in (
        ("consume", "refused", "--from", "yesterday"),
        ("consume", "refused", "-g", "g", "-p", "0"),
        ("produce", "refused", "-X", "acks"),
        ("produce", "refused", "--json", "-k", ":"),
        ("topic", "create", "t", "-c", "retention.ms"),
    ):
        assert cli.run(*usage).exit_code == 2, usage


def test_a_group_goes_on_where_it_was(cli: CommandLine) -> None:
    cli.ok("topic", "create", "shared", "-r", "3")
    cli.ok("produce", "shared", stdin=b"".join(b"%d\n" % i for i in range(30)))
    first = cli.facts("consume", "shared", "-g", "readers", "-n", "10")
    assert [each["type"] for each in cli.facts("group", "describe", "readers")[:1]] == ["consumer"]
    rest = cli.facts("consume", "shared", "-g", "readers")
    assert [int(str(fact["value"])) for fact in first + rest] == list(range(30))


def test_a_cluster_without_the_consumer_protocol_gets_a_classic_member(tmp_path: Path) -> None:
    with TcpCluster(tmp_path, brokers=1) as old:
        with any_broker(old.bootstrap_servers) as connection:
            # A downgrade that may lose groups, as the tool of a cluster would ask for it.
            off = FeatureUpdateKey(feature="group.version", max_version_level=0, upgrade_type=3)
            answer = connection.ask(UpdateFeaturesRequest(feature_updates=(off,)))
        assert answer.error_code == 0
        cli = CommandLine(old.bootstrap_servers)
        cli.ok("topic", "create", "lines")
        cli.ok("produce", "lines", stdin=b"a\nb\n")
        assert cli.ok("consume", "lines", "-g", "readers", "--values") == "a\nb\n"
        [group] = cli.facts("group", "list")
        assert (group["group_id"], group["type"]) == ("readers", "classic")


def test_a_streams_group_is_shown_reset_and_deleted(cli: CommandLine, cluster: TcpCluster) -> None:
    cli.ok("topic", "create", "sentences", "-p", "2", "-r", "3")
    cli.ok("produce", "sentences", stdin=b"".join(b"%d\n" % i for i in range(20)))
    member = StreamsMember(cluster.bootstrap_servers, "words", "sentences", 2)
    streams_group_is_shown_reset_and_deleted(cli.run, member, "words", "sentences")


def test_the_quorum(cli: CommandLine) -> None:
    facts = cli.facts("quorum", "describe")
    assert sorted((fact["role"], fact["node"]) for fact in facts)[0][0] == "leader"
    assert sorted(int(str(fact["node"])) for fact in facts) == [1, 2, 3]
    assert cli.ok("quorum", "describe").startswith("leader ")
    # A node that is no voter cannot be removed, and a broken address is a usage error.
    unknown = "--directory-id", "AAAAAAAAQACAAAAAAAAABw"
    refused = cli.run("quorum", "remove-voter", "--node-id", "9", *unknown)
    assert refused.exit_code == 1
    assert isinstance(refused.exception, KreplicaError)
    wrong = cli.run("quorum", "add-voter", "--node-id", "9", *unknown, "--listener", "here")
    assert wrong.exit_code == 2


def test_a_created_topic_is_known_to_all_brokers(cli: CommandLine, cluster: TcpCluster) -> None:
    for number in range(5):
        cli.ok("topic", "create", f"known-{number}", "-p", "3", "-r", "3")
        for broker in cluster.bootstrap_servers.split(","):
            facts = CommandLine(broker).facts("topic", "describe", f"known-{number}")
            assert all(int(str(fact["leader"])) > 0 for fact in facts)


def test_creating_a_topic_waits_for_the_last_broker() -> None:
    with Cluster(brokers=3, serve=True) as cluster, ThreadPoolExecutor() as pool:
        cluster.create_topic("before")
        # Neither the controller nor the one that the command asks first.
        asked, late = (each for each in (1, 2, 3) if each != cluster.controller)
        cluster.pause(late)
        command = CommandLine(cluster.bootstrap_servers.split(",")[asked - 1])
        created = pool.submit(command.run, "topic", "create", "orders", "-r", "2")
        until(lambda: "orders" in cluster.topics())
        assert not created.done()
        cluster.resume(late)
        assert created.result(60).exit_code == 0


def test_a_watch_prints_what_the_quorum_commits(cli: CommandLine) -> None:
    cli.ok("topic", "create", "watched", "-p", "2", "-r", "3")
    until(lambda: "watched" in cli.run("topic", "list").stdout)
    cli.ok("topic", "delete", "watched")
    options = ("--from-beginning", "--timeout", "0")
    found = cli.facts("watch", "/brokers/topics/watched", *options)
    paths = [f"/brokers/topics/watched{end}" for end in ("", "/partitions/0", "/partitions/1")]
    assert [change["path"] for change in found[:3]] == paths
    assert all(change["old"] is None for change in found[:3])
    assert sorted(change["path"] for change in found[-3:]) == paths
    assert all(change["new"] is None for change in found[-3:])
    versions = [int(str(change["version"])) for change in found]
    assert versions == sorted(versions)
    assert cli.facts("watch", "/brokers", "--timeout", "0") == []
    text = cli.ok("watch", "/controller", *options)
    # Another controller may have been elected since.
    assert "/controller" in text
    assert next(line.split()[2] for line in text.splitlines() if "/controller" in line) == "created"
    wrong = cli.run("watch", "controller")
    assert wrong.exit_code == 2
    assert "is not a path" in wrong.output


def test_the_history_of_the_isr_comes_from_the_quorum(cli: CommandLine) -> None:
    cli.ok("topic", "create", "history", "-p", "2", "-r", "3")
    cli.ok("topic", "create", "of-others", "-p", "1", "-r", "3")
    found = cli.facts("isr-history", "--topic", "history")
    assert [(fact["change"], fact["partition"]) for fact in found[:2]] == [("created", 0), ("created", 1)]
    assert {str(fact["topic"]) for fact in cli.facts("isr-history")} >= {"history", "of-others"}


def test_no_broker_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stock_client, "CONNECT_S", 0.3)
    for arguments in (("consume", "t"), ("produce", "t"), ("topic", "list"), ("topic", "delete", "t")):
        result = CommandLine("127.0.0.1:1").run(*arguments, stdin=b"line")
        assert result.exit_code == 1
        assert isinstance(result.exception, NetworkException)
        assert "no broker of 127.0.0.1:1 answered within 0.3 s" in str(result.exception)
        assert "Connection refused" in str(result.exception)
        assert "name another one by -b or KREPLICA_BOOTSTRAP" in str(result.exception)
    result = CommandLine("127.0.0.1:1").run("quorum", "describe")
    assert isinstance(result.exception, NetworkException)
