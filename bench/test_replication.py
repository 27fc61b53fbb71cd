"""Replication with RF 3 and acks=all: throughput, latency, many waits completed at once, idle partitions.

Our three brokers run in this process, on the file system of build/ (never tmpfs), with a LocalNetwork.
Kafka's three nodes run beside them on the same disk, each in its own process, and its producer connects over
loopback. So the figures do not compare the engines alone: a library saves the sockets of a server.
KREPLICA_BENCH_BYTES sets the bytes that a round produces (256 MiB).
"""

from __future__ import annotations

import itertools
import os
import shutil
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from bench import memory
from bench.conftest import LINES, Row
from bench.local_cluster import TOPIC, LocalCluster
from bench.peers.kafka_cluster import KafkaCluster, missing
from kreplica._core.batch_builder import BatchBuilder
from kreplica._core.purgatory import Purgatory
from kreplica.common.future import Future
from kreplica.common.messages.data import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from kreplica.common.types import TopicPartition
from kreplica.common.wire import uuid_of
from kreplica.replica.delayed_requests import DelayedRequests, PartitionResponse, ProducePartitionStatus
from tests.support.waiting import Led, delayed_requests

MIB = 1 << 20
ROUND_BYTES = int(os.environ.get("KREPLICA_BENCH_BYTES", 256 * MIB))
# Each byte is in the page cache three times; more physical memory than that is not needed.
WARM_BYTES = min(4 * ROUND_BYTES, 14 << 30)
IN_FLIGHT = 64
LATENCIES = 3_000
WAITING = 100_000
NEVER_MS = 300_000


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    path = Path(__file__).parents[1] / "build" / "bench-replication"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def peer(scratch: Path) -> Iterator[KafkaCluster | None]:
    """Three Kafka nodes, or None where they cannot run."""
    if reason := missing():
        LINES.append(reason)
        yield None
        return
    with KafkaCluster(scratch) as cluster:
        yield cluster


@pytest.fixture
def cluster(scratch: Path) -> Iterator[LocalCluster]:
    directory = scratch / "ours"
    with LocalCluster(directory) as made:
        yield made
    shutil.rmtree(directory)


def batch_of(records: int, size: int) -> bytes:
    return bytes(BatchBuilder().build([b"v" * size] * records, now_ms=1))


