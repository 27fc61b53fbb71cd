"""kafka-python."""

from __future__ import annotations

import gc
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

import pytest
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import AbortTransactionSpec
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import (
    InvalidProducerEpochError,
    InvalidRecordError,
    KafkaError,
    MessageSizeTooLargeError,
    OutOfOrderSequenceNumberError,
    ProducerFencedError,
    TransactionalIdNotFoundError,
)
from kafka.structs import OffsetAndMetadata

from tests.clients.conftest import TIMEOUT_S
from tests.clients.test_confluent_kafka import leader_of
from tests.clients.test_transactions import committed_values
from tests.support.node_processes import NodeProcesses
from tests.support.secured import kafka_python
from tests.support.sockets import until

NewTopicName = Callable[..., str]
Transactional = Callable[..., KafkaProducer]

# It leaves sockets to the garbage collector, which is to find them before the next module's tests run.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


Consuming = Callable[..., KafkaConsumer]
SHOWN_MESSAGES = 80


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    yield
    gc.collect()


class LastMessages(logging.Handler):
    """Keeps the last of the many messages of the client."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self._kept: deque[str] = deque(maxlen=SHOWN_MESSAGES)

    def emit(self, record: logging.LogRecord) -> None:
        self._kept.append(f"{record.created % 1000:.3f} {record.name}: {record.getMessage()[:200]}")

    def __str__(self) -> str:
        return "\n".join(self._kept)


@pytest.fixture
def last_messages() -> Iterator[LastMessages]:
    logger, made = logging.getLogger("kafka"), LastMessages()
    level, propagates = logger.level, logger.propagate
    logger.addHandler(made)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    yield made
    logger.removeHandler(made)
    logger.setLevel(level)
    logger.propagate = propagates


class Consumer(KafkaConsumer):
    """A consumer whose `next` fails with the last messages of the client after 20 s without a record."""

    def __init__(
        self, nodes: NodeProcesses, messages: LastMessages, *topics: str, **settings: object
    ) -> None:
        super().__init__(*topics, **kafka_python(nodes.bootstrap), consumer_timeout_ms=20_000, **settings)
        self._messages = messages

    def __next__(self) -> ConsumerRecord:
        try:
            return super().__next__()
        except StopIteration:
            raise AssertionError(f"no record came within 20 s:\n{self._messages}") from None


@pytest.fixture
def consuming(nodes: NodeProcesses, last_messages: LastMessages) -> Iterator[Consuming]:
    """Makes consumers, which are closed at the end."""
    made = []

    def make(*topics: str, **settings: object) -> Consumer:
        made.append(Consumer(nodes, last_messages, *topics, **settings))
        return made[-1]

    yield make
    for consumer in made:
        consumer.close()


def send(nodes: NodeProcesses, topic: str, values: list[bytes], **settings: object) -> list[int]:
    """The offsets of the values, in partition 0."""
    producer = KafkaProducer(**kafka_python(nodes.bootstrap), **settings)
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
    producer = KafkaProducer(**kafka_python(nodes.bootstrap), linger_ms=60_000)
    futures = [producer.send(topic, b"v", key, partition=0) for key in (b"a", None, b"b", None)]
    producer.flush(TIMEOUT_S)
    errors = [future.exception for future in futures]
    producer.close(TIMEOUT_S)
    refused = "a compacted topic takes no record without a key"
    assert [refused in str(error) for error in errors] == [False, True, False, True]
    assert [type(error) for error in errors] == [KafkaError, InvalidRecordError] * 2


@pytest.mark.parametrize("settings", [{"acks": 1}, {"compression_type": "gzip"}, {"acks": 0}], ids=str)
def test_records_come_back_as_they_were_sent(
    nodes: NodeProcesses, new_topic: NewTopicName, consuming: Consuming, settings: dict[str, object]
) -> None:
    topic = new_topic()
    values = [b"%d" % number for number in range(30)]
    consumer = consuming()
    at = TopicPartition(topic, 0)
    # Only a leader answers this. A node that does not lead yet drops what asks for no answer (acks=0).
    assert consumer.end_offsets([at]) == {at: 0}
    offsets = send(nodes, topic, values, **settings)
    if settings.get("acks") != 0:
        assert offsets == list(range(30))
    consumer.assign([at])
    consumer.seek(at, 0)
    found = [next(consumer) for _ in values]
    assert [each.value for each in found] == values
    assert {(each.key, tuple(each.headers)) for each in found} == {(b"key", (("h", b"x"),))}
    assert consumer.offsets_for_times({at: 4_500})[at].offset == 4
    assert consumer.end_offsets([at]) == {at: 30}


def test_a_group_goes_on_behind_what_was_committed(
    nodes: NodeProcesses, new_topic: NewTopicName, consuming: Consuming
) -> None:
    topic = new_topic()
    at = TopicPartition(topic, 0)
    send(nodes, topic, [b"%d" % number for number in range(10)])
    settings = {"group_id": "kafka-python", "auto_offset_reset": "earliest", "enable_auto_commit": False}
    first = consuming(topic, **settings)
    assert next(first).value == b"0"
    first.commit({at: OffsetAndMetadata(4, "here", -1)})
    first.close()
    second = consuming(topic, **settings)
    assert next(second).value == b"4"
    assert second.committed(at) == 4


def test_administration(nodes: NodeProcesses, new_topic: NewTopicName) -> None:
    topic = new_topic()
    admin = KafkaAdminClient(**kafka_python(nodes.bootstrap))
    until(lambda: topic in admin.list_topics())
    assert {each["broker_id"] for each in admin.describe_cluster()["brokers"]} == set(nodes.ids)
    admin.close()


# ---- transactions ------------------------------------------------------------------------------------------


@pytest.fixture
def transactional(nodes: NodeProcesses) -> Iterator[Transactional]:
    """Makes a producer with this transactional id that has fenced its predecessors."""
    made = []

    def make(name: str, **settings: object) -> KafkaProducer:
        made.append(
            KafkaProducer(
                **kafka_python(nodes.bootstrap), transactional_id=f"kafka-python-{name}", **settings
            )
        )
        made[-1].init_transactions()
        return made[-1]

    yield make
    for producer in made:
        producer.close(0)


def begin(producer: KafkaProducer, topic: str, value: str, partitions: Iterable[int] = (0,)) -> None:
    """Begin a transaction and write the value to each partition."""
    producer.begin_transaction()
    for future in [producer.send(topic, value.encode(), partition=each) for each in partitions]:
        future.get(TIMEOUT_S)


@pytest.mark.parametrize("codec", [None, "gzip"])
def test_readers_see_all_of_a_committed_transaction_and_nothing_of_an_aborted_one(
    nodes: NodeProcesses,
    new_topic: NewTopicName,
    transactional: Transactional,
    consuming: Consuming,
    codec: str | None,
) -> None:
    topic = new_topic(partitions=3)
    producer = transactional(f"ends-{codec}", compression_type=codec)
    for number in range(9):
        begin(producer, topic, f"{number}", range(3))
        if number % 3 == 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    expected = [each for each in "013467" for _ in range(3)]
    assert committed_values(nodes, topic, range(3)) == expected
    consumer = consuming(isolation_level="read_committed")
    consumer.assign([TopicPartition(topic, 1)])
    consumer.seek_to_beginning()
    assert [next(consumer).value.decode() for _ in range(6)] == list("013467")


def test_a_transaction_without_records_ends(transactional: Transactional) -> None:
    producer = transactional("empty")
    for _ in range(2):
        producer.begin_transaction()
        producer.commit_transaction()
        producer.begin_transaction()
        producer.abort_transaction()


def test_a_transaction_may_have_several_batches(
    nodes: NodeProcesses, new_topic: NewTopicName, transactional: Transactional
) -> None:
    topic = new_topic(partitions=2)
    producer = transactional("batches", batch_size=2_000)
    for name in ("aborted", "committed"):
        producer.begin_transaction()
        values = [f"{name} {number:03}" for number in range(300)]
        for number, value in enumerate(values):
            producer.send(topic, value.encode(), partition=number % 2)
        if name == "aborted":
            producer.flush(TIMEOUT_S)
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    assert committed_values(nodes, topic, range(2)) == values


@pytest.mark.parametrize("names_its_member", [True, False], ids=["as member", "as group"])
def test_records_and_offsets_are_committed_together(
    nodes: NodeProcesses,
    new_topic: NewTopicName,
    transactional: Transactional,
    consuming: Consuming,
    names_its_member: bool,
) -> None:
    source, target = new_topic(), new_topic()
    at = TopicPartition(source, 0)
    send(nodes, source, [b"0", b"1", b"2"])
    group = f"kafka-python-copiers-{names_its_member}"
    consumer = consuming(
        source,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    producer = transactional(group)
    ends = ["abort", "commit", "commit"]
    for number, end in zip((0, 0, 1), ends, strict=True):
        if end == "commit" and number == 0:
            consumer.seek(at, 0)
        record = next(consumer)
        assert record.value == b"%d" % number
        begin(producer, target, record.value.decode())
        position = {at: OffsetAndMetadata(record.offset + 1, "", -1)}
        producer.send_offsets_to_transaction(
            position, consumer.group_metadata() if names_its_member else group
        )
        if end == "abort":
            producer.abort_transaction()
            assert consumer.committed(at) is None
        else:
            producer.commit_transaction()
            until(lambda expected=number + 1: consumer.committed(at) == expected)
    assert committed_values(nodes, target) == ["0", "1"]


def test_a_new_producer_fences_the_previous_one(
    nodes: NodeProcesses, new_topic: NewTopicName, transactional: Transactional
) -> None:
    topic = new_topic()
    zombie = transactional("fenced")
    begin(zombie, topic, "of the zombie")
    successor = transactional("fenced")
    with pytest.raises((ProducerFencedError, InvalidProducerEpochError)):
        zombie.commit_transaction()
    begin(successor, topic, "of the successor")
    successor.commit_transaction()
    assert committed_values(nodes, topic) == ["of the successor"]


def test_a_transaction_that_takes_too_long_is_aborted(
    nodes: NodeProcesses, new_topic: NewTopicName, transactional: Transactional
) -> None:
    topic = new_topic()
    slow = transactional("slow", transaction_timeout_ms=1_000)
    begin(slow, topic, "too slow")
    assert committed_values(nodes, topic) == []
    with pytest.raises((ProducerFencedError, InvalidProducerEpochError)):
        slow.commit_transaction()
    successor = transactional("slow")
    begin(successor, topic, "in time")
    successor.commit_transaction()
    assert committed_values(nodes, topic) == ["in time"]


def test_a_producer_goes_on_behind_a_message_that_is_too_large(
    nodes: NodeProcesses, new_topic: NewTopicName, transactional: Transactional
) -> None:
    topic = new_topic(partitions=2, max_message_bytes=2_000)
    producer = transactional("too-large")
    begin(producer, topic, "aborted", range(2))
    with pytest.raises(MessageSizeTooLargeError):
        producer.send(topic, b"x" * 5_000, partition=0).get(TIMEOUT_S)
    with pytest.raises(KafkaError):
        producer.commit_transaction()
    producer.abort_transaction()
    # This client counts the refused record, too. So it asks for another epoch, which aborts its transaction.
    with pytest.raises(OutOfOrderSequenceNumberError):
        begin(producer, topic, "refused")

    def begins() -> bool:
        with suppress(KafkaError):
            begin(producer, topic, "committed", range(2))
            return True
        return False

    until(begins)
    producer.commit_transaction()
    assert committed_values(nodes, topic, range(2)) == ["committed"] * 2


def test_transactions_are_listed_and_described(
    nodes: NodeProcesses, new_topic: NewTopicName, transactional: Transactional
) -> None:
    topic = new_topic(partitions=2)
    at = TopicPartition(topic, 1)
    producer = transactional("described", transaction_timeout_ms=70_000)
    name = "kafka-python-described"
    admin = KafkaAdminClient(**kafka_python(nodes.bootstrap))

    def listed(**filters: object) -> dict[str, str]:
        found = admin.list_transactions(**filters)
        return {each.transactional_id: each.state.value for of_one in found.values() for each in of_one}

    begin(producer, topic, "v", [1])
    found = admin.describe_transactions([name])[name]
    assert (found.state.value, found.transaction_timeout_ms) == ("Ongoing", 70_000)
    assert found.topic_partitions == {at}
    [state] = admin.describe_producers([at])[at].active_producers
    assert (state.producer_id, state.producer_epoch) == (found.producer_id, found.producer_epoch)
    assert state.current_transaction_start_offset == 0
    assert listed(state_filters=["Ongoing"], transactional_id_pattern="kafka-.*-described") == {
        name: "Ongoing"
    }
    assert name not in listed(duration_filter_ms=600_000)
    producer.commit_transaction()
    until(lambda: listed(producer_id_filters=[found.producer_id]) == {name: "CompleteCommit"})
    [state] = admin.describe_producers([at])[at].active_producers
    assert state.current_transaction_start_offset == -1
    with pytest.raises(TransactionalIdNotFoundError):
        admin.describe_transactions(["unknown"])
    admin.close()


def test_an_administrator_ends_a_transaction_in_one_partition(
    nodes: NodeProcesses, new_topic: NewTopicName, transactional: Transactional
) -> None:
    topic = new_topic()
    at = TopicPartition(topic, 0)
    begin(transactional("hanging"), topic, "hangs")
    send(nodes, topic, [b"behind it"])
    admin = KafkaAdminClient(**kafka_python(nodes.bootstrap))
    found = admin.describe_producers([at])[at].active_producers
    [state] = [each for each in found if each.current_transaction_start_offset >= 0]
    admin.abort_transaction(AbortTransactionSpec(at, state.producer_id, state.producer_epoch))
    admin.close()
    assert committed_values(nodes, topic) == ["behind it"]


def test_transactions_outlive_a_leader(
    nodes: NodeProcesses, admin: AdminClient, new_topic: NewTopicName, transactional: Transactional
) -> None:
    topic = new_topic(partitions=3)
    producer = transactional("outlives")
    of_python = KafkaAdminClient(**kafka_python(nodes.bootstrap))
    for number in range(4):
        begin(producer, topic, str(number), range(3))
        if number == 1:
            # The coordinator stays: this client waits for one that is gone for ever.
            name = "kafka-python-outlives"
            spared = of_python.describe_transactions([name])[name].coordinator_id
            leaders = {leader_of(admin, topic, each) for each in range(3)}
            killed = min(leaders - {spared})
            nodes.kill(killed)
        producer.commit_transaction()
    nodes.start(killed)
    of_python.close()
    assert committed_values(nodes, topic, range(3)) == [each for each in "0123" for _ in range(3)]
