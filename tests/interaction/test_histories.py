"""Each script of a bug's history catches the bug: built into the code, it makes the script fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from kreplica.sim.history_mutants import HISTORY_MUTANTS
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.mutants import MUTANTS, built_in
from kreplica.sim.transcript.simulated import replay_simulated

TRANSCRIPTS = Path(__file__).parent / "transcripts"
# (mutant, its script, how it shows: the invariant that notices, or a line that the script prints instead)
CAUGHT = [
    (
        "keep_epochs_at_the_end",
        "kafka_10706_truncation_to_the_log_end",
        "2: the leader keeps its fetch until there is news",
    ),
    ("take_the_mark_of_diverging_answers", "kafka_14704_diverging_with_a_high_watermark", "LogMatching"),
    ("count_diverging_fetches", "kafka_13141_diverging_fetch_is_no_progress", "WeakIsr"),
    ("cut_what_has_left_the_fetcher", "kafka_13207_late_diverging_answer", "NeverBack"),
    (
        "forget_marks_without_a_leader",
        "kafka_1647_checkpoint_without_a_leader",
        "2       follower  0      0      0   2",
    ),
    (
        "leave_the_mark_behind",
        "kafka_9491_full_truncation_moves_the_high_watermark",
        "2       follower  0      5      1   5",
    ),
    ("show_the_uncommitted", "kafka_9196_roll_at_the_high_watermark", "2=m2 3=m3"),
]


@pytest.mark.parametrize(("name", "script", "shown"), CAUGHT, ids=[name for name, *_ in CAUGHT])
def test_a_history_with_its_bug_does_not_hold(name, script, shown):
    text = (TRANSCRIPTS / f"{script}.txt").read_text()
    assert shown in what_shows(name, text)


def what_shows(name, text):
    """The invariant that notices the mutant, or the lines that the script prints instead of its own."""
    with built_in({**MUTANTS, **HISTORY_MUTANTS}[name]):
        try:
            replayed = replay_simulated(text)
        except InvariantViolated as violated:
            return [violated.invariant]
    return set(replayed.splitlines()) - set(text.splitlines())


def test_every_bug_of_a_history_is_caught():
    assert HISTORY_MUTANTS.keys() <= {name for name, *_ in CAUGHT}
