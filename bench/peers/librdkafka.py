"""Measure a cluster with librdkafka: rates, latencies, and the silence after a kill.

Every function creates a client with the same settings for every cluster, and leaves only records behind.
Rates are per second, times in us unless a name says otherwise.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

WAIT_S = 60.0
# Properties that every client gets, such as those of a secured cluster.
OF_EVERY_CLIENT: dict[str, str] = {}
QUEUED_RECORDS, QUEUED_KB = 1_000_000, 1 << 20
BATCH_BYTES = 1 << 20
SERVED_EVERY = 1024
# Values to produce in turn, so that what compresses them finds none twice within its window.
DISTINCT = 1024
# Maximum records taken from a consumer in one call.
CONSUMED = 10_000
WARM_UP = 200
SEND_EVERY_S = 0.005
SETTLED_S = 2.0


class SilentCluster(Exception):
    """The cluster did not answer within a minute."""


def create_topic(bootstrap: str, topic: str, partitions: int = 1) -> int:
    """Create a topic with three replicas and min.insync.replicas 2; return the leader of its partition 0."""
    admin = AdminClient({**OF_EVERY_CLIENT, "bootstrap.servers": bootstrap})
    asked = NewTopic(topic, partitions, 3, config={"min.insync.replicas": "2"})
    admin.create_topics([asked])[topic].result(WAIT_S)
    return leader_of(bootstrap, topic)


def delete_topics(bootstrap: str, topics: Sequence[str]) -> None:
    """Delete the topics; their files go a moment later."""
    admin = AdminClient({**OF_EVERY_CLIENT, "bootstrap.servers": bootstrap})
    for each in admin.delete_topics(list(topics)).values():
        each.result(WAIT_S)


def leader_of(bootstrap: str, topic: str) -> int:
    """Return the leader of the topic's partition 0, once each partition has one and all are in sync."""
    admin = AdminClient({**OF_EVERY_CLIENT, "bootstrap.servers": bootstrap})
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        partitions = admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions
        if partitions and all(each.leader >= 0 and len(each.isrs) == 3 for each in partitions.values()):
            return int(partitions[0].leader)
        time.sleep(0.05)
    raise SilentCluster(f"{topic} has no leader after {WAIT_S:.0f} s")


def produce_rate(bootstrap: str, topic: str, *, records: int, size: int) -> float:
    """Return acknowledged records per second: acks=all, linger 5 ms, batches of up to 1 MiB."""
    return records / produce(bootstrap, topic, range(1), records=records, size=size)


def spread_rate(bootstrap: str, topic: str, partitions: Sequence[int], *, records: int, size: int) -> float:
    """Return acknowledged records per second, sent to the partitions in turn.

    One record for each partition is acknowledged before, so that all are ready. A cluster that has not
    acknowledged all records a minute after the last one was sent gets the rate of those that it has.
    """
    produce(bootstrap, topic, partitions, records=len(partitions), size=size)
    left, taken_s = _produced(bootstrap, topic, partitions, records=records, size=size, settings=None)
    return (records - left) / taken_s


def produce(
    bootstrap: str,
    topic: str,
    partitions: Sequence[int],
    *,
    records: int,
    size: int,
    settings: Mapping[str, object] | None = None,
) -> float:
    """Produce with acks=all, linger 5 ms and batches of up to 1 MiB, to the partitions in turn.

    Returns the time in s until all records are acknowledged. `settings`: other properties of the producer.
    """
    left, taken_s = _produced(bootstrap, topic, partitions, records=records, size=size, settings=settings)
    if left:
        raise SilentCluster(f"{topic}: {left} records were not acknowledged within {WAIT_S:.0f} s")
    return taken_s


