"""A stock client copies a topic exactly once while nodes are killed, KREPLICA_TRANSACTION_KILLS times.

The copier reads a batch, writes it into two partitions, and commits its offsets with the same transaction. It
follows docs/OPERATING.md, "Transactions of librdkafka". A fault is drawn from the seed: SIGKILL of the
coordinator of the transactions, of that of the group, of the leader that is written to, of two nodes, or of
all. Each time the copier aborts a transaction as well, or gives up in the middle of one, and its successor
fences it. At the end readers of committed records see every record once, in order, in both partitions.
"""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from kreplica.coordinator.group_store import CONSUMER_OFFSETS
from kreplica.coordinator.shard_store import partition_for
from kreplica.coordinator.transaction_coordinator import TRANSACTION_STATE
from tests.support.node_processes import NodeProcesses
from tests.support.polling import wait_until

KILLS = int(os.environ.get("KREPLICA_TRANSACTION_KILLS", "0"))
SEED = int(os.environ.get("KREPLICA_FIRST_SEED", "1"))
SOURCE, TARGET, NAME = "source", "target", "copier"
TARGETS = (0, 1)
COORDINATOR_PARTITIONS = 3
PER_KILL, PER_TRANSACTION = 60, 5
TIMEOUT_S = 240.0
CALL_S = 10.0
QUIET = {"log_level": 0, "topic.metadata.refresh.interval.ms": 1_000}
# For how long librdkafka remembers the coordinator of a group by default. A short refresh lowers it.
REMEMBERS = {"metadata.max.age.ms": 900_000}
# What the page asks for: it ends the wait of send_offsets_to_transaction for a coordinator that is gone.
ENDS_WAITS = {"connections.max.idle.ms": 5_000}
pytestmark = pytest.mark.skipif(
    not KILLS, reason="`make kills` says how often to kill (KREPLICA_TRANSACTION_KILLS)"
)
SETTINGS = {
    "transaction.state.log.num.partitions": COORDINATOR_PARTITIONS,
    "offsets.topic.num.partitions": COORDINATOR_PARTITIONS,
}


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[NodeProcesses]:
    settings = {name.replace(".", "_"): value for name, value in SETTINGS.items()}
    with NodeProcesses(tmp_path / "nodes", min_insync_replicas=2, **settings) as made:
        admin = AdminClient({"bootstrap.servers": made.bootstrap})
        topics = [NewTopic(SOURCE, 1, 3), NewTopic(TARGET, len(TARGETS), 3)]
        for created in admin.create_topics(topics).values():
            created.result(TIMEOUT_S)
        yield made


class Copier(threading.Thread):
    """Copies until `stopping` is set. `copied`: the offset behind the last commit that has succeeded.

    `dying`: set, it gives up in the middle of the next transaction, and its next life has the same
    transactional id. `failing`: set, it aborts the next transaction, and repeats it. An error after which the
    producer cannot go on ends a life, too; `endings` has them. `producer`: that of its current life.
    """

    def __init__(self, bootstrap: str) -> None:
        super().__init__(name=NAME, daemon=True)
        self.stopping, self.dying, self.failing = threading.Event(), threading.Event(), threading.Event()
        self.copied = 0
        self.lives = 0
        self.aborts = 0
        self.endings: list[str] = []
        self.error: BaseException | None = None
        self.producer: Producer
        self._servers = bootstrap

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self._live()
        except BaseException as error:
            self.error = error

    def _live(self) -> None:
        self.lives += 1
        producer = self.producer = transactional(self._servers)
        consumer = reader(self._servers, NAME)
        try:
            repeated(lambda: producer.init_transactions(CALL_S))
            consumer.subscribe([SOURCE])
            while not self.stopping.is_set():
                messages = [each for each in consumer.consume(PER_TRANSACTION, 0.2) if each.error() is None]
                if messages and not self._copy(consumer, producer, messages):
                    return
        except KafkaException as error:
            self.endings.append(str(error))
        finally:
            consumer.close()

    def _copy(self, consumer: Consumer, producer: Producer, messages: list[Message]) -> bool:
        """Copy in one transaction, and read its records again if it fails; return False if it is dying."""
        try:
            producer.begin_transaction()
            for message in messages:
                for target in TARGETS:
                    producer.produce(TARGET, message.value(), partition=target)
            if self.dying.is_set():
                producer.flush(1)
                self.dying.clear()
                return False
            if self.failing.is_set():
                self.failing.clear()
                self._abort(consumer, producer, messages[0])
                return True
            offsets, member = consumer.position(consumer.assignment()), consumer.consumer_group_metadata()
            repeated(lambda: producer.send_offsets_to_transaction(offsets, member, CALL_S))
            repeated(lambda: producer.commit_transaction(CALL_S))
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self._abort(consumer, producer, messages[0])
        else:
            self.copied = offsets[0].offset
        return True

    def _abort(self, consumer: Consumer, producer: Producer, first: Message) -> None:
        """Abort the transaction, whose records are read again from `first` on."""
        self.aborts += 1
        repeated(lambda: producer.abort_transaction(CALL_S))
        consumer.seek(TopicPartition(SOURCE, first.partition(), first.offset()))

    def stop(self) -> None:
        self.stopping.set()
        self.join(TIMEOUT_S)
        assert self.error is None
        assert not self.is_alive()

    def has_copied(self, count: int) -> bool:
        assert self.error is None, self.error
        return self.copied >= count


