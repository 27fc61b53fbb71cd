"""kafka-python."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import InvalidRecordError, KafkaError
from kafka.structs import OffsetAndMetadata

from tests.clients.conftest import TIMEOUT_S
from tests.support.node_processes import NodeProcesses
from tests.support.sockets import until

NewTopicName = Callable[..., str]

# It leaves sockets to the garbage collector, which is to find them before the next module's tests run.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    yield
    gc.collect()


def send(nodes: NodeProcesses, topic: str, values: list[bytes], **settings: object) -> list[int]:
    """The offsets of the values, in partition 0."""
    producer = KafkaProducer(bootstrap_servers=nodes.bootstrap, **settings)
    futures = [
        producer.send(topic, value, b"key", [("h", b"x")], partition=0, timestamp_ms=1_000 * (number + 1))
        for number, value in enumerate(values)
    ]
    offsets = [future.get(TIMEOUT_S).offset for future in futures]
    producer.close()
    return offsets


def test_each_record_of_a_refused_batch_has_its_own_error(
    nodes: NodeProcesses, new_topic: NewTopicName
) -> None:
    topic = new_topic(cleanup_policy="compact")
    # Until the flush all records wait for one batch.
    producer = KafkaProducer(bootstrap_servers=nodes.bootstrap, linger_ms=60_000)
    futures = [producer.send(topic, b"v", key, partition=0) for key in (b"a", None, b"b", None)]
    producer.flush(TIMEOUT_S)
    errors = [future.exception for future in futures]
    producer.close(TIMEOUT_S)
    refused = "a compacted topic takes no record without a key"
    assert [refused in str(error) for error in errors] == [False, True, False, True]
    assert [type(error) for error in errors] == [KafkaError, InvalidRecordError] * 2


@pytest.mark.parametrize("settings", [{"acks": 1}, {"compression_type": "gzip"}, {"acks": 0}], ids=str)
def test_records_come_back_as_they_were_sent(
    nodes: NodeProcesses, new_topic: NewTopicName, settings: dict[str, object]
) -> None:
    topic = new_topic()
    values = [b"%d" % number for number in range(30)]
    offsets = send(nodes, topic, values, **settings)
    if settings.get("acks") != 0:
        assert offsets == list(range(30))
    consumer = KafkaConsumer(bootstrap_servers=nodes.bootstrap, consumer_timeout_ms=20_000)
    at = TopicPartition(topic, 0)
    consumer.assign([at])
    consumer.seek(at, 0)
    found = [next(consumer) for _ in values]
    assert [each.value for each in found] == values
    assert {(each.key, tuple(each.headers)) for each in found} == {(b"key", (("h", b"x"),))}
    assert consumer.offsets_for_times({at: 4_500})[at].offset == 4
    assert consumer.end_offsets([at]) == {at: 30}
    consumer.close()


def test_a_group_goes_on_behind_what_was_committed(nodes: NodeProcesses, new_topic: NewTopicName) -> None:
    topic = new_topic()
    at = TopicPartition(topic, 0)
    send(nodes, topic, [b"%d" % number for number in range(10)])

    def member() -> KafkaConsumer:
        return KafkaConsumer(
            topic,
            bootstrap_servers=nodes.bootstrap,
            group_id="kafka-python",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            consumer_timeout_ms=20_000,
        )

    first = member()
    assert next(first).value == b"0"
    first.commit({at: OffsetAndMetadata(4, "here", -1)})
    first.close()
    second = member()
    assert next(second).value == b"4"
    assert second.committed(at) == 4
    second.close()


def test_administration(nodes: NodeProcesses, new_topic: NewTopicName) -> None:
    topic = new_topic()
    admin = KafkaAdminClient(bootstrap_servers=nodes.bootstrap)
    until(lambda: topic in admin.list_topics())
    assert {each["broker_id"] for each in admin.describe_cluster()["brokers"]} == set(nodes.ids)
    admin.close()
