"""How an operator manages access rules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kreplica.broker.node_config import STANDARD_AUTHORIZER
from kreplica.cli import client_config
from kreplica.common.errors import (
    ClusterAuthorizationFailed,
    InvalidConfig,
    ResourceNotFound,
    SecurityDisabled,
)
from kreplica.runtime.listener import MECHANISMS, Login
from kreplica.security.sasl import Secret
from tests.interaction.test_user_command import PLAIN, Operator
from tests.support.tcp_cluster import TcpCluster

LOGIN = Login(
    mechanisms=MECHANISMS, passwords={"admin": Secret("root"), "eve": Secret("eve")}, failure_delay_ms=0
)
SETTINGS = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:admin;User:ANONYMOUS"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TcpCluster]:
    with TcpCluster(tmp_path_factory.mktemp("nodes"), 1, LOGIN, settings=SETTINGS) as made:
        yield made


@pytest.fixture
def operator(cluster: TcpCluster, tmp_path: Path) -> Iterator[Operator]:
    yield Operator(cluster, tmp_path)
    client_config.use(None)


def test_rules_are_added_listed_and_removed(operator: Operator) -> None:
    added = operator.facts(
        "acl", "add", "alice", "read", "describe-configs", "--topic", "orders", "--group", "g"
    )
    assert len(added) == 4
    assert added[0] == {
        "principal": "User:alice",
        "permission": "allow",
        "operation": "read",
        "resource": "topic",
        "name": "orders",
        "pattern": "literal",
        "host": "*",
    }
    operator.facts(
        "acl", "add", "User:*", "write", "--topic", "ord", "--prefix", "--deny", "--host", "10.0.0.1"
    )
    assert len(operator.facts("acl", "list")) == 5
    assert operator.facts("acl", "list", "--principal", "alice", "--topic", "orders") == added[:2]
    (denied,) = operator.facts("acl", "list", "--topic", "ord", "--prefix")
    assert (denied["permission"], denied["host"], denied["pattern"]) == ("deny", "10.0.0.1", "prefixed")
    assert len(operator.facts("acl", "remove", "--principal", "alice")) == 4
    assert operator.facts("acl", "list") == [denied]
    assert operator.facts("acl", "remove", "--all") == [denied]
    assert operator.facts("acl", "list") == []


def test_what_cannot_be_done_is_said(operator: Operator) -> None:
    for arguments, error in (
        (("add", "alice", "read"), InvalidConfig),
        (("add", "alice", "fly", "--cluster"), InvalidConfig),
        (("remove",), InvalidConfig),
        (("remove", "--topic", "none"), ResourceNotFound),
    ):
        assert isinstance(operator.run("acl", *arguments).exception, error), arguments
    operator.login("PLAIN", PLAIN, "eve", "eve")
    for arguments in (("list",), ("add", "eve", "all", "--cluster"), ("remove", "--all")):
        assert isinstance(operator.run("acl", *arguments).exception, ClusterAuthorizationFailed), arguments


def test_who_may_not_describe_the_cluster_is_not_sent_to_start_voters(operator: Operator) -> None:
    operator.login("PLAIN", PLAIN, "eve", "eve")
    result = operator.run("cluster", "health", "--json")
    assert result.exit_code == 1
    assert "ask as a user who may describe the cluster" in result.output
    assert "start the voters" not in result.output


def test_who_may_not_manage_users_is_refused(operator: Operator) -> None:
    """librdkafka 2.16 ends the process by a signal if a cluster refuses to describe users."""
    operator.login("PLAIN", PLAIN, "eve", "eve")
    for arguments in (("list",), ("add", "bob"), ("remove", "bob")):
        assert isinstance(operator.run("user", *arguments).exception, ClusterAuthorizationFailed), arguments


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("user:alice", "read", "--topic", "t"), "is it User:alice?"),
        (("alice", "create-tokens", "--topic", "t"), "create-tokens does nothing for a topic"),
        (("alice", "read", "--cluster"), "read does nothing for a cluster"),
        (("alice", "read", "--topic", "t", "--host", "localhost"), "--host localhost is no IP address"),
        (("alice", "read", "--topic", "t", "--host", "10.0.0.0/8"), "--host 10.0.0.0/8 is no IP address"),
    ],
)
def test_a_rule_that_could_never_apply_is_refused(
    operator: Operator, arguments: tuple[str, ...], words: str
) -> None:
    refused = operator.run("acl", "add", *arguments).exception
    assert isinstance(refused, InvalidConfig)
    assert words in str(refused)
    assert operator.facts("acl", "list") == []


def test_an_address_of_ipv6_is_written_as_rules_compare_it(operator: Operator) -> None:
    (added,) = operator.facts("acl", "add", "alice", "read", "--topic", "t", "--host", "::1")
    assert added["host"] == "0:0:0:0:0:0:0:1"
    assert operator.facts("acl", "remove", "--host", "::1") == [added]


def test_single_rules_are_chosen(operator: Operator) -> None:
    read, write = operator.facts("acl", "add", "alice", "read", "write", "--topic", "t")
    (denied,) = operator.facts("acl", "add", "alice", "read", "--topic", "t", "--deny")
    assert operator.facts("acl", "list", "--operation", "write") == [write]
    assert operator.facts("acl", "list", "--permission", "deny") == [denied]
    assert operator.facts("acl", "remove", "--operation", "read", "--permission", "allow") == [read]
    assert operator.facts("acl", "remove", "--principal", "alice", "--permission", "deny") == [denied]
    assert operator.facts("acl", "remove", "--topic", "t") == [write]


def test_rules_about_users_and_tokens(operator: Operator) -> None:
    (user,) = operator.facts("acl", "add", "scheduler", "create-tokens", "--user", "alice")
    assert (user["resource"], user["name"]) == ("user", "User:alice")
    (token,) = operator.facts("acl", "add", "scheduler", "describe", "--delegation-token", "x")
    assert (token["resource"], token["name"]) == ("delegation-token", "x")
    assert operator.facts("acl", "list", "--user", "alice") == [user]
    assert operator.facts("acl", "remove", "--principal", "scheduler") == [user, token]


def test_a_cluster_without_an_authorizer_has_no_rules(tmp_path: Path) -> None:
    with TcpCluster(tmp_path / "nodes", 1, LOGIN) as cluster:
        operator = Operator(cluster, tmp_path)
        for arguments in (("list",), ("add", "eve", "all", "--cluster"), ("remove", "--all")):
            refused = operator.run("acl", *arguments).exception
            assert isinstance(refused, SecurityDisabled), arguments
            assert "authorizer.class.name" in str(refused)
    client_config.use(None)