def repeated(call: Callable[[], None]) -> None:
    """Repeat a call until it ends; the next one goes on where the one before has stopped."""
    while True:
        try:
            call()
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
        else:
            return


def transactional(bootstrap: str, settings: Mapping[str, object] | None = None) -> Producer:
    """Return the producer of a copier, which has not fenced its predecessors yet."""
    return Producer(
        {
            **QUIET,
            **REMEMBERS,
            **ENDS_WAITS,
            "bootstrap.servers": bootstrap,
            "transactional.id": NAME,
            "transaction.timeout.ms": 30_000,
            **(settings or {}),
        }
    )


def reader(bootstrap: str, group: str) -> Consumer:
    return Consumer(
        {
            **QUIET,
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "session.timeout.ms": 6_000,
        }
    )


class Source:
    """Writes numbers to the topic that is copied. `sent`: how many."""

    def __init__(self, bootstrap: str) -> None:
        self.sent = 0
        self._producer = Producer({**QUIET, "bootstrap.servers": bootstrap, "enable.idempotence": True})

    def send(self) -> None:
        for _ in range(PER_KILL):
            self._producer.produce(SOURCE, b"%d" % self.sent)
            self.sent += 1
        assert self._producer.flush(TIMEOUT_S) == 0


def committed_values(bootstrap: str, partition: int) -> list[int]:
    consumer = reader(bootstrap, "readers")
    consumer.assign([TopicPartition(TARGET, partition, 0)])
    found: list[int] = []
    while True:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None, f"{TARGET}-{partition} cannot be read to its end"
        if message.error() is not None:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            consumer.close()
            return found
        found.append(int(message.value()))


class Kills:
    """Draws the nodes to kill."""

    def __init__(self, nodes: NodeProcesses, chance: random.Random) -> None:
        self._nodes = nodes
        self._chance = chance

    def _leader(self, topic: str, partition: int) -> int:
        found: list[int] = []

        def is_known() -> bool:
            admin = AdminClient({"bootstrap.servers": self._nodes.bootstrap})
            known = admin.list_topics(topic, TIMEOUT_S).topics[topic].partitions.get(partition)
            found.append(-1 if known is None else known.leader)
            return found[-1] in self._nodes.live

        wait_until(is_known, f"{topic}-{partition} is led by a node that runs", timeout_s=TIMEOUT_S)
        return found[-1]

    def coordinator(self, topic: str) -> int:
        """Return the coordinator of the transactional id or of the group, which has the same name."""
        return self._leader(topic, partition_for(NAME, COORDINATOR_PARTITIONS))

    def victims(self, number: int) -> list[int]:
        match number % 5:
            case 0:
                return [self.coordinator(TRANSACTION_STATE)]
            case 1:
                return [self._leader(TARGET, self._chance.choice(TARGETS))]
            case 2:
                return [self.coordinator(CONSUMER_OFFSETS)]
            case 3:
                return self._chance.sample(self._nodes.live, 2)
            case _:
                return list(self._nodes.live)


