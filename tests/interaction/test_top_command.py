"""`kreplica top` at a running cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from kreplica.cli import top as command
from kreplica.cli.app import app
from kreplica.cluster import Cluster
from kreplica.common.errors import NetworkException
from kreplica.testing import faults
from tests.support.ports import free_ports

WAIT_S = 30


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(2, tmp_path_factory.mktemp("top") / "data", serve=True) as cluster:
        cluster.create_topic("orders", 3)
        cluster.append("orders", [b"value"] * 10, partition=0).result(WAIT_S)
        yield cluster


def top(bootstrap: str, *arguments: str) -> Any:
    return CliRunner().invoke(app, ["top", "-b", bootstrap, "--once", "--interval", "0.1", *arguments])


def test_a_frame_has_what_the_cluster_answers(cluster: Cluster) -> None:
    result = top(cluster.bootstrap_servers, "--json")
    assert result.exit_code == 0, result.output
    [line] = result.stdout.splitlines()
    shown = json.loads(line)
    assert (shown["partitions"], shown["under_replicated"], shown["problems"]) == (3, 0, [])
    assert shown["quorum_leader"] in (1, 2)
    assert [each["replicas"] for each in shown["brokers"]] == [3, 3]
    assert all(each["bytes"] > 0 for each in shown["brokers"])
    assert [each["topic"] for each in shown["topics"]] == ["orders"]


def test_a_frame_is_a_table(cluster: Cluster) -> None:
    result = top(cluster.bootstrap_servers)
    assert result.exit_code == 0, result.output
    assert "orders" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_the_other_brokers_are_asked_once_the_named_one_is_down(cluster: Cluster) -> None:
    named = cluster.bootstrap_servers.split(",")[1]
    frames = command.frames(named, 0.1, at_once=True)
    assert next(frames)["records_per_s"] is None
    with faults.killed(cluster, 2):
        assert [each["broker"] for each in next(frames)["brokers"]] == [1, 2]


def test_no_broker_is_said_with_its_address() -> None:
    address = f"127.0.0.1:{free_ports(1)}"
    result = top(address)
    assert isinstance(result.exception, NetworkException)
    assert str(result.exception).startswith(f"{address}: ")
