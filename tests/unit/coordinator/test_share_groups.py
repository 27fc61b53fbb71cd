"""Share groups: checks of heartbeats, assignments of initialized partitions, and what is left of a group."""

from __future__ import annotations

import dataclasses

import pytest

from kreplica.common import errors
from kreplica.common.types import TopicPartition
from kreplica.coordinator.group_records import (
    ShareGroupMetadataKey,
    ShareGroupStatePartitionMetadataKey,
)
from kreplica.coordinator.share_group import ShareGroup
from kreplica.coordinator.share_groups import INITIALIZING_HEARTBEAT_MS, ShareHeartbeatAnswer
from tests.support.consumer_stage import MadeTopics, owned, topic_id
from tests.support.group_stage import CONFIG
from tests.support.share_group_stage import ShareGroupStage

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
LONG_ID = "x" * 36


@pytest.fixture
def stage():
    return ShareGroupStage()


# ---- joining -----------------------------------------------------------------------------------------------


def test_a_member_gets_partitions_once_their_states_are_initialized(stage):
    stage.persister.held = []
    assert stage.share("a", 0, ("t",)) == ShareHeartbeatAnswer("a", 2, 100, {})
    assert stage.share("a", 2) == ShareHeartbeatAnswer("a", 2, 100, None)
    assert stage.persister.calls == [("initialize", 0, 2, -1), ("initialize", 1, 2, -1)]
    stage.persister.release()
    stage.settle()
    assert stage.share("a", 2) == ShareHeartbeatAnswer("a", 3, 100, owned(t=[0, 1]))
    assert stage.share("a", 3) == ShareHeartbeatAnswer("a", 3, 100, None)


def test_a_member_that_waits_for_its_first_partitions_asks_soon():
    stage = ShareGroupStage(heartbeat_interval_ms=5_000)
    stage.persister.held = []
    assert stage.share("a", 0, ("t",)).heartbeat_interval_ms == INITIALIZING_HEARTBEAT_MS
    stage.persister.release()
    stage.settle()
    assert stage.share("a", 2).heartbeat_interval_ms == 5_000


def test_members_share_partitions(stage):
    stage.joined("a")
    stage.joined("b")
    stage.joined("c")
    found = [stage.share(each, 0, ("t",)).assignment for each in "abc"]
    assert all(len(each) == 1 for each in found)
    assert {number for each in found for number in each[topic_id("t")]} == {0, 1}


def test_a_partition_that_the_topic_gets_later_is_initialized_too(stage):
    answer = stage.joined("a")
    stage.topics.counts["t"] = 3
    stage.coordinator.change_topics({"t"}, has_other_names=False)
    stage.settle()
    answer = stage.share("a", answer.member_epoch)
    answer = stage.share("a", answer.member_epoch)
    assert answer.assignment == owned(t=[0, 1, 2])


def test_a_changed_subscription_changes_the_assignment(stage):
    answer = stage.joined("a")
    answer = stage.share("a", answer.member_epoch, ("u",))
    assert answer.assignment == {}
    answer = stage.share("a", answer.member_epoch)
    assert answer.assignment == owned(u=[0])


def test_a_topic_that_is_missing_has_no_partitions(stage):
    assert stage.joined("a", ("later",)).assignment == {}
    stage.topics.counts["later"] = 1
    stage.coordinator.change_topics({"later"}, has_other_names=True)
    stage.settle()
    answer = stage.share("a", stage.group().epoch)
    assert stage.share("a", answer.member_epoch).assignment == owned(later=[0])


