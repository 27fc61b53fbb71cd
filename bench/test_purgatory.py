"""Waiting operations: the core alone, timed like Kafka's, and one large step of a watermark."""

import numpy as np
import pytest

from kreplica._core import benchmarks
from kreplica._core.purgatory import Purgatory

DEADLINE_MS = 300_000
WAITING = 100_000
SLOT_WORDS = 4


def test_watch_and_complete(row, kafka):
    """watch and complete an operation, 1,000 keys with 10 waiting each"""
    keys = np.arange(1000)
    each_key_in_turn, offsets = np.tile(keys, 10), np.repeat(np.arange(10), 1000)
    purgatory, token = Purgatory(), object()

    def watch_and_complete():
        benchmarks.watch_offsets(purgatory, each_key_in_turn, offsets, DEADLINE_MS, token)
        assert benchmarks.complete_partitions(purgatory, keys, 10) == 10_000

    row.time(watch_and_complete, 10_000, tuple, rounds=100)
    row.beside("taking and freeing a lock", lambda: benchmarks.lock_and_unlock(10_000), 10_000, rounds=100)
    row.beside_kafka(kafka, "purgatory", keys=1000, waiting=10, warm_up=30)


def worn(purgatory, token, random):
    """Add and complete half a million operations in any order, and leave some, so that free slots are
    scattered."""
    keys = random.permutation(500_000)
    benchmarks.watch_offsets(purgatory, keys, np.ones_like(keys), DEADLINE_MS, token)
    benchmarks.complete_partitions(purgatory, random.permutation(500_000)[:490_000], 1)


@pytest.mark.parametrize("partitions", [1, 10_000])
@pytest.mark.parametrize("memory", ["fresh", "worn"])
def test_great_step(row, partitions, memory):
    """complete one of 100,000 in {partitions} partition(s) by one step of the watermark, {memory} memory"""
    purgatory, token, random = Purgatory(), object(), np.random.default_rng(1)
    if memory == "worn":
        worn(purgatory, token, random)
    keys = 1_000_000 + np.arange(partitions)

    def setup():
        every_key, offsets = 1_000_000 + np.arange(WAITING) % partitions, np.arange(WAITING)
        benchmarks.watch_offsets(purgatory, every_key, offsets, DEADLINE_MS, token)
        return purgatory, keys, WAITING

    slots = np.zeros((500_000, SLOT_WORDS), np.int64)
    order = (np.arange(500_000) if memory == "fresh" else random.permutation(500_000))[:WAITING]
    row.time(benchmarks.complete_partitions, WAITING, setup)
    row.beside("touching a slot", lambda: benchmarks.touch_slots(slots, order), WAITING)


def test_great_step_from_python(row):
    """complete one of 100,000 in one partition from Python, tokens in a list"""
    purgatory, tokens = Purgatory(), [object() for _ in range(WAITING)]

    def setup():
        for offset, token in enumerate(tokens):
            purgatory.watch(1, offset, DEADLINE_MS, token)
        return 1, WAITING

    row.time(purgatory.complete_to, WAITING, setup)
    row.beside("a comprehension over the tokens", lambda: [token for token in tokens], WAITING)  # noqa: C416
