"""The quorum's invariants and scripts catch known bugs: with one built in, a run or a script must fail."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.quorum.quorum_driver import QuorumDriver
from tests.mutants.mutants import built_in
from tests.mutants.quorum_mutants import QUORUM_HISTORY_MUTANTS, QUORUM_MUTANTS
from tests.unit.raft import test_kafka_raft_client as scripts
from tests.unit.raft import test_voter_changes as voter_scripts

EVENTS = 800
PINS = Path(__file__).with_name("pinned_quorum_seeds.txt")
# The number of seeds that are tried for a pin.
REPIN = int(os.environ.get("KREPLICA_REPIN", "0"))
# Each line: a mutant, the seed in which it is caught, the invariant that does.
CAUGHT = [tuple(line.split()) for line in PINS.read_text().splitlines()]
SCRIPTS = {
    "come_back_without_memory": scripts.test_a_former_leader_comes_back_resigned_and_does_not_vote,
    "lead_nobody": scripts.test_a_leader_that_is_cut_off_resigns,
    "refuse_who_was_wiped": scripts.test_a_voter_whose_disk_was_wiped_replicates_anew,
    "cut_what_is_committed": scripts.test_a_follower_that_is_to_cut_what_is_committed_stops_and_keeps_it,
    "change_voters_too_early": voter_scripts.test_no_voter_is_added_before_the_leader_knows_what_is_committed,
    "ask_nobody_before": scripts.test_a_voter_that_was_cut_off_does_not_disturb_the_others,
}


@pytest.mark.parametrize(("name", "seed", "invariant"), CAUGHT)
def test_a_mutant_is_caught_in_its_pinned_seed(name, seed, invariant):
    again = "a change of the code makes other histories: KREPLICA_REPIN=500 pytest " + __file__
    if REPIN:
        found = next((each for each in range(1, REPIN + 1) if caught_by(name, each)), 0)
        assert found, f"no seed up to {REPIN} catches {name}"
        seed, invariant = str(found), caught_by(name, found)
        kept = [line for line in PINS.read_text().splitlines() if line.split()[0] != name]
        PINS.write_text("\n".join(sorted([*kept, f"{name} {seed} {invariant}"])) + "\n")
    assert caught_by(name, int(seed)) == invariant, again


def caught_by(name, seed):
    with built_in(QUORUM_MUTANTS[name]):
        try:
            QuorumDriver(seed).run(EVENTS)
        except InvariantViolated as violated:
            return violated.invariant
    return None


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_script_of_a_history_fails_with_its_bug(name):
    script = SCRIPTS[name]
    script()
    with built_in(QUORUM_HISTORY_MUTANTS[name]), pytest.raises((AssertionError, InvariantViolated)):
        script()


def test_every_mutant_is_caught():
    assert {name for name, _, _ in CAUGHT} == QUORUM_MUTANTS.keys()
    # The others have transcripts only: tests/interaction/test_histories.py.
    assert SCRIPTS.keys() <= QUORUM_HISTORY_MUTANTS.keys()
