"""Bugs of histories that random runs meet, besides the scripts which replay them: one seed each.

They are built into the code, and the run must end with a violation.
"""

from __future__ import annotations

import os
import random
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from kreplica.sim.brokers.driver import BrokerDriver, draw_workload
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.nodes.driver import (
    GROUP_KINDS,
    GROUPS_ONE_IN,
    GROUPS_REMAINDER,
    MIXED_ONE_IN,
    MIXED_REMAINDER,
    TRANSACTIONS_ONE_IN,
    NodeDriver,
)
from kreplica.sim.quorum.quorum_driver import QuorumDriver
from tests.mutants.client_mutants import CLIENT_MUTANTS
from tests.mutants.control_mutants import CONTROL_MUTANTS
from tests.mutants.group_mutants import GROUP_MUTANTS
from tests.mutants.history_mutants import HISTORY_MUTANTS
from tests.mutants.lane_mutants import LANE_MUTANTS
from tests.mutants.mutants import MUTANTS, built_in
from tests.mutants.quorum_mutants import QUORUM_HISTORY_MUTANTS, QUORUM_MUTANTS
from tests.mutants.transaction_mutants import TRANSACTION_MUTANTS


def brokers_before(seed):
    """Brokers that ask where their logs part, as before Kafka 2.7, where fetches say it."""
    workload = draw_workload(random.Random(f"{seed}/workload"))
    config = replace(workload.replica_config, truncation_on_fetch=False)
    return BrokerDriver(seed, replace(workload, replica_config=config))


def nodes_with_transactions(seed):
    return NodeDriver(seed * TRANSACTIONS_ONE_IN)


def nodes_with_groups(kind, seed):
    turn = seed * len(GROUP_KINDS) + GROUP_KINDS.index(kind)
    return NodeDriver(turn * GROUPS_ONE_IN + GROUPS_REMAINDER)


def nodes_with_mixed_groups(seed):
    return NodeDriver(seed * MIXED_ONE_IN + MIXED_REMAINDER)


DRIVERS = {
    "nodes": (NodeDriver, 1_500),
    "transactions": (nodes_with_transactions, 3_000),
    **{kind: (partial(nodes_with_groups, kind), 2_000) for kind in GROUP_KINDS},
    "mixed": (nodes_with_mixed_groups, 2_000),
    "brokers": (BrokerDriver, 1_500),
    "brokers-before": (brokers_before, 1_500),
    "quorum": (QuorumDriver, 800),
}
# In what else is switched off there, a run holds without the bug.
BESIDES = {"brokers-before": "never_diverge"}
PINS = Path(__file__).with_name("pinned_history_seeds.txt")
# The number of seeds that are tried for a pin.
REPIN = int(os.environ.get("KREPLICA_REPIN", "0"))
# Each line: what runs; a mutant, or two with a + between them; the seed in which it is caught; the invariant
# that does, or the error that ends the run.
CAUGHT = [tuple(line.split()) for line in PINS.read_text().splitlines()]
ALL_MUTANTS = {
    **MUTANTS,
    **HISTORY_MUTANTS,
    **CONTROL_MUTANTS,
    **CLIENT_MUTANTS,
    **LANE_MUTANTS,
    **QUORUM_MUTANTS,
    **QUORUM_HISTORY_MUTANTS,
    **TRANSACTION_MUTANTS,
    **GROUP_MUTANTS,
}


@pytest.mark.parametrize(("driver", "names", "seed", "invariant"), CAUGHT)
def test_a_mutant_is_caught_in_its_pinned_seed(driver, names, seed, invariant):
    again = "a change of the code makes other histories: KREPLICA_REPIN=500 pytest " + __file__
    if REPIN:
        seeds = range(1, REPIN + 1)
        found = next((each for each in seeds if caught_by(driver, names, each) and holds(driver, each)), 0)
        assert found, f"no seed up to {REPIN} catches {names}"
        seed, invariant = str(found), caught_by(driver, names, found)
        kept = [line for line in PINS.read_text().splitlines() if line.split()[:2] != [driver, names]]
        PINS.write_text("\n".join(sorted([*kept, f"{driver} {names} {seed} {invariant}"])) + "\n")
    assert caught_by(driver, names, int(seed)) == invariant, again


@pytest.mark.parametrize(
    ("driver", "names", "seed"), [(driver, *which) for driver, *which, _ in CAUGHT if driver in BESIDES]
)
def test_what_else_is_switched_off_is_no_bug(driver, names, seed):
    assert BESIDES[driver] in names.split("+")
    assert holds(driver, int(seed))


def holds(driver, seed):
    """Whether the run of that seed ends well without the bug."""
    return caught_by(driver, BESIDES.get(driver, ""), seed) is None


def caught_by(driver, names, seed):
    run, events = DRIVERS[driver]
    with ExitStack() as stack:
        for name in filter(None, names.split("+")):
            stack.enter_context(built_in(ALL_MUTANTS[name]))
        try:
            run(seed).run(events)
        except InvariantViolated as violated:
            return violated.invariant
        except Exception as error:
            # A log that cannot be opened, for one: that ends a run, too.
            return type(error).__name__
    return None


def test_the_bugs_of_controllers_quorum_lanes_transactions_and_groups_are_all_met():
    met = {name for _, names, *_ in CAUGHT for name in names.split("+")}
    assert met >= CONTROL_MUTANTS.keys() | QUORUM_HISTORY_MUTANTS.keys() | LANE_MUTANTS.keys()
    assert met >= TRANSACTION_MUTANTS.keys() | GROUP_MUTANTS.keys()
