"""Stock clients log in by SASL, and are refused as Kafka refuses them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import aiokafka
import kafka
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from kreplica.runtime.listener import MECHANISMS, PLAIN, Login
from kreplica.security.sasl import Secret
from tests.support.tcp_cluster import TcpCluster

WAIT_S = 30
USER, PASSWORD = "alice", "se,cr=et"
SCRAM = {"SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Two nodes whose clients log in, with the topic `orders`, and users of each mechanism."""
    passwords = {USER: Secret(PASSWORD), "admin": Secret("admin")}
    login = Login(mechanisms=MECHANISMS, passwords=passwords)
    with TcpCluster(tmp_path_factory.mktemp("nodes"), 2, login) as cluster:
        admin = AdminClient(librdkafka(cluster.bootstrap_servers, PLAIN))
        admin.create_topics([NewTopic("orders", 2, 2)])["orders"].result(WAIT_S)
        for mechanism in SCRAM.values():
            set_password(admin, USER, PASSWORD, mechanism)
        yield cluster.bootstrap_servers


def librdkafka(servers: str, mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
    return {
        "bootstrap.servers": servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": USER,
        "sasl.password": password,
    }


def python(servers: str, mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
    return {
        "bootstrap_servers": servers,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": USER,
        "sasl_plain_password": password,
    }


def set_password(
    admin: AdminClient, user: str, password: str, mechanism: Any = SCRAM["SCRAM-SHA-256"]
) -> None:
    info = ScramCredentialInfo(mechanism, 4096)
    change = UserScramCredentialUpsertion(user, info, password.encode())
    admin.alter_user_scram_credentials([change])[user].result(WAIT_S)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka_logs_in(servers: str, mechanism: str) -> None:
    settings = librdkafka(servers, mechanism)
    producer = Producer(settings)
    producer.produce("orders", mechanism.encode(), partition=0)
    assert producer.flush(WAIT_S) == 0
    consumer = Consumer({**settings, "group.id": mechanism, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe(["orders"])
        message = consumer.poll(WAIT_S)
        assert message is not None
        assert message.error() is None
    finally:
        consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka_is_refused_with_a_wrong_password(servers: str, mechanism: str) -> None:
    errors: list[KafkaError] = []
    settings = {**librdkafka(servers, mechanism, "wrong"), "error_cb": errors.append}
    admin = AdminClient(settings)
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=3)
    admin.poll(0)
    assert KafkaError._AUTHENTICATION in {each.code() for each in errors}


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_logs_in_and_is_refused(servers: str, mechanism: str) -> None:
    with_right = kafka.KafkaProducer(**python(servers, mechanism))
    assert with_right.send("orders", mechanism.encode(), partition=1).get(WAIT_S).partition == 1
    with_right.close()
    # In a process of its own: the client leaves sockets of a producer that it could not make.
    program = (
        "import kafka, json, sys\n"
        "try: kafka.KafkaProducer(**json.loads(sys.argv[1]), bootstrap_timeout_ms=2_000)\n"
        "except kafka.errors.KafkaError as error: print(type(error).__name__)"
    )
    settings = json.dumps(python(servers, mechanism, "wrong"))
    ran = subprocess.run(
        [sys.executable, "-c", program, settings], capture_output=True, text=True, check=True, timeout=WAIT_S
    )
    assert ran.stdout.strip() in ("KafkaTimeoutError", "NoBrokersAvailable", "SaslAuthenticationFailedError")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka_logs_in_and_is_refused(servers: str, mechanism: str) -> None:
    async def run() -> None:
        producer = aiokafka.AIOKafkaProducer(**python(servers, mechanism))
        await producer.start()
        try:
            assert (await producer.send_and_wait("orders", b"a", partition=1)).partition == 1
        finally:
            await producer.stop()
        refused = aiokafka.AIOKafkaProducer(**python(servers, mechanism, "wrong"))
        with pytest.raises(aiokafka.errors.KafkaError):
            await refused.start()
        await refused.stop()

    asyncio.run(run())


def test_credentials_are_changed_and_described(servers: str) -> None:
    admin = AdminClient(librdkafka(servers, PLAIN))
    set_password(admin, "carol", "first")
    [described] = admin.describe_user_scram_credentials(["carol"]).values()
    [info] = described.result(WAIT_S).scram_credential_infos
    assert (info.mechanism, info.iterations) == (ScramMechanism.SCRAM_SHA_256, 4096)
    settings = {**librdkafka(servers, "SCRAM-SHA-256", "first"), "sasl.username": "carol"}
    assert "orders" in AdminClient(settings).list_topics(timeout=WAIT_S).topics
    deletion = UserScramCredentialDeletion("carol", ScramMechanism.SCRAM_SHA_256)
    admin.alter_user_scram_credentials([deletion])["carol"].result(WAIT_S)
    with pytest.raises(KafkaException):
        admin.alter_user_scram_credentials([deletion])["carol"].result(WAIT_S)
    with pytest.raises(KafkaException):
        AdminClient(settings).list_topics(timeout=3)
