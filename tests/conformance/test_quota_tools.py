"""Kafka's tool for quotas against our nodes, and `kreplica quota` against Kafka."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kreplica.cli.app import app
from tests.conformance.kafka_peer import Node, PeerError, run_java
from tests.support.polling import wait_until
from tests.support.tcp_cluster import TcpCluster

pytestmark = pytest.mark.conformance

CONFIGS = "kafka.admin.ConfigCommand"
Tool = Callable[..., str]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TcpCluster]:
    with TcpCluster(tmp_path_factory.mktemp("nodes"), brokers=2) as made:
        yield made


@pytest.fixture(scope="module")
def configs(cluster: TcpCluster) -> Tool:
    """What kafka-configs prints; PeerError if it fails."""
    return lambda *arguments: run_java(CONFIGS, "--bootstrap-server", cluster.bootstrap_servers, *arguments)


def quota(bootstrap: str, *arguments: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(app, ["quota", *arguments, "-b", bootstrap, "--json"])
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = [json.loads(line) for line in result.stdout.splitlines()]
    return found


# Each needs three starts of a JVM.
ENTITIES = [
    (("users", "alice"),),
    (("clients", None),),
    (("users", "alice"), ("clients", "loader")),
    (("users", None), ("clients", None)),
    (("ips", "10.0.0.1"),),
    (("ips", None),),
]


@pytest.mark.parametrize("entity", ENTITIES, ids=str)
def test_kafka_configs_alters_and_describes(
    cluster: TcpCluster, configs: Tool, entity: tuple[tuple[str, str | None], ...]
) -> None:
    chosen = []
    for kind, name in entity:
        chosen += [
            "--entity-type",
            kind,
            *(["--entity-default"] if name is None else ["--entity-name", name]),
        ]
    is_ip = entity[0][0] == "ips"
    given = (
        {"connection_creation_rate": 7.0}
        if is_ip
        else {"producer_byte_rate": 1024.0, "request_percentage": 12.5}
    )
    text = ",".join(f"{name}={value:g}" for name, value in given.items())
    configs("--alter", *chosen, "--add-config", text)
    assert known(cluster) == [given]
    described = configs("--describe", *chosen)
    for name, value in given.items():
        assert f"{name}={value}" in described
    configs("--alter", *chosen, "--delete-config", ",".join(given))
    assert known(cluster) == []


def known(cluster: TcpCluster) -> list[dict[str, float]]:
    """The quotas that both nodes know."""
    nodes = [each.node for each in cluster.nodes.values()]
    wait_until(lambda: len({each.loader.applied.offset for each in nodes}) == 1, "the nodes agree")
    return [dict(each) for each in nodes[0].loader.published.quotas.values()]


def test_an_impossible_quota_is_refused(configs: Tool) -> None:
    with pytest.raises(PeerError):
        configs(
            "--alter", "--entity-type", "users", "--entity-name", "a", "--add-config", "producer_byte_rate=-1"
        )


def test_kafka_configs_changes_the_limits_of_connections(configs: Tool) -> None:
    name = "max.connections.per.ip.overrides"
    configs("--alter", "--entity-type", "brokers", "--entity-default", "--add-config", f"{name}=[10.0.0.1:5]")
    assert f"{name}=10.0.0.1:5" in configs("--describe", "--entity-type", "brokers", "--entity-default")


def test_kreplica_quota_works_with_kafka(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        set_ = quota(
            node.bootstrap, "set", "producer_byte_rate=1024", "--user", "alice", "--default-client-id"
        )
        assert quota(node.bootstrap, "list") == set_
        assert quota(node.bootstrap, "list", "--user", "alice") == set_
        assert quota(node.bootstrap, "remove", "--user", "alice", "--default-client-id") == set_
        assert quota(node.bootstrap, "list") == []
