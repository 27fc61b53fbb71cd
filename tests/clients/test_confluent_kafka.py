"""librdkafka, by confluent-kafka."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.clients.conftest import NODES, TIMEOUT_S, closed_later, rack_of
from tests.support.node_processes import NodeProcesses
from tests.support.secured import librdkafka
from tests.support.sockets import until

NewTopicName = Callable[..., str]
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


class Delivered:
    """What became of a producer's records, in the order of the answers."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.errors: list[KafkaError] = []

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.messages.append(message)
        else:
            self.errors.append(error)


def send(nodes: NodeProcesses, topic: str, values: Sequence[bytes], **settings: Any) -> Delivered:
    """Produce the values to partition 0 and wait for the answers."""
    producer = Producer({**librdkafka(nodes.bootstrap), **settings})
    delivered = Delivered()
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=delivered)
    assert producer.flush(TIMEOUT_S) == 0
    return delivered


def consumer_of(nodes: NodeProcesses, group: str, **settings: Any) -> Consumer:
    properties = {
        **librdkafka(nodes.bootstrap),
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        **settings,
    }
    return closed_later(Consumer(properties))


def take(consumer: Consumer, count: int) -> list[Message]:
    """Return the next `count` messages."""
    found: list[Message] = []

    def has_all() -> bool:
        for message in consumer.consume(count - len(found), 0.2):
            assert message.error() is None
            found.append(message)
        return len(found) == count

    until(has_all)
    return found


def take_all(nodes: NodeProcesses, topic: str, count: int, partition: int = 0) -> list[Message]:
    consumer = consumer_of(nodes, "readers")
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
    found = take(consumer, count)
    consumer.close()
    return found


def leader_of(admin: AdminClient, topic: str, number: int = 0) -> int:
    """The leader of the partition, as soon as a broker that is asked has heard of it."""
    found: list[int] = []

    def is_known() -> bool:
        partition = admin.list_topics(topic, TIMEOUT_S).topics[topic].partitions.get(number)
        found.append(-1 if partition is None else partition.leader)
        return found[-1] >= 0

    until(is_known)
    return found[-1]


# ---- metadata ----------------------------------------------------------------------------------------------


def test_the_cluster_is_known(nodes: NodeProcesses, admin: AdminClient, new_topic: NewTopicName) -> None:
    topic = new_topic(partitions=2)
    leader_of(admin, topic)
    metadata = admin.list_topics(timeout=TIMEOUT_S)
    assert {each.id: (each.host, each.port) for each in metadata.brokers.values()} == nodes.addresses
    assert metadata.controller_id in nodes.addresses
    partitions = metadata.topics[topic].partitions
    assert [sorted(each.replicas) for each in partitions.values()] == [nodes.ids, nodes.ids]
    cluster = admin.describe_cluster(request_timeout=TIMEOUT_S).result()
    assert cluster.cluster_id == metadata.cluster_id
    assert [node.rack for node in cluster.nodes] == [rack_of(node.id) for node in cluster.nodes]


# ---- producing and consuming -------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_records_come_back_as_they_were_sent(
    nodes: NodeProcesses, new_topic: NewTopicName, acks: str
) -> None:
    topic = new_topic(retention_ms=-1)  # these are old records
    producer = Producer({**librdkafka(nodes.bootstrap), "acks": acks})
    delivered = Delivered()
    headers = [("a", b"1"), ("empty", b""), ("null", None), ("a", b"2")]
    sent = [(b"k", b"v"), (None, b"no key"), (b"tombstone", None), (b"", b"")]
    for number, (key, value) in enumerate(sent):
        producer.produce(
            topic, value, key, 0, headers=headers, timestamp=1_000 + number, on_delivery=delivered
        )
    assert producer.flush(TIMEOUT_S) == 0
    assert delivered.errors == []
    found = take_all(nodes, topic, len(sent))
    assert [(each.key(), each.value()) for each in found] == sent
    assert [each.headers() for each in found] == [headers] * len(sent)
    assert [each.timestamp()[1] for each in found] == [1_000, 1_001, 1_002, 1_003]
    if acks != "0":
        assert [each.offset() for each in delivered.messages] == [0, 1, 2, 3]


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec(nodes: NodeProcesses, new_topic: NewTopicName, codec: str) -> None:
    topic = new_topic()
    values = [b"value %d " % number * 20 for number in range(200)]
    assert send(nodes, topic, values, **{"compression.type": codec, "linger.ms": 20}).errors == []
    assert [each.value() for each in take_all(nodes, topic, 200)] == values


