from __future__ import annotations

import gc
import os
import threading

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


def test_the_first_to_leave_keeps_the_threshold_for_the_others() -> None:
    before = gc.get_threshold()
    first, second = rare_collections(), rare_collections()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold() == (OBJECTS, *before[1:])
    second.__exit__(None, None, None)
    assert gc.get_threshold() == before


def test_a_forked_child_has_the_thresholds_back_that_a_thread_of_its_parent_changed() -> None:
    before, is_within, may_end = gc.get_threshold(), threading.Event(), threading.Event()

    def stay_within() -> None:
        with rare_collections():
            is_within.set()
            may_end.wait()

    thread = threading.Thread(target=stay_within)
    thread.start()
    is_within.wait()
    child = os.fork()
    if child == 0:
        with rare_collections():
            is_rare = gc.get_threshold() == (OBJECTS, *before[1:])
        os._exit(0 if is_rare and gc.get_threshold() == before else 1)
    may_end.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_context_ends_in_a_child_that_was_forked_within_it() -> None:
    before = gc.get_threshold()
    with rare_collections():
        child = os.fork()
    if child == 0:
        os._exit(0 if gc.get_threshold() == before else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
