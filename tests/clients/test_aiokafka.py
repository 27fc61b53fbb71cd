"""aiokafka, a client with its own implementation of Kafka's protocol, in Python."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from tests.clients.conftest import NODES, TIMEOUT_S
from tests.support.node_processes import NodeProcesses

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
            bootstrap_servers=nodes.bootstrap, compression_type=codec, enable_idempotence=codec is None
        )
        async with producer:
            futures = [
                await producer.send(topic, value, key, 0, timestamp_ms=1_000, headers=[("h", b"x")])
                for key, value in sent
            ]
            assert [(await future).offset for future in futures] == list(range(50))
        consumer = AIOKafkaConsumer(
            topic, bootstrap_servers=nodes.bootstrap, auto_offset_reset="earliest", group_id=None
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
            bootstrap_servers=nodes.bootstrap,
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
        async with AIOKafkaProducer(bootstrap_servers=nodes.bootstrap) as producer:
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
        admin = AIOKafkaAdminClient(bootstrap_servers=nodes.bootstrap)
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
