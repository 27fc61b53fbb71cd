"""Streams groups: heartbeats, topologies, tasks, sessions, and what a fail-over leaves."""

from __future__ import annotations

import pytest

from kreplica._core.batch_builder import BatchBuilder
from kreplica.common import errors
from kreplica.common.types import TopicPartition
from kreplica.coordinator.group_offsets import CommitRequest, CommittedOffset
from kreplica.coordinator.group_records import (
    AssignedTaskIds,
    Endpoint,
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
    encode_key,
    encode_value,
)
from kreplica.coordinator.shard_store import TransactionalProducer
from kreplica.coordinator.streams_group import TasksTuple
from tests.support.consumer_stage import MadeTopics
from tests.support.streams_group_stage import StreamsGroupStage, active, tasks, topic, topology


@pytest.fixture
def stage():
    return StreamsGroupStage()


def two_members(stage):
    """A stable group of a with task 0 and b with task 1, both in epoch 3."""
    stage.beat("a")
    stage.beat("b")
    stage.beat("a", 2, owned=active(0, 1))
    stage.beat("a", 2, owned=active(0))
    stage.beat("b", 3)
    assert stage.state == ("Stable", 3, 3, {"a": (3, active(0)), "b": (3, active(1))})


def test_the_first_member_gets_all_tasks_in_epoch_2(stage):
    answer = stage.beat("a")
    assert (answer.member_epoch, answer.tasks, answer.statuses) == (2, active(0, 1), ())
    assert answer.heartbeat_interval_ms == 100
    assert stage.state == ("Stable", 2, 2, {"a": (2, active(0, 1))})


def test_a_task_moves_when_its_owner_has_given_it_up(stage):
    stage.beat("a")
    assert stage.beat("b").tasks == TasksTuple()
    assert stage.state[0] == "Reconciling"
    asked = stage.beat("a", 2, owned=active(0, 1))
    assert (asked.member_epoch, asked.tasks) == (2, active(0))
    assert stage.beat("b", 3).tasks is None
    assert stage.beat("a", 2, owned=active(0)).member_epoch == 3
    assert stage.beat("b", 3).tasks == active(1)


def test_a_member_that_does_not_give_up_in_time_is_fenced(stage):
    stage.beat("a")
    stage.beat("b")
    stage.beat("a", 2, owned=active(0, 1))
    stage.pass_time(400)
    stage.beat("b", 3)
    stage.beat("a", 2)
    stage.pass_time(200)
    assert stage.refusal("a", 2) is errors.UnknownMemberId
    assert stage.beat("b", 3).tasks == active(0, 1)


def test_a_silent_member_is_out_after_its_session(stage):
    two_members(stage)
    stage.pass_time(600)
    stage.beat("b", 3)
    stage.pass_time(600)
    assert stage.refusal("a", 3) is errors.UnknownMemberId
    assert stage.beat("b", 3).tasks == active(0, 1)


def test_a_member_that_leaves_frees_its_tasks(stage):
    two_members(stage)
    assert stage.beat("a", -1).member_epoch == -1
    assert stage.beat("b", 3).tasks == active(0, 1)
    stage.beat("b", -1)
    assert stage.state[0] == "Empty"


# ---- topologies ----------------------------------------------------------------------------------------


def test_missing_internal_topics_are_named_until_they_exist():
    stage = StreamsGroupStage(topics=MadeTopics(t=2))
    answer = stage.beat("a")
    assert [(each.name, each.partitions) for each in answer.to_create] == [("log", 2)]
    assert [code for code, _ in answer.statuses] == [3]
    assert answer.tasks == TasksTuple()
    assert stage.state[0] == "NotReady"
    stage.change_topics(log=2)
    answer = stage.beat("a", answer.member_epoch, owned=TasksTuple())
    assert (answer.tasks, answer.statuses, answer.to_create) == (active(0, 1), (), ())
    assert stage.state[0] == "Stable"


def test_a_topology_is_described_before_its_topics_exist():
    """KAFKA-19730: it was left out until it had been checked, and admin clients failed."""
    stage = StreamsGroupStage(topics=MadeTopics(t=2))
    stage.beat("a")
    described = stage.describe()
    assert described.topology is not None
    assert [each.subtopology_id for each in described.topology.subtopologies] == ["s"]


def test_a_missing_source_topic_is_a_status():
    stage = StreamsGroupStage(topics=MadeTopics(log=2))
    assert [code for code, _ in stage.beat("a").statuses] == [1]


def test_a_topic_of_another_width_is_a_status(stage):
    stage.beat("a")
    stage.change_topics(t=3)
    assert [code for code, _ in stage.beat("a", 2).statuses] == [2]
    assert stage.state[0] == "NotReady"


