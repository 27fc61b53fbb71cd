"""A coordinator and its members: generations, sessions, offsets, and what is left after a fail-over."""

from __future__ import annotations

import dataclasses

import pytest

from kreplica._core.batch_builder import BatchBuilder
from kreplica.common import errors
from kreplica.common.types import TopicPartition
from kreplica.coordinator.classic_group import Protocol
from kreplica.coordinator.group_records import (
    GroupMetadataKey,
    OffsetCommitKey,
    OffsetCommitValue,
    encode_key,
    encode_value,
)
from kreplica.coordinator.shard_store import TransactionalProducer, partition_for
from kreplica.record.control import EndTransactionMarker
from tests.support.batches import batch_of
from tests.support.group_stage import AT, CONFIG, RANGE, GroupStage

TRANSACTIONAL_CONTROL = 0x30  # attributes of a batch


@pytest.fixture
def stage():
    return GroupStage()


def two_members(stage):
    """A stable group of two, the leader first."""
    first = stage.one_member()
    waiting = stage.begin_join(stage.new_id())
    first = stage.begin_join(first.member_id).result(0)
    second = waiting.result(0)
    stage.begin_sync(first, {first.member_id: b"a", second.member_id: b"b"}).result(0)
    assert stage.begin_sync(second).result(0).assignment == b"b"
    return first, second


@pytest.mark.parametrize(
    ("group_id", "count", "partition"),
    # What hashCode() of these is in Java: 103, 98629247, Integer.MIN_VALUE, 1772899.
    [
        ("g", 50, 3),
        ("group", 50, 98629247 % 50),
        ("polygenelubricants", 50, 0),
        ("\U0001f600", 7, 1772899 % 7),
    ],
)
def test_a_group_belongs_to_the_partition_of_its_hash(group_id, count, partition):
    assert partition_for(group_id, count) == partition


# ---- joining -------------------------------------------------------------------------------------------


def test_a_member_joins_with_the_id_it_is_given(stage):
    refused = stage.begin_join().exception(0)
    assert isinstance(refused, errors.MemberIdRequired)
    joined = stage.begin_join(refused.member_id).result(0)
    assert (joined.generation_id, joined.leader_id, joined.protocol_name) == (1, refused.member_id, "range")
    assert [each.metadata for each in joined.members] == [b"all"]
    synced = stage.begin_sync(joined, {joined.member_id: b"work"}).result(0)
    assert synced.assignment == b"work"
    assert stage.heartbeat(joined) is None
    assert stage.describe().state == "Stable"


def test_an_unused_member_id_does_not_delay_the_group(stage):
    stage.new_id()
    joined = stage.begin_join(stage.new_id())
    assert not joined.done()
    stage.pass_time(500)
    assert joined.result(0).generation_id == 1


def test_a_second_member_makes_the_first_join_again(stage):
    first, second = two_members(stage)
    assert first.generation_id == second.generation_id == 2
    assert [each.member_id for each in first.members] == [first.member_id, second.member_id]
    assert second.members == ()
    assert stage.describe().protocol_name == "range"
    assert [each.assignment for each in stage.describe().members] == [b"a", b"b"]


def test_members_hear_of_a_rebalance_by_their_heartbeat(stage):
    first = stage.one_member()
    stage.begin_join(stage.new_id())
    assert isinstance(stage.heartbeat(first), errors.RebalanceInProgress)


def test_a_member_that_does_not_rejoin_is_removed(stage):
    first = stage.one_member()
    joined = stage.begin_join(stage.new_id())
    for _ in range(5):
        stage.pass_time(200)
        stage.heartbeat(first)  # alive, but it never joins
    assert joined.result(0).leader_id == joined.result(0).member_id
    assert isinstance(stage.heartbeat(first), errors.UnknownMemberId)


def test_a_member_that_does_not_sync_is_removed(stage):
    """KAFKA-12890: it left the group in CompletingRebalance."""
    first = stage.one_member()
    waiting = stage.begin_join(stage.new_id())
    first = stage.begin_join(first.member_id).result(0)
    second = waiting.result(0)
    stage.begin_sync(first, {first.member_id: b"a"})
    for _ in range(5):
        stage.pass_time(200)
        stage.heartbeat(first)
        stage.heartbeat(second)
    assert isinstance(stage.heartbeat(second), errors.UnknownMemberId)
    assert isinstance(stage.heartbeat(first), errors.RebalanceInProgress)