def test_consuming_begins_at_an_offset_or_a_time(
    nodes: NodeProcesses, admin: AdminClient, new_topic: NewTopicName
) -> None:
    topic = new_topic(retention_ms=-1)  # these are old records
    producer = Producer(librdkafka(nodes.bootstrap))
    for number in range(10):
        producer.produce(topic, b"%d" % number, partition=0, timestamp=1_000 * (number + 1))
    assert producer.flush(TIMEOUT_S) == 0

    consumer = consumer_of(nodes, "times")
    at = TopicPartition(topic, 0, 7)
    consumer.assign([at])
    assert [each.offset() for each in take(consumer, 3)] == [7, 8, 9]
    assert consumer.get_watermark_offsets(at, TIMEOUT_S) == (0, 10)
    (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, 4_500)], TIMEOUT_S)
    assert found.offset == 4
    consumer.seek(found)
    assert take(consumer, 1)[0].value() == b"4"
    consumer.close()

    specs = {
        OffsetSpec.earliest(): 0,
        OffsetSpec.latest(): 10,
        OffsetSpec.for_timestamp(9_000): 8,
        OffsetSpec.max_timestamp(): 9,
    }
    for spec, offset in specs.items():
        listed = admin.list_offsets(
            {TopicPartition(topic, 0): spec}, isolation_level=IsolationLevel.READ_COMMITTED
        )
        assert [each.result(TIMEOUT_S).offset for each in listed.values()] == [offset]


def test_a_consumer_reads_from_the_follower_in_its_rack(
    nodes: NodeProcesses, admin: AdminClient, new_topic: NewTopicName
) -> None:
    topic = new_topic()
    leader = leader_of(admin, topic)
    follower = next(node_id for node_id in nodes.ids if node_id != leader)
    send(nodes, topic, [b"before"])
    asked: list[int] = []

    def note_brokers(statistics: str) -> None:
        partitions = json.loads(statistics)["topics"].get(topic, {}).get("partitions", {})
        asked.extend(each["broker"] for number, each in partitions.items() if number == "0")

    consumer = consumer_of(
        nodes,
        "near",
        **{"client.rack": rack_of(follower), "statistics.interval.ms": 50, "stats_cb": note_brokers},
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values = [each.value() for each in take(consumer, 1)]

    def goes_there() -> bool:
        values.extend(each.value() for each in consumer.consume(10, 0.1))
        return asked[-1:] == [follower]

    until(goes_there)
    send(nodes, topic, [b"after"])
    values += [each.value() for each in take(consumer, 1)]
    assert values == [b"before", b"after"]
    consumer.close()


# ---- what may not be lost or doubled -----------------------------------------------------------------------


def test_an_idempotent_producer_outlives_its_leader(
    nodes: NodeProcesses, admin: AdminClient, new_topic: NewTopicName
) -> None:
    topic = new_topic()
    producer = Producer({**librdkafka(nodes.bootstrap), "enable.idempotence": True, "linger.ms": 1})
    delivered = Delivered()
    values = [b"%d" % number for number in range(3_000)]
    leader = leader_of(admin, topic)
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=0, on_delivery=delivered)
        producer.poll(0)
        if number == 1_000:
            until(lambda: producer.poll(0.01) >= 0 and len(delivered.messages) >= 100)
            nodes.kill(leader)
    assert producer.flush(TIMEOUT_S) == 0
    nodes.start(leader)
    assert delivered.errors == []
    found = take_all(nodes, topic, len(values))
    assert [each.value() for each in found] == values
    offsets = {each.value(): each.offset() for each in found}
    assert all(offsets[each.value()] == each.offset() for each in delivered.messages)


