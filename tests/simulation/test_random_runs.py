"""Random runs of replicated partitions: every invariant after every event, and all well after the faults.

KREPLICA_SEEDS runs so many; one that fails tells its seed, and the same seed fails again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from kreplica.sim.brokers.driver import RandomDriver
from kreplica.sim.brokers.observer import EXPECTED

SEEDS = int(os.environ.get("KREPLICA_SEEDS", "100"))
FIRST_SEED = int(os.environ.get("KREPLICA_FIRST_SEED", "1"))
EVENTS = 2_000
SAID_EVERY = 100


@pytest.mark.parametrize("with_disks", [False, True])
def test_no_seed_violates_an_invariant(capsys, with_disks):
    counts: Counter[str] = Counter()
    for number, seed in enumerate(range(FIRST_SEED, FIRST_SEED + SEEDS), 1):
        driver = RandomDriver(seed, with_disks=with_disks)
        try:
            driver.run(EVENTS)
        except Exception as error:
            error.add_note(f"to replay: KREPLICA_SEEDS=1 KREPLICA_FIRST_SEED={seed} pytest {__file__}")
            raise
        assert driver.cluster.scheduler.events >= EVENTS
        counts += driver.counts
        if number % SAID_EVERY == 0:
            with capsys.disabled():
                print(f"\n{number} seeds, the last was {seed}: {dict(counts)}")
    assert [name for name in EXPECTED if not counts[name]] == []


PROGRAM = """
import sys
from kreplica.sim.brokers.driver import RandomDriver
driver = RandomDriver(int(sys.argv[1]))
driver.run(500)
print(driver.cluster.scheduler.event_hash)
"""


@pytest.mark.parametrize("seed", [7, 8, 9])
def test_the_same_seed_gives_the_same_events_in_another_process(seed):
    driver = RandomDriver(seed)
    driver.run(500)
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(seed)],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert ran.stdout.strip() == driver.cluster.scheduler.event_hash


def test_a_follower_does_not_lead_with_records_that_its_leader_could_not_check():
    # A follower keeps records of epochs that its leader no longer knows, and is elected before it hears where
    # the leader's log begins.
    RandomDriver(331014, with_disks=True).run(EVENTS)


def test_what_the_disk_thread_appends_during_an_election_is_committed():
    # Only flushed records count there, and the new leader flushed its log before the last append was in it.
    RandomDriver(340247, with_disks=True).run(EVENTS)


def test_a_deleted_range_that_recovery_stopped_at_is_filled_with_the_epochs_it_expects():
    """The batch that filled it was of the epoch behind it: recovery stopped there again, without end."""
    RandomDriver(341236, with_disks=True).run(EVENTS)


def test_a_follower_with_damage_below_its_log_start_comes_back_after_a_full_disk():
    """It never told a leader that knew nothing of it that there was room again."""
    RandomDriver(341352, with_disks=True).run(EVENTS)


@pytest.mark.parametrize("seed", [910599, 910815])
def test_a_log_whose_disk_fails_when_damage_is_to_be_noted_takes_nothing_more(seed):
    RandomDriver(seed, with_disks=True).run(EVENTS)


def test_a_high_watermark_does_not_go_back_where_a_log_is_opened_again_for_a_repair():
    RandomDriver(911530, with_disks=True).run(EVENTS)


def test_a_truncation_in_which_the_disk_failed_lowers_the_high_watermark():
    RandomDriver(912404, with_disks=True).run(EVENTS)


def test_a_repair_that_a_full_disk_refuses_waits_before_it_tries_again():
    """Taking the role again with the log began the repair anew, without end and at the same moment."""
    RandomDriver(912853, with_disks=True).run(EVENTS)


def test_a_transaction_that_began_in_a_healed_range_is_known():
    """The producers' state had been read from the log while the range was damaged."""
    RandomDriver(912847, with_disks=True).run(EVENTS)


def test_a_follower_whose_log_an_earlier_append_has_filled_gets_the_high_watermark_again():
    """The disk thread appended what was fetched before the role changed, and the answer was dropped."""
    RandomDriver(913204, with_disks=True).run(EVENTS)