def test_an_empty_group_waits_for_others_to_come():
    stage = GroupStage(dataclasses.replace(CONFIG, group_initial_rebalance_delay_ms=300))
    first = stage.begin_join(stage.new_id())
    stage.pass_time(200)
    second = stage.begin_join(stage.new_id())
    stage.pass_time(200)
    assert not first.done()
    stage.pass_time(200)
    assert len(first.result(0).members) == 2
    assert second.result(0).generation_id == 1


def test_protocols_are_chosen_by_votes(stage):
    both = (Protocol("range", b""), Protocol("sticky", b""))
    first = stage.one_member(protocols=both)
    waiting = stage.begin_join(stage.new_id(), protocols=both[1:])
    assert stage.begin_join(first.member_id, protocols=both).result(0).protocol_name == "sticky"
    assert waiting.result(0).protocol_name == "sticky"
    refused = stage.begin_join(protocols=RANGE).exception(0)
    assert isinstance(refused, errors.InconsistentGroupProtocol)


def test_a_repeated_join_gets_the_same_answer(stage):
    first, second = two_members(stage)
    assert stage.begin_join(second.member_id).result(0) == second
    # The leader's is a wish to assign anew.
    assert not stage.begin_join(first.member_id).done()


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (errors.InvalidGroupId, {"group": ""}),
        (errors.InvalidSessionTimeout, {"session_timeout_ms": 99}),
        (errors.InvalidSessionTimeout, {"session_timeout_ms": 1_800_001}),
        (errors.UnknownMemberId, {"member_id": "stranger"}),
        (errors.InconsistentGroupProtocol, {"protocols": ()}),
    ],
)
def test_an_invalid_join_is_refused(stage, error, options):
    assert type(stage.begin_join(**options).exception(0)) is error


def test_a_group_has_its_size():
    stage = GroupStage(dataclasses.replace(CONFIG, group_max_size=1))
    stage.one_member()
    assert isinstance(stage.begin_join().exception(0), errors.GroupMaxSizeReached)


# ---- sessions ------------------------------------------------------------------------------------------


def test_a_silent_member_is_out_and_the_others_rebalance(stage):
    first, second = two_members(stage)
    for _ in range(3):
        stage.pass_time(240)
        last = stage.heartbeat(first)
    assert isinstance(last, errors.RebalanceInProgress)
    again = stage.begin_join(first.member_id).result(0)
    assert [each.member_id for each in again.members] == [first.member_id]
    assert isinstance(stage.heartbeat(second), errors.UnknownMemberId)


def test_a_member_that_leaves_is_not_waited_for(stage):
    first, second = two_members(stage)
    assert stage.leave(second.member_id) is None
    assert isinstance(stage.heartbeat(first), errors.RebalanceInProgress)
    assert len(stage.begin_join(first.member_id).result(0).members) == 1
    assert isinstance(stage.leave("stranger"), errors.UnknownMemberId)
    stage.leave(first.member_id)
    assert stage.describe().state == "Empty"


def test_the_last_member_that_was_waited_for_may_leave(stage):
    """KAFKA-7909: the rebalance of the others did not end then."""
    first = stage.one_member()
    waiting = stage.begin_join(stage.new_id())
    assert not waiting.done()
    stage.leave(first.member_id)
    joined = waiting.result(0)
    assert [each.member_id for each in joined.members] == [joined.member_id]


def test_the_newest_state_of_a_group_counts_after_a_fail_over(stage):
    """KAFKA-5600: an older record was applied over a newer one."""
    first, second = two_members(stage)
    stage.fail_over()
    assert stage.heartbeat(first) is None
    assert stage.heartbeat(second) is None
    assert [each.assignment for each in stage.describe().members] == [b"a", b"b"]


def test_a_coordinator_that_stalled_removes_no_member(stage):
    first, _ = two_members(stage)
    stage.stand_still(5_000)
    assert stage.heartbeat(first) is None


# ---- static members ------------------------------------------------------------------------------------


def test_a_static_member_takes_its_place_again_without_a_rebalance(stage):
    first = stage.one_member(instance="one")
    again = stage.begin_join(instance="one").result(0)
    assert again.member_id != first.member_id
    assert (again.generation_id, again.skip_assignment) == (1, True)
    assert stage.begin_sync(again, instance="one").result(0).assignment == b"work"
    # The member that had the place is fenced, whatever it asks.
    assert isinstance(stage.heartbeat(first, "one"), errors.FencedInstanceId)
    assert isinstance(stage.commit(3, first, instance="one"), errors.FencedInstanceId)
    stage.fail_over()
    assert stage.heartbeat(again, "one") is None


