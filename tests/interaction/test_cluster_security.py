"""A secured cluster inside a program, for tests of an application's security settings."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from typer.testing import CliRunner

import kreplica
from kreplica.cli import client_config
from kreplica.cli.app import app
from kreplica.common.errors import InvalidConfig, InvalidRequest
from kreplica.runtime.listener import ALL_MECHANISMS

WAIT_S = 30
PROTOCOLS = ("SASL_SSL", "SASL_PLAINTEXT", "SSL")


@pytest.fixture(scope="module", params=PROTOCOLS)
def cluster(request: pytest.FixtureRequest) -> Iterator[kreplica.Cluster]:
    security = kreplica.Security(protocol=request.param)
    with kreplica.Cluster(serve=True, security=security) as made:
        made.create_topic("orders", partitions=1)
        yield made
    # Futures refer to their clients, and each has threads and descriptors of its own.
    gc.collect()


@pytest.mark.parametrize("mechanism", ALL_MECHANISMS)
def test_each_user_connects_by_each_mechanism(cluster: kreplica.Cluster, mechanism: str) -> None:
    for user in ("admin", "alice"):
        producer = Producer(cluster.client_config(user, mechanism=mechanism))
        producer.produce("orders", mechanism.encode())
        assert producer.flush(WAIT_S) == 0
    assert [record.value for record in cluster.read("orders", 0)][-2:] == [mechanism.encode()] * 2


@pytest.mark.parametrize("mechanism", ["PLAIN", "OAUTHBEARER"])
def test_the_command_line_connects_with_javas_properties(
    cluster: kreplica.Cluster, tmp_path: Path, mechanism: str
) -> None:
    file = tmp_path / "client.properties"
    properties = cluster.client_properties("alice", mechanism=mechanism)
    lines = [f"{name}={value}" for name, value in properties.items()]
    file.write_text("\n".join([*lines, ""]))
    try:
        arguments = ("--command-config", str(file), "topic", "list", "-b", cluster.bootstrap_servers)
        result = CliRunner().invoke(app, arguments)
    finally:
        client_config.use(None)
    assert "orders" in result.output, (result.output, result.exception)


def test_a_node_that_was_killed_asks_for_the_same(cluster: kreplica.Cluster) -> None:
    cluster.kill(1)
    cluster.start(1)
    producer = Producer(cluster.client_config("alice"))
    producer.produce("orders", b"again")
    assert producer.flush(WAIT_S) == 0


def test_a_wrong_password_and_a_client_without_tls_are_refused() -> None:
    with kreplica.Cluster(1, serve=True, security=True) as cluster:
        right = cluster.client_config()
        for change in (
            {"sasl.password": "wrong"},
            {"security.protocol": "PLAINTEXT"},
            {"ssl.ca.location": ""},
        ):
            admin = AdminClient({**right, **change}, logger=logging.getLogger("quiet"))
            with pytest.raises(KafkaException):
                admin.list_topics(timeout=2)
        assert AdminClient(right).list_topics(timeout=WAIT_S).brokers


def test_tokens_are_of_any_user_and_may_have_expired(kreplica_secured: kreplica.Cluster) -> None:
    cluster = kreplica_secured
    cluster.create_topic("orders")
    config = cluster.client_config("alice", mechanism="OAUTHBEARER")
    token = cluster.token("carol")
    carol = Producer(config | {"oauth_cb": lambda _: (token, time.time() + 3600)})
    # She has logged in, and has no rights.
    assert append(carol, "orders") == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert append(Producer(cluster.client_config("admin", mechanism="OAUTHBEARER")), "orders") is None
    for refused in (cluster.token("admin", lifetime_s=-60), cluster.token("admin")[:-8] + "AAAAAAAA"):
        answer = {"oauth_cb": lambda _, refused=refused: (refused, time.time() + 3600)}
        admin = AdminClient(config | answer, logger=logging.getLogger("quiet"))
        with pytest.raises(KafkaException):
            admin.list_topics(timeout=2)


def test_what_has_no_tokens_is_refused(cluster: kreplica.Cluster) -> None:
    with kreplica.Cluster(1) as plain, pytest.raises(InvalidConfig, match="create it with security=True"):
        plain.token()
    if cluster.client_config()["security.protocol"] == "SSL":
        with pytest.raises(InvalidConfig, match="clients have no tokens"):
            cluster.token()
    else:
        with pytest.raises(InvalidConfig, match="needs the name of a user"):
            cluster.token("")


def test_rights_are_asked_for(kreplica_secured: kreplica.Cluster) -> None:
    cluster = kreplica_secured
    cluster.create_topic("orders")
    alice = Producer(cluster.client_config("alice"))
    assert append(alice, "orders") == KafkaError.TOPIC_AUTHORIZATION_FAILED
    admin = AdminClient(cluster.client_config("admin"))
    rule = AclBinding(
        ResourceType.TOPIC,
        "orders",
        ResourcePatternType.LITERAL,
        "User:alice",
        "*",
        AclOperation.WRITE,
        AclPermissionType.ALLOW,
    )
    admin.create_acls([rule])[rule].result(WAIT_S)
    assert append(Producer(cluster.client_config("alice")), "orders") is None
    consumer = Consumer(cluster.client_config("admin") | {"group.id": "g", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe(["orders"])
        message = consumer.poll(WAIT_S)
        assert message is not None
        assert message.value() == b"x"
    finally:
        consumer.close()
    # This program itself needs no rights.
    cluster.append("orders", [b"own"]).result(WAIT_S)


@pytest.fixture
def kreplica_secured() -> Iterator[kreplica.Cluster]:
    with kreplica.Cluster(serve=True, security=kreplica.Security(acls=True)) as made:
        yield made


def append(producer: Producer, topic: str) -> int | None:
    codes: list[int | None] = []
    producer.produce(topic, b"x", on_delivery=lambda error, _: codes.append(error and error.code()))
    assert producer.flush(WAIT_S) == 0
    return codes[0]


@pytest.mark.kreplica(brokers=1, serve=True, security=True)
def test_the_fixture_takes_it_too(kreplica_cluster: kreplica.Cluster) -> None:
    assert AdminClient(kreplica_cluster.client_config()).list_topics(timeout=WAIT_S).brokers


async def in_asyncio() -> None:
    cluster = await kreplica.aio.Cluster.open(1, serve=True, security=True)
    try:
        assert cluster.client_config() == cluster.cluster.client_config("admin")
        assert cluster.client_properties("alice")["security.protocol"] == "SASL_SSL"
    finally:
        await cluster.close()


def test_asyncio_has_the_same() -> None:
    asyncio.run(in_asyncio())


def test_a_key_is_for_its_owner_alone(tmp_path: Path) -> None:
    with kreplica.Cluster(1, tmp_path, serve=True, security=True) as cluster:
        cluster.client_properties("alice", mechanism="OAUTHBEARER")
        assert stat.S_IMODE(os.stat(tmp_path / "security" / "alice.jwt").st_mode) == 0o600
        assert stat.S_IMODE(os.stat(tmp_path / "security" / "node.pem").st_mode) == 0o600
        assert "PRIVATE" not in (tmp_path / "security" / "ca.pem").read_text()
    # A cluster that is opened again has new certificates.
    with kreplica.Cluster(1, tmp_path, serve=True, security=True) as cluster:
        assert AdminClient(cluster.client_config()).list_topics(timeout=WAIT_S).brokers


def test_no_secret_is_in_a_log(caplog: pytest.LogCaptureFixture) -> None:
    users = {"admin": "se-sa-me-1", "alice": "se-sa-me-2"}
    with (
        caplog.at_level(logging.DEBUG),
        kreplica.Cluster(
            1, serve=True, security=kreplica.Security(users=users, protocol="SASL_PLAINTEXT", acls=True)
        ) as cluster,
    ):
        for mechanism in ALL_MECHANISMS:
            producer = Producer(cluster.client_config("admin", mechanism=mechanism))
            producer.produce("orders", b"x")
            assert producer.flush(WAIT_S) == 0
        assert "se-sa-me" not in repr(cluster.describe())
        credentials = cluster.node(1).loader.published.scram_credentials.values()
        assert len(list(credentials)) == 4
        hidden = [part for each in credentials for part in (each.stored_key, each.server_key, each.salt)]
    text = caplog.text
    assert "se-sa-me" not in text
    for secret in hidden:
        assert secret.hex() not in text
        assert repr(secret)[2:-1] not in text


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
def test_clients_need_certificates(protocol: str) -> None:
    security = kreplica.Security(protocol=protocol, certificates=True, acls=True)
    with kreplica.Cluster(1, serve=True, security=security) as cluster:
        cluster.create_topic("orders")
        assert append(Producer(cluster.client_config("admin")), "orders") is None
        assert (
            append(Producer(cluster.client_config("alice")), "orders")
            == KafkaError.TOPIC_AUTHORIZATION_FAILED
        )
        config = cluster.client_config("alice")
        for missing in ("ssl.certificate.location", "ssl.key.location"):
            del config[missing]
        admin = AdminClient(config, logger=logging.getLogger("quiet"))
        with pytest.raises(KafkaException):
            admin.list_topics(timeout=2)
        properties = cluster.client_properties("alice")
        assert Path(properties["ssl.keystore.location"]).read_text().count("BEGIN") == 2
        assert Path(properties["ssl.keystore.location"]).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"protocol": "PLAINTEXT"},
        {"protocol": "ssl"},
        {"users": {"alice": ""}},
        {"users": {"": "x"}},
        {"acls": True, "protocol": "SSL"},
        {"acls": True, "users": {"alice": "x"}},
        {"certificates": True, "protocol": "SASL_PLAINTEXT"},
        {"certificates": True, "users": {"alice": "x", "a,b": "x"}},
        {"certificates": True, "users": {"a" * 65: "x"}},
        {"certificates": True, "users": {"../alice": "x"}},
    ],
)
def test_what_makes_no_security_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidConfig):
        kreplica.Security(**wrong)  # type: ignore[arg-type]


def test_what_cannot_be_asked_for_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="serve=True"):
        kreplica.Cluster(1, security=True)
    with pytest.raises(TypeError, match=r"kreplica\.Security"):
        kreplica.Cluster(1, serve=True, security="SASL_SSL")  # type: ignore[arg-type]
    with kreplica.Cluster(1, serve=True, security=True) as cluster:
        with pytest.raises(InvalidConfig, match="no user 'bob'"):
            cluster.client_config("bob")
        with pytest.raises(InvalidConfig, match="mechanism='GSSAPI'"):
            cluster.client_properties(mechanism="GSSAPI")
    with kreplica.Cluster(1) as cluster, pytest.raises(InvalidRequest, match="serve=True"):
        cluster.client_config()
