"""A share coordinator: its checks, what it stores, and what a fail-over or a failed append leaves."""

from __future__ import annotations

import pytest

from kreplica.common import errors
from kreplica.common.share_state import (
    ACKNOWLEDGED,
    ANY_EPOCH,
    ARCHIVED,
    NO_START_OFFSET,
    UNKNOWN_COUNT,
    SharePartitionKey,
    ShareState,
    StateBatch,
)
from kreplica.common.types import Uuid
from tests.support.share_stage import CONFIG, KEY, OTHER, TOPIC, ShareStage, change

FIRST, SECOND = StateBatch(10, 14, ACKNOWLEDGED, 1), StateBatch(15, 19, ARCHIVED, 5)
UNKNOWN = SharePartitionKey("g", Uuid(bytes(16)), 0)
NEGATIVE, NAMELESS = SharePartitionKey("g", TOPIC, -1), SharePartitionKey("", TOPIC, 0)


@pytest.fixture
def stage():
    return ShareStage()


@pytest.fixture
def written(stage):
    """A stage where KEY has state epoch 2, leader epoch 3, and a batch behind its start offset of 10."""
    stage.do("initialize", KEY, 2, 10)
    stage.do("read", KEY, 3)
    assert stage.do("write", KEY, change(NO_START_OFFSET, FIRST, count=5)) is None
    return stage


STORED = ShareState(2, 3, 10, (FIRST,), 5)


# ---- requests ----------------------------------------------------------------------------------------------


def test_a_state_begins_without_batches(stage):
    assert stage.do("initialize", KEY, 2, NO_START_OFFSET) is None
    assert stage.do("read", KEY, 0) == ShareState(2, 0, NO_START_OFFSET, (), UNKNOWN_COUNT)
    assert stage.do("initialize", OTHER, 2, 7) is None
    assert stage.do("read", OTHER, 0) == ShareState(2, 0, 7, (), 0)


def test_a_write_is_laid_over_the_state(written):
    assert written.do("read", KEY, 3) == STORED
    assert written.do("write", KEY, change(12, SECOND, count=8)) is None
    assert written.do("read", KEY, 3) == ShareState(
        2, 3, 12, (StateBatch(12, 14, ACKNOWLEDGED, 1), SECOND), 8
    )


def test_the_first_read_of_a_leader_is_stored_before_it_is_answered(written):
    written.log.held = []
    read = written.begin("read", KEY, 4)
    assert not read.done()
    written.log.release()
    written.settle()
    assert read.result(0) == STORED._replace(leader_epoch=4)
    after = written.fail_over()
    assert isinstance(after.do("write", KEY, change(11)), errors.FencedLeaderEpoch)
    assert after.do("read", KEY, 4) == STORED._replace(leader_epoch=4)


def test_a_read_does_not_answer_what_may_be_undone(written):
    written.log.held = []
    first = written.begin("write", KEY, change(20))
    read, summary = written.begin("read", KEY, 3), written.begin("summary", KEY)
    assert not any(future.done() for future in (first, read, summary))
    written.log.release()
    written.settle()
    assert read.result(0).start_offset == summary.result(0).start_offset == 20


def test_a_summary_has_no_batches_and_checks_no_epoch(written):
    assert written.do("summary", KEY) == ShareState(2, 3, 10, (), 5)
    assert written.do("summary", OTHER) == ShareState(0, 0, NO_START_OFFSET, (), UNKNOWN_COUNT)


def test_a_deleted_state_is_unknown(written):
    assert written.do("delete", KEY) is None
    assert written.do("delete", KEY) is None
    assert isinstance(written.do("read", KEY, 3), errors.InvalidRequest)
    assert [kind for kind, value in written.kinds() if value is None] == ["ShareSnapshotKey"]


def test_an_initialization_with_a_later_epoch_begins_anew(written):
    assert written.do("initialize", KEY, 5, 100) is None
    assert written.do("read", KEY, 3) == ShareState(5, 3, 100, (), 0)
    assert isinstance(written.do("write", KEY, change(11)), errors.FencedStateEpoch)


def test_a_repeated_initialization_takes_nothing_back(written):
    assert written.do("initialize", KEY, 2, 10) is None
    assert written.do("read", KEY, 3) == STORED


# ---- checks, in their order --------------------------------------------------------------------------------