def test_a_static_member_that_could_not_be_stored_is_as_it_was(stage):
    first = stage.one_member(instance="one")
    stage.log.error = errors.NotEnoughReplicas()
    assert isinstance(stage.begin_join(instance="one").exception(0), errors.CoordinatorNotAvailable)
    stage.log.error = None
    assert stage.begin_join(first.member_id, instance="one").result(0).generation_id == 2


def test_a_static_member_keeps_its_place_for_a_session(stage):
    stage.one_member(instance="one")
    other = stage.begin_join(instance="two")
    stage.begin_join(instance="one")
    assert other.result(0).generation_id == 2
    stage.begin_sync(other.result(0), instance="two")
    stage.pass_time(499)
    assert stage.describe().members[0].group_instance_id == "one"
    stage.pass_time(2_000)
    assert stage.describe().members == ()


def test_a_static_member_leaves_by_its_instance(stage):
    stage.one_member(instance="one")
    assert stage.leave("", "one") is None
    assert isinstance(stage.leave("", "one"), errors.UnknownMemberId)


# ---- offsets -------------------------------------------------------------------------------------------


def test_offsets_are_kept_over_a_fail_over(stage):
    """KAFKA-8069: a stored offset without a time to expire was expired by its load."""
    joined = stage.one_member()
    assert stage.commit(5, joined) is None
    assert stage.commit(7, joined, metadata="why") is None
    assert stage.committed() == {AT: 7}
    stage.fail_over()
    assert stage.committed() == {AT: 7}
    # The group itself goes on, too.
    assert stage.heartbeat(joined) is None
    assert stage.describe().members[0].assignment == b"work"
    assert stage.commit(8, joined) is None


def test_commits_of_an_old_generation_are_fenced(stage):
    old = stage.one_member()
    stage.begin_join(stage.new_id())
    assert stage.commit(1, old) is None  # it has not lost its partitions yet
    new = stage.begin_join(old.member_id).result(0)
    assert isinstance(stage.commit(2, old), errors.IllegalGeneration)
    assert isinstance(stage.commit(2, new), errors.RebalanceInProgress)
    assert isinstance(stage.commit(2), errors.UnknownMemberId)  # a reader that is no member
    assert isinstance(stage.commit(2, new._replace(member_id="x")), errors.UnknownMemberId)
    assert isinstance(stage.commit(2, new, group="other"), errors.IllegalGeneration)
    assert stage.committed() == {AT: 1}


def test_a_commit_counts_when_all_replicas_have_it(stage):
    stage.log.held = []
    future = stage.begin_commit(5)
    assert not future.done()
    assert stage.committed() == {}
    stage.log.release()
    stage.settle()
    assert future.result(0) == {AT: None}
    assert stage.committed() == {AT: 5}


def test_of_two_commits_the_later_in_the_log_counts(stage):
    stage.log.held = []
    stage.begin_commit(5)
    stage.begin_commit(3)
    stage.log.held.reverse()
    stage.log.release()
    stage.settle()
    assert stage.committed() == {AT: 3}


@pytest.mark.parametrize(
    ("raised", "returned"),
    [
        (errors.NotLeaderOrFollower, errors.NotCoordinator),
        (errors.NotEnoughReplicas, errors.CoordinatorNotAvailable),
        (errors.MessageTooLarge, errors.UnknownServerError),
        (errors.RecordListTooLarge, errors.UnknownServerError),
        (errors.RequestTimedOut, errors.CoordinatorNotAvailable),
    ],
)
def test_a_commit_that_was_not_appended(stage, raised, returned):
    stage.log.error = raised()
    assert type(stage.commit(5)) is returned
    assert stage.committed() == {}


def test_metadata_has_its_size(stage):
    assert isinstance(stage.commit(5, metadata="x" * 4_097), errors.OffsetMetadataTooLarge)


