"""Timers: the core alone, with a million pending that are due in one to thirty minutes, timed like
Kafka's."""

import heapq
import itertools

import numpy as np

from kreplica._core import benchmarks
from kreplica._core.timing_wheel import TimingWheel

PENDING = 1_000_000
COUNT = 200_000
SLOT_WORDS = 4


def deadlines(count):
    return np.random.default_rng(1).integers(60_000, 1_800_000, count)


def filled():
    wheel, handles = TimingWheel(), np.zeros(PENDING, np.int64)
    benchmarks.add_timers(wheel, deadlines(PENDING), handles)
    return wheel, handles


def beside_slots(row, order):
    """Add the limit: touching as many slots of a timer's size once, in the same order."""
    slots = np.zeros((PENDING + COUNT, SLOT_WORDS), np.int64)
    row.beside("touching a slot", lambda: benchmarks.touch_slots(slots, order), COUNT)


def test_add(row, kafka):
    """add a timer, 1 M pending"""
    wheel, _ = filled()
    due, handles = deadlines(COUNT), np.zeros(COUNT, np.int64)

    def setup():
        benchmarks.cancel_timers(wheel, handles)
        return wheel, due, handles

    row.time(benchmarks.add_timers, COUNT, setup)
    beside_slots(row, np.arange(PENDING, PENDING + COUNT))
    row.beside_kafka(kafka, "timer-add", pending=PENDING)


def test_cancel(row, kafka):
    """cancel a timer, 1 M pending, in the order of adding"""
    wheel, _ = filled()
    due = deadlines(COUNT)

    def setup():
        handles = np.zeros(COUNT, np.int64)
        benchmarks.add_timers(wheel, due, handles)
        return wheel, handles

    row.time(benchmarks.cancel_timers, COUNT, setup)
    beside_slots(row, np.arange(PENDING, PENDING + COUNT))
    row.beside_kafka(kafka, "timer-cancel", pending=PENDING)


def test_cancel_in_any_order(row):
    """cancel a timer, 1 M pending, in any order"""
    order = np.random.default_rng(2).permutation(PENDING)[:COUNT]

    def setup():
        wheel, handles = filled()
        return wheel, handles[order]

    row.time(benchmarks.cancel_timers, COUNT, setup)
    beside_slots(row, order)


def test_expire(row):
    """expire a timer, 1 M of the same timeout, from Python"""

    def setup():
        wheel = TimingWheel()
        benchmarks.add_timers(wheel, 30_000 + np.arange(PENDING) // 1000, np.zeros(PENDING, np.int64))
        return (wheel,)

    row.time(lambda wheel: wheel.advance(100_000), PENDING, setup, rounds=5)


def test_add_and_cancel_from_python(row):
    """add and cancel a timer from Python, 1 M pending"""
    wheel, _ = filled()
    due = deadlines(COUNT).tolist()

    def add_and_cancel():
        for deadline in due:
            wheel.cancel(wheel.add(deadline, 0))

    heap = [(deadline, n) for n, deadline in enumerate(deadlines(PENDING).tolist())]
    heapq.heapify(heap)
    numbers = itertools.count(PENDING)

    def push():
        for deadline in due:
            heapq.heappush(heap, (deadline, next(numbers)))

    row.time(add_and_cancel, COUNT, tuple, rounds=5)
    row.beside("heapq.heappush alone", push, COUNT, rounds=3)