OLD_LEADER, OLD_STATE = {"leader_epoch": 2}, {"state_epoch": 1}
BAD = StateBatch(9, 8, ACKNOWLEDGED, 1)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (("initialize", NAMELESS, 1, 0), errors.InvalidRequest),
        (("initialize", NEGATIVE, 1, 0), errors.InvalidRequest),
        (("initialize", KEY, 1, 0), errors.FencedStateEpoch),
        (("initialize", UNKNOWN, 1, 0), errors.UnknownTopicOrPartition),
        (("initialize", KEY, ANY_EPOCH, 0), None),
        (("read", NAMELESS, 9), errors.InvalidRequest),
        (("read", NEGATIVE, 9), errors.InvalidRequest),
        (("read", OTHER, 9), errors.InvalidRequest),
        (("read", UNKNOWN, 9), errors.InvalidRequest),
        (("read", KEY, 2), errors.FencedLeaderEpoch),
        (("read", KEY, ANY_EPOCH), errors.FencedLeaderEpoch),
        (("read", KEY, 3), None),
        (("write", NAMELESS, change(11)), errors.InvalidRequest),
        (("write", NEGATIVE, change(11)), errors.InvalidRequest),
        (("write", OTHER, change(11)), errors.InvalidRequest),
        (("write", KEY, change(11, **OLD_LEADER, **OLD_STATE)), errors.FencedLeaderEpoch),
        (("write", KEY, change(11, **OLD_STATE)), errors.FencedStateEpoch),
        (("write", KEY, change(11, BAD)), errors.InvalidRequest),
        (("write", KEY, change(11, state_epoch=ANY_EPOCH, leader_epoch=ANY_EPOCH)), None),
        (("summary", NAMELESS), errors.InvalidRequest),
        (("summary", NEGATIVE), errors.InvalidRequest),
        (("summary", UNKNOWN), errors.UnknownTopicOrPartition),
        (("summary", OTHER), None),
        (("delete", NAMELESS), errors.InvalidRequest),
        (("delete", NEGATIVE), errors.InvalidRequest),
        (("delete", UNKNOWN), None),
    ],
)
def test_requests_are_checked(written, request_, error):
    written.missing = {UNKNOWN.topic_id}
    before = written.log.end
    found = written.do(*request_)
    assert (None if found is None or isinstance(found, ShareState) else type(found)) == error
    assert error is None or written.log.end == before


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (("initialize", KEY, 1, 0), errors.FencedStateEpoch),
        (("initialize", KEY, 3, 0), errors.UnknownTopicOrPartition),
        (("read", KEY, 2), errors.FencedLeaderEpoch),
        (("read", KEY, 3), errors.UnknownTopicOrPartition),
        (("write", KEY, change(11, **OLD_STATE)), errors.FencedStateEpoch),
        (("write", KEY, change(11)), errors.UnknownTopicOrPartition),
        (("summary", KEY), errors.UnknownTopicOrPartition),
        (("delete", KEY), type(None)),
    ],
)
def test_a_deleted_topic_is_noticed_after_the_epochs(written, request_, error):
    written.missing = {TOPIC}
    assert type(written.do(*request_)) is error


def test_a_coordinator_that_cannot_serve_says_so(stage):
    stage.partitions = None
    assert isinstance(stage.do("delete", KEY), errors.CoordinatorNotAvailable)
    stage.partitions = 1
    stage.coordinator.resign(0)
    assert isinstance(stage.do("delete", KEY), errors.NotCoordinator)
    stage.log.leader_epoch = 1
    stage.coordinator.elect(0, 1)
    loading = stage.coordinator.delete(KEY)
    stage.settle()
    assert loading.result(0) is None


# ---- the log -----------------------------------------------------------------------------------------------


def test_many_updates_become_a_snapshot(stage):
    limit = CONFIG.share_coordinator_snapshot_update_records_per_snapshot
    stage.do("initialize", KEY, 2, 0)
    for count in range(1, limit + 2):
        stage.do("write", KEY, change(count))
    kinds = [kind for kind, _ in stage.kinds()]
    assert kinds == [
        "ShareSnapshotKey",
        *["ShareUpdateKey"] * (limit - 1),
        "ShareSnapshotKey",
        "ShareUpdateKey",
    ]
    assert [value.snapshot_epoch for _, value in stage.kinds()] == [0] * limit + [1, 1]
    assert stage.fail_over().do("read", KEY, 3).start_offset == limit + 1


def test_a_later_state_epoch_is_stored_as_a_snapshot(written):
    assert written.do("write", KEY, change(11, state_epoch=4)) is None
    assert written.fail_over().do("summary", KEY).state_epoch == 4


def test_requests_that_come_together_are_one_append(stage):
    for key in (KEY, OTHER):
        stage.coordinator.initialize(key, 1, 0)
    stage.settle()
    assert len(stage.log.batches) == 1