def test_a_group_cannot_change_its_topology(stage):
    stage.beat("a")
    other = topology(source="u")
    assert stage.refusal("b", topology=other) is errors.InvalidRequest
    assert stage.beat("b", topology=topology()).member_epoch == 3


def test_a_member_with_an_older_topology_stays_and_is_told(stage):
    stage.beat("a", topology=topology(epoch=1))
    assert [code for code, _ in stage.beat("b", topology=topology(epoch=0)).statuses] == [0]


def test_a_checked_topology_stays_checked_over_a_fail_over(stage):
    # KAFKA-19661: it was known only from heartbeats.
    stage.beat("a")
    assert stage.reloaded().state == ("Stable", 2, 2, {"a": (2, active(0, 1))})


# ---- checks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "epoch", "options"),
    [
        (errors.InvalidRequest, 0, {"member_id": ""}),
        (errors.InvalidRequest, 0, {"group_id": ""}),
        (errors.InvalidRequest, 0, {"rack_id": ""}),
        (errors.InvalidRequest, 0, {"rebalance_timeout_ms": -1}),
        (errors.InvalidRequest, 0, {"owned": None}),
        (errors.InvalidRequest, 0, {"owned": active(0)}),
        (errors.InvalidRequest, 0, {"topology": None}),
        (errors.InvalidRequest, 0, {"process_id": None}),
        (errors.InvalidRequest, 0, {"topology": topology(source_topic_regex=("t.*",))}),
        (errors.StreamsInvalidTopology, 0, {"topology": topology(state_changelog_topics=(topic("log", 2),))}),
        (errors.InvalidRequest, 3, {"topology": topology()}),
        (errors.InvalidRequest, 3, {"owned": TasksTuple(warmup=tasks(0))}),
        (errors.InvalidRequest, -2, {}),
        (errors.GroupIdNotFound, 1, {"group_id": "other"}),
        (errors.GroupIdNotFound, -1, {"group_id": "other"}),
        (errors.UnknownMemberId, 1, {"member_id": "stranger"}),
        (errors.UnknownMemberId, -1, {"member_id": "stranger"}),
        (errors.FencedMemberEpoch, 4, {}),
        (errors.FencedMemberEpoch, 1, {"owned": TasksTuple()}),
        (errors.FencedMemberEpoch, 2, {}),
        (errors.FencedMemberEpoch, 2, {"owned": active(1)}),
    ],
)
def test_a_heartbeat_is_refused(stage, error, epoch, options):
    two_members(stage)
    before = stage.state
    assert stage.refusal("a", epoch, **options) is error
    assert stage.state == before


def test_a_full_group_takes_no_more_members(stage):
    for name in "abc":
        stage.beat(name)
    assert stage.refusal("d") is errors.GroupMaxSizeReached


def test_a_lost_answer_is_given_again(stage):
    two_members(stage)
    assert stage.beat("a", 2, owned=active(0)).member_epoch == 3
    again = stage.beat("a", 3, owned=active(0), topology=None)
    assert again.member_epoch == 3


def test_a_member_that_reports_other_tasks_than_it_was_assigned_is_told_again(stage):
    assigned = stage.beat("a").tasks
    assert stage.beat("a", 2).tasks is None
    assert stage.beat("a", 2, owned=TasksTuple()).tasks == assigned
    assert stage.beat("a", 2, owned=assigned).tasks is None


def test_a_lost_answer_is_given_again_after_one_that_needs_no_topology(stage):
    stage.beat("a")
    assert stage.beat("a", 2, owned=active(0, 1)).tasks is None
    stage.beat("b")
    assert stage.beat("a", 2, owned=active(0, 1)).tasks == active(0)
    # That answer is lost: the client declares all but its topology, which only members that join declare.
    assert stage.beat("a", 2, owned=active(0, 1), rebalance_timeout_ms=500).tasks == active(0)
    assert stage.beat("a", 2, owned=active(0)).member_epoch == 3
    # So is this one: the epoch of the next heartbeat shows it.
    assert stage.beat("a", 2, owned=active(0)).tasks == active(0)


def test_only_an_empty_streams_group_may_become_a_classic_one(stage):
    stage.beat("a")
    assert isinstance(stage.begin_join().exception(0), errors.InconsistentGroupProtocol)
    stage.beat("a", -1)
    assert stage.begin_join(needs_member_id=False).result(0).generation_id == 1
    assert isinstance(stage.begin("b").exception(0), errors.GroupIdNotFound)


# ---- assignments ---------------------------------------------------------------------------------------


