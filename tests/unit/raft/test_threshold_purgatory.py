"""Futures that wait for a value above their threshold."""

from __future__ import annotations

import pytest

from kreplica.common.errors import NotLeader, RequestTimedOut
from kreplica.raft.threshold_purgatory import ThresholdPurgatory
from tests.support.logs import NOW_MS, ManualClock


def test_a_value_above_the_threshold_resolves() -> None:
    purgatory = ThresholdPurgatory("fetch", ManualClock())
    low, high = purgatory.await_threshold(5, 100), purgatory.await_threshold(9, 100)
    assert purgatory.maybe_complete(5) == 0
    assert purgatory.maybe_complete(6) == 1
    assert low.result(0) == 6
    assert not high.done()
    assert len(purgatory) == 1
    assert purgatory.complete_all(7) == 1
    assert high.result(0) == 7
    assert len(purgatory) == 0


def test_a_wait_that_is_too_long_times_out() -> None:
    clock = ManualClock()
    purgatory = ThresholdPurgatory("fetch", clock)
    assert purgatory.expire() is None
    soon, late = purgatory.await_threshold(5, 100), purgatory.await_threshold(5, 250)
    assert purgatory.expire() == 100
    clock.now_ms += 100
    left_ms = purgatory.expire()
    with pytest.raises(RequestTimedOut, match="fetch"):
        soon.result(0)
    assert not late.done()
    looks = 0
    while left_ms is not None:
        assert 0 < left_ms <= 250
        clock.now_ms += left_ms
        left_ms, looks = purgatory.expire(), looks + 1
    assert late.done()
    assert clock.now_ms == NOW_MS + 250
    assert looks < 10


def test_all_fail_together() -> None:
    purgatory = ThresholdPurgatory("append", ManualClock())
    futures = [purgatory.await_threshold(n, 100) for n in range(3)]
    assert purgatory.complete_all_exceptionally(NotLeader("gone")) == 3
    for future in futures:
        with pytest.raises(NotLeader):
            future.result(0)
    assert purgatory.maybe_complete(100) == 0


def test_a_cancelled_wait_does_not_disturb_the_others() -> None:
    purgatory = ThresholdPurgatory("append", ManualClock())
    gone, there = purgatory.await_threshold(1, 100), purgatory.await_threshold(1, 100)
    gone.cancel()
    purgatory.maybe_complete(2)
    assert there.result(0) == 2
