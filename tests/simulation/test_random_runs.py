"""Random runs of each kind of cluster: every invariant after every event, and all well after the faults.

KREPLICA_SEEDS sets the number of seeds of each kind, KREPLICA_FIRST_SEED the first one. A run that fails
names its seed, and the same seed fails again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from functools import partial

import pytest

from kreplica.sim.brokers.driver import BrokerDriver
from kreplica.sim.nodes.driver import NodeDriver
from kreplica.sim.quorum.quorum_driver import QuorumDriver
from kreplica.sim.reduction import run_seed

FIRST_SEED = int(os.environ.get("KREPLICA_FIRST_SEED", "1"))
# By kind: the driver, the number of events of a run, and the number of seeds unless KREPLICA_SEEDS is set.
KINDS = {
    "brokers": (BrokerDriver, 2_000, 25),
    "disks": (partial(BrokerDriver, with_disks=True), 2_000, 20),
    "nodes": (NodeDriver, 2_000, 40),
    "quorum": (QuorumDriver, 800, 15),
}
SAID_EVERY = 100


@pytest.mark.parametrize("kind", KINDS)
def test_no_seed_violates_an_invariant(capsys, kind):
    make, events, enough = KINDS[kind]
    seeds = int(os.environ.get("KREPLICA_SEEDS", enough))
    counts: Counter[str] = Counter()
    for number, seed in enumerate(range(FIRST_SEED, FIRST_SEED + seeds), 1):
        driver = make(seed)
        try:
            driver.run(events)
        except Exception as error:
            replay = f"KREPLICA_SEEDS=1 KREPLICA_FIRST_SEED={seed} pytest {__file__} -k {kind}"
            error.add_note(f"to replay: {replay}")
            raise
        assert driver.cluster.scheduler.events >= events
        counts += driver.counts
        if number % SAID_EVERY == 0:
            with capsys.disabled():
                print(f"\n{number} seeds of {kind}, the last was {seed}: {dict(counts)}")
    if seeds >= enough:
        assert [name for name in driver.EXPECTED if not counts[name]] == []


PROGRAM = """
import sys
from kreplica.sim.reduction import run_seed
print(run_seed(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])).event_hash)
"""


@pytest.mark.parametrize(
    ("kind", "seed", "events"),
    # The last one has transactions.
    [
        *((kind, seed, 400) for kind in ("brokers", "nodes", "quorum") for seed in (7, 8)),
        ("nodes", 16, 1_200),
    ],
)
def test_the_same_seed_gives_the_same_events_in_another_process(kind, seed, events):
    expected = run_seed(kind, seed, events).event_hash
    for hash_seed in ("1", "2"):
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM, kind, str(seed), str(events)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert ran.stdout.strip() == expected


# ---- bugs that a seed has found --------------------------------------------------------------------------


def run(kind, seed, events=None):
    make, usual, _ = KINDS[kind]
    make(seed).run(events or usual)


def test_a_follower_does_not_lead_with_records_that_its_leader_could_not_check():
    # A follower keeps records of epochs that its leader no longer knows, and is elected before it hears where
    # the leader's log begins.
    run("disks", 331014)


def test_what_the_disk_thread_appends_during_an_election_is_committed():
    # Only flushed records count there, and the new leader flushed its log before the last append was in it.
    run("disks", 340247)


def test_a_deleted_range_that_recovery_stopped_at_is_filled_with_the_epochs_it_expects():
    """The batch that filled it was of the epoch behind it, so recovery stopped there again, without end."""
    run("disks", 341236)


@pytest.mark.parametrize("seed", [910599, 910815])
def test_a_log_whose_disk_fails_when_damage_is_to_be_noted_takes_nothing_more(seed):
    run("disks", seed)


def test_a_high_watermark_does_not_go_back_where_a_log_is_opened_again_for_a_repair():
    run("disks", 911530)


def test_a_truncation_in_which_the_disk_failed_lowers_the_high_watermark():
    run("disks", 912404)


def test_a_repair_that_a_full_disk_refuses_waits_before_it_tries_again():
    """Taking the role again with the log began the repair anew, without end and at the same moment."""
    run("disks", 912853)


def test_a_follower_whose_log_an_earlier_append_has_filled_gets_the_high_watermark_again():
    """The disk thread appended what was fetched before the role changed, and the answer was dropped."""
    run("disks", 913204)


def test_a_truncation_that_a_full_disk_refuses_leaves_the_directory_online():
    run("nodes", 910203)


def test_the_last_reader_follows_a_log_start_that_rises_with_an_election():
    """A deposed leader had deleted records that no follower had, and led again between two requests."""
    run("nodes", 970949)


def test_a_member_makes_a_snapshot_only_of_what_it_has_applied():
    """One of what was committed there but not yet applied lacked a value, and a restart loaded it."""
    run("quorum", 980246)


def test_a_repair_ends_if_the_disk_fails_while_it_begins():
    run("disks", 995055)


def test_the_operator_gives_up_a_range_that_other_replicas_have_in_another_history_only():
    """Unclean elections had written the same values behind the range in other epochs, so no replica could
    fill it, and the operator waited for one that did."""
    run("brokers", 990034, 3_000)


def test_the_number_of_a_generation_that_was_not_stored_comes_again_after_a_fail_over():
    """The checker took that for a generation that decreases."""
    run("nodes", 54000362)


def test_the_generations_of_a_group_begin_again_for_a_member_that_was_cut_off_until_it_was_forgotten():
    """The checker took that for a generation that decreases."""
    run("nodes", 62203354)


def test_a_voter_that_was_removed_while_it_stood_in_a_later_epoch_comes_back():
    run("nodes", 61001336)


def test_a_deposed_leader_drops_a_record_that_the_new_one_has_replaced_and_deleted():
    """It kept the transaction that the other record had ended, and readers waited for it for ever."""
    run("nodes", 61002052)
