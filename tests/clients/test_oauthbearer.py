"""Stock clients log in by tokens (OAUTHBEARER), and are refused, however the provider behaves."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiokafka
import aiokafka.abc
import kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.net.sasl.oauth import AbstractTokenProvider
from typer.testing import CliRunner

from kreplica.cli import client_config
from kreplica.cli.app import app
from kreplica.common.messages.data import MetadataRequest
from kreplica.runtime.event_loop import EventLoopThread, NodeLoops
from kreplica.runtime.listener import ALL_MECHANISMS, Login
from kreplica.runtime.oauth import OAuthBearerSettings, TokenFetcher
from kreplica.runtime.tcp_transport import NodeSecurity, TcpTransport
from kreplica.security.client_login import ClientLogin
from kreplica.security.oauthbearer import OAUTHBEARER
from kreplica.security.sasl import Secret
from tests.support.sockets import until
from tests.support.tcp_cluster import TcpCluster
from tests.support.tokens import AUDIENCE, CLIENT_ID, CLIENT_SECRET, ISSUER, LIFETIME_S, Issuer, Provider

WAIT_S = 30


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with Provider(Issuer()) as made:
        yield made


@pytest.fixture(scope="module")
def servers(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A node whose clients log in by tokens of the provider, with the topic `orders`."""
    tokens = OAuthBearerSettings.read(
        {
            "sasl.oauthbearer.jwks.endpoint.url": provider.url,
            "sasl.oauthbearer.jwks.endpoint.refresh.ms": "500",
            "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": "50",
            "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": "100",
            "sasl.oauthbearer.allowed.urls": provider.url,
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
        }.get,
        None,
    )
    login = Login(mechanisms=ALL_MECHANISMS, passwords={"admin": Secret("admin")}, tokens=tokens)
    with TcpCluster(tmp_path_factory.mktemp("nodes"), 1, login) as cluster:
        admin = AdminClient(librdkafka(cluster.bootstrap_servers, provider.issuer.token))
        admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(WAIT_S)
        yield cluster.bootstrap_servers


def librdkafka(servers: str, token: Callable[[], str], lifetime_s: float = 300) -> dict[str, Any]:
    return {
        "bootstrap.servers": servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": OAUTHBEARER,
        "oauth_cb": lambda _: (token(), time.time() + lifetime_s),
    }


def can_log_in(servers: str, token: Callable[[], str]) -> bool:
    errors: list[KafkaError] = []
    admin = AdminClient({**librdkafka(servers, token), "error_cb": errors.append})
    try:
        return "orders" in admin.list_topics(timeout=2).topics
    except KafkaException:
        admin.poll(0)
        assert KafkaError._AUTHENTICATION in {each.code() for each in errors}
        return False


def test_confluent_kafka_logs_in_and_is_refused(servers: str, provider: Provider) -> None:
    settings = librdkafka(servers, provider.issuer.token)
    producer = Producer(settings)
    producer.produce("orders", b"a", partition=0)
    assert producer.flush(WAIT_S) == 0
    assert not can_log_in(servers, lambda: provider.issuer.token(aud="others"))
    assert not can_log_in(servers, Issuer().token)


def test_confluent_kafka_gets_tokens_by_its_own_oidc(servers: str, provider: Provider) -> None:
    settings = {
        "bootstrap.servers": servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": OAUTHBEARER,
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": CLIENT_ID,
        "sasl.oauthbearer.client.secret": CLIENT_SECRET,
        "sasl.oauthbearer.token.endpoint.url": provider.token_url,
        "sasl.oauthbearer.scope": "kafka",
    }
    producer = Producer(settings)
    producer.produce("orders", b"oidc", partition=0)
    assert producer.flush(WAIT_S) == 0


class Tokens(AbstractTokenProvider):
    """Tokens for kafka-python."""

    def __init__(self, made: Callable[[], str]) -> None:
        super().__init__()
        self._made = made

    def token(self) -> str:
        return self._made()


def test_kafka_python_logs_in_and_is_refused(servers: str, provider: Provider) -> None:
    settings = {
        "bootstrap_servers": servers,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": OAUTHBEARER,
    }
    tokens = Tokens(provider.issuer.token)
    producer = kafka.KafkaProducer(**settings, sasl_oauth_token_provider=tokens)
    assert producer.send("orders", b"python", partition=0).get(WAIT_S).partition == 0
    producer.close()
    # In a process of its own: the client leaves sockets of a producer that it could not make.
    program = (
        "import kafka, json, sys\n"
        "from kafka.net.sasl.oauth import AbstractTokenProvider\n"
        "class Tokens(AbstractTokenProvider):\n"
        "    def token(self): return sys.argv[2]\n"
        "settings = json.loads(sys.argv[1])\n"
        "settings |= {'sasl_oauth_token_provider': Tokens(), 'bootstrap_timeout_ms': 2_000}\n"
        "try: kafka.KafkaProducer(**settings)\n"
        "except kafka.errors.KafkaError as error: print(type(error).__name__)"
    )
    command = [sys.executable, "-c", program, json.dumps(settings), provider.issuer.token(exp=1)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=WAIT_S)
    assert ran.stdout.strip() in ("KafkaTimeoutError", "NoBrokersAvailable", "SaslAuthenticationFailedError")