def test_offsets_of_a_group_that_was_left_expire():
    config = dataclasses.replace(
        CONFIG, offsets_retention_minutes=1, offsets_retention_check_interval_ms=10_000
    )
    stage = GroupStage(config)
    joined = stage.one_member()
    stage.commit(5, joined)
    stage.commit(6, group="simple")
    for _ in range(400):
        stage.pass_time(240)
        stage.heartbeat(joined)
    assert stage.committed() == {AT: 5}  # what the member reads is unknown: its metadata is no subscription
    assert stage.committed("simple") == {}
    stage.leave(joined.member_id)
    stage.pass_time(50_000)
    assert stage.committed() == {AT: 5}
    stage.pass_time(30_000)
    assert stage.describe().state == "Dead"
    stage.fail_over()
    assert (stage.committed(), stage.committed("simple")) == ({}, {})


def test_offsets_do_not_expire_while_their_group_rebalances():
    """KAFKA-13636."""
    config = dataclasses.replace(
        CONFIG, offsets_retention_minutes=1, offsets_retention_check_interval_ms=10_000
    )
    stage = GroupStage(config)
    joined = stage.one_member()
    stage.commit(5, joined)
    for _ in range(400):
        stage.pass_time(240)
        if stage.heartbeat(joined) is None and stage.describe().state == "Stable":
            # A member that only asks for an id lets the group prepare a rebalance now and then.
            waiting = stage.begin_join(stage.new_id())
            joined = stage.begin_join(joined.member_id).result(0)
            stage.leave(waiting.result(0).member_id)
            joined = stage.begin_join(joined.member_id).result(0)
            stage.begin_sync(joined, {joined.member_id: b"work"}).result(0)
    assert stage.committed() == {AT: 5}


def test_offsets_of_a_deleted_topic_go(stage):
    other = TopicPartition("u", 1)
    stage.commit(5)
    stage.commit(6, at=other)
    stage.coordinator.delete_topics(["t"])
    stage.settle()
    assert stage.committed() == {other: 6}
    stage.fail_over()
    assert stage.committed() == {other: 6}


# ---- deleting, listing ---------------------------------------------------------------------------------


def test_an_empty_group_can_be_deleted(stage):
    joined = stage.one_member()
    stage.commit(5, joined)
    assert isinstance(stage.delete(), errors.NonEmptyGroup)
    stage.leave(joined.member_id)
    assert stage.delete() is None
    assert isinstance(stage.delete(), errors.GroupIdNotFound)
    stage.fail_over()
    assert (stage.describe().state, stage.committed()) == ("Dead", {})
    gone = [key for key, value in stage.log.records() if value is None]
    assert gone == [
        OffsetCommitKey(group="g", topic="t", partition=0),
        GroupMetadataKey(group="g"),
    ]


def test_offsets_are_deleted_of_topics_that_no_member_reads(stage):
    other = TopicPartition("u", 1)
    stage.commit(5)
    stage.commit(6, at=other)

    def deleted(*partitions, group="g"):
        future = stage.coordinator.delete_offsets(group, partitions)
        stage.settle()
        return future.exception(0) or future.result(0)

    assert deleted(other, TopicPartition("absent", 0)) == {other: None, TopicPartition("absent", 0): None}
    assert stage.committed() == {AT: 5}
    assert isinstance(deleted(AT, group="other"), errors.GroupIdNotFound)
    stage.fail_over()
    assert stage.committed() == {AT: 5}

    stage.log.error = errors.NotEnoughReplicas()
    assert isinstance(deleted(AT)[AT], errors.CoordinatorNotAvailable)
    assert stage.committed() == {AT: 5}
    stage.log.error = None

    stage.one_member()  # its subscription cannot be decoded
    assert isinstance(deleted(AT), errors.NonEmptyGroup)


def test_offsets_of_what_is_subscribed_to_are_not_deleted(stage):
    version, topics = b"\0\0", (1).to_bytes(4, "big") + b"\0\1t"
    joined = stage.one_member(protocols=(Protocol("range", version + topics),))
    stage.commit(5, joined)
    stage.commit(6, joined, at=TopicPartition("u", 0))
    future = stage.coordinator.delete_offsets("g", [AT, TopicPartition("u", 0)])
    stage.settle()
    assert isinstance(future.result(0)[AT], errors.GroupSubscribedToTopic)
    assert stage.committed() == {AT: 5}


def test_a_group_that_could_not_be_deleted_is_there_still(stage):
    stage.commit(5)
    stage.log.error = errors.NotEnoughReplicas()
    assert isinstance(stage.delete(), errors.CoordinatorNotAvailable)
    assert stage.committed() == {AT: 5}


