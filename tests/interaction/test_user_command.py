"""How an operator manages users, and logs in to do it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kreplica.cli import client_config
from kreplica.cli.app import app
from kreplica.common.errors import (
    InvalidConfig,
    NetworkException,
    ResourceNotFound,
    SaslAuthenticationFailed,
    UnacceptableCredential,
)
from kreplica.runtime.listener import MECHANISMS, Login
from kreplica.security.sasl import Secret
from tests.support.tcp_cluster import TcpCluster

JAAS = "org.apache.kafka.common.security.{module} required username={user} password={password};"
EXAMPLE = JAAS.format(module="plain.PlainLoginModule", user="a", password="b")
PLAIN, SCRAM = "plain.PlainLoginModule", "scram.ScramLoginModule"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TcpCluster]:
    login = Login(mechanisms=MECHANISMS, passwords={"admin": Secret("root")}, failure_delay_ms=0)
    with TcpCluster(tmp_path_factory.mktemp("nodes"), 1, login) as made:
        yield made


class Operator:
    """Runs commands with a file of properties."""

    def __init__(self, cluster: TcpCluster, directory: Path) -> None:
        self.bootstrap = cluster.bootstrap_servers
        self.file = directory / "client.properties"
        self.login("PLAIN", PLAIN, "admin", "root")

    def login(self, mechanism: str, module: str, user: str, password: str) -> None:
        jaas = JAAS.format(module=module, user=user, password=password)
        self.file.write_text(
            f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\nsasl.jaas.config={jaas}\n"
        )

    def run(self, *arguments: str) -> Any:
        environment = {"KREPLICA_BOOTSTRAP": self.bootstrap, "KREPLICA_PASSWORD": "sesame"}
        return CliRunner().invoke(app, ("--command-config", str(self.file), *arguments), env=environment)

    def facts(self, *arguments: str) -> list[dict[str, Any]]:
        result = self.run(*arguments, "--json")
        assert result.exit_code == 0, (result.output, result.exception)
        assert "sesame" not in result.output
        return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def operator(cluster: TcpCluster, tmp_path: Path) -> Iterator[Operator]:
    yield Operator(cluster, tmp_path)
    client_config.use(None)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_user_is_added_logs_in_and_is_removed(operator: Operator, mechanism: str) -> None:
    operator.facts("user", "add", "alice", "--mechanism", mechanism)
    described = {"user": "alice", "mechanism": mechanism, "iterations": 4096}
    assert operator.facts("user", "list") == [described]
    operator.login(mechanism, SCRAM, "alice", "sesame")
    # By the stock client, and by connections of its own.
    assert operator.run("topic", "create", f"of-{mechanism}").exit_code == 0
    assert f"of-{mechanism}" in {each["topic"] for each in operator.facts("topic", "list")}
    assert operator.facts("group", "list") == []
    operator.login("PLAIN", PLAIN, "admin", "root")
    operator.facts("user", "remove", "alice")
    assert operator.facts("user", "list") == []
    assert isinstance(operator.run("user", "remove", "alice").exception, ResourceNotFound)
    with_option = operator.run("user", "remove", "alice", "--mechanism", mechanism)
    assert isinstance(with_option.exception, ResourceNotFound)


def test_a_user_needs_a_name_and_a_password(operator: Operator) -> None:
    refused = operator.run("user", "add", "").exception
    assert isinstance(refused, UnacceptableCredential)
    environment = {"KREPLICA_BOOTSTRAP": operator.bootstrap}
    arguments = ("--command-config", str(operator.file), "user", "add", "bob", "--password", "")
    assert isinstance(CliRunner().invoke(app, arguments, env=environment).exception, InvalidConfig)


def test_a_wrong_password_is_said(operator: Operator) -> None:
    operator.login("PLAIN", PLAIN, "admin", "wrong")
    refused = operator.run("topic", "list").exception
    assert isinstance(refused, NetworkException)
    assert "the user or the password is wrong" in str(refused)
    for mechanism, module in (("PLAIN", PLAIN), ("SCRAM-SHA-512", SCRAM)):
        operator.login(mechanism, module, "admin", "wrong")
        refused = operator.run("quorum", "describe").exception
        assert isinstance(refused, SaslAuthenticationFailed)
        assert "the login as admin failed" in str(refused)


def test_stores_of_java_in_a_file_without_encryption_do_not_matter(operator: Operator) -> None:
    operator.file.write_text(f"{operator.file.read_text()}ssl.truststore.location=/no/such\n")
    assert operator.run("topic", "list").exit_code == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("security.protocol=KERBEROS", "security.protocol=KERBEROS must be one of PLAINTEXT, SSL"),
        ("security.protocol=SSL\nssl.truststore.location=/no/such", "/no/such: No such file"),
        (
            "security.protocol=SSL\nssl.truststore.type=JKS",
            "=JKS for the client must be PEM or PKCS12",
        ),
        ("security.protocol=SASL_PLAINTEXT", "sasl.mechanism= must be one of PLAIN"),
        (
            f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAN\nsasl.jaas.config={EXAMPLE}",
            "sasl.mechanism=PLAN must be one of PLAIN",
        ),
        ("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN", "the user or the password is missing"),
        ("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config=x", "must be a module"),
    ],
)
def test_a_file_that_makes_no_login(operator: Operator, text: str, words: str) -> None:
    operator.file.write_text(text + "\n")
    refused = operator.run("topic", "list").exception
    assert isinstance(refused, InvalidConfig)
    assert words in str(refused)