def test_standbys_follow_the_setting_of_the_group():
    stage = StreamsGroupStage(num_standby=1)
    stage.beat("a")
    assert stage.beat("b").tasks is not None
    stage.beat("a", 2, owned=active(0, 1))
    stage.beat("a", 2, owned=active(0))
    assert stage.beat("b", 3).tasks == TasksTuple(tasks(1), tasks(0))
    assert stage.beat("a", 3).tasks in (None, TasksTuple(tasks(0), tasks(1)))
    assert stage.state == (
        "Stable",
        3,
        3,
        {"a": (3, TasksTuple(tasks(0), tasks(1))), "b": (3, TasksTuple(tasks(1), tasks(0)))},
    )


def test_a_new_group_waits_for_more_members():
    stage = StreamsGroupStage(initial_rebalance_delay_ms=300)
    answer = stage.beat("a")
    assert (answer.tasks, [code for code, _ in answer.statuses]) == (TasksTuple(), [5])
    assert [code for code, _ in stage.beat("b").statuses] == [5]
    stage.pass_time(300)
    assert (stage.beat("a", answer.member_epoch).tasks, stage.beat("b", 1).tasks) == (active(0), active(1))


def test_a_member_may_ask_all_to_stop(stage):
    two_members(stage)
    stage.beat("a", 3, shuts_down=True)
    assert [code for code, _ in stage.beat("b", 3).statuses] == [4]


def test_endpoints_are_shown_to_members_that_do_not_know_them(stage):
    first = stage.beat("a", user_endpoint=Endpoint(host="h", port=1))
    (shown,) = stage.beat("a", 2, endpoint_epoch=first.endpoint_epoch - 1).endpoints
    assert shown.endpoint == Endpoint(host="h", port=1)
    assert shown.active == (TopicPartition("t", 0), TopicPartition("t", 1))
    assert stage.beat("a", 2, endpoint_epoch=first.endpoint_epoch).endpoints is None


# ---- offsets -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "in_transaction", "member", "epoch", "partition"),
    [
        (None, None, "a", 3, 0),
        (None, None, "a", 2, 0),
        (errors.StaleMemberEpoch, errors.IllegalGeneration, "b", 2, 1),
        (errors.StaleMemberEpoch, errors.IllegalGeneration, "a", 2, 1),
        (errors.StaleMemberEpoch, errors.IllegalGeneration, "a", 4, 0),
        (errors.UnknownMemberId, errors.UnknownMemberId, "stranger", 3, 0),
        # A producer before KIP-447 names no member.
        (errors.UnknownMemberId, None, "", -1, 0),
    ],
)
def test_a_member_commits_offsets_of_tasks_that_it_has_had_since_its_epoch(
    stage, error, in_transaction, member, epoch, partition
):
    # KIP-1251: a has task 0 since epoch 2, b has task 1 since epoch 3.
    two_members(stage)
    at = TopicPartition("t", partition)
    for producer, expected in ((None, error), (TransactionalProducer(7, 0), in_transaction)):
        asked = CommitRequest("g", epoch, member, None, {at: CommittedOffset(5)}, producer, knows_epochs=True)
        future = stage.coordinator.commit_offsets(asked)
        stage.settle()
        found = future.exception(0)
        assert (None if found is None else type(found)) is expected


def test_a_deleted_group_leaves_nothing(stage):
    stage.beat("a")
    stage.beat("a", -1)
    future = stage.coordinator.delete_group("g")
    stage.settle()
    assert future.result(0) is None
    latest = {}
    for key, value in stage.log.records():
        latest[key] = value
    assert set(latest.values()) == {None}


def test_a_record_whose_tasks_and_epochs_do_not_match_is_skipped(stage):
    stage.beat("a")
    mismatched = (AssignedTaskIds(subtopology_id="s", partitions=(0,), assignment_epochs=(2, 2)),)
    value = StreamsGroupCurrentMemberAssignmentValue(
        member_epoch=2,
        previous_member_epoch=0,
        state=1,
        active_tasks=mismatched,
        standby_tasks=(),
        warmup_tasks=(),
        active_tasks_pending_revocation=(),
        standby_tasks_pending_revocation=(),
        warmup_tasks_pending_revocation=(),
    )
    for group_id in ("g", "other"):
        key = StreamsGroupCurrentMemberAssignmentKey(group_id=group_id, member_id="a")
        stage.log.add(BatchBuilder().build([(encode_key(key), encode_value(value))], now_ms=0))
    again = stage.reloaded()
    assert again.state == stage.state
    assert again.refusal("a", 2, group="other") is errors.GroupIdNotFound