def _produced(
    bootstrap: str,
    topic: str,
    partitions: Sequence[int],
    *,
    records: int,
    size: int,
    settings: Mapping[str, object] | None,
) -> tuple[int, float]:
    """Return the number of records that were not acknowledged, and the time in s."""
    producer = Producer(
        {
            **OF_EVERY_CLIENT,
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "linger.ms": 5,
            "batch.size": BATCH_BYTES,
            "batch.num.messages": QUEUED_RECORDS,
            "queue.buffering.max.messages": QUEUED_RECORDS,
            "queue.buffering.max.kbytes": QUEUED_KB,
            **(settings or {}),
        }
    )
    producer.list_topics(topic, timeout=WAIT_S)
    values, count = [os.urandom(size) for _ in range(DISTINCT)], len(partitions)
    began = time.perf_counter()
    for number in range(records):
        while True:
            try:
                producer.produce(topic, values[number % DISTINCT], partition=partitions[number % count])
                break
            except BufferError:
                producer.poll(0.01)
        if not number % SERVED_EVERY:
            producer.poll(0)
    left = producer.flush(WAIT_S)
    taken_s = time.perf_counter() - began
    if left:
        producer.purge()
    return left, taken_s


def latencies_us(bootstrap: str, topic: str, *, records: int) -> tuple[float, float]:
    """Return p50 and p99 of one record of 100 B in flight: acks=all, no linger."""
    producer = Producer({**OF_EVERY_CLIENT, "bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
    producer.list_topics(topic, timeout=WAIT_S)
    value = os.urandom(100)
    answered: list[int] = []
    taken: list[int] = []

    def acknowledged(error: object, _: object) -> None:
        if error is None:
            answered.append(time.perf_counter_ns())

    for number in range(WARM_UP + records):
        began = time.perf_counter_ns()
        producer.produce(topic, value, partition=0, on_delivery=acknowledged)
        while producer.poll(1) == 0:
            if time.perf_counter_ns() - began > WAIT_S * 1e9:
                raise SilentCluster(f"{topic}: a record was not acknowledged")
        if number >= WARM_UP:
            taken.append(answered[-1] - began)
    taken.sort()
    return taken[len(taken) // 2] / 1e3, taken[len(taken) * 99 // 100] / 1e3


def consume_rate(bootstrap: str, topic: str, *, records: int) -> float:
    """Return consumed records per second, from the first ones received to the last of `records`."""
    consumer = Consumer(
        {
            **OF_EVERY_CLIENT,
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "queued.min.messages": QUEUED_RECORDS,
            "queued.max.messages.kbytes": QUEUED_KB,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found = len(consumer.consume(1, WAIT_S))
        first, began = found, time.perf_counter()
        while found < records:
            came = len(consumer.consume(min(CONSUMED, records - found), WAIT_S))
            if not came:
                raise SilentCluster(f"{topic}: received only {found} of {records} records")
            found += came
        return (found - first) / (time.perf_counter() - began)
    finally:
        consumer.close()


class _Silence:
    """Measures the longest time between two acknowledgements, and when it ended."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.last = self.ended = time.monotonic()

    def acknowledged(self, error: object, _: object) -> None:
        now = time.monotonic()
        if error is not None:
            return
        if now - self.last > self.longest_s:
            self.longest_s, self.ended = now - self.last, now
        self.last = now

    def is_over(self) -> bool:
        """Return whether records have been flowing again for a while."""
        now = time.monotonic()
        return now - self.ended > SETTLED_S and now - self.last < SETTLED_S / 10


def silence_ms(bootstrap: str, topic: str, kill: Callable[[], object]) -> float:
    """Return the longest time without an acknowledgement after `kill()`.

    The producer has default settings and sends a record every 5 ms.
    """
    producer = Producer({**OF_EVERY_CLIENT, "bootstrap.servers": bootstrap, "log_level": 0})
    seen = _Silence()

    def write() -> None:
        producer.produce(topic, b"v", partition=0, on_delivery=seen.acknowledged)
        producer.poll(SEND_EVERY_S)

    write()
    while not seen.is_over():
        write()
    seen.longest_s, killed = 0.0, time.monotonic()
    kill()
    while time.monotonic() < killed + SETTLED_S or not seen.is_over():
        write()
        if time.monotonic() > killed + WAIT_S:
            raise SilentCluster(f"{topic}: no acknowledgements for a minute after a kill")
    producer.flush(WAIT_S)
    return seen.longest_s * 1000
