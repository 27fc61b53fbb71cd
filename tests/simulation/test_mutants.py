"""Each invariant catches a known bug: a simulation with the bug built in must end with a violation."""

from __future__ import annotations

import os
from inspect import getattr_static
from pathlib import Path

import pytest

from kreplica.common.errors import CorruptMessage
from kreplica.sim.brokers.driver import BrokerDriver
from kreplica.sim.invariants.checker import INVARIANTS
from kreplica.sim.invariants.rules import LogMatching
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.load import READ_COMMITTED
from tests.mutants.mutants import MUTANTS, switched_on

EVENTS = 1_500
PINS = Path(__file__).with_name("pinned_seeds.txt")
# The number of seeds that are tried for a pin.
REPIN = int(os.environ.get("KREPLICA_REPIN", "0"))
# Each line: a mutant, the invariant that is to catch it alone, the seed in which it does.
CAUGHT = [tuple(line.split()) for line in PINS.read_text().splitlines()]


@pytest.mark.parametrize(("name", "invariant", "seed"), CAUGHT)
def test_a_mutant_is_caught_in_its_pinned_seed(name, invariant, seed):
    if REPIN:
        seed = next((each for each in range(1, REPIN + 1) if catches(name, invariant, each)), 0)
        assert seed, f"no seed up to {REPIN} catches {name}"
        repin(name, invariant, seed)
    again = "a change of the code makes other histories: KREPLICA_REPIN=2000 pytest " + __file__
    assert catches(name, invariant, int(seed)), again


def catches(name, invariant, seed):
    # LogMatching notes what is committed, so that the others can compare.
    chosen = [each for each in INVARIANTS if each is LogMatching or each.name == invariant]
    with switched_on(name):
        caught = violation_of(seed, chosen)
    return caught is not None and caught.invariant == invariant


def repin(name, invariant, seed):
    lines = PINS.read_text().splitlines()
    kept = [f"{name} {invariant} {seed}" if line.split()[:2] == [name, invariant] else line for line in lines]
    PINS.write_text("\n".join(kept) + "\n")


def violation_of(seed, invariants):
    try:
        BrokerDriver(seed, invariants=invariants).run(EVENTS)
    except InvariantViolated as violated:
        return violated
    except CorruptMessage:
        # A bug that loses what is on a disk may end a run before the invariant looks.
        return None
    return None


def test_every_invariant_catches_a_mutant_and_every_mutant_is_caught():
    # What readers of committed data are given is looked at where they get it.
    names = {each.name for each in INVARIANTS} | {READ_COMMITTED}
    assert {invariant for _, invariant, _ in CAUGHT} == names
    assert {name for name, _, _ in CAUGHT} == MUTANTS.keys()


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_switched_off_again(name):
    mutant = MUTANTS[name]
    before = getattr_static(mutant.owner, mutant.name)
    with switched_on(name):
        assert getattr_static(mutant.owner, mutant.name) is not before
    assert getattr_static(mutant.owner, mutant.name) is before
