"""Batches that decompress to far more than they are, sent to a node while others work with it."""

from __future__ import annotations

import gc
import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from kio.schema.errors import ErrorCode
from kio.schema.produce.v11.request import PartitionProduceData, ProduceRequest, TopicProduceData

from kreplica import Cluster
from kreplica.broker.api_versions import response_type
from kreplica.log.log_validator import LogValidator, is_compressed
from kreplica.record import compress
from kreplica.record.compression import GZIP, LZ4, ZSTD
from tests.support.batches import batch_of, build
from tests.support.memory import resident_bytes
from tests.support.requests import frame_of, response_of
from tests.support.sockets import connected, framed, read_frame
from tests.support.tcp_cluster import WAIT_S, TcpClient, TcpCluster

CODECS = {"gzip": GZIP, "lz4": LZ4, "zstd": ZSTD}
BOMB_BYTES = 200 << 20
CONNECTIONS = 4
# One batch is checked at a time: the largest buffer that may be decompressed into, 32 MiB, one that is on its
# way out, what the connections hold of requests, and what else there is.
FLAT_BYTES = 120 << 20
APPENDS = 100


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TcpCluster]:
    cluster = TcpCluster(tmp_path_factory.mktemp("bombs"), 1)
    cluster.start()
    client = TcpClient(cluster)
    client.admin.create_topic("orders", partitions=2, replication_factor=1).result(WAIT_S)
    client.close()
    yield cluster
    cluster.close()


def produce(records: bytes) -> bytes:
    data = PartitionProduceData(index=1, records=records)
    topic = TopicProduceData(name="orders", partition_data=(data,))
    return framed(frame_of(ProduceRequest(acks=1, timeout=timedelta(seconds=5), topic_data=(topic,)), 1))


def answer(client: socket.socket) -> Any:
    response = response_of(response_type(0, 11), read_frame(client), 1)
    return response.responses[0].partition_responses[0].error_code


@pytest.mark.parametrize("name", CODECS)
def test_others_go_on_while_bombs_come_and_memory_stays_bounded(cluster: TcpCluster, name: str) -> None:
    # A record of 200 MiB is sound; a batch of nothing but zeros is not.
    sound = produce(build([bytes(BOMB_BYTES)], codec=name))
    rubbish = produce(batch_of(bytes(compress(CODECS[name], bytes(BOMB_BYTES))), 1, attributes=CODECS[name]))
    wide = produce(build([bytes(24 << 20)], codec=name))
    epoch = cluster.nodes[1].node.raft.leader_and_epoch.epoch
    is_over = threading.Event()
    rounds: list[list[ErrorCode]] = []

    def bomb() -> None:
        with connected(cluster.addresses[1]) as hostile:
            while not is_over.is_set():
                for each in (sound, rubbish, wide):
                    hostile.sendall(each)
                rounds.append([answer(hostile) for _ in range(3)])

    client = TcpClient(cluster)
    before = peak = resident_bytes()
    senders = [threading.Thread(target=bomb) for _ in range(CONNECTIONS)]
    # What refused batches were checked in is given back at once, and not when the collector comes by.
    gc.disable()
    try:
        for sender in senders:
            sender.start()
        took = []
        while len(took) < APPENDS or len(rounds) < 3 * CONNECTIONS:
            began = time.monotonic()
            client.append("orders", 0, [b"x"])
            took.append(time.monotonic() - began)
            peak = max(peak, resident_bytes())
    finally:
        gc.enable()
        is_over.set()
        for sender in senders:
            sender.join()
        client.close()
    assert peak - before < FLAT_BYTES
    assert {each[0] for each in rounds} == {ErrorCode.message_too_large}
    assert {each[1] for each in rounds} <= {ErrorCode.corrupt_message, ErrorCode.message_too_large}
    assert {each[2] for each in rounds} <= {ErrorCode.none, ErrorCode.message_too_large}
    # Its broker was never fenced, and the quorum had no election: heartbeats and fetches went on.
    assert cluster.nodes[1].node.raft.leader_and_epoch.epoch == epoch
    assert not cluster.nodes[1].node.loader.published.brokers[1].fenced
    assert sorted(took)[len(took) // 2] < 0.25


def test_a_cluster_in_a_program_goes_on_while_a_foreign_batch_is_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, may_end = threading.Event(), threading.Event()
    whole = LogValidator.validate_anew

    def held(self: LogValidator, records: Any, *rest: Any, **named: Any) -> Any:
        if is_compressed(records):
            begun.set()
            assert may_end.wait(WAIT_S)
        return whole(self, records, *rest, **named)

    with Cluster(brokers=3, serve=True) as cluster:
        cluster.create_topic("orders", partitions=2)
        monkeypatch.setattr(LogValidator, "validate_anew", held)
        addresses = [each.rpartition(":") for each in cluster.bootstrap_servers.split(",")]
        host, _, port = addresses[cluster.partition("orders", 1).leader - 1]
        with connected((host, int(port))) as foreign:
            try:
                foreign.sendall(produce(build([bytes(1 << 20)], codec="lz4")))
                assert begun.wait(WAIT_S)
                # All nodes answer other clients by the thread that runs their steps.
                for each in cluster.bootstrap_servers.split(","):
                    admin = AdminClient({"bootstrap.servers": each, "log_level": 0})
                    assert "orders" in admin.list_topics(timeout=WAIT_S).topics
                # The check holds no lock of its partition.
                for partition in (0, 1):
                    appended = cluster.append("orders", partition, [b"x"], acks="all")
                    assert appended.result(timeout=WAIT_S).base_offset == 0
            finally:
                may_end.set()
            assert answer(foreign) is ErrorCode.none
        assert [len(record.value or b"") for record in cluster.read("orders", 1)] == [1, 1 << 20]