# ---- checks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("member_id", "epoch", "topics", "options", "error"),
    [
        ("", 0, ("t",), {}, errors.InvalidRequest),
        (LONG_ID + "x", 0, ("t",), {}, errors.InvalidRequest),
        (LONG_ID, 0, ("t",), {}, type(None)),
        ("a", 0, ("t",), {"group": ""}, errors.InvalidRequest),
        ("a", 0, (), {}, errors.InvalidRequest),
        ("a", 0, None, {}, errors.InvalidRequest),
        ("a", -2, ("t",), {}, errors.InvalidRequest),
        ("a", 1, None, {"group": "other"}, errors.GroupIdNotFound),
        ("a", -1, None, {"group": "other"}, errors.GroupIdNotFound),
        ("b", 1, None, {}, errors.UnknownMemberId),
        ("b", -1, None, {}, errors.UnknownMemberId),
        ("a", 4, None, {}, errors.FencedMemberEpoch),
        ("a", 1, None, {}, errors.FencedMemberEpoch),
        ("a", 2, None, {}, type(None)),
        ("a", 3, None, {}, type(None)),
        ("a", 0, ("t",), {}, type(None)),
    ],
)
def test_heartbeats_are_checked(stage, member_id, epoch, topics, options, error):
    assert stage.joined("a").member_epoch == 3
    before = stage.log.end
    found = stage.share(member_id, epoch, topics, **options)
    assert type(found) is error or (error is type(None) and isinstance(found, ShareHeartbeatAnswer))
    assert error is type(None) or stage.log.end == before


def test_a_full_group_takes_no_more_members():
    stage = ShareGroupStage(dataclasses.replace(CONFIG, group_share_max_size=1))
    stage.joined("a")
    assert isinstance(stage.share("b", 0, ("t",)), errors.GroupMaxSizeReached)
    assert isinstance(stage.share("a", 0, ("t",)), ShareHeartbeatAnswer)


def test_groups_of_other_kinds_are_refused(stage):
    stage.commit(5, group="classic")
    refused = stage.share("a", 0, ("t",), group="classic")
    assert isinstance(refused, errors.GroupIdNotFound)
    assert str(refused) == "'classic' is a classic group, not a share group"
    stage.joined("a")
    assert isinstance(stage.begin_join(group="g").exception(0), errors.InconsistentGroupProtocol)
    assert stage.commit(5, group="g").code == errors.GroupIdNotFound.code
    assert isinstance(stage.do("delete_offsets", "g", [T0]), errors.GroupIdNotFound)


def test_an_answer_that_was_lost_is_given_again(stage):
    first = stage.joined("a")
    stage.share("b", 0, ("t",))
    second = stage.share("a", first.member_epoch, ("t",))
    assert second.member_epoch > first.member_epoch
    assert stage.share("a", first.member_epoch, ("t",)) == second


# ---- leaving -----------------------------------------------------------------------------------------------


def test_a_member_that_leaves_is_forgotten(stage):
    first, second = stage.joined("a"), stage.joined("b")
    assert stage.share("a", -1) == ShareHeartbeatAnswer("a", -1)
    assert list(stage.group().members) == ["b"]
    assert stage.share("b", second.member_epoch).assignment == owned(t=[0, 1])
    assert not [key for key in stage.live_keys() if getattr(key, "member_id", "") == "a"]
    assert isinstance(stage.share("a", first.member_epoch), errors.UnknownMemberId)


def test_a_silent_member_is_removed(stage):
    answer = stage.joined("a")
    stage.pass_time(600)
    stage.share("a", answer.member_epoch)
    stage.pass_time(600)
    assert list(stage.group().members) == ["a"]
    stage.pass_time(600)
    assert not stage.group().members
    assert stage.group().state.value == "Empty"


def test_the_removal_of_a_silent_member_is_repeated_until_it_is_stored(stage):
    stage.joined("a")
    stage.log.error = errors.NotEnoughReplicas()
    stage.pass_time(1_200)
    assert list(stage.group().members) == ["a"]
    stage.log.error = None
    stage.pass_time(1_200)
    assert not stage.group().members


# ---- states ------------------------------------------------------------------------------------------------


def test_a_failed_initialization_is_taken_back_and_repeated(stage):
    stage.persister.refused = {1: errors.CoordinatorNotAvailable()}
    answer = stage.joined("a")
    assert answer.assignment == owned(t=[0])
    assert stage.group().states.initializing == {}
    stage.persister.refused = {}
    stage.share("a", answer.member_epoch)
    assert stage.share("a", answer.member_epoch).assignment == owned(t=[0, 1])


def test_an_initialization_that_is_under_way_is_not_repeated(stage):
    stage.persister.held = []
    for epoch in (0, 2, 2):
        stage.share("a", epoch, ("t",))
    assert len(stage.persister.calls) == 2


