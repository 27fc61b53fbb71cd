from __future__ import annotations

import gc

import pytest

from kreplica.sim.rare_collections import OBJECTS, rare_collections


def test_the_thresholds_come_back_also_after_a_run_that_failed() -> None:
    before, within = gc.get_threshold(), []

    @rare_collections()
    def fail() -> None:
        within.append(gc.get_threshold())
        raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert within == [(OBJECTS, *before[1:])]
    assert gc.get_threshold() == before