def test_groups_are_listed_by_state(stage):
    stage.one_member()
    stage.commit(1, group="simple")

    def listed(*states):
        future = stage.coordinator.list_groups(states)
        stage.settle()
        return future.result(0)

    assert listed() == (False, [("g", "consumer", "Stable", "classic"), ("simple", "", "Empty", "classic")])
    assert [each.group_id for each in listed("empty")[1]] == ["simple"]


# ---- leadership ----------------------------------------------------------------------------------------


def test_pending_requests_fail_when_the_group_moves(stage):
    """KAFKA-16118: a coordinator that had been unloaded went on answering."""
    first = stage.one_member()
    joining = stage.begin_join(stage.new_id())
    stage.coordinator.resign(0)
    stage.settle()
    assert isinstance(joining.exception(0), errors.NotCoordinator)
    assert isinstance(stage.heartbeat(first), errors.NotCoordinator)
    assert isinstance(stage.commit(1, first), errors.NotCoordinator)


def test_a_partition_is_loaded_before_it_is_served(stage):
    joined = stage.one_member()
    for offset in range(5):
        stage.commit(offset, joined)
    stage.coordinator.resign(0)
    stage.coordinator.elect(0, 2)  # the log itself is still led in epoch 0
    stage.pass_time(100)
    assert isinstance(stage.commit(9, joined), errors.CoordinatorLoadInProgress)
    assert isinstance(stage.begin_join().exception(0), errors.CoordinatorLoadInProgress)
    assert isinstance(stage.begin_sync(joined).exception(0), errors.RebalanceInProgress)
    assert stage.heartbeat(joined) is None
    assert stage.coordinator.list_groups() is not None
    stage.log.leader_epoch = 2
    reads = stage.log.reads
    stage.pass_time(100)
    assert stage.log.reads - reads == len(stage.log.batches)  # a step for each
    assert stage.committed() == {AT: 4}


def test_what_an_earlier_leadership_appends_counts_for_nothing(stage):
    stage.log.held = []
    commit = stage.begin_commit(5)
    held, stage.log.held = stage.log.held, None
    stage.coordinator.resign(0)
    stage.settle()
    held[0][0].set_result(0)
    stage.settle()
    assert isinstance(commit.result(0)[AT], errors.NotCoordinator)
    # An epoch that the coordinator does not know of yet refuses its appends.
    stage.coordinator.elect(0, 0)
    stage.settle()
    stage.log.leader_epoch = 1
    assert isinstance(stage.commit(6), errors.NotCoordinator)


def test_a_stale_election_changes_nothing(stage):
    joined = stage.one_member()
    stage.fail_over()
    stage.coordinator.elect(0, 1)
    stage.settle()
    assert stage.heartbeat(joined) is None


def test_a_group_whose_assignment_cannot_be_stored_rebalances(stage):
    joined = stage.begin_join(stage.new_id()).result(0)
    stage.log.error = errors.NotEnoughReplicas()
    assert isinstance(stage.begin_sync(joined).exception(0), errors.CoordinatorNotAvailable)
    stage.log.error = None
    assert isinstance(stage.heartbeat(joined), errors.RebalanceInProgress)
    assert stage.begin_join(joined.member_id).result(0).generation_id == 2


# ---- what Kafka may have left --------------------------------------------------------------------------


def offset_record(offset):
    value = OffsetCommitValue(offset=offset, metadata="", commit_timestamp=0)
    return encode_key(OffsetCommitKey(group="g", topic="t", partition=0)), encode_value(value)


def test_transactional_offsets_count_once_committed(stage):
    log = stage.log
    for producer_id, offset in ((1, 10), (2, 20)):
        builder = BatchBuilder()
        builder.transactional, builder.producer_id, builder.producer_epoch = True, producer_id, 0
        builder.base_sequence = 0
        log.add(builder.build([offset_record(offset)], now_ms=0))
    for producer_id, commit in ((1, True), (2, False)):
        builder = BatchBuilder()
        builder.transactional = builder.control = True
        builder.producer_id, builder.producer_epoch = producer_id, 0
        marker = EndTransactionMarker(commit, 0)
        log.add(builder.build([(marker.key, marker.value)], now_ms=0))
    stage.fail_over()
    assert stage.committed() == {AT: 10}


def test_a_marker_that_a_cleaner_has_removed_ends_nothing(stage):
    """Its empty batch stays as the last one of its producer, and the partition could not be loaded again."""
    stage.commit(3)
    stage.log.add(batch_of(b"", 0, 0, attributes=TRANSACTIONAL_CONTROL))
    stage.fail_over()
    assert stage.committed() == {AT: 3}


