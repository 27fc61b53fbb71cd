"""Measure transactions of the producers of librdkafka, franz-go and Kafka: rates, and the time of a commit.

The settings are the same for every cluster. librdkafka follows transaction version 1, the others 2. The times
of InitProducerId and of the first transaction of each producer do not count, except with Kafka's.
"""

from __future__ import annotations

import os
import re
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import Producer

from bench.peers.librdkafka import BATCH_BYTES, QUEUED_KB, QUEUED_RECORDS, SERVED_EVERY, WAIT_S
from tests.conformance.foreign_clients import FRANZ_GO
from tests.conformance.kafka_peer import run_java

RECORD_BYTES = 100
# The length of a transaction of `transactional_rate`.
TRANSACTION_S = 0.1


def transactions_rate(bootstrap: str, topic: str, *, producers: int, transactions: int) -> float:
    """Return commits per second of several producers together.

    Each has its own transactional id and partition, and writes one record of 100 B in a transaction.
    """
    ready = threading.Barrier(producers + 1)

    def run(number: int) -> None:
        producer = _started(bootstrap, f"{topic}-{number}")
        _write(producer, topic, number)
        ready.wait(WAIT_S)
        for _ in range(transactions // producers):
            _write(producer, topic, number)

    with ThreadPoolExecutor(producers) as pool:
        futures = [pool.submit(run, number) for number in range(producers)]
        ready.wait(WAIT_S)
        began = time.perf_counter()
        for each in futures:
            each.result()
        return transactions // producers * producers / (time.perf_counter() - began)


def franz_go_rate(bootstrap: str, topic: str, *, producers: int, transactions: int) -> float:
    """Do as `transactions_rate` with producers of franz-go, which need a quarter of the processor time."""
    arguments = ("transactions-rate", topic, str(producers), str(transactions))
    return float(FRANZ_GO.output(bootstrap, *arguments))


def commit_us(bootstrap: str, topic: str, *, transactions: int) -> float:
    """Return p50 of commit_transaction, of one producer whose one record is acknowledged before."""
    producer = _started(bootstrap, topic)
    _write(producer, topic, 0)
    taken = sorted(_write(producer, topic, 0) for _ in range(transactions))
    return taken[len(taken) // 2] * 1e6


def transactional_rate(bootstrap: str, topic: str, *, records: int) -> tuple[float, float]:
    """Return records per second of an idempotent producer that commits every TRANSACTION_S, and the pause.

    The pause is p50 in ms of the time in which its thread queues nothing: until what is queued is
    acknowledged, and the transaction is committed.
    """
    producer = _started(bootstrap, topic, linger_ms=5)
    _write(producer, topic, 0)
    producer.begin_transaction()
    began = time.perf_counter()
    commits_at = began + TRANSACTION_S
    pauses: list[float] = []

    def commit() -> None:
        paused_at = time.perf_counter()
        producer.commit_transaction(WAIT_S)
        pauses.append(time.perf_counter() - paused_at)

    def served() -> None:
        nonlocal commits_at
        producer.poll(0)
        if time.perf_counter() >= commits_at:
            commit()
            producer.begin_transaction()
            commits_at = time.perf_counter() + TRANSACTION_S

    _send(producer, topic, records, served)
    commit()
    taken_s = time.perf_counter() - began
    return records / taken_s, statistics.median(pauses) * 1e3


def idempotent_rate(bootstrap: str, topic: str, *, records: int) -> float:
    """Return records per second of an idempotent producer without transactions."""
    producer = _producer(bootstrap)
    producer.produce(topic, b"first", partition=0)
    producer.flush(WAIT_S)
    began = time.perf_counter()
    _send(producer, topic, records, lambda: producer.poll(0))
    producer.flush(WAIT_S)
    return records / (time.perf_counter() - began)


def producer_perf_rate(bootstrap: str, topic: str, *, records: int, in_transactions: bool) -> float:
    """Return records per second of Kafka's tool producer-perf; it commits every TRANSACTION_S."""
    duration = str(int(TRANSACTION_S * 1000))
    options = ("--transactional-id", topic, "--transaction-duration-ms", duration) if in_transactions else ()
    printed = run_java(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--command-property", "acks=all"),
        *("--num-records", str(records), "--record-size", str(RECORD_BYTES), "--throughput", "-1"),
        *options,
        timeout_s=900,
    )
    return float(re.findall(r"([\d.]+) records/sec", printed)[-1])


def _producer(bootstrap: str, **settings: object) -> Producer:
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 5,
            "batch.size": BATCH_BYTES,
            "batch.num.messages": QUEUED_RECORDS,
            "queue.buffering.max.messages": QUEUED_RECORDS,
            "queue.buffering.max.kbytes": QUEUED_KB,
            **settings,
        }
    )


def _started(bootstrap: str, transactional_id: str, linger_ms: int = 0) -> Producer:
    producer = _producer(bootstrap, **{"transactional.id": transactional_id, "linger.ms": linger_ms})
    producer.init_transactions(WAIT_S)
    return producer


def _write(producer: Producer, topic: str, partition: int) -> float:
    """Write one record in a transaction; return the time of the commit in s."""
    producer.begin_transaction()
    producer.produce(topic, bytes(RECORD_BYTES), partition=partition)
    producer.flush(WAIT_S)
    began = time.perf_counter()
    producer.commit_transaction(WAIT_S)
    return time.perf_counter() - began


def _send(producer: Producer, topic: str, records: int, served: Callable[[], object]) -> None:
    values = [os.urandom(RECORD_BYTES) for _ in range(SERVED_EVERY)]
    for number in range(records):
        while True:
            try:
                producer.produce(topic, values[number % SERVED_EVERY], partition=0)
                break
            except BufferError:
                producer.poll(0.01)
        if not number % SERVED_EVERY:
            served()
