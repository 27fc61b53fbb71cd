"""Measure groups through stock clients: rebalances of consumer groups, and share groups.

The settings are the same for every cluster. `SETTINGS` are those of the nodes: sessions end soon, so that a
killed member is noticed within a few seconds.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import Consumer, Producer

from bench.peers.librdkafka import WAIT_S, SilentCluster
from tests.conformance.kafka_peer import run_java

SHARE = (Path(__file__).parent / "KafkaShare.java",)
MEMBERS, PARTITIONS = 10, 100
SETTINGS = {
    "group_consumer_min_session_timeout_ms": 3_000,
    "group_consumer_session_timeout_ms": 3_000,
    "group_consumer_min_heartbeat_interval_ms": 500,
    "group_consumer_heartbeat_interval_ms": 500,
}
# How often each partition gets a record; for how long a settled group stays the same.
EVERY_S, SETTLED_S = 0.1, 1.0
# A program that is a member until it is killed.
MEMBER = """\
import sys
from bench.peers.grouping import member
consumer = member(sys.argv[1], sys.argv[2])
while True:
    consumer.consume(1000, 0.1)
"""


def member(bootstrap: str, topic: str) -> Consumer:
    """Return a member of the topic's group, by the consumer protocol."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": topic,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": True,
            "auto.commit.interval.ms": 200,
        }
    )
    consumer.subscribe([topic])
    return consumer


class _Group:
    """The members that live. `read_at`: when each partition was read last, `first_at`: after a kill first."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        self._ended = threading.Event()
        self.read_at: dict[int, float] = {}
        self.first_at: dict[int, float] = {}

    def run(self) -> None:
        """Read as a member until the end."""
        consumer = member(self._bootstrap, self._topic)
        while not self._ended.is_set():
            for message in consumer.consume(1000, 0.05):
                if message.error() is None:
                    now = time.perf_counter()
                    self.read_at[message.partition()] = now
                    self.first_at.setdefault(message.partition(), now)
        consumer.close()

    def produce(self) -> None:
        """Write to all partitions until the end."""
        producer = Producer({"bootstrap.servers": self._bootstrap, "linger.ms": 0})
        while not self._ended.wait(EVERY_S):
            for partition in range(PARTITIONS):
                producer.produce(self._topic, b"record", partition=partition)
            producer.poll(0)
        producer.flush(WAIT_S)

    def end(self) -> None:
        self._ended.set()

    def orphans(self) -> set[int]:
        """Wait until the partitions that the living do not read are a member's share; return them."""
        until, same_since, last = time.monotonic() + WAIT_S, time.monotonic(), set[int]()
        while time.monotonic() < until:
            now = time.perf_counter()
            unread = {n for n in range(PARTITIONS) if now - self.read_at.get(n, 0.0) > 5 * EVERY_S}
            if unread != last or len(unread) != PARTITIONS // MEMBERS:
                same_since, last = time.monotonic(), unread
            elif time.monotonic() - same_since > SETTLED_S:
                return unread
            time.sleep(EVERY_S / 5)
        raise SilentCluster(f"a group of {MEMBERS} did not settle within {WAIT_S:.0f} s")


def unavailable_ms(bootstrap: str, topic: str) -> float:
    """Return how long a killed member's partitions were not read, on average.

    MEMBERS members share PARTITIONS partitions, and one is killed by SIGKILL.
    """
    group = _Group(bootstrap, topic)
    with ExitStack() as stack:
        threads = [threading.Thread(target=group.run) for _ in range(MEMBERS - 1)]
        threads.append(threading.Thread(target=group.produce))
        for each in threads:
            each.start()
            stack.callback(each.join)
        stack.callback(group.end)
        victim = subprocess.Popen([sys.executable, "-c", MEMBER, bootstrap, topic])
        stack.callback(victim.wait)
        stack.callback(victim.kill)
        orphans = group.orphans()
        killed_at = time.perf_counter()
        victim.kill()
        group.first_at.clear()
        until = time.monotonic() + WAIT_S
        while not orphans <= group.first_at.keys():
            if time.monotonic() > until:
                raise SilentCluster(f"partitions of a dead member were not read within {WAIT_S:.0f} s")
            time.sleep(0.01)
        return 1000 * sum(group.first_at[each] - killed_at for each in orphans) / len(orphans)


def share_rate(bootstrap: str, topic: str, *, records: int) -> float:
    """Return records per second that Kafka's share consumer takes and accepts; they are in the topic."""
    return float(run_java("KafkaShare", bootstrap, topic, "rate", str(records), sources=SHARE))


def share_latency_us(bootstrap: str, topic: str, *, records: int) -> float:
    """Return the median from sending a record to its stored acceptance, by Kafka's clients."""
    return float(run_java("KafkaShare", bootstrap, topic, "latency", str(records), sources=SHARE))