def write_thrice(directory: Path, batch: bytes, count: int) -> None:
    """Measure the limit: plain writes of the same bytes, once for each replica."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    files = [os.open(directory / str(number), os.O_WRONLY | os.O_CREAT) for number in range(3)]
    for _ in range(count):
        for file in files:
            os.write(file, batch)
    for file in files:
        os.close(file)


def test_throughput(row: Row, scratch: Path, cluster: LocalCluster, peer: KafkaCluster | None) -> None:
    """produce a batch of 16 x 1000 B, RF 3, acks=all, 64 in flight, in process"""
    batch = batch_of(16, 1000)
    count = ROUND_BYTES // len(batch)
    used: list[TopicPartition] = []

    def plain_files() -> tuple[object, ...]:
        memory.warm(WARM_BYTES)
        return scratch / "plain", batch, count

    def fresh() -> tuple[object, ...]:
        if used:
            cluster.check(used[-1])
            cluster.delete(used[-1])
        used.append(cluster.new_partition())
        memory.warm(WARM_BYTES)
        return used[-1], batch, count, IN_FLIGHT

    rounds = 3 if ROUND_BYTES < 1 << 30 else 1
    row.time(cluster.append_batches, count, fresh, rounds=rounds)
    cluster.check(used[-1])
    # Over some GiB the disk bounds both, as the page cache takes no more than vm.dirty_ratio of memory.
    row.beside("written to three files, nothing else", write_thrice, count, plain_files, rounds=rounds)
    if row.ns is not None:
        row.note(
            f"{len(batch) / row.ns * 1e9 / MIB:,.0f} MiB/s acknowledged, {ROUND_BYTES >> 20:,} MiB a round"
        )
        if peer is not None:
            row.peer("three Kafka nodes over loopback", peer.batch_ns(total_bytes=ROUND_BYTES))


def test_python_of_a_batch(row: Row, cluster: LocalCluster) -> None:
    """produce a batch of 1 x 100 B, RF 3, acks=all, 64 in flight: what Python takes of each batch"""
    batch = batch_of(1, 100)
    partition = cluster.new_partition()
    row.time(cluster.append_batches, 20_000, lambda: (partition, batch, 20_000, IN_FLIGHT))
    cluster.check(partition)


def test_latency(row: Row, cluster: LocalCluster, peer: KafkaCluster | None) -> None:
    """one record of 100 B, RF 3, acks=all, one in flight, in process: p50"""
    partition, value = cluster.new_partition(), b"v" * 100

    def append() -> None:
        cluster.append_one(partition, value)

    row.time(append, 1, tuple, rounds=LATENCIES)
    if row.ns is not None:
        row.note(f"p99 {row.percentile_ns(0.99):,.0f} ns")
    with BusyThread():
        row.beside("with a busy Python thread beside", append, 1, rounds=LATENCIES)
    cluster.check(partition)
    if peer is not None and row.ns is not None:
        p50, p99 = peer.latency_ns(records=LATENCIES, size=100)
        row.peer("three Kafka nodes over loopback", p50)
        row.note(f"Kafka's p99 {p99:,.0f} ns")


class BusyThread:
    """Runs a thread that computes in Python and gives up the GIL only when forced."""

    def __enter__(self) -> None:
        self._stops = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stops:
            number = (number * 31 + 7) % 1_000_003

    def __exit__(self, *_: object) -> None:
        self._stops = True
        self._thread.join()


# ---- many waits completed at once --------------------------------------------------------------------------


def test_great_step_of_futures(row: Row) -> None:
    """complete one of 100,000 waiting produces by one step of the high watermark, its future resolved"""
    waiting: list[Future[PartitionResponse]] = []

    def wait() -> tuple[object, ...]:
        assert all(future.done() for future in waiting)
        delayed, led = delayed_requests(), Led(1)
        answers = [PartitionResponse(offset, offset) for offset in range(WAITING)]
        waiting[:] = [Future() for _ in answers]
        for offset, (answer, future) in enumerate(zip(answers, waiting, strict=True)):
            status = ProducePartitionStatus(led, led.watermark, offset + 1, answer)
            delayed.await_commit(status, NEVER_MS, future)
        return delayed, led

    def step(delayed: DelayedRequests, led: Any) -> None:
        led.watermark.advance(WAITING)
        delayed.operations.high_watermark_moved(led)

    row.time(step, WAITING, wait)
    assert all(future.done() for future in waiting)
    purgatory, tokens = Purgatory(), [object() for _ in range(WAITING)]

    def wait_in_core() -> tuple[int, int]:
        for offset, token in enumerate(tokens):
            purgatory.watch(1, offset + 1, NEVER_MS, token)
        return 1, WAITING

    row.beside("the core alone, tokens in a list", purgatory.complete_to, WAITING, wait_in_core)
    if row.ns is not None:
        row.note(f"all of them {row.ns * WAITING / 1e6:.1f} ms")


# ---- idle partitions ---------------------------------------------------------------------------------------


class Follower:
    """Broker 2's fetch session with broker 1, over all of its partitions, driven by the test."""

    def __init__(self, cluster: LocalCluster, partitions: list[TopicPartition]) -> None:
        self._handle = cluster.brokers[1].handle
        self._state = ReplicaState(replica_id=2, replica_epoch=cluster.broker_epochs[2])
        wanted = tuple(
            FetchPartition(
                partition=partition.partition,
                current_leader_epoch=cluster.controller.partitions[partition].leader_epoch,
                fetch_offset=0,
                log_start_offset=0,
                partition_max_bytes=MIB,
            )
            for partition in partitions
        )
        topic_id = cluster.controller.topic_id(TOPIC)
        assert topic_id is not None
        self._epochs = itertools.count()
        self._id = 0
        self._id = self.fetch((FetchTopic(topic_id=uuid_of(topic_id), partitions=wanted),)).session_id
        assert self._id

    def fetch(self, topics: tuple[FetchTopic, ...] = ()) -> Any:
        """Fetch what is new in the session without waiting."""
        request = FetchRequest(
            replica_state=self._state,
            max_wait=timedelta(0),
            min_bytes=1,
            max_bytes=10 * MIB,
            isolation_level=0,
            session_id=self._id,
            session_epoch=next(self._epochs),
            topics=topics,
            forgotten_topics_data=(),
        )
        answer = self._handle(request).result(0)
        assert answer.error_code == 0
        return answer


@pytest.mark.parametrize("partitions", [10, 100, 1_000, 10_000])
def test_idle_partitions(row: Row, scratch: Path, partitions: int) -> None:
    """a follower's incremental fetch over {partitions} idle partitions, on the leader"""
    directory = scratch / "leader"
    with LocalCluster(directory, running=[1]) as cluster:
        follower = Follower(cluster, [cluster.new_partition() for _ in range(partitions)])
        assert follower.fetch().responses == ()

        def fetch_often() -> None:
            for _ in range(1_000):
                follower.fetch()

        row.time(fetch_often, 1_000, tuple)
    shutil.rmtree(directory)
