"""A word count of Kafka Streams, exactly once, over three of our nodes: instances and nodes are killed."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conformance.java_program import CLIENTS, JavaProcess
from tests.conformance.kafka_peer import HERE
from tests.support.node_processes import NodeProcesses
from tests.support.polling import wait_until
from tests.support.secured import librdkafka

pytestmark = pytest.mark.conformance

SOURCE = HERE / "java" / "WordCount.java"
LINES, COUNTS = "lines", "counts"
PARTITIONS = 4
WORDS = [f"word-{number}" for number in range(40)]
TIMEOUT_S = 360.0
SETTINGS = {
    "offsets_topic_num_partitions": 3,
    "transaction_state_log_num_partitions": 3,
    "transaction_abort_timed_out_transaction_cleanup_interval_ms": 1000,
    "group_initial_rebalance_delay_ms": 0,
    "group_min_session_timeout_ms": 1000,
    "group_streams_min_session_timeout_ms": 1000,
    "group_streams_session_timeout_ms": 6000,
    "group_streams_min_heartbeat_interval_ms": 100,
    "group_streams_heartbeat_interval_ms": 500,
    "group_streams_initial_rebalance_delay_ms": 0,
}


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[NodeProcesses]:
    with NodeProcesses(tmp_path / "nodes", 3, **SETTINGS) as started:
        yield started


class WordCount:
    """Instances of the word count, the lines that they get, and the counts that a reader of committed records
    sees."""

    def __init__(self, nodes: NodeProcesses, directory: Path, protocol: str) -> None:
        self._nodes = nodes
        self._protocol = protocol
        self._directory = directory
        self._random = random.Random(1)
        self._producer = Producer({**librdkafka(nodes.bootstrap), "enable.idempotence": True, "linger.ms": 5})
        self.expected: Counter[str] = Counter()
        self.found: dict[str, list[int]] = defaultdict(list)
        self._instances: dict[str, JavaProcess] = {}
        admin = AdminClient(librdkafka(nodes.bootstrap))
        topics = [
            NewTopic(name, PARTITIONS, 3, config={"min.insync.replicas": "2"}) for name in (LINES, COUNTS)
        ]
        for created in admin.create_topics(topics).values():
            created.result(60)
        self.reader = Consumer(
            {
                **librdkafka(nodes.bootstrap),
                "group.id": "readers",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )
        self.reader.assign([TopicPartition(COUNTS, each, OFFSET_BEGINNING) for each in range(PARTITIONS)])

    def start(self, name: str) -> None:
        directory = self._directory / name
        directory.mkdir(parents=True, exist_ok=True)
        arguments = (self._nodes.bootstrap, str(directory), LINES, COUNTS, self._protocol)
        log = self._directory / f"{name}.log"
        self._instances[name] = JavaProcess(log, "WordCount", *arguments, sources=(SOURCE, CLIENTS))

    def kill(self, name: str) -> None:
        self._instances.pop(name).kill()

    def write(self, lines: int) -> None:
        """Write lines, and wait until they are committed."""
        for _ in range(lines):
            words = self._random.choices(WORDS, k=5)
            self.expected.update(words)
            self._producer.produce(LINES, " ".join(words).encode())
            self._producer.poll(0)
        assert self._producer.flush(TIMEOUT_S) == 0

    def read(self) -> int:
        """Read the counts of now; return their number."""
        for message in self.reader.consume(1000, 0.2):
            error = message.error()
            if error is None:
                self.found[message.key().decode()].append(int(message.value()))
            else:
                assert error.code() != KafkaError._PARTITION_EOF
        return sum(len(counts) for counts in self.found.values())

    def wait_for(self, share: float) -> None:
        """Wait until this share of the words written so far is counted."""
        wanted = int(share * self.expected.total())

        def is_done() -> bool:
            assert all(each.is_alive for each in self._instances.values()), "an instance has ended"
            return self.read() >= wanted

        wait_until(is_done, f"{wanted} counts", timeout_s=TIMEOUT_S)

    def close(self) -> None:
        """Stop the instances."""
        for instance in self._instances.values():
            instance.stop()


@pytest.mark.parametrize("protocol", ["classic", "streams"])
def test_words_are_counted_exactly_once(nodes: NodeProcesses, tmp_path: Path, protocol: str) -> None:
    count = WordCount(nodes, tmp_path / "streams", protocol)
    try:
        count.start("first")
        count.start("second")
        count.write(300)
        count.wait_for(0.5)
        count.kill("first")
        count.write(300)
        nodes.kill(1)
        count.wait_for(0.7)
        count.start("first")
        count.write(300)
        nodes.start(1)
        count.kill("second")
        nodes.kill(2)
        count.write(300)
        count.wait_for(0.9)
        nodes.start(2)
        count.start("second")
        nodes.kill(3)
        count.write(300)
        count.wait_for(1.0)
        nodes.start(3)
    finally:
        count.close()
    count.read()
    count.reader.close()
    assert nodes.logged("ERROR") == []
    assert count.found == {word: [*range(1, number + 1)] for word, number in count.expected.items()}
