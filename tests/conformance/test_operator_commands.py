"""`kreplica cluster`, `broker` and `partition` at two nodes of Kafka: one is also the controller."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kreplica.cli.app import app
from kreplica.cli.cluster_admin import FOLLOWER_REPLICAS, LEADER_REPLICAS, ClusterAdmin
from tests.conformance.kafka_peer import Node
from tests.support.polling import comes_to_be
from tests.support.ports import free_addresses

pytestmark = pytest.mark.conformance
WAIT_S = 60


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    ports = [port for _, port in free_addresses(4)]
    quorum = {"controller.quorum.voters": f"1@127.0.0.1:{ports[1]}", "broker.session.timeout.ms": 3000}
    first = Node(tmp_path / "1", ports=(ports[0], ports[1]), **quorum, broker_rack="a")
    second = Node(
        tmp_path / "2",
        ports=(ports[2], ports[3]),
        node_id=2,
        process_roles="broker",
        listeners=f"PLAINTEXT://127.0.0.1:{ports[2]}",
        broker_rack="b",
        **quorum,
    )
    with first, second:
        yield first, second


def run(node: Node, *arguments: str) -> Any:
    return CliRunner().invoke(app, arguments, env={"KREPLICA_BOOTSTRAP": node.bootstrap})


def facts(node: Node, *arguments: str, exit_code: int = 0) -> list[dict[str, Any]]:
    result = run(node, *arguments, "--json")
    assert result.exit_code == exit_code, (result.output, result.exception)
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_kafka_is_operated(nodes: tuple[Node, Node]) -> None:
    first, second = nodes
    assert run(first, "cluster", "health", "--wait", str(WAIT_S)).exit_code == 0
    [info] = facts(first, "cluster", "info")
    assert (info["brokers_up"], info["racks"], info["voters"]) == (2, ["a", "b"], [1])
    for broker in facts(first, "broker", "list"):
        assert [each["total_bytes"] > each["usable_bytes"] > 0 for each in broker["directories"]] == [True]

    assert run(first, "topic", "create", "orders", "-p", "4", "-r", "1").exit_code == 0
    everything = ("partition", "move", "orders", "--to", "1", "--execute", "--wait")
    assert run(first, *everything).exit_code == 0
    # More than one fetch, since a throttle holds back only what comes after it.
    lines = "".join(f"{number:01000}\n" for number in range(8_000))
    to_first = ["produce", "orders", "--partition", "0", "-b", first.bootstrap]
    made = CliRunner().invoke(app, to_first, input=lines)
    assert made.exit_code == 0

    # A throttle, a move that it holds back, its end, and back again.
    moved = ("partition", "move", "orders:0", "--to", "2", "--execute", "--throttle", "1")
    assert run(first, *moved).exit_code == 0
    [moving] = facts(first, "partition", "list", "--state", "moving")
    assert (moving["adding"], moving["removing"]) == ([2], [1])
    late = run(first, "partition", "wait", "--timeout", "0")
    assert late.exit_code == 1, late.output
    cancelled = run(first, "partition", "cancel", "--execute")
    assert (cancelled.exit_code, "removed the throttle" in cancelled.stderr) == (0, True), cancelled.output
    with ClusterAdmin(first.bootstrap) as admin:
        settings = {each.value for _, each in admin.topic_settings((LEADER_REPLICAS, FOLLOWER_REPLICAS))}
    assert settings == {""}

    even = run(first, "cluster", "rebalance", "orders", "--execute", "--wait")
    assert even.exit_code == 0, even.output
    assert sorted(each["leader"] for each in facts(first, "partition", "list", "orders")) == [1, 1, 2, 2]
    assert facts(first, "partition", "elect") == []

    assert run(first, "partition", "move", "orders", "--to", "1,2", "--execute", "--wait").exit_code == 0
    assert run(first, "cluster", "health", "--wait", str(WAIT_S)).exit_code == 0
    second.stop()
    down = {each["check"]: each for each in facts(first, "cluster", "health", exit_code=1)}
    assert down["brokers that are down"]["examples"] == ["2"]
    assert comes_to_be(
        lambda: len(facts(first, "partition", "list", "--state", "under-replicated")) == 4, timeout_s=WAIT_S
    )
    too_few = run(first, "broker", "decommission", "2", "--execute")
    assert "start another broker" in str(too_few.exception)
    assert run(first, "partition", "move", "orders", "--to", "1", "--execute", "--wait").exit_code == 0
    [gone] = facts(first, "broker", "decommission", "2", "--execute")
    assert (gone["what"], gone["broker"], gone["is_voter"]) == ("unregistered", 2, False)
    assert [each["id"] for each in facts(first, "broker", "list")] == [1]