class AsyncTokens(aiokafka.abc.AbstractTokenProvider):
    """Tokens for aiokafka."""

    def __init__(self, made: str) -> None:
        self._made = made

    async def token(self) -> str:
        return self._made


def test_aiokafka_logs_in_and_is_refused(servers: str, provider: Provider) -> None:
    def settings(token: str) -> dict[str, Any]:
        return {
            "bootstrap_servers": servers,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": OAUTHBEARER,
            "sasl_oauth_token_provider": AsyncTokens(token),
        }

    async def run() -> None:
        producer = aiokafka.AIOKafkaProducer(**settings(provider.issuer.token()))
        await producer.start()
        try:
            assert (await producer.send_and_wait("orders", b"a", partition=0)).partition == 0
        finally:
            await producer.stop()
        refused = aiokafka.AIOKafkaProducer(**settings(provider.issuer.token(iss="other")))
        with pytest.raises(aiokafka.errors.KafkaError):
            await refused.start()
        await refused.stop()

    asyncio.run(run())


def test_a_new_key_serves_from_the_next_try_on(servers: str, provider: Provider) -> None:
    before = provider.issuer.token()
    provider.issuer.rotate()
    # librdkafka tries again on its own.
    assert can_log_in(servers, provider.issuer.token)
    assert can_log_in(servers, lambda: before)


@pytest.mark.parametrize("behaviour", ["fail", "redirect", "garbage"])
def test_known_keys_go_on_while_the_provider_fails(servers: str, provider: Provider, behaviour: str) -> None:
    asked = len(provider.requests)
    provider.behaviour = behaviour
    try:
        until(lambda: len(provider.requests) >= asked + 3)
        assert "/elsewhere" not in provider.requests
        assert can_log_in(servers, provider.issuer.token)
    finally:
        provider.behaviour = ""


def test_a_slow_provider_delays_no_login(servers: str, provider: Provider) -> None:
    provider.go_on.clear()
    provider.behaviour = "slow"
    try:
        asked = len(provider.requests)
        until(lambda: len(provider.requests) > asked)
        assert can_log_in(servers, provider.issuer.token)
        # Only one fetch is under way.
        assert len(provider.requests) == asked + 1
    finally:
        provider.behaviour = ""
        provider.go_on.set()


def test_a_long_producer_goes_on_over_many_short_tokens(servers: str, provider: Provider) -> None:
    """KIP-368: librdkafka reconnects or logs in again as its tokens end."""
    made = []

    def token() -> str:
        made.append(provider.issuer.token(exp=int(time.time()) + 3))
        return made[-1]

    producer = Producer(librdkafka(servers, token, lifetime_s=2))
    failed: list[Any] = []
    end = time.monotonic() + 5
    while time.monotonic() < end:
        producer.produce("orders", b"a", on_delivery=lambda error, _: error and failed.append(error))
        producer.poll(0.05)
    assert producer.flush(WAIT_S) == 0
    assert not failed
    assert len(made) > 2


def test_a_node_logs_in_by_tokens_and_again_before_they_expire(servers: str, provider: Provider) -> None:
    host, _, port = servers.partition(":")
    properties = {
        "sasl.oauthbearer.token.endpoint.url": provider.token_url,
        "sasl.oauthbearer.allowed.urls": provider.token_url,
        "sasl.oauthbearer.client.credentials.client.id": CLIENT_ID,
        "sasl.oauthbearer.client.credentials.client.secret": CLIENT_SECRET,
    }
    login = ClientLogin.by_token(TokenFetcher.read(properties.get, None))
    asked = MetadataRequest(topics=(), allow_auto_topic_creation=False)
    thread = EventLoopThread("node")
    thread.start()
    life = NodeLoops(thread)
    transport = TcpTransport(
        life,
        lambda _: (host, int(port)),
        client_id="node-9",
        security=lambda _: NodeSecurity(None, login),
    )
    provider.lifetime_s = 2
    before = provider.requests.count("/token")
    try:

        def ask() -> bool:
            # No request fails meanwhile, over several tokens.
            transport.send(1, asked, timeout_ms=20_000).result(WAIT_S)
            return provider.requests.count("/token") >= before + 3

        until(ask)
    finally:
        provider.lifetime_s = LIFETIME_S
        life.leave()
        transport.close()
        thread.stop()


@pytest.mark.parametrize("kind", ["endpoint", "file"])
def test_commands_log_in_by_tokens(servers: str, provider: Provider, kind: str, tmp_path: Path) -> None:
    url = provider.token_url
    if kind == "file":
        file = tmp_path / "token"
        file.write_text(provider.issuer.token())
        url = f"file://{file}"
    properties = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": OAUTHBEARER,
        "sasl.oauthbearer.token.endpoint.url": url,
        "sasl.oauthbearer.allowed.urls": url,
        "sasl.oauthbearer.client.credentials.client.id": CLIENT_ID,
        "sasl.oauthbearer.client.credentials.client.secret": CLIENT_SECRET,
    }
    path = tmp_path / "client.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    try:
        # By the stock client, and by connections of its own.
        for command in (("topic", "list", "--json"), ("group", "list", "--json")):
            environment = {"KREPLICA_BOOTSTRAP": servers}
            found = CliRunner().invoke(app, ("--command-config", str(path), *command), env=environment)
            assert found.exit_code == 0, (found.output, found.exception)
            assert "orders" in found.stdout or command[0] == "group"
    finally:
        client_config.use(None)
