"""Batches that decompress to far more than they are, sent to a node while others work with it."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from kreplica import Cluster
from kreplica.broker.api_versions import response_type
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import MessageTooLarge
from kreplica.common.messages.data import PartitionProduceData, ProduceRequest, TopicProduceData
from kreplica.log.log_validator import LogValidator
from kreplica.record import compress
from kreplica.record.batch_header import ATTRIBUTES
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


# The bits of the compression codec in a batch's attributes.
CODEC_BITS = 0x07


def is_compressed(records: bytes) -> bool:
    """Return whether the header of the first batch has a compression codec."""
    data = memoryview(records).cast("B")
    return len(data) > ATTRIBUTES and bool(data[ATTRIBUTES] & CODEC_BITS)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TcpCluster]:
    with TcpCluster(tmp_path_factory.mktemp("bombs"), 1) as cluster:
        with TcpClient(cluster) as client:
            client.admin.create_topic("orders", partitions=2, replication_factor=1).result(WAIT_S)
        yield cluster


def produce(records: bytes) -> bytes:
    data = PartitionProduceData(index=1, records=records)
    topic = TopicProduceData(name="orders", partition_data=(data,))
    return framed(frame_of(ProduceRequest(acks=1, timeout=timedelta(seconds=5), topic_data=(topic,)), 1))


def answer(client: socket.socket) -> Any:
    response = response_of(response_type(0, 11), read_frame(client), 1)
    return response.responses[0].partition_responses[0].error_code


@pytest.mark.parametrize("name", CODECS)
def test_bombs_are_checked_aside_one_at_a_time_in_bounded_memory(
    cluster: TcpCluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A record of 200 MiB is sound; a batch of nothing but zeros is not.
    sound = produce(build([bytes(BOMB_BYTES)], codec=name))
    rubbish = produce(batch_of(bytes(compress(CODECS[name], bytes(BOMB_BYTES))), 1, attributes=CODECS[name]))
    wide = produce(build([bytes(24 << 20)], codec=name))
    # The threads that decompress a batch up to the topic's bound.
    checking: set[str] = set()
    whole = LogValidator.validate_anew

    def watched(
        self: LogValidator, records: Any, now_ms: int, origin: Any, max_decompressed: int | None = None
    ) -> Any:
        is_whole = is_compressed(records) and max_decompressed is None
        try:
            found = whole(self, records, now_ms, origin, max_decompressed)
        except MessageTooLarge:
            checking.add(threading.current_thread().name)
            raise
        if is_whole:
            checking.add(threading.current_thread().name)
        return found

    monkeypatch.setattr(LogValidator, "validate_anew", watched)
    is_over = threading.Event()
    rounds: list[list[ErrorCode]] = []

    def bomb() -> None:
        with connected(cluster.addresses[1]) as hostile:
            hostile.settimeout(WAIT_S)
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
        appended = 0
        while appended < APPENDS or len(rounds) < 3 * CONNECTIONS:
            assert all(sender.is_alive() for sender in senders)
            client.append("orders", 0, [b"x"])
            appended += 1
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
    # Not the loop, for which heartbeats wait.
    assert len(checking) == 1
    assert checking.pop().startswith("kreplica-checks")


def test_a_producer_goes_on_while_batches_of_other_connections_to_its_partition_are_checked(
    cluster: TcpCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = threading.Event(), threading.Event()
    whole = LogValidator.validate_anew

    def held(
        self: LogValidator, records: Any, now_ms: int, origin: Any, max_decompressed: int | None = None
    ) -> Any:
        if max_decompressed is None:
            begun.set()
            assert may_end.wait(WAIT_S)
        return whole(self, records, now_ms, origin, max_decompressed)

    monkeypatch.setattr(LogValidator, "validate_anew", held)
    host, port = cluster.addresses[1]
    stock = Producer({"bootstrap.servers": f"{host}:{port}", "linger.ms": 0})
    offsets: list[int | None] = []
    with ExitStack() as stack:
        stack.callback(may_end.set)
        hostile = [stack.enter_context(connected(cluster.addresses[1])) for _ in range(CONNECTIONS)]
        for each in hostile:
            each.sendall(produce(build([bytes(24 << 20)], codec="zstd")))
        assert begun.wait(WAIT_S)
        for _ in range(3):
            stock.produce(
                "orders", b"x", partition=1, on_delivery=lambda _, done: offsets.append(done.offset())
            )
            assert stock.flush(WAIT_S) == 0
        may_end.set()
        assert {answer(each) for each in hostile} == {ErrorCode.none}
    first = offsets[0]
    assert first is not None
    assert offsets == [first, first + 1, first + 2]


def test_a_cluster_in_a_program_goes_on_while_a_foreign_batch_is_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, may_end = threading.Event(), threading.Event()
    whole = LogValidator.validate_anew

    def held(self: LogValidator, records: Any, *rest: Any, **named: Any) -> Any:
        if is_compressed(records) and not named:
            # Not the first attempt, which gives up at BRIEF_BYTES.
            begun.set()
            assert may_end.wait(WAIT_S)
        return whole(self, records, *rest, **named)

    with Cluster(brokers=3, serve=True) as cluster:
        cluster.create_topic("orders", partitions=2)
        # Once these are acknowledged both leaders have taken their role.
        for partition in (0, 1):
            cluster.append("orders", [b"x"], partition=partition, acks="all").result(timeout=WAIT_S)
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
                    appended = cluster.append("orders", [b"x"], partition=partition, acks="all")
                    assert appended.result(timeout=WAIT_S).base_offset == 1
            finally:
                may_end.set()
            assert answer(foreign) is ErrorCode.none
        assert [len(record.value or b"") for record in cluster.read("orders", 1)] == [1, 1, 1 << 20]