def test_an_append_that_failed_changes_nothing(written):
    written.log.error = errors.NotEnoughReplicas()
    assert isinstance(written.do("write", KEY, change(20)), errors.CoordinatorNotAvailable)
    assert isinstance(written.do("read", KEY, 9), errors.CoordinatorNotAvailable)
    written.log.error = None
    assert written.do("read", KEY, 3) == STORED


def test_another_coordinator_has_the_same_states(written):
    written.do("initialize", OTHER, 1, 7)
    after = written.fail_over()
    assert after.shard.states == written.shard.states
    assert isinstance(written.do("write", KEY, change(20)), errors.NotCoordinator)


def test_an_update_of_an_earlier_snapshot_is_skipped(written):
    # A batch whose outcome is unknown is appended again.
    written.log.batches.append(written.log.batches[-1])
    limit = CONFIG.share_coordinator_snapshot_update_records_per_snapshot
    for count in range(limit):
        written.do("write", KEY, change(10 + count))
    written.log.add(written.log.batches[2])
    assert written.fail_over().do("summary", KEY) == written.do("summary", KEY)


def test_states_of_deleted_topics_are_forgotten(written):
    other = SharePartitionKey("g", Uuid(b"0123456789abcdef"), 0)
    written.do("initialize", other, 1, 0)
    written.coordinator.delete_topics({TOPIC})
    written.settle()
    assert list(written.shard.states) == [other]
    assert list(written.fail_over().shard.states) == [other]


def test_states_of_topics_that_were_deleted_elsewhere_are_forgotten_later(written):
    after = written.fail_over()
    after.missing = {TOPIC}
    after.pass_time(1_000)
    assert after.shard.states == {}
    assert after.fail_over().shard.states == {}


# ---- pruning -----------------------------------------------------------------------------------------------


def write_often(stage, key, writes=20):
    for count in range(writes):
        assert stage.do("write", key, change(count)) is None


def test_upkeep_waits_while_it_is_unknown_whether_earlier_records_are_stored(written):
    written.log.held = []
    doubtful = written.begin("read", KEY, 5)
    [(appended, _)], written.log.held = written.log.held, []
    appended.set_exception(errors.RequestTimedOut())
    written.settle()
    assert isinstance(doubtful.exception(0), errors.CoordinatorNotAvailable | errors.RequestTimedOut)

    written.missing = {TOPIC}
    written.coordinator.delete_topics({TOPIC})
    written.pass_time(5_000)
    assert written.shard.states
    written.log.release()
    written.pass_time(5_000)
    assert not written.shard.states


def test_records_before_the_oldest_snapshot_are_deleted(stage):
    stage.do("initialize", KEY, 2, 0)
    write_often(stage, KEY)
    stage.pass_time(1_000)
    assert [kind for kind, _ in stage.kinds()].count("ShareSnapshotKey") == 1
    assert stage.kinds()[0][0] == "ShareSnapshotKey"
    assert stage.fail_over().do("summary", KEY) == stage.do("summary", KEY)


def test_a_state_that_does_not_change_holds_back_nothing_for_long(stage):
    stage.do("initialize", OTHER, 2, 7)
    stage.do("initialize", KEY, 2, 0)
    stage.pass_time(1_000)
    write_often(stage, KEY)
    stage.pass_time(1_000)
    assert len(stage.kinds()) < 10
    after = stage.fail_over()
    assert after.do("summary", OTHER) == ShareState(2, 0, 7, (), 0)


def test_states_at_rest_are_not_stored_again_and_again(stage):
    for key in (KEY, OTHER):
        stage.do("initialize", key, 2, 7)
    stage.pass_time(20_000)
    assert len(stage.kinds()) <= 4


def test_states_at_rest_are_not_stored_again_by_the_next_coordinator(stage):
    stage.do("initialize", KEY, 2, 0)
    write_often(stage, KEY)
    stage.pass_time(5_000)
    after = stage.fail_over()
    before = after.log.end
    after.pass_time(5_000)
    assert after.log.end == before


def test_all_records_but_the_last_are_deleted_without_states(stage):
    stage.do("initialize", KEY, 2, 0)
    write_often(stage, KEY)
    stage.do("delete", KEY)
    stage.pass_time(1_000)
    assert [value for _, value in stage.kinds()] == [None]


def test_a_failed_deletion_holds_back_its_snapshot(stage):
    stage.do("initialize", KEY, 2, 0)
    write_often(stage, KEY, writes=3)
    stage.log.error = errors.NotEnoughReplicas()
    assert isinstance(stage.do("delete", KEY), errors.CoordinatorNotAvailable)
    stage.log.error = None
    stage.do("initialize", OTHER, 2, 0)
    stage.pass_time(1_000)
    assert stage.fail_over().shard.states == stage.shard.states
    assert set(stage.shard.states) == {KEY, OTHER}