def test_another_coordinator_goes_on_with_an_initialization(stage):
    stage.persister.held = []
    stage.share("a", 0, ("t",))
    stage.persister.held = None
    after = stage.fail_over()
    assert after.group().states.initializing == owned(t=[0, 1])
    after.share("a", 2)
    assert after.share("a", 2).assignment == owned(t=[0, 1])


def test_states_of_a_deleted_topic_are_deleted(stage):
    answer = stage.joined("a", ("t", "u"))
    del stage.topics.counts["t"]
    stage.coordinator.change_topics({"t"}, has_other_names=True)
    stage.settle()
    assert {key.topic_id for key in stage.persister.states} == {topic_id("u")}
    assert stage.group().states.deleting == frozenset()
    assert stage.share("a", answer.member_epoch).assignment == owned(u=[0])


def test_a_deletion_is_finished_by_the_next_coordinator(stage):
    stage.joined("a", ("t", "u"))
    stage.persister.error = errors.CoordinatorNotAvailable()
    del stage.topics.counts["t"]
    stage.coordinator.change_topics({"t"}, has_other_names=True)
    stage.settle()
    assert stage.group().states.deleting == {topic_id("t")}
    stage.persister.error = None
    assert stage.fail_over().group().states.deleting == frozenset()


# ---- the log -----------------------------------------------------------------------------------------------


def test_another_coordinator_has_the_same_group(stage):
    answer = stage.joined("a")
    stage.joined("b")
    after = stage.fail_over()
    assert attributes(after.group()) == attributes(stage.group())
    answer = after.share("a", answer.member_epoch)
    assert isinstance(answer, ShareHeartbeatAnswer)
    after.pass_time(1_500)
    assert not after.group().members


def test_a_heartbeat_that_is_not_stored_changes_nothing(stage):
    stage.joined("a")
    before = attributes(stage.group())
    stage.log.error = errors.NotEnoughReplicas()
    assert isinstance(stage.share("b", 0, ("t",)), errors.CoordinatorNotAvailable)
    assert isinstance(stage.share("a", -1), errors.CoordinatorNotAvailable)
    assert attributes(stage.group()) == before
    stage.log.error = None
    stage.pass_time(1_500)
    assert not stage.group().members


def test_a_group_that_is_not_stored_does_not_exist(stage):
    stage.log.error = errors.NotEnoughReplicas()
    assert isinstance(stage.share("a", 0, ("t",)), errors.CoordinatorNotAvailable)
    assert stage.group() is None
    assert stage.persister.calls == []


def attributes(group):
    assert isinstance(group, ShareGroup)
    names = ("epoch", "assignment_epoch", "metadata_hash", "members", "targets", "current", "states")
    return {name: getattr(group, name) for name in names}


# ---- tools -------------------------------------------------------------------------------------------------


def test_a_group_is_described_and_listed(stage):
    stage.joined("a")
    described = stage.do("describe_share_group", "g")
    assert (described.state, described.epoch, described.assignment_epoch) == ("Stable", 3, 3)
    assert described.assignor == "simple"
    [member] = described.members
    assert (member.member_id, member.epoch, member.assigned) == ("a", 3, owned(t=[0, 1]))
    [listed] = stage.do("list_groups")[1]
    assert (listed.kind, listed.protocol_type, listed.state) == ("share", "share", "Stable")
    assert isinstance(stage.do("describe_share_group", "other"), errors.GroupIdNotFound)


def test_offsets_are_altered_while_the_group_is_empty(stage):
    answer = stage.joined("a")
    assert isinstance(stage.do("alter_share_offsets", "g", {T0: 5}), errors.NonEmptyGroup)
    stage.share("a", -1)
    missing, beyond = TopicPartition("missing", 0), TopicPartition("t", 9)
    results = stage.do("alter_share_offsets", "g", {T0: 5, missing: 1, beyond: 1})
    assert {at: type(error) for at, error in results.items()} == {
        T0: type(None),
        missing: errors.UnknownTopicOrPartition,
        beyond: errors.UnknownTopicOrPartition,
    }
    [(state_epoch, start)] = [found for key, found in stage.persister.states.items() if key.partition == 0]
    assert start == 5
    assert state_epoch > answer.member_epoch
    assert stage.do("share_partitions", "g") == [T0, T1]