def test_a_coordinator_of_the_group_that_is_gone_is_looked_up_again(nodes: NodeProcesses) -> None:
    source, copier = Source(nodes.bootstrap), Copier(nodes.bootstrap)
    copier.start()
    source.send()
    wait_until(lambda: copier.has_copied(PER_KILL), "the first records are copied", timeout_s=TIMEOUT_S)
    gone = Kills(nodes, random.Random(SEED)).coordinator(CONSUMER_OFFSETS)
    nodes.kill(gone)

    def is_forgotten() -> bool:
        return gone not in copier.producer.list_topics(timeout=TIMEOUT_S).brokers

    wait_until(is_forgotten, f"Metadata no longer names node {gone}", timeout_s=TIMEOUT_S)
    nodes.start(gone)
    source.send()
    wait_until(lambda: copier.has_copied(source.sent), "the next records are copied")
    copier.stop()
    assert copier.lives == 1


def test_a_new_producer_goes_on_after_a_fatal_error(nodes: NodeProcesses) -> None:
    sent: list[int] = []

    def note(statistics: str) -> None:
        brokers = json.loads(statistics)["brokers"].values()
        sent.append(sum(each["req"].get("AddPartitionsToTxn", 0) for each in brokers))

    def are_sent(count: int) -> bool:
        producer.poll(0.1)
        return bool(sent) and sent[-1] >= count

    producer = transactional(nodes.bootstrap, {"statistics.interval.ms": 50, "stats_cb": note})
    producer.init_transactions(TIMEOUT_S)
    write(producer, 1)
    producer.commit_transaction(TIMEOUT_S)
    wait_until(lambda: producer.poll(0) == 0, "the statistics of the time before are read")
    sent.clear()
    wait_until(lambda: are_sent(1), "the first transaction is counted")
    # The coordinator dies with the next request unread, so its successor does not know of the transaction.
    coordinator = Kills(nodes, random.Random(SEED)).coordinator(TRANSACTION_STATE)
    nodes.pause(coordinator)
    write(producer, 2)
    wait_until(lambda before=sent[-1]: are_sent(before + 1), "the second transaction's partition is added")
    # From the first call on the producer does not add it again.
    with pytest.raises(KafkaException, match="_TIMED_OUT"):
        producer.abort_transaction(1)
    nodes.kill(coordinator)
    with pytest.raises(KafkaException) as caught:
        repeated(lambda: producer.abort_transaction(CALL_S))
    error = caught.value.args[0]
    assert (error.code(), error.fatal()) == (KafkaError.INVALID_TXN_STATE, True)
    successor = transactional(nodes.bootstrap)
    successor.init_transactions(TIMEOUT_S)
    write(successor, 3)
    successor.commit_transaction(TIMEOUT_S)
    assert committed_values(nodes.bootstrap, 0) == [1, 3]


def write(producer: Producer, value: int) -> None:
    """Begin a transaction and write one record."""
    producer.begin_transaction()
    producer.produce(TARGET, b"%d" % value, partition=0)


def test_every_record_is_copied_once(nodes: NodeProcesses) -> None:
    chance = random.Random(SEED)
    kills, source, copier = Kills(nodes, chance), Source(nodes.bootstrap), Copier(nodes.bootstrap)
    copier.start()
    for number in range(KILLS):
        source.send()
        few = min(copier.copied + chance.randint(1, PER_KILL // 2), source.sent - 20)
        wait_until(lambda few=few: copier.has_copied(few), f"{few} are copied", timeout_s=TIMEOUT_S)
        victims = kills.victims(number)
        (copier.dying if number % 2 else copier.failing).set()
        nodes.kill(*victims)
        nodes.start_all()
    source.send()

    def is_whole() -> bool:
        assert copier.error is None, copier.error
        return all(len(committed_values(nodes.bootstrap, each)) >= source.sent for each in TARGETS)

    wait_until(is_whole, f"{source.sent} records are committed in both partitions", timeout_s=TIMEOUT_S)
    copier.stop()
    print(f"{KILLS} kills: {copier.lives} lives, {copier.aborts} aborts, ended by {copier.endings}")
    for each in TARGETS:
        assert committed_values(nodes.bootstrap, each) == list(range(source.sent))
    assert copier.lives > KILLS // 2
    assert copier.aborts > 0
