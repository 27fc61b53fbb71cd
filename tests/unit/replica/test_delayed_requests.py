"""Waiting produces in great number: each is answered once, in the order of its partition, and none stays."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from kreplica.common.errors import NotLeaderOrFollower
from kreplica.common.future import Future
from kreplica.replica.delayed_requests import ProducePartitionStatus
from tests.support.waiting import Led, delayed_requests

PARTITIONS = 10_000
PRODUCES_EACH = 100
NEVER_MS = 1 << 40


def test_a_million_produces_over_ten_thousand_partitions() -> None:
    chance, delayed = random.Random(5), delayed_requests()
    partitions: list[Any] = [Led(key) for key in range(PARTITIONS)]
    answered: list[list[Future[Any]]] = [[] for _ in partitions]
    notes: list[Callable[[Future[Any]], None]] = [each.append for each in answered]
    # Appends come to all partitions in turns; each has one to nine records.
    ends = [0] * PARTITIONS
    steps = [chance.randrange(1, 10) for _ in range(PRODUCES_EACH)]
    for step in steps:
        for key, partition in enumerate(partitions):
            ends[key] += step
            response: Any = ends[key]
            future: Future[Any] = Future()
            status = ProducePartitionStatus(partition, partition.watermark, ends[key], response)
            delayed.await_commit(status, NEVER_MS, future)
            future.add_done_callback(notes[key])
    assert delayed.produce.delayed == PARTITIONS * PRODUCES_EACH
    # High watermarks move as followers fetch: some partitions often, some in one step, some never.
    lost = set(chance.sample(range(PARTITIONS), PARTITIONS // 100))
    committed = [0] * PARTITIONS
    for _ in range(3):
        for key in chance.sample(range(PARTITIONS), PARTITIONS // 2):
            committed[key] = chance.randint(committed[key], ends[key])
            move(delayed, partitions[key], committed[key])
            assert len(answered[key]) == produces_below(steps, committed[key])
    for key in lost:
        partitions[key].watermark.close()
        delayed.leadership_lost(partitions[key])()
    for key in set(range(PARTITIONS)) - lost:
        committed[key] = ends[key]
        move(delayed, partitions[key], ends[key])
    assert (delayed.produce.delayed, delayed.produce.watched) == (0, 0)
    offsets = [sum(steps[: number + 1]) for number in range(PRODUCES_EACH)]
    for key, futures in enumerate(answered):
        safe = produces_below(steps, committed[key])
        assert [future.result(0) for future in futures[:safe]] == offsets[:safe]
        assert len(futures) == PRODUCES_EACH
        assert safe == PRODUCES_EACH or key in lost
        assert all(isinstance(future.exception(0), NotLeaderOrFollower) for future in futures[safe:])


def move(delayed: Any, partition: Any, offset: int) -> None:
    partition.watermark.advance(offset)
    delayed.operations.high_watermark_moved(partition)


def produces_below(steps: list[int], offset: int) -> int:
    """Count the appends that end at `offset` or before; `steps` has the number of records of each."""
    count = 0
    for step in steps:
        offset -= step
        if offset < 0:
            break
        count += 1
    return count
