"""Measure transactions of librdkafka's producer: rates, and the time of a commit.

The settings are the same for every cluster. The times of InitProducerId and of the first transaction of each
producer do not count.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import Producer

from bench.peers.librdkafka import BATCH_BYTES, QUEUED_KB, QUEUED_RECORDS, SERVED_EVERY, WAIT_S

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


def commit_us(bootstrap: str, topic: str, *, transactions: int) -> float:
    """Return p50 of commit_transaction, of one producer whose one record is acknowledged before."""
    producer = _started(bootstrap, topic)
    _write(producer, topic, 0)
    taken = sorted(_write(producer, topic, 0) for _ in range(transactions))
    return taken[len(taken) // 2] * 1e6


def transactional_rate(bootstrap: str, topic: str, *, records: int) -> float:
    """Return records per second of an idempotent producer that commits every TRANSACTION_S."""
    producer = _started(bootstrap, topic, linger_ms=5)
    _write(producer, topic, 0)
    producer.begin_transaction()
    began = time.perf_counter()
    commits_at = began + TRANSACTION_S

    def served() -> None:
        nonlocal commits_at
        producer.poll(0)
        if time.perf_counter() >= commits_at:
            producer.commit_transaction(WAIT_S)
            producer.begin_transaction()
            commits_at = time.perf_counter() + TRANSACTION_S

    _send(producer, topic, records, served)
    producer.commit_transaction(WAIT_S)
    return records / (time.perf_counter() - began)


def idempotent_rate(bootstrap: str, topic: str, *, records: int) -> float:
    """Return records per second of an idempotent producer without transactions."""
    producer = _producer(bootstrap)
    producer.produce(topic, b"first", partition=0)
    producer.flush(WAIT_S)
    began = time.perf_counter()
    _send(producer, topic, records, lambda: producer.poll(0))
    producer.flush(WAIT_S)
    return records / (time.perf_counter() - began)


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
