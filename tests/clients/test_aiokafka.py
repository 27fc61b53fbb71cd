"""aiokafka, a client with its own implementation of Kafka's protocol, in Python."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, OutOfOrderSequenceNumber, ProducerFenced
from confluent_kafka.admin import AdminClient

from tests.clients.conftest import NODES, TIMEOUT_S
from tests.clients.test_confluent_kafka import leader_of
from tests.clients.test_transactions import committed_values
from tests.support.node_processes import NodeProcesses
from tests.support.secured import aiokafka

NewTopicName = Callable[..., str]


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, TIMEOUT_S))


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_records_come_back_as_they_were_sent(
    nodes: NodeProcesses, new_topic: NewTopicName, codec: str | None
) -> None:
    topic = new_topic()
    sent = [(b"key %d" % number, b"value %d " % number * 10) for number in range(50)]

    async def main() -> None:
        producer = AIOKafkaProducer(
            **aiokafka(nodes.bootstrap), compression_type=codec, enable_idempotence=codec is None
        )
        async with producer:
            futures = [
                await producer.send(topic, value, key, 0, timestamp_ms=1_000, headers=[("h", b"x")])
                for key, value in sent
            ]
            assert [(await future).offset for future in futures] == list(range(50))
        consumer = AIOKafkaConsumer(
            topic, **aiokafka(nodes.bootstrap), auto_offset_reset="earliest", group_id=None
        )
        async with consumer:
            found = [await consumer.getone() for _ in sent]
        assert [(each.key, each.value) for each in found] == sent
        assert {(each.timestamp, tuple(each.headers)) for each in found} == {(1_000, (("h", b"x"),))}

    run(main())


def test_members_share_a_topic_and_go_on_behind_what_was_committed(
    nodes: NodeProcesses, new_topic: NewTopicName
) -> None:
    topic = new_topic(partitions=2)

    def member() -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            topic,
            **aiokafka(nodes.bootstrap),
            group_id="aiokafka",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=100,
            session_timeout_ms=20_000,
        )

    async def assigned(consumer: AIOKafkaConsumer, count: int) -> None:
        while len(consumer.assignment()) != count:
            await consumer.getmany(timeout_ms=20)

    async def main() -> None:
        async with AIOKafkaProducer(**aiokafka(nodes.bootstrap)) as producer:
            for number in range(10):
                await producer.send_and_wait(topic, b"%d" % number, partition=number % 2)
        async with member() as first:
            await assigned(first, 2)
            async with member() as second:
                await asyncio.gather(assigned(first, 1), assigned(second, 1))
                assert first.assignment() | second.assignment() == {
                    TopicPartition(topic, 0),
                    TopicPartition(topic, 1),
                }
            await assigned(first, 2)
            await first.commit({TopicPartition(topic, 0): 3, TopicPartition(topic, 1): 5})
        async with member() as again:
            found = [await again.getone() for _ in range(2)]
            assert [each.value for each in found] == [b"6", b"8"]
            assert await again.committed(TopicPartition(topic, 1)) == 5
            assert await again.end_offsets([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 5}

    run(main())


def test_administration(nodes: NodeProcesses) -> None:
    async def main() -> None:
        admin = AIOKafkaAdminClient(**aiokafka(nodes.bootstrap))
        await admin.start()
        try:
            made = await admin.create_topics([NewTopic("by-aiokafka", 1, NODES)])
            assert [error for _, error, _ in made.topic_errors] == [0]
            await admin.create_partitions({"by-aiokafka": NewPartitions(2)})
            resource = ConfigResource(ConfigResourceType.TOPIC, "by-aiokafka", {"retention.ms": "7000"})
            await admin.alter_configs([resource])
            while "by-aiokafka" not in await admin.list_topics():
                await asyncio.sleep(0)
            cluster = await admin.describe_cluster()
            assert {each["node_id"] for each in cluster["brokers"]} == set(nodes.ids)
            await admin.delete_topics(["by-aiokafka"])
            while "by-aiokafka" in await admin.list_topics():
                await asyncio.sleep(0)
        finally:
            await admin.close()

    run(main())


# ---- transactions ------------------------------------------------------------------------------------------


@asynccontextmanager
async def transactional(
    nodes: NodeProcesses, name: str, **settings: object
) -> AsyncIterator[AIOKafkaProducer]:
    """A producer with this transactional id that has fenced its predecessors."""
    producer = AIOKafkaProducer(**aiokafka(nodes.bootstrap), transactional_id=f"aiokafka-{name}", **settings)
    await producer.start()
    try:
        yield producer
    finally:
        # It does not end while its transaction cannot.
        with suppress(KafkaError):
            await producer.stop()


async def write(producer: AIOKafkaProducer, topic: str, value: str, partitions: Iterable[int] = (0,)) -> None:
    for future in [await producer.send(topic, value.encode(), partition=each) for each in partitions]:
        await future


@pytest.mark.parametrize("codec", [None, "gzip", "lz4"])
def test_readers_see_all_of_a_committed_transaction_and_nothing_of_an_aborted_one(
    nodes: NodeProcesses, new_topic: NewTopicName, codec: str | None
) -> None:
    topic = new_topic(partitions=3)
    expected = [each for each in "013467" for _ in range(3)]

    async def main() -> None:
        async with transactional(nodes, f"ends-{codec}", compression_type=codec) as producer:
            for number in range(9):
                await producer.begin_transaction()
                await write(producer, topic, str(number), range(3))
                if number % 3 == 2:
                    await producer.abort_transaction()
                else:
                    await producer.commit_transaction()
        consumer = AIOKafkaConsumer(
            topic,
            **aiokafka(nodes.bootstrap),
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        async with consumer:
            found = [(await consumer.getone()).value.decode() for _ in expected]
        assert sorted(found) == expected

    run(main())
    assert committed_values(nodes, topic, range(3)) == expected


def test_a_transaction_without_records_ends(nodes: NodeProcesses) -> None:
    async def main() -> None:
        async with transactional(nodes, "empty") as producer:
            for _ in range(2):
                await producer.begin_transaction()
                await producer.commit_transaction()
                await producer.begin_transaction()
                await producer.abort_transaction()

    run(main())


def test_a_transaction_may_have_several_batches(nodes: NodeProcesses, new_topic: NewTopicName) -> None:
    topic = new_topic(partitions=2)
    values = [f"committed {number:03}" for number in range(300)]

    async def main() -> None:
        async with transactional(nodes, "batches", max_batch_size=2_000) as producer:
            await producer.begin_transaction()
            for number, value in enumerate(values):
                await producer.send(topic, value.encode(), partition=number % 2)
            # A commit sends what has not been sent.
            await producer.commit_transaction()

    run(main())
    assert committed_values(nodes, topic, range(2)) == values


def test_an_exception_in_a_transaction_aborts_it(nodes: NodeProcesses, new_topic: NewTopicName) -> None:
    topic = new_topic()

    async def main() -> None:
        async with transactional(nodes, "exception") as producer:
            with suppress(LookupError):
                async with producer.transaction():
                    await write(producer, topic, "aborted")
                    raise LookupError
            async with producer.transaction():
                await write(producer, topic, "committed")

    run(main())
    assert committed_values(nodes, topic) == ["committed"]


def test_a_group_goes_on_behind_the_offsets_of_committed_transactions(
    nodes: NodeProcesses, new_topic: NewTopicName
) -> None:
    source, target = new_topic(partitions=2), new_topic(partitions=2)
    group = "aiokafka-copiers"

    partitions = [TopicPartition(source, each) for each in range(2)]
    copied = 0

    async def copy(producer: AIOKafkaProducer, count: int, *, fails: bool = False) -> None:
        nonlocal copied
        consumer = AIOKafkaConsumer(
            source,
            **aiokafka(nodes.bootstrap),
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
        )
        async with consumer:
            for _ in range(count):
                record = await consumer.getone()
                at = TopicPartition(source, record.partition)
                async with producer.transaction():
                    await write(producer, target, record.value.decode(), [record.partition])
                    await producer.send_offsets_to_transaction({at: record.offset + 1}, group)
                    if fails:
                        raise LookupError
                copied += 1
            # This client may read offsets while the markers are on their way.
            while sum([await consumer.committed(each) or 0 for each in partitions]) != copied:
                await asyncio.sleep(0)

    async def main() -> None:
        async with AIOKafkaProducer(**aiokafka(nodes.bootstrap)) as plain:
            for number in range(12):
                await plain.send_and_wait(source, b"%02d" % number, partition=number % 2)
        async with transactional(nodes, "copier") as producer:
            await copy(producer, 4)
            with pytest.raises(LookupError):
                await copy(producer, 1, fails=True)
            await copy(producer, 8)

    run(main())
    assert committed_values(nodes, target, range(2)) == [f"{number:02}" for number in range(12)]


def test_a_new_producer_fences_the_previous_one(nodes: NodeProcesses, new_topic: NewTopicName) -> None:
    topic = new_topic()

    async def main() -> None:
        async with transactional(nodes, "fenced") as zombie:
            await zombie.begin_transaction()
            await write(zombie, topic, "of the zombie")
            async with transactional(nodes, "fenced") as successor:
                with pytest.raises(ProducerFenced):
                    await zombie.commit_transaction()
                async with successor.transaction():
                    await write(successor, topic, "of the successor")

    run(main())
    assert committed_values(nodes, topic) == ["of the successor"]


def test_a_transaction_that_takes_too_long_is_aborted(nodes: NodeProcesses, new_topic: NewTopicName) -> None:
    topic = new_topic()

    async def main() -> None:
        async with transactional(nodes, "slow", transaction_timeout_ms=1_000) as slow:
            await slow.begin_transaction()
            await write(slow, topic, "too slow")
            assert await asyncio.to_thread(committed_values, nodes, topic) == []
            with pytest.raises(ProducerFenced):
                await slow.commit_transaction()
        async with transactional(nodes, "slow") as successor, successor.transaction():
            await write(successor, topic, "in time")

    run(main())
    assert committed_values(nodes, topic) == ["in time"]


def test_a_producer_goes_on_behind_a_message_that_is_too_large(
    nodes: NodeProcesses, new_topic: NewTopicName
) -> None:
    topic = new_topic(max_message_bytes=2_000)

    async def main() -> None:
        async with transactional(nodes, "too-large") as producer:
            await producer.begin_transaction()
            await write(producer, topic, "aborted")
            with pytest.raises(MessageSizeTooLargeError):
                await write(producer, topic, "x" * 5_000)
            await producer.abort_transaction()
        async with transactional(nodes, "too-large") as producer, producer.transaction():
            await write(producer, topic, "committed")

    run(main())
    assert committed_values(nodes, topic) == ["committed"]


def test_a_gap_in_the_sequence_is_refused(nodes: NodeProcesses, new_topic: NewTopicName) -> None:
    topic = new_topic()

    async def main() -> None:
        async with transactional(nodes, "gap") as producer:
            await producer.begin_transaction()
            await write(producer, topic, "aborted")
            # As if a batch had been lost.
            producer._txn_manager.increment_sequence_number(TopicPartition(topic, 0), 1)
            with pytest.raises(OutOfOrderSequenceNumber):
                await write(producer, topic, "refused")
            await producer.abort_transaction()

    run(main())
    assert committed_values(nodes, topic) == []


def test_transactions_outlive_a_leader(
    nodes: NodeProcesses, admin: AdminClient, new_topic: NewTopicName
) -> None:
    topic = new_topic(partitions=2)

    async def main() -> None:
        async with transactional(nodes, "outlives") as producer:
            for number in range(4):
                async with producer.transaction():
                    await write(producer, topic, str(number), range(2))
                    if number == 1:
                        killed = await asyncio.to_thread(leader_of, admin, topic)
                        await asyncio.to_thread(nodes.kill, killed)
                    await write(producer, topic, f"{number} again", range(2))
            await asyncio.to_thread(nodes.start, killed)

    run(main())
    expected = [value for number in range(4) for value in (str(number), f"{number} again") for _ in range(2)]
    assert committed_values(nodes, topic, range(2)) == expected
