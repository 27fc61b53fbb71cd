"""The power fails before any change or flush, and the disk keeps any part of what was not flushed.

Whatever is left opens, holds all that was flushed, each record once, and no record that was never written.
"""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kreplica.log.verify import verify
from tests.support.batches import build
from tests.support.crashing import DIRECTORY, Run, abandon, open_log

SIZES = st.integers(1, 6000)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), SIZES),
        st.tuples(st.just("append_batch"), st.integers(0, 4)),
        st.tuples(st.sampled_from(["append_epoch", "roll", "flush", "write_back", "reopen", "kill"]), SIZES),
        st.tuples(st.sampled_from(["truncate", "delete"]), st.integers(0, 30)),
    ),
    max_size=25,
)
LIMITS = settings(
    max_examples=int(os.environ.get("KREPLICA_CUTS", "100")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def recover(run: Run, seed: int | None) -> None:
    """Cut the power, open what is left, and check it; then go on with it and open it once more."""
    storage = run.storage.after_power_cut(None if seed is None else random.Random(seed))
    log = open_log(storage, durability=run.durability)
    run.check(log, run.least_end if run.least_end < run.flushed else run.flushed)
    for cut in log.recovery.cut:
        assert storage.size(cut.kept_in) == cut.size > 0
    end = log.log_end_offset
    log.append([b"after"])
    # Records below the log start are no longer checked.
    log.delete_old_segments()
    log.close()
    again = open_log(storage, durability=run.durability)
    assert again.recovery.clean
    assert again.log_end_offset == end + 1
    assert [record.value for record in again.read(end)] == [b"after"]
    abandon(again)
    # A snapshot that is not needed yet may be torn: recovery then takes the one before.
    problems = [problem for problem in verify(storage, DIRECTORY) if not problem.path.endswith(".snapshot")]
    assert log.recovery.cut or problems == []


@LIMITS
@given(STEPS, st.sampled_from(["page_cache", "fsync"]), st.integers(0, 200), st.integers(0, 1 << 30))
def test_what_was_flushed_survives_a_power_cut(steps, durability, stop_at, seed):
    run = Run(durability=durability, stop_at=stop_at, seed=seed)
    run.play(steps)
    for chance in (None, seed, seed + 1, seed + 2):
        recover(run, chance)


@pytest.mark.parametrize("stop_at", range(10, 40))
def test_a_cut_inside_the_batch_in_which_the_log_starts(stop_at):
    run = Run(durability="fsync", stop_at=stop_at)
    run.play([("append_batch", 1), ("delete", 1), ("truncate", 1)])
    for chance in (None, 0, 1, 2):
        recover(run, chance)


@LIMITS
@given(STEPS, st.sampled_from(["page_cache", "fsync"]), st.integers(0, 200))
def test_what_was_acknowledged_survives_a_kill(steps, durability, stop_at):
    run = Run(durability=durability, stop_at=stop_at)
    run.play(steps)
    log = open_log(run.storage.after_kill(), durability=durability)
    run.check(log, run.least_end)
    assert not log.recovery.cut, "a kill tears nothing that was published"


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_segment_that_was_closed_behind_the_flush_point_is_flushed_with_the_next(goes_on):
    """Its last time entry and the length of its file are of the roll; its records were flushed before."""
    run = Run(durability="fsync")
    run.play([("append", 100), ("roll", 0)])
    if goes_on:
        run.play_on([("append", 100)])
    run.log.close()
    storage = run.storage.after_power_cut()
    assert list(verify(storage, DIRECTORY)) == []
    log = open_log(storage)
    assert log.recovery.clean
    run.check(log, run.end)


@LIMITS
@given(st.integers(2, 12), st.integers(0, 1 << 30))
def test_producers_states_that_were_torn_are_not_left(segments, seed):
    run = Run()
    run.open()
    for number in range(segments):
        batch = build([b"value"], producer_id=number % 3, producer_epoch=0, base_sequence=number // 3)
        run.log._log.append_as_leader(batch, 0)
        run.log.roll()
    run.flush(0)
    storage = run.storage.after_power_cut(random.Random(seed))
    log = open_log(storage)
    assert log.log_end_offset == segments
    log.close()
    assert list(verify(storage, DIRECTORY)) == []
