"""The machine's clocks, against Python's own."""

import time

from kreplica.runtime.clock import SystemClock


def test_time_ms_lies_between_two_looks_at_the_clock():
    before = time.time_ns() // 1_000_000
    assert before <= SystemClock().time_ms() <= time.time_ns() // 1_000_000


def test_monotonic_ns_lies_between_two_looks_at_the_clock():
    before = time.monotonic_ns()
    assert before <= SystemClock().monotonic_ns() <= time.monotonic_ns()
