from __future__ import annotations

import gc

import pytest

from kreplica.common.rare_collections import OBJECTS, rare_collections


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


def test_who_leaves_first_takes_nothing_from_the_others() -> None:
    before = gc.get_threshold()
    first, second = rare_collections(), rare_collections()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold() == (OBJECTS, *before[1:])
    second.__exit__(None, None, None)
    assert gc.get_threshold() == before