# ---- groups ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_members_come_and_go(nodes: NodeProcesses, new_topic: NewTopicName, strategy: str) -> None:
    topic, group = new_topic(partitions=4), f"members-{strategy}"
    settings = {"partition.assignment.strategy": strategy, "heartbeat.interval.ms": 100}
    first = consumer_of(nodes, group, **settings)
    first.subscribe([topic])
    until(lambda: polled(first) and len(first.assignment()) == 4)

    second = consumer_of(nodes, group, **settings)
    second.subscribe([topic])
    members = (first, second)
    until(lambda: all(polled(each) for each in members) and [len(m.assignment()) for m in members] == [2, 2])
    both = {(each.topic, each.partition) for member in members for each in member.assignment()}
    assert both == {(topic, number) for number in range(4)}

    second.close()
    until(lambda: polled(first) and len(first.assignment()) == 4)
    first.close()


def test_a_missing_topic_is_created_for_a_producer_and_not_for_a_reader(
    nodes: NodeProcesses, admin: AdminClient
) -> None:
    reader = consumer_of(nodes, "readers-of-nothing")
    reader.subscribe(["only-read", "made-by-writing"])
    delivered = send(nodes, "made-by-writing", [b"a", b"b"])
    assert [message.value() for message in delivered.messages] == [b"a", b"b"]
    read: list[bytes | None] = []

    def has_all() -> bool:
        read.extend(each.value() for each in reader.consume(100, 0.05) if not each.error())
        return read == [b"a", b"b"]

    until(has_all)
    reader.close()
    assert "only-read" not in admin.list_topics(timeout=TIMEOUT_S).topics


def polled(consumer: Consumer) -> bool:
    # A broker that was asked may not have heard of the topic yet, which is asked for again.
    errors = {message.error().code() for message in consumer.consume(100, 0.05) if message.error()}
    assert errors <= {KafkaError.UNKNOWN_TOPIC_OR_PART}
    return True


def test_a_returning_consumer_goes_on_at_the_committed_offset(
    nodes: NodeProcesses, new_topic: NewTopicName
) -> None:
    topic = new_topic()
    send(nodes, topic, [b"%d" % number for number in range(10)])
    first = consumer_of(nodes, "committed")
    first.subscribe([topic])
    assert [each.value() for each in take(first, 10)][:4] == [b"0", b"1", b"2", b"3"]
    first.commit(offsets=[TopicPartition(topic, 0, 4, metadata="here")], asynchronous=False)
    first.close()

    second = consumer_of(nodes, "committed")
    second.subscribe([topic])
    assert take(second, 1)[0].value() == b"4"
    (committed,) = second.committed([TopicPartition(topic, 0)], TIMEOUT_S)
    assert (committed.offset, committed.metadata) == (4, "here")
    second.close()


def test_a_group_outlives_its_coordinator(
    nodes: NodeProcesses, admin: AdminClient, new_topic: NewTopicName
) -> None:
    topic, group = new_topic(), "outlives"
    send(nodes, topic, [b"%d" % number for number in range(10)])
    consumer = consumer_of(nodes, group, **{"session.timeout.ms": 30_000})
    consumer.subscribe([topic])
    take(consumer, 10)
    consumer.commit(offsets=[TopicPartition(topic, 0, 7)], asynchronous=False)
    described = admin.describe_consumer_groups([group], request_timeout=TIMEOUT_S)[group].result()
    nodes.kill(described.coordinator.id)
    send(nodes, topic, [b"10"])
    assert take(consumer, 1)[0].value() == b"10"
    committed: list[int] = []

    def is_committed() -> bool:
        consumer.consume(1, 0.05)
        (found,) = consumer.committed([TopicPartition(topic, 0)], 5)
        committed.append(found.offset)
        return found.error is None

    until(is_committed)
    assert committed[-1] == 7
    consumer.close()
    nodes.start(described.coordinator.id)


