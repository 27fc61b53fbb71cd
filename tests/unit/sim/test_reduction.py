"""A run that fails is reduced to a smaller one that fails the same way, and is printed line by line."""

from __future__ import annotations

import itertools

import pytest

from kreplica.sim.nodes.driver import NodeDriver
from kreplica.sim.reduction import AllBut, reduced, run_seed
from tests.mutants.mutants import MUTANTS, built_in
from tests.mutants.quorum_mutants import QUORUM_MUTANTS

EVENTS = 600
LEAST_ACTIONS = 30


BUGS = {
    "nodes": MUTANTS["show_the_uncommitted"],
    "brokers": MUTANTS["show_the_uncommitted"],
    "quorum": QUORUM_MUTANTS["keep_what_diverges"],
}


@pytest.fixture(scope="module", params=BUGS)
def failed(request):
    # One that has something to leave out, and no transactions: one action of theirs makes many requests.
    with built_in(BUGS[request.param]):
        runs = (run_seed(request.param, seed, EVENTS) for seed in range(1, 200) if seed % 4)
        return next(ran for ran in runs if ran.violation and ran.actions >= LEAST_ACTIONS)


def test_a_run_that_fails_is_reduced(failed):
    tries = itertools.count()
    with built_in(BUGS[failed.driver]):
        short = reduced(failed, lambda: next(tries) > 60)
    assert short.violation.invariant == failed.violation.invariant
    # A quorum may break its rules without any of these.
    done = [line for line in short.story if any(word in line for word in ("produce", "read", "append"))]
    assert len(done) < failed.actions / 2
    assert len(short.story) > 1
    assert "violated: " in short.story[-1]


def test_without_time_for_a_reduction_the_run_is_returned_as_it_was(failed):
    with built_in(BUGS[failed.driver]):
        same = reduced(failed, lambda: True)
    assert (same.violation.invariant, same.event_hash) == (failed.violation.invariant, failed.event_hash)


@pytest.mark.parametrize(
    ("driver", "words"),
    [
        ("nodes", ("start 1", "produce", "acknowledged at offset", "controller: topic-1-0: leader")),
        (
            "brokers",
            ("all links: ", "produce", "acknowledged at offset", "controller: t-0: leader", "kill "),
        ),
        ("quorum", ("all links: ", "append v1", "leads epoch")),
    ],
)
def test_a_story_changes_nothing_and_has_what_was_done(driver, words):
    plain, recorded = run_seed(driver, 5, EVENTS), run_seed(driver, 5, EVENTS, with_story=True)
    assert plain.violation is recorded.violation is None
    assert plain.event_hash == recorded.event_hash
    text = "\n".join(recorded.story)
    for word in words:
        assert word in text


def test_an_action_that_is_left_out_changes_nothing_of_what_others_draw():
    whole, part = NodeDriver(5), NodeDriver(5, without=AllBut([2]))
    drawn = []
    for driver in (whole, part):
        for _ in range(3):
            driver.actions.run(lambda driver=driver: drawn.append(driver.actions.random.random()))
    assert drawn[1] == drawn[3]
    assert len(drawn) == 4
