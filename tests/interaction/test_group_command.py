"""How an operator looks at groups, and resets and deletes their offsets, with `kreplica group`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as At
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from typer.testing import CliRunner

from kreplica.cli.app import app
from kreplica.cli.group import Groups
from kreplica.common.errors import (
    GroupIdNotFound,
    InvalidConfig,
    InvalidRequest,
    NonEmptyGroup,
    NotLeaderOrFollower,
    UnknownTopicOrPartition,
)
from kreplica.common.types import TopicPartition
from tests.support.sockets import until
from tests.support.tcp_cluster import WAIT_S, TcpClient, TcpCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TcpCluster]:
    with TcpCluster(tmp_path_factory.mktemp("nodes"), brokers=2) as cluster:
        with TcpClient(cluster) as client:
            for topic in ("orders", "others"):
                client.admin.create_topic(topic, partitions=2, replication_factor=2).result(WAIT_S)
            for partition in (0, 1):
                client.append("orders", partition, [b"%d" % number for number in range(10)])
        yield cluster


def run(cluster: TcpCluster, *arguments: str) -> Any:
    environment = {"KREPLICA_BOOTSTRAP": cluster.bootstrap_servers}
    return CliRunner().invoke(app, ("group", *arguments), env=environment)


def facts(cluster: TcpCluster, *arguments: str, exit_code: int = 0) -> list[dict[str, Any]]:
    result = run(cluster, *arguments, "--json")
    assert result.exit_code == exit_code, (result.output, result.exception)
    return [json.loads(line) for line in result.stdout.splitlines()]


def consumer(cluster: TcpCluster, group: str, protocol: str = "classic") -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": group,
            "group.protocol": protocol,
            "client.id": "reader",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )


def commit(cluster: TcpCluster, group: str, *offsets: int, topic: str = "orders") -> None:
    """Commit offsets of a group without members."""
    reader = consumer(cluster, group)
    wanted = [At(topic, number, offset) for number, offset in enumerate(offsets)]

    def is_committed() -> bool:
        # The client does not ask again while the coordinator loads its groups.
        try:
            reader.commit(offsets=wanted, asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.COORDINATOR_LOAD_IN_PROGRESS:
                raise
            return False
        return True

    until(is_committed)
    reader.close()


def committed(cluster: TcpCluster, group: str) -> dict[tuple[str, int], int]:
    found = facts(cluster, "describe", group)
    return {
        (fact["topic"], fact["partition"]): fact["committed_offset"]
        for fact in found
        if fact["what"] == "offset"
    }


def test_groups_are_listed_with_their_types_and_states(cluster: TcpCluster) -> None:
    commit(cluster, "listed", 1)
    [fact] = [each for each in facts(cluster, "list") if each["group_id"] == "listed"]
    assert (fact["type"], fact["state"], fact["coordinator"] in (1, 2)) == ("classic", "Empty", True)
    by_type = facts(cluster, "list", "--type", "classic", "--state", "Empty")
    assert "listed" in {each["group_id"] for each in by_type}
    assert "listed" not in {each["group_id"] for each in facts(cluster, "list", "--type", "share")}
    assert facts(cluster, "list", "--state", "Stable") == []
    mistaken = run(cluster, "list", "--state", "Sleeping")
    assert (mistaken.exit_code, "'Sleeping' is not one of 'Empty'," in mistaken.output) == (2, True)
    assert "listed" in run(cluster, "list").stdout
    assert "no such group" in run(cluster, "list", "--type", "streams").stdout


def test_a_described_group_shows_how_far_it_is_behind(cluster: TcpCluster) -> None:
    commit(cluster, "behind", 3, 10)
    head, *rows = facts(cluster, "describe", "behind")
    assert (head["what"], head["type"], head["state"], head["members"]) == ("group", "classic", "Empty", 0)
    shown = [(row["partition"], row["committed_offset"], row["log_end_offset"], row["lag"]) for row in rows]
    assert shown == [(0, 3, 10, 7), (1, 10, 10, 0)]
    table = run(cluster, "describe", "behind").stdout
    assert "classic group behind: Empty, 0 members" in table
    assert isinstance(run(cluster, "describe", "nothing").exception, GroupIdNotFound)


def test_a_leader_that_moves_is_looked_up_again(cluster: TcpCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(cluster, "moving", 4, 10)
    ask, asked = Groups._asked_offsets, []

    def moved(groups: Groups, partitions: Any, timestamp: int) -> Any:
        asked.append(list(partitions))
        found = ask(groups, asked[-1], timestamp)
        if len(asked) == 1:
            found[TopicPartition("orders", 1)] = NotLeaderOrFollower("it has moved")
        return found

    monkeypatch.setattr(Groups, "_asked_offsets", moved)
    _, *found = facts(cluster, "describe", "moving")
    assert [(each["partition"], each["log_end_offset"], each["lag"]) for each in found] == [
        (0, 10, 6),
        (1, 10, 0),
    ]
    assert [len(each) for each in asked] == [2, 1]


@pytest.mark.parametrize(("protocol", "named"), [("classic", "range"), ("consumer", "uniform")])
def test_members_are_shown_with_what_they_are_assigned(
    cluster: TcpCluster, protocol: str, named: str
) -> None:
    group = f"working-{protocol}"
    commit(cluster, group, 4)
    reader = consumer(cluster, group, protocol)
    try:
        reader.subscribe(["orders"])
        until(lambda: reader.poll(0.1) is not None and len(reader.assignment()) == 2)
        until(lambda: facts(cluster, "describe", group)[0]["state"] == "Stable")
        head, member = facts(cluster, "describe", group, "--members")
        assert (head["type"], head["protocol"], head["members"]) == (protocol, named, 1)
        assert (member["client_id"], member["partitions"]) == ("reader", ["orders-0", "orders-1"])
        assert member["target_partitions"] == (None if protocol == "classic" else member["partitions"])
        _, first, second = facts(cluster, "describe", group)
        assert first["member_id"] == second["member_id"] == member["member_id"]
        assert (first["lag"], second["committed_offset"], second["lag"]) == (6, -1, -1)
        refused = run(cluster, "reset-offsets", group, "--to-earliest", "--execute")
        assert isinstance(refused.exception, NonEmptyGroup)
        [fact] = facts(cluster, "delete", group, "--execute", exit_code=1)
        assert "Stable" in fact["problem"]
        [problem] = facts(cluster, "delete-offsets", group, "--topic", "orders", "--execute", exit_code=1)
        assert problem["problem"]
    finally:
        reader.close()
    assert committed(cluster, group) == {("orders", 0): 4}


def test_offsets_are_reset_only_by_execute(cluster: TcpCluster) -> None:
    commit(cluster, "dry", 3, 4)
    for row in facts(cluster, "reset-offsets", "dry", "--to-latest"):
        assert (row["new_offset"], row["done"]) == (10, False)
    assert committed(cluster, "dry") == {("orders", 0): 3, ("orders", 1): 4}
    result = run(cluster, "reset-offsets", "dry", "--to-latest")
    assert "--execute sets these offsets" in result.stderr
    for row in facts(cluster, "reset-offsets", "dry", "--to-latest", "--execute"):
        assert row["done"]
    assert committed(cluster, "dry") == {("orders", 0): 10, ("orders", 1): 10}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--to-earliest",), (0, 0)),
        (("--to-latest",), (10, 10)),
        (("--to-offset", "7"), (7, 7)),
        (("--to-offset", "99"), (10, 10)),
        (("--shift-by", "2"), (5, 8)),
        (("--shift-by", "-5"), (0, 1)),
        (("--to-datetime", "2001-02-03T04:05:06"), (0, 0)),
        (("--to-datetime", "2101-02-03T04:05:06+01:00"), (10, 10)),
        (("--by-duration", "P1D"), (0, 0)),
        (("--by-duration", "P999999D"), (0, 0)),
        (("--by-duration", "PT0S"), (10, 10)),
        (("--to-earliest", "--topic", "orders:1"), (3, 0)),
        (("--to-latest", "--topic", "orders:0,1"), (10, 10)),
    ],
)
def test_offsets_are_reset_to(
    cluster: TcpCluster, arguments: tuple[str, ...], expected: tuple[int, int]
) -> None:
    commit(cluster, "resets", 3, 6)
    facts(cluster, "reset-offsets", "resets", *arguments, "--execute")
    assert committed(cluster, "resets") == {("orders", 0): expected[0], ("orders", 1): expected[1]}


def test_offsets_are_reset_to_those_of_a_file(cluster: TcpCluster, tmp_path: Path) -> None:
    commit(cluster, "filed", 3, 6)
    path = tmp_path / "offsets.csv"
    path.write_text('"orders",0,5\norders,1,99\nothers,0,1\n')
    rows = facts(cluster, "reset-offsets", "filed", "--from-file", str(path), "--execute")
    assert [(row["topic"], row["partition"], row["new_offset"]) for row in rows] == [
        *(("orders", 0, 5), ("orders", 1, 10), ("others", 0, 0))
    ]
    path.write_text("orders,0\n")
    assert run(cluster, "reset-offsets", "filed", "--from-file", str(path)).exit_code == 2


def test_a_group_may_get_offsets_before_it_exists(cluster: TcpCluster) -> None:
    assert isinstance(run(cluster, "reset-offsets", "new", "--to-latest").exception, UnknownTopicOrPartition)
    facts(cluster, "reset-offsets", "new", "--topic", "orders", "--to-latest", "--execute")
    assert committed(cluster, "new") == {("orders", 0): 10, ("orders", 1): 10}
    missing = run(cluster, "reset-offsets", "new", "--topic", "orders:5", "--to-latest")
    assert isinstance(missing.exception, UnknownTopicOrPartition)


def test_a_share_group_shows_where_its_dead_letters_go(cluster: TcpCluster) -> None:
    with Groups(cluster.bootstrap_servers) as groups:
        groups.alter_share_offsets(groups.coordinator("queue"), "queue", {TopicPartition("orders", 0): 3})
    assert "dead_letter_topic" not in facts(cluster, "describe", "queue")[0]
    changed = ConfigEntry(
        "errors.deadletterqueue.topic.name",
        "dlq.queue",
        incremental_operation=AlterConfigOpType.SET,
    )
    resource = ConfigResource(ResourceType.GROUP, "queue", incremental_configs=[changed])
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.incremental_alter_configs([resource])[resource].result(WAIT_S)
    until(lambda: facts(cluster, "describe", "queue")[0].get("dead_letter_topic") == "dlq.queue")
    shown = run(cluster, "describe", "queue").stdout
    assert "dead letters in dlq.queue" in shown
    assert "start offset" in shown


def test_a_reset_has_one_target(cluster: TcpCluster) -> None:
    for arguments in ((), ("--to-earliest", "--to-offset", "0")):
        assert run(cluster, "reset-offsets", "g", *arguments).exit_code == 2
    assert run(cluster, "reset-offsets", "g", "--to-latest", "--topic", "orders:x").exit_code == 2
    assert run(cluster, "reset-offsets", "g", "--by-duration", "1 hour").exit_code == 2


def test_settings_of_a_group_are_shown_changed_and_reset(cluster: TcpCluster) -> None:
    name = "share.auto.offset.reset"

    def shown() -> dict[str, tuple[str, bool]]:
        return {row["name"]: (row["value"], row["set"]) for row in facts(cluster, "config", "tuned")}

    assert shown()[name] == ("latest", False)
    facts(cluster, "config", "tuned", f"{name}=by_duration:PT1H", "share.delivery.count.limit=7")
    until(lambda: shown()[name] == ("by_duration:PT1H", True))
    assert shown()["share.delivery.count.limit"] == ("7", True)
    facts(cluster, "config", "tuned", "--drop", name)
    until(lambda: shown()[name] == ("latest", False))
    assert "7" in run(cluster, "config", "tuned").stdout


def test_settings_that_no_group_can_have_are_refused(cluster: TcpCluster) -> None:
    for setting in ("nothing=1", "share.delivery.count.limit=99", "share.auto.offset.reset=never"):
        assert isinstance(run(cluster, "config", "tuned", setting).exception, InvalidConfig), setting
    assert isinstance(run(cluster, "config", "", "share.delivery.count.limit=7").exception, InvalidRequest)
    name = "share.delivery.count.limit"
    assert run(cluster, "config", "tuned", name).exit_code == 2
    assert run(cluster, "config", "tuned", f"{name}=7", "--drop", name).exit_code == 2


def test_a_partition_without_an_offset_cannot_be_shifted(cluster: TcpCluster) -> None:
    commit(cluster, "shifted", 3)
    arguments = ("reset-offsets", "shifted", "--topic", "orders", "--shift-by", "1", "--execute")
    rows = facts(cluster, *arguments, exit_code=1)
    assert [(row["new_offset"], row["done"], bool(row["problem"])) for row in rows] == [
        *((4, False, False), (-1, False, True))
    ]
    assert committed(cluster, "shifted") == {("orders", 0): 3}


def test_offsets_and_groups_are_deleted_only_by_execute(cluster: TcpCluster) -> None:
    commit(cluster, "old", 3, 4)
    commit(cluster, "old", 0, topic="others")
    assert not any(row["done"] for row in facts(cluster, "delete-offsets", "old", "--topic", "orders:1"))
    assert len(committed(cluster, "old")) == 3
    [row] = facts(cluster, "delete-offsets", "old", "--topic", "orders:1", "--execute")
    assert (row["partition"], row["committed_offset"], row["done"]) == (1, 4, True)
    assert committed(cluster, "old") == {("orders", 0): 3, ("others", 0): 0}
    [fact] = facts(cluster, "delete", "old")
    assert (fact["partitions"], fact["done"]) == (2, False)
    [fact] = facts(cluster, "delete", "old", "--execute")
    assert fact["done"]
    deadline = time.monotonic() + WAIT_S
    while "old" in {each["group_id"] for each in facts(cluster, "list")}:
        assert time.monotonic() < deadline
    assert isinstance(run(cluster, "delete", "old", "--execute").exception, GroupIdNotFound)
