"""Groups of the consumer protocol: heartbeats, epochs, assignments, sessions, and what a fail-over leaves."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from kreplica._core.batch_builder import BatchBuilder
from kreplica.common import errors
from kreplica.coordinator.consumer_groups import WAITING_HEARTBEAT_MS, ConsumerHeartbeat
from kreplica.coordinator.group_records import (
    AssignedTopicPartitions,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    encode_key,
    encode_value,
)
from kreplica.coordinator.shard_store import TransactionalProducer
from kreplica.coordinator.subscription_patterns import NAMES_PER_STEP
from tests.support.consumer_stage import ConsumerStage, MadeTopics, owned, topic_id, with_config


@pytest.fixture
def stage():
    return ConsumerStage()


def two_members(stage):
    """A stable group of a with t-0 and b with t-1, both in epoch 3."""
    stage.beat("a")
    stage.beat("b")
    stage.beat("a", 2, owned=owned(t=[0, 1]))
    stage.beat("a", 2, owned=owned(t=[0]))
    stage.beat("b", 3)
    assert stage.state == ("Stable", 3, 3, {"a": (3, {"t": {0}}), "b": (3, {"t": {1}})})


def test_the_first_member_gets_everything_in_epoch_2(stage):
    answer = stage.beat("a")
    assert answer == ("a", 2, 100, owned(t=[0, 1]))
    assert stage.state == ("Stable", 2, 2, {"a": (2, {"t": {0, 1}})})


def test_a_partition_moves_when_its_owner_has_given_it_up(stage):
    stage.beat("a")
    assert stage.beat("b") == ("b", 3, 100, {})
    assert stage.state[0] == "Reconciling"
    assert stage.beat("a", 2, owned=owned(t=[0, 1])) == ("a", 2, 100, owned(t=[0]))
    # It is still b's turn to wait: a has only been asked.
    assert stage.beat("b", 3) == ("b", 3, 100, None)
    assert stage.beat("a", 2, owned=owned(t=[0])) == ("a", 3, 100, None)
    assert stage.beat("b", 3) == ("b", 3, 100, owned(t=[1]))
    assert stage.state == ("Stable", 3, 3, {"a": (3, {"t": {0}}), "b": (3, {"t": {1}})})


def test_a_member_that_waits_for_partitions_or_an_assignment_sends_heartbeats_more_often():
    stage = ConsumerStage(heartbeat_interval_ms=5_000)
    assert stage.beat("a").heartbeat_interval_ms == 5_000
    assert stage.beat("b").heartbeat_interval_ms == WAITING_HEARTBEAT_MS
    assert stage.beat("a", 2, owned=owned(t=[0, 1])).heartbeat_interval_ms == 5_000
    assert stage.beat("b", 3).heartbeat_interval_ms == WAITING_HEARTBEAT_MS
    assert stage.beat("a", 2, owned=owned(t=[0])).heartbeat_interval_ms == 5_000
    assert stage.beat("b", 3).heartbeat_interval_ms == 5_000
    stage = ConsumerStage(heartbeat_interval_ms=5_000, assignment_interval_ms=2_000)
    stage.beat("a")
    assert stage.beat("b").heartbeat_interval_ms == WAITING_HEARTBEAT_MS
    assert stage.beat("a", 2, owned=owned(t=[0, 1])).heartbeat_interval_ms == WAITING_HEARTBEAT_MS


def test_a_member_that_does_not_give_up_in_time_is_fenced(stage):
    stage.beat("a")
    stage.beat("b")
    stage.beat("a", 2, owned=owned(t=[0, 1]))
    stage.pass_time(400)
    stage.beat("b", 3)
    stage.beat("a", 2)
    stage.pass_time(200)
    assert stage.refusal("a", 2) is errors.UnknownMemberId
    assert stage.beat("b", 3) == ("b", 4, 100, owned(t=[0, 1]))


def test_a_silent_member_is_out_after_its_session(stage):
    two_members(stage)
    stage.pass_time(600)
    stage.beat("b", 3)
    stage.pass_time(600)
    assert stage.refusal("a", 3) is errors.UnknownMemberId
    assert stage.beat("b", 3) == ("b", 4, 100, owned(t=[0, 1]))


def test_members_are_asked_for_heartbeats_right_after_the_end_of_a_session(stage):
    two_members(stage)
    stage.pass_time(850)
    assert stage.beat("b", 3).heartbeat_interval_ms == 100
    stage.pass_time(100)
    # The session of a ends in 50 ms.
    assert stage.beat("b", 3).heartbeat_interval_ms == 65
    stage.pass_time(65)
    assert stage.beat("b", 3) == ("b", 4, 100, owned(t=[0, 1]))


def test_a_member_that_returns_in_time_leaves_the_heartbeats_of_the_others_as_they_are(stage):
    two_members(stage)
    stage.pass_time(950)
    assert stage.beat("a", 3).heartbeat_interval_ms == 65
    assert stage.beat("b", 3).heartbeat_interval_ms == 100
    assert stage.beat("a", 3).heartbeat_interval_ms == 100
    stage.pass_time(100)
    assert stage.beat("b", 3) == ("b", 3, 100, None)


def test_a_coordinator_that_stalled_removes_no_member(stage):
    two_members(stage)
    stage.stand_still(5_000)
    assert stage.beat("a", 3).member_epoch == 3


def test_a_member_that_leaves_frees_its_partitions(stage):
    two_members(stage)
    assert stage.beat("a", -1) == ("a", -1, 0, None)
    assert stage.beat("b", 3) == ("b", 4, 100, owned(t=[0, 1]))
    assert stage.beat("b", -1) == ("b", -1, 0, None)
    assert stage.state[0] == "Empty"
    assert stage.beat("b").assignment == owned(t=[0, 1])


# ---- checks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "epoch", "options"),
    [
        (errors.InvalidRequest, 0, {"member_id": ""}),
        (errors.InvalidRequest, 1, {"member_id": "", "makes_member_id": False}),
        (errors.InvalidRequest, -1, {"member_id": "", "makes_member_id": False}),
        (errors.InvalidRequest, 0, {"group_id": ""}),
        (errors.InvalidRequest, 0, {"instance_id": ""}),
        (errors.InvalidRequest, 0, {"rack_id": ""}),
        (errors.InvalidRequest, 0, {"rebalance_timeout_ms": -1}),
        (errors.InvalidRequest, 0, {"owned": None}),
        (errors.InvalidRequest, 0, {"owned": owned(t=[0])}),
        (errors.InvalidRequest, 0, {"owned": owned(t=[])}),
        (errors.InvalidRequest, 0, {"topics": None}),
        (errors.InvalidRequest, -2, {}),
        (errors.InvalidRequest, -3, {"instance_id": "i"}),
        (errors.UnsupportedAssignor, 0, {"assignor": "best"}),
        (errors.GroupIdNotFound, 1, {"group_id": "other"}),
        (errors.GroupIdNotFound, -1, {"group_id": "other"}),
        (errors.UnknownMemberId, 1, {"member_id": "stranger"}),
        (errors.UnknownMemberId, -1, {"member_id": "stranger"}),
        (errors.UnknownMemberId, 3, {"instance_id": "unknown"}),
        (errors.FencedMemberEpoch, 4, {}),
        (errors.FencedMemberEpoch, 1, {"owned": {}}),
        (errors.FencedMemberEpoch, 2, {}),
        (errors.FencedMemberEpoch, 2, {"owned": owned(t=[1])}),
    ],
)
def test_a_heartbeat_is_refused(stage, error, epoch, options):
    two_members(stage)
    before = stage.state
    assert stage.refusal("a", epoch, **options) is error
    assert stage.state == before


def test_a_client_of_version_0_gets_a_member_id(stage):
    answer = stage.beat("", makes_member_id=False)
    assert answer.member_id
    assert stage.beat(answer.member_id, 2).member_epoch == 2


def test_a_group_has_its_size():
    stage = ConsumerStage(with_config(group_consumer_max_size=1))
    stage.beat("a")
    assert stage.refusal("b") is errors.GroupMaxSizeReached
    assert stage.refusal("b", 3) is errors.GroupMaxSizeReached
    assert stage.refusal("b", 3, instance_id="i") is errors.GroupMaxSizeReached
    assert stage.refusal("b", -1) is errors.UnknownMemberId
    assert stage.beat("a").member_epoch == 2


@pytest.mark.parametrize("error", [errors.MessageTooLarge, errors.RecordListTooLarge])
def test_a_heartbeat_whose_records_are_too_large_changes_nothing(stage, error):
    two_members(stage)
    before = stage.state
    stage.log.error = error()
    assert stage.refusal("c") is errors.UnknownServerError
    assert stage.state == before


def test_a_lost_answer_is_given_again(stage):
    two_members(stage)
    assert stage.beat("a", 2, owned=owned(t=[0])) == ("a", 3, 100, None)
    full = {"topics": ["t"], "rebalance_timeout_ms": 500, "owned": owned(t=[0])}
    assert stage.beat("a", 2, **full) == ("a", 3, 100, owned(t=[0]))
    assert stage.beat("a", 3, **full) == ("a", 3, 100, owned(t=[0]))


def test_a_member_that_reports_other_partitions_than_it_was_assigned_is_told_again(stage):
    assigned = stage.beat("a").assignment
    assert stage.beat("a", 2).assignment is None
    assert stage.beat("a", 2, owned=owned(t=[0])).assignment == assigned
    assert stage.beat("a", 2, owned=assigned).assignment is None
    stage.beat("b")
    for _ in range(2):
        assert stage.beat("a", 2, owned=assigned).assignment == owned(t=[0])


def test_a_member_that_lost_everything_joins_again_under_its_id(stage):
    """KAFKA-19233: it was refused because it was still known."""
    two_members(stage)
    assert stage.beat("a", 0) == ("a", 3, 100, owned(t=[0]))


# ---- subscriptions -------------------------------------------------------------------------------------


def test_another_subscription_is_another_epoch(stage):
    stage.beat("a")
    answer = stage.beat("a", 2, topics=["u", "t", "u"], owned=owned(t=[0, 1]))
    assert answer == ("a", 3, 100, owned(t=[0, 1], u=[0]))
    assert stage.beat("a", 3, topics=["t", "u"]).member_epoch == 3


def test_kafka_19431_a_member_loses_what_it_no_longer_subscribes_to_before_the_next_assignment():
    stage = ConsumerStage(assignment_interval_ms=10_000)
    stage.beat("a", topics=["t", "u"])
    answer = stage.beat("a", 2, topics=["t"], owned=owned(t=[0, 1], u=[0]))
    assert answer == ("a", 2, 100, owned(t=[0, 1]))
    assert stage.state[:3] == ("Assigning", 3, 2)
    stage.beat("b", topics=["u"])
    stage.pass_time(400)
    stage.beat("a", 2, owned=owned(t=[0, 1]))
    assert stage.state[3]["a"] == (2, {"t": {0, 1}})


def test_a_topic_that_grows_or_appears_is_assigned(stage):
    stage.beat("a", topics=["t", "new"])
    stage.topics.counts |= {"t": 3, "new": 1}
    stage.coordinator.change_topics(["t", "new"], has_other_names=True)
    stage.settle()
    assert stage.beat("a", 2) == ("a", 3, 100, owned(t=[0, 1, 2], new=[0]))
    stage.coordinator.change_topics(["t"], has_other_names=False)
    assert stage.beat("a", 3).member_epoch == 3
    del stage.topics.counts["t"]
    stage.coordinator.change_topics(["t"], has_other_names=True)
    assert stage.beat("a", 3, owned=owned(t=[0, 1, 2], new=[0])).assignment == owned(new=[0])


def test_the_assignor_that_most_members_ask_for_is_used(stage):
    stage.beat("a", assignor="range")
    assert stage.group().assignor == "range"
    stage.beat("b", assignor="uniform")
    assert stage.group().assignor == "uniform"
    stage.beat("a", 2, assignor="uniform")
    stage.beat("b", 3, assignor="range")
    stage.beat("c", assignor="range")
    assert stage.group().assignor == "range"


def test_an_assignor_that_fails_leaves_everything_as_it_was(stage):
    two_members(stage)
    before = stage.in_memory()

    def fail(_members, _partitions):
        raise errors.UnknownServerError("broken")

    stage.assign = fail
    assert stage.refusal("c") is errors.UnknownServerError
    assert stage.in_memory() == before


def test_assignments_have_an_interval_and_the_last_one_is_not_forgotten():
    stage = ConsumerStage(assignment_interval_ms=300)
    stage.beat("a")
    assert stage.beat("b") == ("b", 2, 100, {})
    assert stage.state[:3] == ("Assigning", 3, 2)
    stage.pass_time(310)
    assert stage.state[:3] == ("Reconciling", 3, 3)
    assert stage.beat("a", 2, owned=owned(t=[0, 1])).assignment == owned(t=[0])


def test_a_member_that_misses_its_new_epoch_and_then_what_to_give_up_is_not_fenced(stage):
    stage.beat("a")
    stage.beat("b", topics=["u"])
    stage.beat("a", 2)  # its answer, with epoch 3, is lost
    stage.beat("c")
    for _ in range(2):  # and so is the next one
        answer = stage.beat("a", 2, owned=owned(t=[0, 1]))
        assert (answer.member_epoch, answer.assignment) == (3, owned(t=[0]))
    assert stage.refusal("a", 2, owned=owned(t=[0, 1], u=[0])) is errors.FencedMemberEpoch
    assert stage.beat("a", 3, owned=owned(t=[0])).member_epoch == 4


# ---- regular expressions -------------------------------------------------------------------------------


def test_a_regex_is_resolved_after_the_heartbeat(stage):
    assert stage.beat("a", topics=None, regex="t.*").assignment == {}
    assert stage.beat("a", 2) == ("a", 3, 100, owned(t=[0, 1]))
    stage.topics.counts["tea"] = 1
    stage.coordinator.change_topics(["tea"], has_other_names=True)
    stage.settle()
    stage.beat("a", 3)
    assert stage.beat("a", 3).member_epoch == 3  # it was resolved less than 10 s ago
    stay(stage, "a")
    assert stage.beat("a", 4) == ("a", 4, 100, None)
    assert stage.state[3] == {"a": (4, {"t": {0, 1}, "tea": {0}})}


def stay(stage, member_id):
    """Send heartbeats until the regexes of the group may be resolved again."""
    for _ in range(12):
        stage.pass_time(950)
        stage.beat(member_id, stage.state[3][member_id][0])


def test_new_topics_are_found_after_the_pause_without_another_heartbeat(stage):
    stage.beat("a", topics=None, regex="t.*")
    assert stage.beat("a", 2).assignment == owned(t=[0, 1])
    for _ in range(10):
        stage.pass_time(950)
        stage.beat("a", 3)
    stage.topics.counts["tea"] = 1
    stage.coordinator.change_topics(["tea"], has_other_names=True)
    stage.pass_time(600)
    # The pause has ended, and nothing but time has passed since the topic came.
    assert stage.beat("a", 3) == ("a", 4, 100, owned(t=[0, 1], tea=[0]))


def test_a_new_topic_is_found_at_once_when_the_pause_is_over(stage):
    stage.beat("a", topics=None, regex="t.*")
    stage.beat("a", 2)
    stay(stage, "a")
    stage.topics.counts["tea"] = 1
    stage.coordinator.change_topics(["tea"], has_other_names=True)
    stage.settle()
    assert stage.beat("a", 3) == ("a", 4, 100, owned(t=[0, 1], tea=[0]))


def test_names_and_a_regex_go_together(stage):
    stage.beat("a", topics=["u"], regex="t.*")
    assert stage.beat("a", 2).assignment == owned(t=[0, 1], u=[0])
    answer = stage.beat("a", 3, regex="", owned=owned(t=[0, 1], u=[0]))
    assert answer.assignment == owned(u=[0])
    shard = stage.coordinator.shards[0]
    assert (shard.groups["g"].regexes, shard.groups["g"].regex_subscribers) == ({}, {})
    assert stage.reloaded().in_memory() == stage.in_memory()


def test_a_regex_that_cannot_be_compiled_is_refused():
    stage = ConsumerStage()
    assert stage.refusal("a", topics=None, regex="(") is errors.InvalidRegularExpression
    assert stage.in_memory() == {}


def test_a_regex_is_resolved_over_many_topics_in_steps_of_the_loop(stage):
    stage.topics.counts.update({f"x{n}": 1 for n in range(3 * NAMES_PER_STEP)})
    stage.beat("a", topics=None, regex="x1?7")
    assert stage.beat("a", 2).assignment == owned(x7=[0], x17=[0])


def test_a_regex_whose_topics_could_not_be_stored_is_resolved_again(stage):
    stage.beat("a", topics=None, regex="t.*")
    assert stage.beat("a", 2).assignment == owned(t=[0, 1])
    stage.topics.counts["tea"] = 1
    stage.coordinator.change_topics(["tea"], has_other_names=True)
    stage.log.error = errors.NotEnoughReplicas()
    stay(stage, "a")
    stage.log.error = None
    stay(stage, "a")
    assert stage.state[3] == {"a": (4, {"t": {0, 1}, "tea": {0}})}


class Sees(NamedTuple):
    """The rights of a member that may describe these topics."""

    names: frozenset

    def __call__(self, name):
        return name in self.names


def sees(*names):
    return Sees(frozenset(names))


def topics_after_pause(stage, **rights):
    """Send heartbeats of members with these rights until the regexes are resolved again; return what each
    has."""
    for _ in range(12):
        stage.pass_time(950)
        for member, each in rights.items():
            epoch, topics = stage.state[3][member]
            stage.beat(member, epoch, owned=owned(**topics), sees_topic=each)
    return {member: set(topics) for member, (_, topics) in stage.state[3].items()}


def resolved(stage):
    return stage.coordinator.shards[0].groups["g"].regexes["t.*"].topics


def test_a_regex_has_only_topics_that_its_members_may_describe(stage):
    stage.topics.counts["tea"] = 1
    options = {"topics": None, "regex": "t.*", "owned": {}}
    stage.beat("a", sees_topic=sees("tea", "u"), **options)
    assert stage.beat("a", 2, sees_topic=sees("tea", "u")).assignment == owned(tea=[0])
    # A member without limits shares the expression, and what the other may not know.
    stage.beat("b", **options)
    found = topics_after_pause(stage, a=sees("tea", "u"), b=None)
    assert (found["a"] | found["b"], resolved(stage)) == ({"tea"}, ("tea",))


def test_a_topic_that_a_new_member_may_not_describe_is_never_assigned_to_it(stage):
    stage.topics.counts["tea"] = 1
    stage.beat("a", topics=None, regex="t.*")
    assert stage.beat("a", 2).assignment == owned(t=[0, 1], tea=[0])
    joined = stage.beat("b", topics=None, regex="t.*", sees_topic=sees("tea"))
    assert (joined.assignment, resolved(stage)) == ({}, ("tea",))
    stage.beat("a", 3)
    stage.beat("a", 3, owned=owned(tea=[0]))
    assert set(stage.state[3]["a"][1]) == {"tea"}
    # When it has left, the other gets all topics back.
    stage.beat("b", -1)
    assert topics_after_pause(stage, a=None) == {"a": {"t", "tea"}}


def test_rights_that_a_member_loses_count_at_its_next_heartbeat(stage):
    stage.topics.counts["tea"] = 1
    stage.beat("a", topics=None, regex="t.*", sees_topic=sees("t", "tea"))
    assert stage.beat("a", 2, sees_topic=sees("t", "tea")).assignment == owned(t=[0, 1], tea=[0])
    assert stage.beat("a", 3, sees_topic=sees("t")).assignment == owned(t=[0, 1])
    assert stage.reloaded().in_memory() == stage.in_memory()


def test_a_regex_gets_no_topics_while_the_rights_of_a_member_are_unknown(stage):
    rights = sees("t")
    for member in "ab":
        stage.beat(member, topics=None, regex="t.*", sees_topic=rights)
    topics_after_pause(stage, a=rights, b=rights)
    stage.topics.counts["tea"] = 1
    stage = stage.reloaded()
    stage.coordinator.change_topics(["tea"], has_other_names=True)
    stage.settle()
    changed, epoch = sees("t", "tea"), stage.state[3]["a"][0]
    stage.beat("a", epoch, sees_topic=changed)
    assert resolved(stage) == ("t",)
    stage.beat("b", epoch, sees_topic=changed)
    assert resolved(stage) == ("t", "tea")


def test_topics_that_a_member_may_not_describe_are_hidden_if_it_joins_during_the_resolution(stage):
    stage.topics.counts.update({f"t{n}": 1 for n in range(3 * NAMES_PER_STEP)})
    asked = ConsumerHeartbeat("g", "a", 0, rebalance_timeout_ms=500, regex="t.*", owned={})
    stage.coordinator.consumer_heartbeat(asked)
    stage.coordinator.consumer_heartbeat(asked._replace(member_id="b", sees_topic=sees("t1", "t7")))
    stage.settle()
    assert resolved(stage) == ("t1", "t7")


def test_a_narrowed_regex_that_could_not_be_stored_is_narrowed_again(stage):
    stage.beat("a", topics=None, regex="t.*")
    stage.beat("a", 2)
    stage.log.error = errors.NotEnoughReplicas()
    join = {"topics": None, "regex": "t.*", "sees_topic": sees("u")}
    assert stage.refusal("b", **join) is errors.CoordinatorNotAvailable
    stage.log.error = None
    assert stage.beat("b", **join).assignment == {}
    assert resolved(stage) == ()


# ---- static members ------------------------------------------------------------------------------------


def test_a_static_member_takes_its_place_again_without_a_rebalance(stage):
    stage.beat("a", instance_id="i")
    assert stage.refusal("a2", instance_id="i") is errors.UnreleasedInstanceId
    assert stage.refusal("a", instance_id="i") is errors.UnreleasedInstanceId
    assert stage.beat("a", -2, instance_id="i") == ("a", -2, 0, None)
    assert stage.state == ("Reconciling", 2, 2, {"a": (-2, {"t": {0, 1}})})
    assert stage.beat("a2", instance_id="i") == ("a2", 2, 100, owned(t=[0, 1]))
    assert stage.state == ("Stable", 2, 2, {"a2": (2, {"t": {0, 1}})})
    assert stage.refusal("a", 2, instance_id="i") is errors.FencedInstanceId
    assert stage.refusal("a", -1, instance_id="i") is errors.FencedInstanceId
    assert stage.reloaded().in_memory() == stage.in_memory()


def test_a_static_member_may_come_back_under_its_member_id(stage):
    stage.beat("a", instance_id="i")
    stage.beat("a", -2, instance_id="i")
    assert stage.beat("a", instance_id="i") == ("a", 2, 100, owned(t=[0, 1]))


def test_a_static_member_that_has_left_comes_back_only_by_joining(stage):
    stage.beat("a", instance_id="i")
    stage.beat("b")
    stage.beat("a", 2, instance_id="i", owned=owned(t=[0, 1]))
    stage.beat("a", 2, instance_id="i", owned=owned(t=[0]))
    stage.beat("a", -2, instance_id="i")
    before = stage.state
    # 2 was its epoch before the last one.
    assert stage.refusal("a", 2, instance_id="i", owned={}) is errors.FencedMemberEpoch
    assert stage.state == before


def test_a_static_member_that_stays_away_leaves_after_its_session(stage):
    stage.beat("a", instance_id="i")
    stage.beat("a", -2, instance_id="i")
    stage.pass_time(1_100)
    assert stage.state == ("Empty", 3, 2, {})
    assert stage.beat("a2", instance_id="i").member_epoch == 4


def test_a_static_member_that_comes_back_with_another_subscription_causes_a_rebalance(stage):
    stage.beat("a", instance_id="i")
    stage.beat("a", -2, instance_id="i")
    assert stage.beat("a2", instance_id="i", topics=["u"]) == ("a2", 3, 100, owned(u=[0]))


# ---- offsets -------------------------------------------------------------------------------------------


def commit(
    stage, member="", epoch=-1, partition=0, *, knows_epochs=True, offset=5, producer=None, instance=None
):
    from kreplica.common.types import TopicPartition
    from kreplica.coordinator.group_offsets import CommitRequest, CommittedOffset
    from tests.support.consumer_stage import topic_id

    at = TopicPartition("t", partition)
    asked = CommitRequest(
        "g",
        epoch,
        member,
        instance,
        {at: CommittedOffset(offset)},
        producer,
        knows_epochs=knows_epochs and producer is None,
        topic_ids={"t": topic_id("t")},
    )
    future = stage.coordinator.commit_offsets(asked)
    stage.settle()
    error = future.exception(0) or future.result(0)[at]
    return None if error is None else type(error)


@pytest.mark.parametrize("member", ["", "stranger"])
@pytest.mark.parametrize("knows_epochs", [True, False])
def test_without_an_epoch_a_commit_makes_the_group_and_needs_no_member(stage, member, knows_epochs):
    assert commit(stage, member, -1, knows_epochs=knows_epochs) is None
    assert commit(stage, member, -1, knows_epochs=knows_epochs) is None
    assert commit(stage, member, 0, knows_epochs=knows_epochs) is errors.UnknownMemberId


def test_commits_are_checked_against_the_epoch_since_which_the_partition_is_owned(stage):
    assert commit(stage, "a", 2) is errors.GroupIdNotFound
    assert commit(stage, "a", 2, knows_epochs=False) is errors.IllegalGeneration
    two_members(stage)
    assert commit(stage, "stranger", 3) is errors.UnknownMemberId
    assert commit(stage) is errors.UnknownMemberId
    assert commit(stage, "a", 3, knows_epochs=False) is errors.UnsupportedVersion
    assert commit(stage, "a", 3) is None
    assert commit(stage, "a", 4) is errors.StaleMemberEpoch
    assert commit(stage, "a", 2) is None  # a has had t-0 since epoch 2
    assert commit(stage, "a", 2, partition=1) is errors.StaleMemberEpoch
    assert commit(stage, "b", 2, partition=1) is errors.StaleMemberEpoch
    stage.beat("a", -1)
    stage.beat("b", -1)
    assert commit(stage, offset=7) is None
    assert {at.partition: offset for at, offset in stage.committed().items()} == {0: 7}


def test_a_transaction_commits_offsets_with_the_epoch_of_its_member_or_without_one(stage):
    producer = TransactionalProducer(7, 0)
    assert commit(stage, "a", 2, producer=producer) is errors.IllegalGeneration
    two_members(stage)
    # A producer before KIP-447 names no member.
    assert commit(stage, producer=producer) is None
    assert commit(stage, instance="i", producer=producer) is errors.UnknownMemberId
    assert commit(stage, "stranger", producer=producer) is errors.UnknownMemberId
    assert commit(stage, "stranger", 3, producer=producer) is errors.UnknownMemberId
    assert commit(stage, "a", 3, producer=producer) is None
    assert commit(stage, "a", 2, producer=producer) is None  # a has had t-0 since epoch 2 (KIP-1251)
    # Producers know no StaleMemberEpoch, which would end them.
    assert commit(stage, "a", 4, producer=producer) is errors.IllegalGeneration
    assert commit(stage, "a", -1, producer=producer) is errors.IllegalGeneration
    assert commit(stage, "b", 2, partition=1, producer=producer) is errors.IllegalGeneration


def test_a_member_commits_what_it_has_to_give_up(stage):
    stage.beat("a")
    stage.beat("b")
    stage.beat("a", 2, owned=owned(t=[0, 1]))
    assert commit(stage, "a", 2, partition=1) is None


def test_a_member_reads_offsets_with_its_epoch(stage):
    two_members(stage)

    def fetch(member_id, epoch):
        future = stage.coordinator.fetch_offsets("g", None, member_id=member_id, member_epoch=epoch)
        stage.settle()
        return type(future.exception(0))

    assert fetch("a", 3) is type(None)
    assert fetch(None, -1) is type(None)
    assert fetch("a", 2) is errors.StaleMemberEpoch
    assert fetch("stranger", 3) is errors.UnknownMemberId


def test_an_empty_group_is_deleted_with_its_offsets(stage):
    stage.beat("a")
    commit(stage, "a", 2)
    assert isinstance(stage.delete(), errors.NonEmptyGroup)
    stage.beat("a", -1)
    assert stage.delete() is None
    assert isinstance(stage.delete(), errors.GroupIdNotFound)
    assert (stage.in_memory(), stage.committed()) == ({}, {})
    assert stage.reloaded().in_memory() == {}
    assert stage.reloaded().committed() == {}


def test_offsets_of_topics_that_nobody_reads_expire_and_then_the_group():
    config = with_config(offsets_retention_minutes=1, offsets_retention_check_interval_ms=10_000)
    stage = ConsumerStage(config, session_timeout_ms=100_000)
    stage.beat("a")
    commit(stage, "a", 2)
    stage.pass_time(80_000)
    assert len(stage.committed()) == 1
    stage.beat("a", -1)
    stage.pass_time(11_000)
    assert (stage.in_memory(), stage.committed()) == ({}, {})


# ---- other kinds of groups -----------------------------------------------------------------------------


def test_an_empty_classic_group_becomes_one_of_the_consumer_protocol(stage):
    joined = stage.one_member()
    stage.commit(5, joined)
    assert stage.refusal("a") is errors.GroupIdNotFound
    stage.leave(joined.member_id)
    assert stage.refusal("a", 1) is errors.GroupIdNotFound
    assert stage.beat("a").assignment == owned(t=[0, 1])
    assert list(stage.committed().values()) == [5]
    assert stage.reloaded().in_memory() == stage.in_memory()


def test_an_empty_consumer_group_becomes_a_classic_one(stage):
    stage.beat("a")
    commit(stage, "a", 2)
    stage.beat("a", -1)
    joined = stage.one_member()
    assert (joined.generation_id, stage.describe().state) == (1, "Stable")
    assert list(stage.committed().values()) == [5]
    stage.fail_over()
    assert stage.describe().state == "Stable"


def test_a_change_of_kind_that_is_not_stored_is_undone(stage):
    stage.beat("a")
    stage.beat("a", -1)
    stage.log.error = errors.NotEnoughReplicas()
    refused = stage.begin_join("")
    assert isinstance(refused.exception(0), errors.MemberIdRequired)
    assert stage.state[0] == "Empty"
    stage.log.error = None
    assert stage.beat("a").member_epoch == 4


def test_groups_are_listed_with_their_kind(stage):
    stage.beat("a")
    future = stage.coordinator.list_groups()
    stage.settle()
    assert future.result(0)[1] == [("g", "consumer", "Stable", "consumer")]
    assert stage.describe().state == "Dead"


# ---- the log -------------------------------------------------------------------------------------------


def test_an_answer_waits_until_its_records_are_stored(stage):
    stage.log.held = []
    joining = stage.begin("a")
    described = stage.coordinator.describe_consumer_group("g")
    stage.settle()
    assert not joining.done()
    assert not described.done()
    stage.log.release()
    stage.settle()
    assert joining.result(0).member_epoch == 2
    assert described.result(0).epoch == 2


def test_a_heartbeat_that_is_not_stored_changes_nothing(stage):
    two_members(stage)
    before = stage.in_memory()
    stage.log.error = errors.NotEnoughReplicas()
    for options in (
        {"member": "c"},
        {"member": "a", "epoch": -1},
        {"member": "a", "epoch": 3, "topics": ["u"]},
    ):
        assert stage.refusal(**options) is errors.CoordinatorNotAvailable
        assert stage.in_memory() == before
    stage.log.error = None
    # The session of the member whose leave was undone ends all the same.
    stage.pass_time(3_000)
    assert stage.state[0] == "Empty"


def test_a_session_that_ends_while_nothing_can_be_stored_ends_later(stage):
    two_members(stage)
    stage.log.error = errors.NotEnoughReplicas()
    stage.pass_time(2_000)
    assert set(stage.in_memory()["g"][1]["members"]) == {"a", "b"}
    stage.log.error = None
    stage.pass_time(1_600)
    assert stage.state[0] == "Empty"


def test_a_fail_over_goes_on_with_the_same_epochs_and_starts_the_sessions_again(stage):
    two_members(stage)
    stage.beat("c")
    stage.beat("a", 3, owned=owned(t=[0]))
    stage.pass_time(700)
    before = stage.state
    stage.fail_over()
    assert stage.state == before
    stage.pass_time(700)
    assert stage.beat("b", 3).member_epoch == 4
    stage.pass_time(700)
    assert set(stage.state[3]) == {"b"}


def test_a_revocation_that_was_asked_for_before_a_fail_over_has_its_time(stage):
    stage = ConsumerStage(session_timeout_ms=100_000)
    stage.beat("a")
    stage.beat("b")
    stage.beat("a", 2, owned=owned(t=[0, 1]))
    stage.fail_over()
    stage.pass_time(600)
    assert stage.refusal("a", 2) is errors.UnknownMemberId


def test_requests_and_timers_end_with_the_leadership(stage):
    stage.log.held = []
    joining = stage.begin("a")
    stage.coordinator.resign(0)
    stage.settle()
    stage.log.release()
    stage.settle()
    assert isinstance(joining.exception(0), errors.NotCoordinator)
    assert stage.refusal("a") is errors.NotCoordinator
    stage.pass_time(5_000)


def test_a_large_group_joins_with_few_assignments():
    topics = MadeTopics(t=200)
    stage = ConsumerStage(topics=topics, assignment_interval_ms=1_000, session_timeout_ms=10_000)
    runs = []

    def assign(members, partitions):
        from tests.support.consumer_stage import deal

        runs.append(len(members))
        return deal(members, partitions)

    stage.assign = assign
    for number in range(200):
        stage.beat(f"m{number:03}")
    assert runs == [1]
    stage.pass_time(1_100)
    assert runs == [1, 200]


def test_a_record_whose_partitions_and_epochs_do_not_match_is_skipped(stage):
    stage.beat("a")
    topics = (AssignedTopicPartitions(topic_id=topic_id("t"), partitions=(0,), assignment_epochs=(2, 2)),)
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=2,
        previous_member_epoch=0,
        state=0,
        assigned_partitions=topics,
        partitions_pending_revocation=(),
    )
    for group_id in ("g", "other"):
        key = ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id="a")
        stage.log.add(BatchBuilder().build([(encode_key(key), encode_value(value))], now_ms=0))
    assert stage.reloaded().in_memory() == stage.in_memory()
