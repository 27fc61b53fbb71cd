"""Random runs of a metadata quorum alone: its invariants after every event, and all well after the faults.

KREPLICA_SEEDS runs so many; one that fails tells its seed, and the same seed fails again.
"""

from __future__ import annotations

import pytest

from kreplica.sim.quorum.quorum_driver import EXPECTED, QuorumDriver
from tests.support.random_runs import hash_elsewhere, hold_seeds

EVENTS = 800
SEEDS = 40


def test_no_seed_violates_an_invariant(capsys):
    hold_seeds(
        QuorumDriver,
        lambda driver: driver.quorum.scheduler.events,
        least_events=EVENTS,
        seeds=SEEDS,
        expected=EXPECTED,
        capsys=capsys,
        replay=__file__,
    )


PROGRAM = """
import sys
from kreplica.sim.quorum.quorum_driver import QuorumDriver
driver = QuorumDriver(int(sys.argv[1]))
driver.run(300)
print(driver.quorum.scheduler.event_hash)
"""


@pytest.mark.parametrize("seed", [7, 8])
def test_the_same_seed_gives_the_same_events_in_another_process(seed):
    driver = QuorumDriver(seed)
    driver.run(300)
    for hash_seed in ("1", "2"):
        assert hash_elsewhere(PROGRAM, seed, hash_seed) == driver.quorum.scheduler.event_hash


def test_voters_of_whom_one_is_gone_have_a_whole_timeout_to_be_heard_of():
    # A voter is removed while one of the two that are left is down.
    QuorumDriver(220050).run(EVENTS)
