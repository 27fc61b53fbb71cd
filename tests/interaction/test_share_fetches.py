"""Records of a share group on three nodes over sockets: a lost connection, and a lost leader."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from kreplica._core.records import batches
from kreplica.common.error_code import ErrorCode
from kreplica.common.messages.share_groups import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchTopic,
)
from kreplica.common.share_state import SharePartitionKey
from kreplica.common.types import TopicPartition, Uuid
from kreplica.common.wire import uuid_of
from tests.support.polling import wait_until
from tests.support.tcp_cluster import TcpClient, TcpCluster

TIMEOUT_S = 60
AT = TopicPartition("t", 0)


class Member:
    """A member of group g with its own connection."""

    def __init__(self, cluster: TcpCluster, topic_id: Uuid, name: str) -> None:
        self.cluster, self.topic_id, self.name = cluster, topic_id, name
        self.client = TcpClient(cluster)
        self.epoch = 0

    def leader(self) -> int:
        wait_until(lambda: self.known_leader() in self.cluster.live, "a live broker leads")
        return self.known_leader()

    def known_leader(self) -> int:
        found = self.cluster.nodes[self.cluster.live[0]].node.loader.published.partition(AT)
        assert found is not None
        return int(found.leader)

    def ask(self, request: Any) -> Any:
        sent = self.client.transport.send(self.leader(), request, timeout_ms=20_000)
        self.epoch += 1
        return sent.result(TIMEOUT_S)

    def fetch(self) -> tuple[ErrorCode, list[tuple[bytes, int]]]:
        """Return the error, and the values with their delivery counts."""
        topic = ShareFetchTopic(
            topic_id=uuid_of(self.topic_id),
            partitions=(ShareFetchPartition(partition_index=0, acknowledgement_batches=()),),
        )
        response = self.ask(
            ShareFetchRequest(
                group_id="g",
                member_id=self.name,
                share_session_epoch=self.epoch,
                max_wait=timedelta(seconds=5),
                min_bytes=1,
                max_records=500,
                batch_size=500,
                topics=(topic,),
                forgotten_topics_data=(),
            )
        )
        if response.error_code or not response.responses:
            return response.error_code, []
        data = response.responses[0].partitions[0]
        counts = {
            offset: each.delivery_count
            for each in data.acquired_records
            for offset in range(each.first_offset, each.last_offset + 1)
        }
        records = [record for batch in batches(data.records) for record in batch]
        return data.error_code, [(r.value, counts[r.offset]) for r in records if r.offset in counts]

    def accept(self, first: int, last: int) -> ErrorCode:
        batch = AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=(1,))
        partition = AcknowledgePartition(partition_index=0, acknowledgement_batches=(batch,))
        topic = AcknowledgeTopic(topic_id=uuid_of(self.topic_id), partitions=(partition,))
        response = self.ask(
            ShareAcknowledgeRequest(
                group_id="g", member_id=self.name, share_session_epoch=self.epoch, topics=(topic,)
            )
        )
        if response.error_code:
            return response.error_code
        return response.responses[0].partitions[0].error_code


@pytest.fixture
def cluster(tmp_path: Any) -> Iterator[TcpCluster]:
    with TcpCluster(tmp_path, brokers=3) as cluster:
        yield cluster


def test_records_of_a_share_group_outlive_a_member_and_a_leader(cluster: TcpCluster) -> None:
    with TcpClient(cluster) as client:
        client.admin.create_topic("t", partitions=1, replication_factor=3).result(TIMEOUT_S)
        topic_id = next(iter(cluster.nodes.values())).node.topic_id("t")
        assert topic_id is not None
        persister: Any = cluster.nodes[1].node.share_persister
        persister.initialize(SharePartitionKey("g", topic_id, 0), 1, 0).result(TIMEOUT_S)
        for value in (b"a", b"b", b"c"):
            client.producer.send(AT, [value], acks=-1).result(TIMEOUT_S)
        first, second = Member(cluster, topic_id, "first"), Member(cluster, topic_id, "second")
        assert first.fetch() == (ErrorCode.none, [(b"a", 1), (b"b", 1), (b"c", 1)])
        assert first.accept(0, 0) == ErrorCode.none
        assert first.accept(0, 0) == ErrorCode.invalid_record_state
        # What it still had is free when its connection is gone.
        first.client.close()
        assert second.fetch() == (ErrorCode.none, [(b"b", 2), (b"c", 2)])
        assert second.accept(1, 1) == ErrorCode.none
        cluster.nodes[second.leader()].close()
        second.epoch = 0
        # The second acquisition of c was never stored: the new leader knows only of the first.
        found: list[tuple[bytes, int]] = []

        def fetch_again() -> bool:
            found.extend(second.fetch()[1])
            return bool(found)

        wait_until(fetch_again, "the new leader delivers c")
        assert found == [(b"c", 2)]
        assert second.accept(2, 2) == ErrorCode.none
        second.client.close()
