"""Stock clients at their quotas: what they notice of it, and how they go on afterwards."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import aiokafka
import kafka
import pytest
from confluent_kafka import Consumer, Producer, ThrottleEvent
from confluent_kafka.admin import AdminClient, NewTopic

from kreplica.runtime.listener import PLAIN, Login
from kreplica.security.sasl import Secret
from tests.support.polling import wait_until
from tests.support.quotas import muted, set_quotas
from tests.support.tcp_cluster import TcpCluster

WAIT_S = 30
USERS = ("alice", "bob")
ALICE = {"user": "alice"}
TOPIC = "orders"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TcpCluster]:
    """Two nodes whose clients log in. Quotas are measured over 3 s, so that tests need not wait for long."""
    login = Login(mechanisms=(PLAIN,), passwords={user: Secret(user) for user in USERS})
    settings = {"quota.window.num": 4, "controller.quota.window.num": 2}
    with TcpCluster(tmp_path_factory.mktemp("nodes"), 2, login, settings=settings) as made:
        admin = AdminClient(librdkafka(made, "bob"))
        for future in admin.create_topics([NewTopic(name, 1, 2) for name in (TOPIC, "read")]).values():
            future.result(WAIT_S)
        yield made


@pytest.fixture(autouse=True)
def no_quota_is_left(cluster: TcpCluster) -> Iterator[None]:
    yield
    for key, quotas in list(cluster.nodes[1].node.loader.published.quotas.items()):
        set_quotas(cluster, dict(key), **dict.fromkeys(quotas))


def librdkafka(cluster: TcpCluster, user: str, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": cluster.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": user,
        **{name if name.endswith("_cb") else name.replace("_", "."): value for name, value in more.items()},
    }


def python(cluster: TcpCluster, user: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": cluster.bootstrap_servers,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": user,
        "sasl_plain_password": user,
    }


def is_muted(cluster: TcpCluster) -> bool:
    return muted(cluster) > 0


def test_librdkafka_reports_the_throttle_time_and_others_are_served(cluster: TcpCluster) -> None:
    seen: list[ThrottleEvent] = []
    noisy = Producer(librdkafka(cluster, "alice", throttle_cb=seen.append, request_timeout_ms=900_000))
    other = Producer(librdkafka(cluster, "bob"))
    set_quotas(cluster, ALICE, producer_byte_rate=1000)
    noisy.produce(TOPIC, bytes(500_000))
    assert noisy.flush(WAIT_S) == 0
    # 500 s. The other client needs a few ms.
    wait_until(lambda: noisy.poll(0.01) is None or seen, "the throttle time is reported")
    assert 490 < seen[0].throttle_time < 510
    noisy.produce(TOPIC, b"later")
    for _ in range(50):
        other.produce(TOPIC, b"served")
        assert other.flush(WAIT_S) == 0
    assert is_muted(cluster)
    assert len(noisy) == 1
    set_quotas(cluster, ALICE, producer_byte_rate=None)
    assert noisy.flush(WAIT_S) == 0


def test_a_consumer_of_librdkafka_gets_everything_at_its_rate(cluster: TcpCluster) -> None:
    producer = Producer(librdkafka(cluster, "bob"))
    for _ in range(4):
        producer.produce("read", bytes(100_000))
        assert producer.flush(WAIT_S) == 0
    reported: list[str] = []
    consumer = Consumer(
        librdkafka(
            cluster,
            "alice",
            group_id="rd",
            auto_offset_reset="earliest",
            stats_cb=reported.append,
            statistics_interval_ms=100,
        )
    )
    # Each answer has a batch or two, and waits follow.
    set_quotas(cluster, ALICE, consumer_byte_rate=100_000)
    consumer.subscribe(["read"])
    found = 0
    while found < 4:
        message = consumer.poll(WAIT_S)
        assert message is not None
        assert message.error() is None
        found += len(message.value()) == 100_000
    consumer.close()
    throttled = [
        broker["throttle"]["max"] for each in reported for broker in json.loads(each)["brokers"].values()
    ]
    assert max(throttled) > 0


def throttled_ms(log: pytest.LogCaptureFixture) -> list[int]:
    """The throttle times that kafka-python has logged."""
    return [int(found) for found in re.findall(r"Response throttled by broker \((\d+) ms\)", log.text)]


def test_kafka_python_waits_longer_than_its_request_timeout_without_a_disconnect(
    cluster: TcpCluster, caplog: pytest.LogCaptureFixture
) -> None:
    # KAFKA-16083: the time of a throttle is not one that the server owes an answer.
    producer = kafka.KafkaProducer(**python(cluster, "alice"), request_timeout_ms=500, retries=0)
    set_quotas(cluster, ALICE, producer_byte_rate=100_000)
    # 550 kB over 3 s are 183 kB/s: about 2.5 s, which is five times the timeout.
    producer.send(TOPIC, bytes(550_000)).get(WAIT_S)
    assert is_muted(cluster)
    later = producer.send(TOPIC, b"later")
    assert later.get(WAIT_S).offset > 0
    assert max(throttled_ms(caplog)) > 4 * 500
    assert "disconnect" not in caplog.text
    producer.close()


def test_a_consumer_of_kafka_python_goes_on_in_its_session(
    cluster: TcpCluster, caplog: pytest.LogCaptureFixture
) -> None:
    producer = kafka.KafkaProducer(**python(cluster, "bob"))
    for _ in range(4):
        producer.send("read", bytes(90_000)).get(WAIT_S)
    producer.close()
    consumer = kafka.KafkaConsumer(**python(cluster, "alice"), consumer_timeout_ms=WAIT_S * 1000)
    at = kafka.TopicPartition("read", 0)
    consumer.assign([at])
    end = consumer.end_offsets([at])[at]
    consumer.seek(at, end - 4)
    set_quotas(cluster, ALICE, consumer_byte_rate=80_000)
    assert [len(next(consumer).value) for _ in range(4)] == [90_000] * 4
    assert throttled_ms(caplog)
    consumer.close()


def test_aiokafka_is_held_to_its_quota_though_it_ignores_the_throttle_time(cluster: TcpCluster) -> None:
    async def run() -> None:
        producer = aiokafka.AIOKafkaProducer(**python(cluster, "alice"))
        await producer.start()
        await producer.send_and_wait(TOPIC, bytes(900_000))
        assert is_muted(cluster)
        later = asyncio.ensure_future(producer.send_and_wait(TOPIC, b"later"))
        await asyncio.sleep(0)
        assert is_muted(cluster)
        await asyncio.to_thread(set_quotas, cluster, ALICE, producer_byte_rate=None)
        await asyncio.wait_for(later, WAIT_S)
        await producer.stop()

    set_quotas(cluster, ALICE, producer_byte_rate=10_000)
    asyncio.run(run())


def test_librdkafkas_administrator_waits_after_too_many_changes(cluster: TcpCluster) -> None:
    # Its versions of the requests do not know the error.
    set_quotas(cluster, ALICE, controller_mutation_rate=0.1)
    admin = AdminClient(librdkafka(cluster, "alice"))
    admin.create_topics([NewTopic("first", 20, 1)])["first"].result(WAIT_S)
    assert is_muted(cluster)
    second = admin.create_topics([NewTopic("second", 20, 1)])["second"]
    set_quotas(cluster, ALICE, controller_mutation_rate=None)
    second.result(WAIT_S)
