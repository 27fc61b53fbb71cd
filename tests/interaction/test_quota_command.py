"""How an operator manages the quotas of clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kreplica.broker.node_config import STANDARD_AUTHORIZER
from kreplica.cli import client_config
from kreplica.common.errors import (
    ClusterAuthorizationFailed,
    InvalidConfig,
    InvalidRequest,
    ResourceNotFound,
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


def fact(quota: str, value: float, *, user: str = "", client_id: str = "", ip: str = "") -> dict[str, object]:
    return {"user": user, "client-id": client_id, "ip": ip, "quota": quota, "value": value}


def test_quotas_are_set_listed_and_removed(operator: Operator) -> None:
    alice = operator.facts(
        "quota", "set", "producer_byte_rate=1048576", "request-percentage=12.5", "--user", "alice"
    )
    assert alice == [
        fact("producer_byte_rate", 1048576, user="alice"),
        fact("request_percentage", 12.5, user="alice"),
    ]
    operator.facts("quota", "set", "consumer_byte_rate=5", "--user", "alice", "--default-client-id")
    operator.facts("quota", "set", "connection_creation_rate=7", "--default-ip")
    of_ips = [fact("connection_creation_rate", 7, ip="<default>")]
    of_both = [fact("consumer_byte_rate", 5, user="alice", client_id="<default>")]
    assert operator.facts("quota", "list", "--default-ip") == of_ips
    assert operator.facts("quota", "list", "--user", "alice", "--default-client-id") == of_both
    assert len(operator.facts("quota", "list", "--user", "alice")) == 3
    assert len(operator.facts("quota", "list")) == 4
    assert operator.facts("quota", "remove", "request_percentage", "--user", "alice") == alice[1:]
    assert operator.facts("quota", "remove", "--user", "alice") == alice[:1]
    assert operator.facts("quota", "remove", "--user", "alice", "--default-client-id") == of_both
    assert operator.facts("quota", "remove", "--default-ip") == of_ips
    assert operator.facts("quota", "list") == []


def test_what_cannot_be_done_is_said(operator: Operator) -> None:
    for arguments, error in (
        (("set", "producer_byte_rate=1"), InvalidConfig),
        (("set", "producer_byte_rate", "--user", "alice"), InvalidConfig),
        (("set", "producer_byte_rate=fast", "--user", "alice"), InvalidConfig),
        (("set", "producer_byte_rate=nan", "--user", "alice"), InvalidRequest),
        (("set", "no_such_rate=1", "--user", "alice"), InvalidRequest),
        (("set", "connection_creation_rate=1", "--ip", "localhost"), InvalidRequest),
        (("list", "--user", "alice", "--default-user"), InvalidConfig),
        (("remove",), InvalidConfig),
        (("remove", "--user", "stranger"), ResourceNotFound),
        (("remove", "producer_byte_rate", "--user", "stranger"), ResourceNotFound),
    ):
        assert isinstance(operator.run("quota", *arguments).exception, error), arguments
    operator.login("PLAIN", PLAIN, "eve", "eve")
    for arguments in (("list",), ("set", "producer_byte_rate=1", "--user", "eve")):
        assert isinstance(operator.run("quota", *arguments).exception, ClusterAuthorizationFailed), arguments
