"""Whole nodes: known bugs of the control plane are caught in random runs; each is built into the code."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from kreplica.sim.control_mutants import CONTROL_MUTANTS
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.mutants import built_in
from kreplica.sim.nodes.driver import NodeDriver
from kreplica.sim.quorum.quorum_mutants import QUORUM_HISTORY_MUTANTS, QUORUM_MUTANTS

EVENTS = 1_500
PINS = Path(__file__).with_name("pinned_node_seeds.txt")
# So many seeds are tried for a pin when KREPLICA_REPIN is set.
REPIN = int(os.environ.get("KREPLICA_REPIN", "0"))
# Each line: a mutant, or two with a + between them; the seed in which it is caught; the invariant that does.
CAUGHT = [tuple(line.split()) for line in PINS.read_text().splitlines()]
ALL_MUTANTS = {**CONTROL_MUTANTS, **QUORUM_MUTANTS, **QUORUM_HISTORY_MUTANTS}


@pytest.mark.parametrize(("names", "seed", "invariant"), CAUGHT)
def test_a_mutant_is_caught_in_its_pinned_seed(names, seed, invariant):
    again = "a change of the code makes other histories: KREPLICA_REPIN=500 pytest " + __file__
    if REPIN:
        found = next((each for each in range(1, REPIN + 1) if caught_by(names, each)), 0)
        assert found, f"no seed up to {REPIN} catches {names}"
        seed, invariant = str(found), caught_by(names, found)
        kept = [line for line in PINS.read_text().splitlines() if line.split()[0] != names]
        PINS.write_text("\n".join(sorted([*kept, f"{names} {seed} {invariant}"])) + "\n")
    assert caught_by(names, int(seed)) == invariant, again


def caught_by(names, seed):
    with ExitStack() as stack:
        for name in names.split("+"):
            stack.enter_context(built_in(ALL_MUTANTS[name]))
        try:
            NodeDriver(seed).run(EVENTS)
        except InvariantViolated as violated:
            return violated.invariant
    return None


def test_there_are_mutants():
    assert CAUGHT
