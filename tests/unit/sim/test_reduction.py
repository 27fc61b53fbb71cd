"""A run that fails is reduced to one that fails the same way with less, and is told in lines."""

from __future__ import annotations

import itertools

import pytest

from kreplica.sim.nodes.driver import NodeDriver
from kreplica.sim.reduction import AllBut, reduced, run_brokers, run_nodes
from tests.mutants.mutants import switched_on

EVENTS = 600
LEAST_ACTIONS = 30


@pytest.fixture(scope="module", params=[run_nodes, run_brokers])
def failed(request):
    # One that has something to leave out.
    with switched_on("show_the_uncommitted"):
        runs = (request.param(seed, EVENTS) for seed in range(1, 50))
        return next(ran for ran in runs if ran.violation and ran.actions >= LEAST_ACTIONS)


def test_a_run_that_fails_is_reduced(failed):
    tries = itertools.count()
    with switched_on("show_the_uncommitted"):
        short = reduced(failed, lambda: next(tries) > 60)
    assert short.violation.invariant == failed.violation.invariant
    done = [line for line in short.story if "produce" in line or "read" in line]
    assert 0 < len(done) < failed.actions / 2
    assert "violated: " in short.story[-1]


def test_without_time_for_it_the_run_is_told_as_it_was(failed):
    with switched_on("show_the_uncommitted"):
        same = reduced(failed, lambda: True)
    assert (same.violation.invariant, same.event_hash) == (failed.violation.invariant, failed.event_hash)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (run_nodes, ("start 1", "produce", "acknowledged at offset", "controller: topic-1-0: leader")),
        (
            run_brokers,
            ("all links: ", "produce", "acknowledged at offset", "controller: t-0: leader", "kill "),
        ),
    ],
)
def test_a_story_changes_nothing_and_tells_what_was_done(run, words):
    plain, told = run(5, EVENTS), run(5, EVENTS, tells=True)
    assert plain.violation is told.violation is None
    assert plain.event_hash == told.event_hash
    text = "\n".join(told.story)
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
