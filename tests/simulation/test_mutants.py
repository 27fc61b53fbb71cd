"""Each invariant catches a known bug: a simulation with the bug built in must end with a violation."""

from __future__ import annotations

import pytest

from kreplica.sim.driver import RandomDriver
from kreplica.sim.invariants.checker import INVARIANTS
from kreplica.sim.invariants.committed import LogMatching
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.mutants import MUTANTS, switched_on

EVENTS = 1_500
# (mutant, the invariant that is to catch it alone, a seed in which it does)
CAUGHT = [
    ("commit_without_followers", "WeakIsr", 1),
    ("commit_without_followers", "StrongIsr", 1),
    ("commit_without_followers", "ValidHighWatermark", 1),
    ("commit_without_those_about_to_join", "StrongIsr", 26),
    ("join_too_early", "IsrGrowth", 1),
    ("follow_the_mark_down", "NeverBack", 5),
    ("lead_and_follow", "OneFetcher", 1),
    ("never_diverge", "LogMatching", 1),
    ("cut_to_the_mark", "NoCommittedRecordLost", 3),
    ("cut_to_the_mark", "LeaderCompleteness", 13),
    ("acknowledge_at_once", "LeaderCompleteness", 1),
    ("show_the_uncommitted", "ConsistentRead", 1),
    ("forget_the_leader", "LeaderInIsr", 1),
]
# A change of the code under test makes other histories of the same seeds, so the next ones have a try, too.
SEEDS_TO_TRY = 40


@pytest.mark.parametrize(("name", "invariant", "seed"), CAUGHT)
def test_a_mutant_is_caught(name, invariant, seed):
    # LogMatching notes what is committed, so that the others can compare.
    chosen = [each for each in INVARIANTS if each is LogMatching or each.name == invariant]
    caught = None
    for tried in range(seed, seed + SEEDS_TO_TRY):
        with switched_on(name):
            caught = violation_of(tried, chosen)
        if caught is not None and caught.invariant == invariant:
            break
    assert caught is not None
    assert caught.invariant == invariant
    assert any(f"seed {tried}," in note for note in caught.__notes__)


def violation_of(seed, invariants):
    try:
        RandomDriver(seed, invariants=invariants).run(EVENTS)
    except InvariantViolated as violated:
        return violated
    return None


def test_every_invariant_catches_a_mutant_and_every_mutant_is_caught():
    assert {invariant for _, invariant, _ in CAUGHT} == {each.name for each in INVARIANTS}
    assert {name for name, _, _ in CAUGHT} == MUTANTS.keys()


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_switched_off_again(name):
    mutant = MUTANTS[name]
    before = vars(mutant.owner)[mutant.name]
    with switched_on(name):
        assert vars(mutant.owner)[mutant.name] is not before
    assert vars(mutant.owner)[mutant.name] is before
