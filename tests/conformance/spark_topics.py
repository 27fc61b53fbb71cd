"""Topics with which Spark's own source of Kafka and format("kreplica") are held against each other.

`fill` makes the same topics, record by record, in any cluster that takes a stock producer; timestamps are a
second apart from START_MS on. Thread rule: one thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.secured import librdkafka

START_MS = 1_700_000_000_000
TIMEOUT_S = 60.0
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
BATCH = 5
# How many records each partition has.
SIZES: dict[str, tuple[int, ...]] = {
    "orders": (40, 25, 10),
    "orders-late": (12,),
    "empty": (0,),
    "trimmed": (30,),
}
TRIMMED_BEFORE = 7


def fill(bootstrap: str) -> None:
    """Make the topics and their records; all of them are acknowledged when this returns."""
    admin = AdminClient(librdkafka(bootstrap))
    topics = [NewTopic(name, len(sizes), 1, config={"retention.ms": "-1"}) for name, sizes in SIZES.items()]
    for made in admin.create_topics(topics, request_timeout=TIMEOUT_S).values():
        made.result(TIMEOUT_S)
    for codec_number, codec in enumerate(CODECS):
        producer = Producer({**librdkafka(bootstrap), "compression.type": codec, "linger.ms": 1000})
        for topic, sizes in SIZES.items():
            for partition, size in enumerate(sizes):
                # Each codec has its own batches, in the order of the codecs.
                for number in range(codec_number * size // 5, (codec_number + 1) * size // 5):
                    producer.produce(topic, **_record(partition, number))
                    if number % BATCH == BATCH - 1:
                        assert producer.flush(TIMEOUT_S) == 0
        assert producer.flush(TIMEOUT_S) == 0
    trimmed = TopicPartition("trimmed", 0, TRIMMED_BEFORE)
    admin.delete_records([trimmed], request_timeout=TIMEOUT_S)[trimmed].result(TIMEOUT_S)


def produce(bootstrap: str, topic: str, numbers: Iterable[int]) -> None:
    """Append a record of each number to partition 0 of the topic, which is made where it is not there."""
    admin = AdminClient(librdkafka(bootstrap))
    if topic not in admin.list_topics(timeout=TIMEOUT_S).topics:
        wanted = NewTopic(topic, 1, 1, config={"retention.ms": "-1"})
        admin.create_topics([wanted], request_timeout=TIMEOUT_S)[topic].result(TIMEOUT_S)
    producer = Producer(librdkafka(bootstrap))
    for number in numbers:
        producer.produce(topic, **_record(0, number))
    assert producer.flush(TIMEOUT_S) == 0


def ends(bootstrap: str) -> list[str]:
    """Where each partition ends that is not Kafka's own, as a checkpoint of Kafka's has it: "orders 0 40"."""
    # What is not committed counts, too.
    settings = {**librdkafka(bootstrap), "group.id": "ends", "isolation.level": "read_uncommitted"}
    consumer = Consumer(settings)
    topics = consumer.list_topics(timeout=TIMEOUT_S).topics
    found = []
    for name in sorted(topics):
        for n in topics[name].partitions if not name.startswith("__") else ():
            end = consumer.get_watermark_offsets(TopicPartition(name, n), TIMEOUT_S)[1]
            found.append(f"{name} {n} {end}")
    consumer.close()
    return found


def _record(partition: int, number: int) -> dict[str, Any]:
    # Now and then time goes back by some seconds, keys and values are null or empty, headers are odd.
    timestamp = START_MS + 1000 * (number - (5 if number % 11 == 10 else 0))
    key = (None, b"", b"key-%d" % (number % 4), b"k")[number % 4]
    value = None if number % 13 == 12 else b"value %d of %d" % (number, partition)
    headers = [("a", b"1"), ("a", b""), ("null", None), ("\u00e9", b"\xff\x00")] if number % 6 == 5 else []
    return {
        "partition": partition,
        "timestamp": timestamp,
        "key": key,
        "value": value,
        "headers": headers,
    }
