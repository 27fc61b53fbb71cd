"""Random runs of whole nodes: every invariant after every event, and all well after the faults.

KREPLICA_SEEDS runs so many; one that fails tells its seed, and the same seed fails again.
"""

from __future__ import annotations

import pytest

from kreplica.sim.nodes.driver import EXPECTED, NodeDriver
from tests.support.random_runs import hash_elsewhere, hold_seeds

EVENTS = 2_000
SEEDS = 50


def test_no_seed_violates_an_invariant(capsys):
    hold_seeds(
        NodeDriver,
        lambda driver: driver.cluster.scheduler.events,
        least_events=EVENTS,
        seeds=SEEDS,
        expected=EXPECTED,
        capsys=capsys,
        replay=__file__,
    )


PROGRAM = """
import sys
from kreplica.sim.nodes.driver import NodeDriver
driver = NodeDriver(int(sys.argv[1]))
driver.run(600)
print(driver.cluster.scheduler.event_hash)
"""


@pytest.mark.parametrize("seed", [7, 8])
def test_the_same_seed_gives_the_same_events_in_another_process(seed):
    driver = NodeDriver(seed)
    driver.run(600)
    for hash_seed in ("1", "2"):
        assert hash_elsewhere(PROGRAM, seed, hash_seed) == driver.cluster.scheduler.event_hash


def test_a_follower_hears_the_high_watermark_that_it_was_told_during_a_change_of_role():
    # The answer finds the partition removed from the fetcher, which adds it again before its next fetch.
    NodeDriver(821539).run(EVENTS)


def test_a_batch_is_not_there_twice_after_two_unclean_elections():
    # The second one brings back the log of the leader to which the batch was sent first.
    NodeDriver(840416).run(EVENTS)


def test_a_truncation_that_a_full_disk_refuses_leaves_the_directory_online():
    NodeDriver(910203).run(EVENTS)


def test_a_follower_whose_log_is_lost_takes_batches_of_a_later_epoch():
    NodeDriver(910238).run(EVENTS)