def test_groups_are_listed_described_altered_and_deleted(
    nodes: NodeProcesses, admin: AdminClient, new_topic: NewTopicName
) -> None:
    topic, group = new_topic(), "administered"
    consumer = consumer_of(nodes, group, **{"client.id": "reader"})
    consumer.subscribe([topic])
    until(lambda: polled(consumer) and bool(consumer.assignment()))
    described = admin.describe_consumer_groups([group], request_timeout=TIMEOUT_S)[group].result()
    assert described.state is ConsumerGroupState.STABLE
    (member,) = described.members
    assert (member.client_id, member.host) == ("reader", "/127.0.0.1")
    assert [(each.topic, each.partition) for each in member.assignment.topic_partitions] == [(topic, 0)]
    listed = admin.list_consumer_groups(states={ConsumerGroupState.STABLE}, request_timeout=TIMEOUT_S)
    assert group in [each.group_id for each in listed.result().valid]
    with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
        admin.delete_consumer_groups([group], request_timeout=TIMEOUT_S)[group].result()
    consumer.close()

    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 3)])
    admin.alter_consumer_group_offsets([wanted], request_timeout=TIMEOUT_S)[group].result()
    asked = ConsumerGroupTopicPartitions(group)
    found = admin.list_consumer_group_offsets([asked], request_timeout=TIMEOUT_S)[group].result()
    assert [(each.topic, each.offset) for each in found.topic_partitions] == [(topic, 3)]
    admin.delete_consumer_groups([group], request_timeout=TIMEOUT_S)[group].result()
    with pytest.raises(KafkaException, match="GROUP_ID_NOT_FOUND"):
        admin.delete_consumer_groups([group], request_timeout=TIMEOUT_S)[group].result()


# ---- administration ----------------------------------------------------------------------------------------


def test_topics_are_made_grown_described_and_deleted(admin: AdminClient) -> None:
    created = admin.create_topics(
        [NewTopic("grows", 1, NODES), NewTopic("bad name!", 1, 1), NewTopic("wide", 1, 9)]
    )
    created["grows"].result(TIMEOUT_S)
    for name in ("bad name!", "wide"):
        with pytest.raises(KafkaException):
            created[name].result(TIMEOUT_S)
    admin.create_partitions([NewPartitions("grows", 3)])["grows"].result(TIMEOUT_S)

    def is_described() -> bool:
        described = admin.describe_topics(TopicCollection(["grows"]), request_timeout=TIMEOUT_S)["grows"]
        return len(described.result().partitions) == 3

    until(is_described)
    admin.delete_topics(["grows"])["grows"].result(TIMEOUT_S)
    until(lambda: "grows" not in admin.list_topics(timeout=TIMEOUT_S).topics)


def test_settings_are_changed_and_described(
    nodes: NodeProcesses, admin: AdminClient, new_topic: NewTopicName
) -> None:
    topic = new_topic(retention_ms=5_000)
    entry = ConfigEntry("segment.bytes", "2000000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(TIMEOUT_S)

    def settings(kind: ResourceType, name: str) -> dict[str, str]:
        (future,) = admin.describe_configs([ConfigResource(kind, name)]).values()
        return {key: each.value for key, each in future.result(TIMEOUT_S).items()}

    until(lambda: settings(ResourceType.TOPIC, topic)["segment.bytes"] == "2000000")
    assert settings(ResourceType.TOPIC, topic)["retention.ms"] == "5000"
    assert settings(ResourceType.BROKER, str(nodes.ids[0]))["broker.rack"] == rack_of(nodes.ids[0])

    wrong = ConfigEntry("no.such.thing", "1", incremental_operation=AlterConfigOpType.SET)
    refused = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[wrong])
    with pytest.raises(KafkaException, match=r"no\.such\.thing"):
        admin.incremental_alter_configs([refused])[refused].result(TIMEOUT_S)


def test_records_are_deleted_below_an_offset(
    nodes: NodeProcesses, admin: AdminClient, new_topic: NewTopicName
) -> None:
    topic = new_topic()
    send(nodes, topic, [b"%d" % number for number in range(10)])
    (deleted,) = admin.delete_records([TopicPartition(topic, 0, 6)]).values()
    assert deleted.result(TIMEOUT_S).low_watermark == 6
    assert [each.value() for each in take_all(nodes, topic, 4)] == [b"6", b"7", b"8", b"9"]