def test_records_that_cannot_be_read_are_passed_over(stage):
    key = encode_key(OffsetCommitKey(group="g", topic="t", partition=0))
    bad = [(b"\0\3\0\1x", b"of another kind"), (b"", b""), (key, b"\0\x09"), (key[:-1], b""), (b"\0\1", None)]
    stage.log.add(BatchBuilder().build([*bad, offset_record(4), None], now_ms=0))
    stage.fail_over()
    assert stage.committed() == {AT: 4}


def test_a_member_that_gave_its_join_up_leaves_when_its_session_ends():
    stage = GroupStage()
    patient = {"session_timeout_ms": 100_000, "rebalance_timeout_ms": 2**31 - 1}
    first = stage.one_member(**patient)
    joining = stage.begin_join(stage.new_id(), rebalance_timeout_ms=2**31 - 1)
    stage.begin_join(first.member_id, **patient).result(0)
    second = joining.result(0).member_id
    # It joins again, which takes as long as the first does not.
    joining = stage.begin_join(second, protocols=[Protocol("range", b"more")], rebalance_timeout_ms=2**31 - 1)
    stage.pass_time(5_000)
    assert {each.member_id for each in stage.describe().members} == {first.member_id, second}
    joining.cancel()  # as a closed connection does
    stage.pass_time(5_000)
    assert {each.member_id for each in stage.describe().members} == {first.member_id}


# ---- transactional offsets -----------------------------------------------------------------------------


def commit_in_transaction(stage, offset, producer_id=5, **options):
    return stage.commit(offset, producer=TransactionalProducer(producer_id, 0), **options)


def complete(stage, producer_id=5, *, commit=True):
    future = stage.coordinator.complete_transaction(0, producer_id, commit=commit)
    stage.settle()
    return future


def test_an_offset_of_a_transaction_counts_once_that_is_committed(stage):
    stage.commit(3)
    assert commit_in_transaction(stage, 7) is None
    assert stage.committed() == {AT: 3}
    assert isinstance(stage.stable_offsets()[AT], errors.UnstableOffsetCommit)
    assert isinstance(stage.delete(), errors.NonEmptyGroup)
    complete(stage).result(0)
    assert stage.committed() == {AT: 7}
    assert stage.stable_offsets()[AT].value.offset == 7


def test_an_offset_of_an_aborted_transaction_is_dropped(stage):
    stage.commit(3)
    commit_in_transaction(stage, 7)
    complete(stage, commit=False).result(0)
    assert stage.committed() == {AT: 3}
    complete(stage).result(0)
    assert stage.committed() == {AT: 3}


def test_a_commit_after_that_of_a_transaction_counts(stage):
    """KAFKA-5247: the end of the transaction put its older offset in the place of the newer one."""
    commit_in_transaction(stage, 7)
    stage.commit(9)
    complete(stage).result(0)
    assert stage.committed() == {AT: 9}


def test_the_end_of_a_transaction_waits_for_its_offsets(stage):
    stage.log.held = []
    stage.begin_commit(7, producer=TransactionalProducer(5, 0))
    ended = complete(stage)
    assert not ended.done()
    stage.log.release()
    stage.settle()
    assert ended.done()
    assert stage.committed() == {AT: 7}


@pytest.mark.parametrize("commit", [True, False])
def test_open_offsets_survive_a_fail_over(stage, commit):
    stage.commit(3)
    commit_in_transaction(stage, 7)
    stage.fail_over()
    assert stage.committed() == {AT: 3}
    assert isinstance(stage.stable_offsets()[AT], errors.UnstableOffsetCommit)
    complete(stage, commit=commit).result(0)
    assert stage.committed() == {AT: 7 if commit else 3}


def test_only_a_member_of_the_generation_commits_in_a_transaction(stage):
    member = stage.one_member()
    assert commit_in_transaction(stage, 7, joined=member) is None
    old = member._replace(generation_id=member.generation_id - 1)
    assert isinstance(commit_in_transaction(stage, 8, joined=old), errors.IllegalGeneration)
    stranger = member._replace(member_id="stranger")
    assert isinstance(commit_in_transaction(stage, 8, joined=stranger), errors.UnknownMemberId)
    # A producer before KIP-447 names no member.
    assert commit_in_transaction(stage, 9, producer_id=6) is None