def test_each_change_of_offsets_has_its_own_state_epoch(stage):
    for offset in (5, 3):
        assert stage.do("alter_share_offsets", "new", {U0: offset}) == {U0: None}
    assert [epoch for _, _, epoch, _ in stage.persister.calls] == [2, 3]
    assert stage.joined("a", ("u",), group="new").assignment == owned(u=[0])
    assert list(stage.persister.states.values()) == [(3, 3)]


def test_a_failed_change_of_offsets_is_an_error_of_its_partition(stage):
    stage.persister.refused = {0: errors.CoordinatorNotAvailable()}
    results = stage.do("alter_share_offsets", "g", {T0: 5, T1: 6})
    assert isinstance(results[T0], errors.CoordinatorNotAvailable)
    assert results[T1] is None


def test_a_change_of_offsets_is_refused_for_other_groups(stage):
    stage.commit(5, group="classic")
    assert isinstance(stage.do("alter_share_offsets", "classic", {T0: 5}), errors.GroupIdNotFound)


def test_offsets_are_deleted_while_the_group_is_empty(stage):
    assert isinstance(stage.do("delete_share_offsets", "g", ["t"]), errors.GroupIdNotFound)
    stage.joined("a")
    assert isinstance(stage.do("delete_share_offsets", "g", ["t"]), errors.NonEmptyGroup)
    stage.share("a", -1)
    results = stage.do("delete_share_offsets", "g", ["t", "u", "missing"])
    assert {name: type(error) for name, error in results.items()} == {
        "t": type(None),
        "u": errors.UnknownTopicOrPartition,
        "missing": errors.UnknownTopicOrPartition,
    }
    assert stage.persister.states == {}
    assert stage.do("share_partitions", "g") == []
    assert stage.joined("a").assignment == owned(t=[0, 1])


def test_a_deletion_of_offsets_that_failed_can_be_repeated(stage):
    stage.joined("a")
    stage.share("a", -1)
    stage.persister.error = errors.CoordinatorNotAvailable()
    assert isinstance(stage.do("delete_share_offsets", "g", ["t"])["t"], errors.CoordinatorNotAvailable)
    stage.persister.error = None
    assert stage.do("delete_share_offsets", "g", ["t"]) == {"t": None}
    assert stage.persister.states == {}


def test_a_group_is_deleted_with_its_states(stage):
    stage.joined("a")
    assert isinstance(stage.do("delete_group", "g"), errors.NonEmptyGroup)
    stage.share("a", -1)
    assert stage.do("delete_group", "g") is None
    assert stage.group() is None
    assert stage.persister.states == {}
    assert stage.live_keys() == set()
    assert stage.fail_over().group() is None
    assert isinstance(stage.do("delete_group", "g"), errors.GroupIdNotFound)


def test_a_group_whose_states_cannot_be_deleted_stays(stage):
    stage.joined("a")
    stage.share("a", -1)
    stage.persister.error = errors.CoordinatorNotAvailable()
    assert isinstance(stage.do("delete_group", "g"), errors.CoordinatorNotAvailable)
    stage.persister.error = None
    assert stage.do("delete_group", "g") is None
    assert stage.live_keys() == set()


def test_a_member_that_joins_meanwhile_keeps_the_group(stage):
    stage.joined("a")
    stage.share("a", -1)
    stage.persister.held = []
    deleted = stage.coordinator.delete_group("g")
    stage.settle()
    joined = stage.share("b", 0, ("t",))
    stage.persister.release()
    stage.settle()
    assert isinstance(deleted.exception(0), errors.NonEmptyGroup)
    stage.share("b", joined.member_epoch)
    assert stage.share("b", joined.member_epoch).assignment == owned(t=[0, 1])


def test_an_empty_share_group_does_not_expire(stage):
    stage.joined("a")
    stage.share("a", -1)
    stage.coordinator.delete_topics(["other"])
    stage.pass_time(1_200_000)
    assert isinstance(stage.group(), ShareGroup)
    keys = {type(key) for key in stage.live_keys()}
    assert keys >= {ShareGroupMetadataKey, ShareGroupStatePartitionMetadataKey}


def test_topics_need_not_be_there_at_once():
    stage = ShareGroupStage(topics=MadeTopics())
    assert stage.joined("a").assignment == {}
