"""Delegation tokens of a running cluster: by commands, over restarts, and in nothing that it writes."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource
from typer.testing import CliRunner

from kreplica.broker.node_config import STANDARD_AUTHORIZER
from kreplica.cli import client_config
from kreplica.cli.app import app
from kreplica.common.errors import (
    DelegationTokenAuthorizationFailed,
    DelegationTokenNotFound,
    DelegationTokenOwnerMismatch,
    DelegationTokenRequestNotAllowed,
    SaslAuthenticationFailed,
)
from kreplica.runtime.listener import MECHANISMS, Login
from kreplica.security.sasl import Secret
from tests.support.sockets import until
from tests.support.tcp_cluster import TcpCluster

JAAS = "org.apache.kafka.common.security.{module} required username={user} password={password}{more};"
USERS = {"admin": "admin-secret", "alice": "alice-secret", "bob": "bob-secret"}
SECRET = "secret-of-the-cluster"
SETTINGS = {
    "delegation.token.secret.key": SECRET,
    "delegation.token.expiry.check.interval.ms": 100,
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:admin",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TcpCluster]:
    passwords = {user: Secret(password) for user, password in USERS.items()}
    login = Login(mechanisms=MECHANISMS, passwords=passwords, failure_delay_ms=0)
    settings = {**SETTINGS, "super.users": "User:admin;User:ANONYMOUS"}  # the nodes are anonymous here
    with TcpCluster(tmp_path_factory.mktemp("nodes"), 2, login, settings=settings) as made:
        yield made


class Client:
    """Runs commands as one user, or by a token."""

    def __init__(self, cluster: TcpCluster, directory: Path, user: str = "alice") -> None:
        self.bootstrap = cluster.bootstrap_servers
        self.file = directory / "client.properties"
        self.password = ""
        self.as_user(user)

    def as_user(self, user: str) -> None:
        self._login("PLAIN", "plain.PlainLoginModule", user, USERS[user])

    def by_token(self, token: dict[str, Any], mechanism: str = "SCRAM-SHA-256") -> None:
        module = "scram.ScramLoginModule"
        self._login(mechanism, module, token["token"], f'"{token["password"]}"', " tokenauth=true")

    def _login(self, mechanism: str, module: str, user: str, password: str, more: str = "") -> None:
        jaas = JAAS.format(module=module, user=user, password=password, more=more)
        self.file.write_text(
            f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\nsasl.jaas.config={jaas}\n"
        )

    def run(self, *arguments: str) -> Any:
        environment = {"KREPLICA_BOOTSTRAP": self.bootstrap, "KREPLICA_PASSWORD": self.password}
        return CliRunner().invoke(app, ("--command-config", str(self.file), *arguments), env=environment)

    def facts(self, *arguments: str) -> list[dict[str, Any]]:
        result = self.run(*arguments, "--json")
        assert result.exit_code == 0, (result.output, result.exception)
        return [json.loads(line) for line in result.stdout.splitlines()]

    def tokens(self) -> list[str]:
        return [each["token"] for each in self.facts("token", "list")]

    def create(self, *arguments: str) -> dict[str, Any]:
        [made] = self.facts("token", "create", *arguments)
        until(lambda: made["token"] in self.tokens())
        return made


@pytest.fixture
def client(cluster: TcpCluster, tmp_path: Path) -> Iterator[Client]:
    yield Client(cluster, tmp_path)
    client_config.use(None)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_token_is_made_logs_in_is_renewed_and_removed(client: Client, mechanism: str) -> None:
    made = client.create("--renewer", "bob", "--max-days", "2")
    assert made["owner"] == "User:alice"
    client.password = made["password"]
    client.as_user("bob")
    assert client.tokens() == [made["token"]]
    [renewed] = client.facts("token", "renew", "--days", "1.5")
    assert made["expires"] < renewed["expires"] < made["latest"]
    client.by_token(made, mechanism)
    assert client.facts("group", "list") == []
    # A token does not make others, nor show any.
    for command in ("create", "list", "renew", "expire"):
        assert isinstance(client.run("token", command).exception, DelegationTokenRequestNotAllowed)
    client.as_user("alice")
    client.facts("token", "expire")
    until(lambda: client.tokens() == [])
    client.by_token(made, mechanism)
    assert isinstance(client.run("group", "list").exception, SaslAuthenticationFailed)


def test_a_token_is_not_used_by_others(client: Client) -> None:
    made = client.create()
    client.password = made["password"]
    client.as_user("bob")
    assert client.tokens() == []
    assert isinstance(client.run("token", "renew").exception, DelegationTokenOwnerMismatch)
    assert isinstance(client.run("token", "expire").exception, DelegationTokenOwnerMismatch)
    assert isinstance(client.run("token", "create", "alice").exception, DelegationTokenAuthorizationFailed)
    client.by_token({**made, "password": base64.b64encode(b"other").decode()})
    assert isinstance(client.run("group", "list").exception, SaslAuthenticationFailed)
    client.as_user("admin")
    assert made["token"] in client.tokens()
    other = client.create("bob")
    assert other["owner"] == "User:bob"
    for each in (made, other):
        client.as_user("alice" if each is made else "bob")
        client.password = each["password"]
        client.facts("token", "expire")
        until(lambda: client.tokens() == [])
    assert isinstance(client.run("token", "renew").exception, DelegationTokenNotFound)


def test_the_controller_removes_what_has_expired(client: Client) -> None:
    made = client.create()
    client.password = made["password"]
    client.facts("token", "expire", "--days", "0")
    until(lambda: client.tokens() == [])


def test_a_token_and_its_password_are_nowhere_written(
    client: Client, cluster: TcpCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """CVE-2026-33558: logs at DEBUG had HMACs and secrets."""
    with caplog.at_level(logging.DEBUG):
        made = client.create()
        client.by_token(made)
        assert client.facts("group", "list") == []
        client.as_user("alice")
        shown = client.run("token", "list").output
        client.password = made["password"]
        client.facts("token", "renew")
        client.facts("token", "expire")
        until(lambda: client.tokens() == [])
        client.by_token(made)
        failed = client.run("group", "list")
    user = {"sasl.mechanism": "PLAIN", "sasl.username": "admin", "sasl.password": USERS["admin"]}
    servers = {"bootstrap.servers": cluster.bootstrap_servers, "security.protocol": "SASL_PLAINTEXT"}
    broker = ConfigResource("BROKER", "1")
    admin = AdminClient({**servers, **user})
    configs = admin.describe_configs([broker])[broker].result(30)
    described = configs["delegation.token.secret.key"]
    assert (described.value, described.is_sensitive) == (None, True)
    written = [shown, failed.output, str(failed.exception), repr(cluster.nodes[1].config)]
    written += [record.getMessage() for record in caplog.records]
    written += [str(each.value) for each in configs.values()]
    raw = base64.b64decode(made["password"])
    for secret in (made["password"], raw.hex(), repr(raw), SECRET, *USERS.values()):
        assert not any(secret in text for text in written)
    logs = [path.read_bytes() for path in Path(cluster.nodes[1].config.directories[0]).rglob("*.log")]
    assert logs
    assert not any(raw in data or SECRET.encode() in data for data in logs)


def test_tokens_outlive_their_nodes(client: Client, cluster: TcpCluster) -> None:
    made = client.create()
    for node in cluster.nodes.values():
        node.close()
    cluster.start()
    client.by_token(made)
    assert client.facts("group", "list") == []
    client.as_user("alice")
    client.password = made["password"]
    client.facts("token", "expire")
    until(lambda: client.tokens() == [])
