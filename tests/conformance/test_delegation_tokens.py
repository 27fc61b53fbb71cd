"""Kafka's own tool makes delegation tokens of our nodes, and Java's clients log in by them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kreplica.runtime.listener import MECHANISMS, Login
from kreplica.security.jaas import PLAIN_MODULE, SCRAM_MODULE
from kreplica.security.sasl import Secret
from tests.conformance.kafka_peer import PeerError, run_java
from tests.support.sockets import until
from tests.support.tcp_cluster import TcpCluster

pytestmark = pytest.mark.conformance

TOKENS = "org.apache.kafka.tools.DelegationTokenCommand"
TOPICS = "org.apache.kafka.tools.TopicCommand"
USERS = {name: Secret(name) for name in ("alice", "bob")}
ROW = re.compile(r"^(?P<id>[\w-]{22})\s+(?P<hmac>[\w+/=]{88})\s+User:alice\s", re.MULTILINE)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TcpCluster]:
    login = Login(mechanisms=MECHANISMS, passwords=USERS)
    settings = {"delegation.token.secret.key": "secret-of-the-cluster"}
    with TcpCluster(tmp_path_factory.mktemp("nodes"), 2, login, settings=settings) as made:
        yield made


def run(cluster: TcpCluster, path: Path, main: str, mechanism: str, jaas: str, *arguments: str) -> str:
    path.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\nsasl.jaas.config={jaas}\n"
    )
    return run_java(
        main, "--bootstrap-server", cluster.bootstrap_servers, "--command-config", str(path), *arguments
    )


def test_a_token_is_made_used_renewed_and_expired_by_kafkas_tool(cluster: TcpCluster, tmp_path: Path) -> None:
    path = tmp_path / "client.properties"

    def tool(*arguments: str, user: str = "alice") -> str:
        jaas = f'{PLAIN_MODULE} required username="{user}" password="{user}";'
        return run(cluster, path, TOKENS, "PLAIN", jaas, *arguments)

    def topics(mechanism: str, token: str, hmac: str) -> str:
        jaas = f'{SCRAM_MODULE} required username="{token}" password="{hmac}" tokenauth="true";'
        return run(cluster, path, TOPICS, mechanism, jaas, "--list")

    made = ROW.search(tool("--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob"))
    assert made is not None
    until(lambda: made["id"] in tool("--describe", "--owner-principal", "User:alice"))
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        topics(mechanism, made["id"], made["hmac"])
    with pytest.raises(PeerError, match=r"SaslAuthenticationException"):
        topics("SCRAM-SHA-256", made["id"], "A" * 86 + "==")
    renewed = tool("--renew", "--hmac", made["hmac"], "--renew-time-period", "-1", user="bob")
    assert "renew" in renewed.lower()
    tool("--expire", "--hmac", made["hmac"], "--expiry-time-period", "-1")
    until(lambda: made["id"] not in tool("--describe", "--owner-principal", "User:alice"))
    with pytest.raises(PeerError, match=r"SaslAuthenticationException"):
        topics("SCRAM-SHA-256", made["id"], made["hmac"])
    with pytest.raises(PeerError, match=r"DelegationTokenNotFound"):
        tool("--expire", "--hmac", made["hmac"], "--expiry-time-period", "-1")
