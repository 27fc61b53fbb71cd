"""A run held to the one that is kept: what moved beyond the noise, and what only wandered."""

from __future__ import annotations

import pytest

from bench.compare import moves
from bench.peers.rows import OURS
from bench.results import Result


def result(ours, kafka=None, *, name="produce", more_is_better=True):
    figures = {OURS: ours} if kafka is None else {OURS: ours, "kafka": kafka}
    return Result(name, "records/s", more_is_better, figures=figures)


def test_a_slower_machine_is_no_move():
    (move,) = moves([result([300, 310, 305], [100, 103, 101])], [result([150, 155, 152], [50, 51, 51])])
    assert move.change == pytest.approx(1, abs=0.05)
    assert not move.is_beyond_noise


def test_a_slowdown_relative_to_the_peer_is_reported():
    (move,) = moves([result([300, 310, 305], [100, 103, 101])], [result([200, 205, 203], [100, 103, 101])])
    assert move.change == pytest.approx(2 / 3, abs=0.03)
    assert move.is_beyond_noise


def test_less_time_is_better():
    before, after = ([result(figures, more_is_better=False)] for figures in ([100, 101], [50, 51]))
    (move,) = moves(before, after)
    assert move.change == pytest.approx(2, abs=0.05)
    assert move.is_beyond_noise


def test_a_change_within_the_noise_is_no_move():
    (move,) = moves([result([100, 200, 150])], [result([110, 130, 120])])
    assert not move.is_beyond_noise


def test_only_rows_of_both_runs_count():
    assert moves([result([1], name="gone")], [result([1], name="new")]) == []
