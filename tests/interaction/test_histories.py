"""Each script of a bug's history catches the bug: built into the code, it makes the script fail."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.transcript.simulated import replay_simulated
from tests.mutants.control_mutants import CONTROL_MUTANTS
from tests.mutants.history_mutants import HISTORY_MUTANTS
from tests.mutants.mutants import MUTANTS, built_in
from tests.mutants.quorum_mutants import QUORUM_HISTORY_MUTANTS, QUORUM_MUTANTS

ALL_MUTANTS = {
    **MUTANTS,
    **HISTORY_MUTANTS,
    **CONTROL_MUTANTS,
    **QUORUM_MUTANTS,
    **QUORUM_HISTORY_MUTANTS,
}
TRANSCRIPTS = Path(__file__).parent / "transcripts"
# (mutant, its script, how it shows: the invariant that notices, or a line that the script prints instead);
# two mutants with an "and" between them where one thing guards behind another.
CAUGHT = [
    ("cut_to_the_mark", "kip_101_truncation_to_the_high_watermark", "LeaderCompleteness"),
    ("never_diverge", "kip_101_power_cut_on_both", "StrongIsr"),
    ("never_diverge", "kip_279_fast_failovers", "2  e0@0 e1@1 e3@2"),
    ("cut_where_any_epoch_ends", "kip_279_fast_failovers", "2  e0@0 e1@1 e3@2"),
    ("join_at_the_mark", "kafka_7128_join_at_a_lagging_mark", "IsrGrowth"),
    ("note_no_epoch", "kafka_7415_elections_without_writes", "LeaderCompleteness"),
    ("commit_below_min_isr", "high_watermark_frozen_under_min_isr", "m1: NotEnoughReplicasAfterAppend"),
    ("commit_below_min_isr", "produce_completion", "c1: NotEnoughReplicasAfterAppend"),
    (
        "keep_epochs_at_the_end",
        "kafka_10706_truncation_to_the_log_end",
        "2: the leader keeps its fetch until there is news",
    ),
    ("take_the_mark_of_diverging_answers", "kafka_14704_diverging_with_a_high_watermark", "LogMatching"),
    ("count_diverging_fetches", "kafka_13141_diverging_fetch_is_no_progress", "WeakIsr"),
    ("cut_what_has_left_the_fetcher", "kafka_13207_late_diverging_answer", "NeverBack"),
    ("forget_marks_without_a_leader", "kafka_1647_checkpoint_without_a_leader", "NeverBack"),
    (
        "leave_the_mark_behind",
        "kafka_9491_full_truncation_moves_the_high_watermark",
        "2       follower  0      5      1   5",
    ),
    ("show_the_uncommitted", "kafka_9196_roll_at_the_high_watermark", "2=m2 3=m3"),
    ("serve_what_rotted", "rot_on_the_leader", "InvalidCrc"),
    ("believe_any_epoch", "rot_and_a_stale_peer", "LogMatching"),
    (
        "go_on_with_a_failed_log and go_on_with_a_failed_directory",
        "kafka_10778_append_that_failed",
        "NothingAfterFailure",
    ),
    (
        "go_on_with_a_failed_log and go_on_with_a_failed_directory",
        "kafka_10778_flush_that_failed",
        "NothingAfterFailure",
    ),
    ("trust_a_crashed_log", "kafka_10471_crash_while_loading", "Durable"),
    (
        "forget_broker_epochs",
        "kip_903_restart_before_the_answer",
        "controller: t-0 has ISR 1,2,3 (partition epoch 2)",
    ),
    (
        "acknowledge_with_too_few and commit_below_min_isr",
        "produce_completion",
        "c1: acknowledged at offset 1",
    ),
    (
        "keep_what_the_leader_cannot_check and join_below_the_log_start",
        "records_below_the_leaders_log_start",
        "NeverBack",
    ),
    (
        "tell_marks_once",
        "answer_during_a_change_of_role",
        "2       follower  2      0      1   2",
    ),
    ("apply_stale_answers", "stale_answer_of_an_earlier_epoch", "2  e0: 0=b0 1=m0"),
    ("name_epochs_before_their_flush", "kafka_16541_power_cut_at_an_epoch_checkpoint", "WeakIsr"),
    # ---- whole nodes
    ("commit_without_those_about_to_join", "maximal_isr_and_an_election", "StrongIsr"),
    ("forget_broker_epochs", "kip_903_lossy_restart", "StrongIsr"),
    ("reassign_within_an_epoch and remember_who_went", "reassignment_aba", "IsrGrowth"),
    ("forget_unclean_shutdowns", "kip_966_last_replica_loses_its_tail", "LeaderCompleteness"),
    ("admit_the_fenced and ask_for_the_fenced", "kip_841_fenced_replica", "LegalIsr"),
    ("forget_who_else_expired", "kafka_13173_two_sessions_end_at_once", "LegalIsr"),
    # ---- a quorum
    (
        "come_back_without_memory and elect_anybody",
        "kafka_10661_restarted_leader_votes_again",
        "OneVote",
    ),
    ("announce_what_is_over", "kafka_17333_resigned_leader_announces_itself", "NoIllegalState"),
    ("end_producers_unheard", "standstill_of_a_leader", "p2: OutOfOrderSequenceNumber"),
    ("hear_fetches_from_before", "standstill_of_a_leader", "p2: OutOfOrderSequenceNumber"),
    ("lead_nobody", "kafka_15489_leader_without_a_majority", "CheckQuorum"),
    ("clean_past_the_snapshot", "kafka_14238_log_without_its_snapshot", "SnapshotAtLogStart"),
    ("end_snapshots_anywhere", "kafka_14618_snapshot_inside_a_batch", "a snapshot up to 4"),
    ("refuse_who_was_wiped", "kafka_12181_wiped_voter", "2  nothing"),
    (
        "cut_what_is_committed",
        "kafka_12460_truncation_below_the_mark",
        "3     follower  1      1       0      1   1",
    ),
    ("count_who_is_removed", "kafka_16530_leader_removes_itself", "MajorityReachedHighWatermark"),
    ("change_voters_too_early", "kafka_16530_voter_added_too_early", "OneChangeOfVoters"),
    ("ask_nobody_before", "kip_996_partitioned_voter", "PreVote"),
]

# The same where a leader does not compare epochs at each fetch, as it does since Kafka 2.7. A script holds
# without this second look, and does not with the bug besides.
CAUGHT_BEFORE = [
    ("cut_where_any_epoch_ends", "kip_279_before_fetches_told_epochs", "2  e0@0 e1@1 e3@2"),
    ("answer_in_any_epoch", "kip_320_truncation_by_a_zombie", "WeakIsr"),
    ("trust_the_same_leader", "kafka_7164_the_same_leader_again", "WeakIsr"),
]


@pytest.mark.parametrize(("name", "script", "shown"), CAUGHT, ids=[f"{n}-{s}" for n, s, _ in CAUGHT])
def test_a_history_with_its_bug_does_not_hold(name, script, shown):
    text = (TRANSCRIPTS / f"{script}.txt").read_text()
    assert shown in what_shows(name, text)


@pytest.mark.parametrize(("name", "script", "shown"), CAUGHT_BEFORE, ids=[n for n, *_ in CAUGHT_BEFORE])
def test_a_history_of_before_with_its_bug_does_not_hold(name, script, shown):
    text = (TRANSCRIPTS / f"{script}.txt").read_text()
    with built_in(MUTANTS["never_diverge"]):
        assert replay_simulated(text) == text
        assert shown in what_shows(name, text)


@pytest.mark.parametrize("durability", ["page_cache", "fsync"])
def test_only_fsync_on_a_quorum_survives_what_its_script_does(durability):
    text = (TRANSCRIPTS / "durability_fsync_on_a_quorum.txt").read_text()
    with pytest.raises(InvariantViolated, match="LeaderCompleteness"):
        replay_simulated(text.replace("durability=fsync_quorum", f"durability={durability}"))


def what_shows(name, text):
    """The invariant that notices the mutant, or the lines that the script prints instead of its own."""
    with ExitStack() as stack:
        for each in name.split(" and "):
            stack.enter_context(built_in(ALL_MUTANTS[each]))
        try:
            replayed = replay_simulated(text)
        except InvariantViolated as violated:
            return [violated.invariant]
        except AssertionError:
            # An assertion of the code itself notices it first.
            return ["AssertionError"]
    return set(replayed.splitlines()) - set(text.splitlines())


def test_every_bug_of_a_history_is_caught():
    names = " and ".join(name for name, *_ in CAUGHT + CAUGHT_BEFORE)
    assert HISTORY_MUTANTS.keys() | CONTROL_MUTANTS.keys() | QUORUM_HISTORY_MUTANTS.keys() <= set(
        names.split(" and ")
    )
