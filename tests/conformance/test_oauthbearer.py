"""Java's client and librdkafka log in by tokens of a real OpenID Connect server (mock-oauth2-server)."""

from __future__ import annotations

import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import kreplica
from kreplica.runtime.listener import Login
from kreplica.runtime.oauth import TOKEN_URL, OAuthBearerSettings
from kreplica.security.jaas import OAUTHBEARER_MODULE
from kreplica.security.oauthbearer import OAUTHBEARER
from tests.conformance.kafka_peer import PeerError, oidc_jars, run_java
from tests.support.polling import wait_until
from tests.support.ports import free_addresses
from tests.support.tcp_cluster import TcpCluster

pytestmark = pytest.mark.conformance

SERVER = "no.nav.security.mock.oauth2.StandaloneMockOAuth2ServerKt"
TOPICS = "org.apache.kafka.tools.TopicCommand"
HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
ALLOWED = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
AUDIENCE, WAIT_S = "kafka", 30


class Realm(NamedTuple):
    """An issuer of the server."""

    url: str

    @property
    def token_url(self) -> str:
        return f"{self.url}/token"

    @property
    def jwks_url(self) -> str:
        return f"{self.url}/jwks"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the server, which makes an issuer of each path."""
    [(host, port)] = free_addresses(1)
    environment = {**os.environ, "SERVER_HOSTNAME": host, "SERVER_PORT": str(port)}
    log = tmp_path_factory.mktemp("oidc") / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{oidc_jars()}/*", SERVER],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:

        def is_alive() -> bool:
            assert process.poll() is None, log.read_text()
            try:
                with urllib.request.urlopen(f"http://{host}:{port}/isalive", timeout=5) as answer:
                    return bool(answer.status == 200)
            except urllib.error.URLError:
                return False

        wait_until(is_alive, "the OpenID Connect server answers", timeout_s=120)
        yield f"http://{host}:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def realm(server: str) -> Realm:
    return Realm(f"{server}/kafka")


@pytest.fixture(scope="module")
def servers(realm: Realm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    tokens = OAuthBearerSettings.read(
        {
            "sasl.oauthbearer.jwks.endpoint.url": realm.jwks_url,
            "sasl.oauthbearer.allowed.urls": realm.jwks_url,
            "sasl.oauthbearer.expected.issuer": realm.url,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
        }.get,
        None,
    )
    login = Login(mechanisms=(OAUTHBEARER,), tokens=tokens)
    with TcpCluster(tmp_path_factory.mktemp("nodes"), 1, login) as cluster:
        yield cluster.bootstrap_servers


def librdkafka(servers: str, realm: Realm, scope: str = AUDIENCE) -> AdminClient:
    settings = {
        "bootstrap.servers": servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": OAUTHBEARER,
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "alice",
        "sasl.oauthbearer.client.secret": "secret",
        "sasl.oauthbearer.token.endpoint.url": realm.token_url,
        "sasl.oauthbearer.scope": scope,
    }
    return AdminClient(settings)


def topics_by_java(
    servers: str, realm: Realm, directory: Path, monkeypatch: pytest.MonkeyPatch, scope: str = AUDIENCE
) -> list[str]:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-D{ALLOWED}={realm.token_url}")
    properties = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": OAUTHBEARER,
        "sasl.jaas.config": f"{OAUTHBEARER_MODULE} required;",
        "sasl.login.callback.handler.class": HANDLER,
        "sasl.oauthbearer.token.endpoint.url": realm.token_url,
        "sasl.oauthbearer.client.credentials.client.id": "alice",
        "sasl.oauthbearer.client.credentials.client.secret": "secret",
        "sasl.oauthbearer.scope": scope,
    }
    path = directory / "client.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return run_java(TOPICS, "--bootstrap-server", servers, "--command-config", str(path), "--list").split()


def test_librdkafka_logs_in(servers: str, realm: Realm) -> None:
    admin = librdkafka(servers, realm)
    admin.create_topics([NewTopic("of-librdkafka", 1, 1)])["of-librdkafka"].result(WAIT_S)
    assert "of-librdkafka" in admin.list_topics(timeout=WAIT_S).topics


def test_java_logs_in(servers: str, realm: Realm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    admin = librdkafka(servers, realm)
    admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(WAIT_S)
    assert "orders" in topics_by_java(servers, realm, tmp_path, monkeypatch)


@pytest.mark.parametrize("wrong", ["audience", "issuer"])
def test_java_is_refused(
    servers: str, server: str, realm: Realm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    other = Realm(f"{server}/other") if wrong == "issuer" else realm
    scope = "others" if wrong == "audience" else AUDIENCE
    with pytest.raises(PeerError, match=r"SaslAuthenticationException"):
        topics_by_java(servers, other, tmp_path, monkeypatch, scope)


def test_java_logs_in_by_a_token_of_a_cluster_in_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kreplica.Cluster(1, serve=True, security=True) as cluster:
        cluster.create_topic("orders")
        properties = cluster.client_properties("alice", mechanism=OAUTHBEARER)
        monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-D{ALLOWED}={properties[TOKEN_URL]}")
        path = tmp_path / "client.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        servers = cluster.bootstrap_servers
        listed = run_java(
            TOPICS, "--bootstrap-server", servers, "--command-config", str(path), "--list"
        ).split()
    assert listed == ["orders"]