def test_only_the_leader_of_the_partition_completes_a_transaction(stage):
    stage.coordinator.resign(0)
    assert isinstance(complete(stage).exception(0), errors.NotCoordinator)


def test_offsets_of_a_transaction_that_are_refused_are_not_open(stage):
    """KAFKA-16371: metadata that was too large left the offset unstable for ever."""
    stage.commit(3)
    refused = commit_in_transaction(stage, 7, metadata="x" * 4_097)
    assert isinstance(refused, errors.OffsetMetadataTooLarge)
    assert stage.stable_offsets()[AT].value.offset == 3
    assert stage.delete() is None


def test_deleting_a_topic_drops_its_open_offsets(stage):
    commit_in_transaction(stage, 7)
    stage.coordinator.delete_topics(["t"])
    complete(stage).result(0)
    assert stage.committed() == {}


def test_an_offset_that_a_transaction_is_storing_is_unstable(stage):
    # The next member of the group must not begin behind a transaction that may still commit.
    stage.commit(3)
    stage.log.held = []
    storing = stage.begin_commit(7, producer=TransactionalProducer(5, 0))
    assert isinstance(stage.stable_offsets()[AT], errors.UnstableOffsetCommit)
    assert isinstance(stage.delete(), errors.NonEmptyGroup)
    stage.log.release()
    stage.settle()
    assert storing.result(0) == {AT: None}
    complete(stage).result(0)
    assert stage.stable_offsets()[AT].value.offset == 7


def test_offsets_that_were_not_stored_leave_none_open(stage):
    stage.commit(3)
    stage.log.error = errors.NotEnoughReplicas()
    assert isinstance(commit_in_transaction(stage, 7), errors.CoordinatorNotAvailable)
    stage.log.error = None
    assert stage.stable_offsets()[AT].value.offset == 3
    complete(stage).result(0)
    assert stage.committed() == {AT: 3}


def test_an_offset_does_not_expire_while_a_transaction_has_one_for_its_partition():
    config = dataclasses.replace(
        CONFIG, offsets_retention_minutes=1, offsets_retention_check_interval_ms=10_000
    )
    stage = GroupStage(config)
    stage.commit(3)
    commit_in_transaction(stage, 7)
    stage.pass_time(200_000)
    # A tombstone behind the open offset would take it from the next coordinator.
    stage.fail_over()
    complete(stage).result(0)
    assert stage.committed() == {AT: 7}


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_deleted_topic_takes_its_open_offsets_from_the_log_too(stage, is_loaded):
    commit_in_transaction(stage, 7)
    if is_loaded:
        stage.fail_over()
    stage.coordinator.delete_topics(["t"])
    stage.settle()
    stage.fail_over()
    complete(stage).result(0)
    assert stage.committed() == {}


@pytest.mark.parametrize("fails_over", [False, True])
def test_a_deleted_offset_is_not_brought_back_by_an_open_transaction(stage, fails_over):
    """KAFKA-14505: the commit of the transaction revived it."""
    stage.commit(3)
    commit_in_transaction(stage, 7)
    deleted = stage.coordinator.delete_offsets("g", [AT])
    stage.settle()
    assert deleted.result(0) == {AT: None}
    assert stage.stable_offsets() == {}
    if fails_over:
        stage.fail_over()
    complete(stage).result(0)
    assert stage.committed() == {}


def test_an_offset_of_a_transaction_counts_if_it_was_stored_after_a_deletion(stage):
    stage.commit(3)
    stage.log.held = []
    deleted = stage.coordinator.delete_offsets("g", [AT])
    stage.settle()
    storing = stage.begin_commit(7, producer=TransactionalProducer(5, 0))
    stage.log.held.reverse()
    stage.log.release()
    stage.settle()
    assert (deleted.result(0), storing.result(0)) == ({AT: None}, {AT: None})
    complete(stage).result(0)
    assert stage.committed() == {AT: 7}


def test_offsets_that_could_not_be_deleted_stay(stage):
    stage.commit(3)
    commit_in_transaction(stage, 7)
    stage.log.error = errors.NotEnoughReplicas()
    deleted = stage.coordinator.delete_offsets("g", [AT])
    stage.settle()
    assert isinstance(deleted.result(0)[AT], errors.CoordinatorNotAvailable)
    assert stage.committed() == {AT: 3}
    complete(stage).result(0)
    assert stage.committed() == {AT: 7}
