"""QuorumController: events, commits, fail-over, and what a lost epoch may do: nothing."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import pytest

from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import (
    BufferExhausted,
    InvalidRequest,
    NotController,
    NotLeader,
    StaleBrokerEpoch,
    UnknownServerError,
)
from kreplica.common.future import Future
from kreplica.common.messages.administration import IncrementalAlterConfigsRequest
from kreplica.common.messages.administration import (
    IncrementalAlterConfigsRequestAlterableConfig as AlterableConfig,
)
from kreplica.common.messages.administration import (
    IncrementalAlterConfigsRequestAlterConfigsResource as AlterConfigsResource,
)
from kreplica.controller.controller_broker_request_batch import ControllerResult
from kreplica.controller.controller_term import ControllerTerm
from kreplica.metadata.records import FeatureLevelRecord, FenceBrokerRecord, NoOpRecord
from kreplica.metadata.serde import in_lowest_version
from tests.support.one_controller import CONFIG, NODE_ID, OneController, topic_creation


@pytest.fixture
def stage() -> OneController:
    return OneController()


def level(number: int) -> FeatureLevelRecord:
    return FeatureLevelRecord(name="test", feature_level=number)


def ask(stage: OneController, operation: Any) -> Future[Any]:
    future = stage.controller.append_write_event("test", operation)
    stage.settle()
    return future


def failing(error: Exception) -> Any:
    def operation(term: ControllerTerm) -> None:
        term.add(level(9))
        raise error

    return operation


# ---- events and commits ----------------------------------------------------------------------------------


def test_an_event_is_answered_when_its_records_are_committed(stage: OneController) -> None:
    stage.quorum.holds = True
    future = ask(stage, lambda _: ControllerResult((in_lowest_version(level(1)),), "done"))
    assert not future.done()
    stage.quorum.commit()
    stage.settle()
    assert future.result(timeout=0) == "done"
    assert stage.committed.features["test"] == 1


def test_the_next_event_sees_what_is_not_committed_yet(stage: OneController) -> None:
    stage.quorum.holds = True
    ask(stage, lambda term: term.add(level(1)))
    seen = ask(stage, lambda term: term.context.metadata.features["test"])
    assert not seen.done(), "what it saw may still be lost"
    assert "test" not in stage.committed.features
    stage.quorum.commit()
    stage.settle()
    assert seen.result(timeout=0) == 1


def test_an_event_that_writes_nothing_is_answered_at_once_where_all_is_committed(
    stage: OneController,
) -> None:
    stage.quorum.holds = True
    assert ask(stage, lambda _: 7).result(timeout=0) == 7


def test_all_records_of_an_event_are_one_batch(stage: OneController) -> None:
    def operation(term: ControllerTerm) -> None:
        term.add(level(1))
        term.add(level(2))

    ask(stage, operation).result(timeout=0)
    assert stage.quorum.batches[-1] == [level(1), level(2)]


def test_an_event_that_fails_has_written_nothing(stage: OneController) -> None:
    before = len(stage.quorum.batches)
    with pytest.raises(InvalidRequest):
        ask(stage, failing(InvalidRequest())).result(timeout=0)
    assert len(stage.quorum.batches) == before
    assert stage.controller.is_active


def test_an_event_with_a_fault_ends_the_epoch(stage: OneController, caplog: pytest.LogCaptureFixture) -> None:
    # What it left in memory is not to be trusted; the next leader of the quorum reads all anew.
    epoch = stage.quorum.epoch
    with pytest.raises(UnknownServerError, match="unexpected"):
        ask(stage, failing(ZeroDivisionError("unexpected"))).result(timeout=0)
    assert not stage.controller.is_active
    assert stage.quorum.epoch > epoch
    assert [record.levelno for record in caplog.records if record.exc_info] == [logging.ERROR]


def test_a_record_of_the_quorum_in_between_makes_an_event_be_done_anew(stage: OneController) -> None:
    attempts = []

    def operation(term: ControllerTerm) -> int:
        attempts.append(offset := term.next_offset)
        if len(attempts) == 1:
            stage.quorum.append_control_record()
        term.expect_offset(offset)
        term.add(level(1))
        return offset

    assert ask(stage, operation).result(timeout=0) == attempts[1] == attempts[0] + 1


# ---- leadership ------------------------------------------------------------------------------------------


def test_a_new_cluster_gets_its_features(stage: OneController) -> None:
    assert stage.committed.features == {
        "metadata.version": 25,
        "eligible.leader.replicas.version": 1,
        "transaction.version": 2,
        "group.version": 1,
        "share.version": 1,
        "streams.version": 1,
    }
    stage.quorum.lose()
    stage.quorum.win()
    stage.settle()
    assert len(stage.quorum.batches) == 1, "once is enough"


def test_pending_requests_fail_when_leadership_is_lost(stage: OneController) -> None:
    stage.quorum.holds = True
    future = ask(stage, lambda term: term.add(level(1)))
    stage.quorum.lose(leader_id=101)
    stage.settle()
    with pytest.raises(NotController, match="which is node 101"):
        future.result(timeout=0)


def test_a_controller_that_is_not_active_refuses(stage: OneController) -> None:
    stage.quorum.lose(leader_id=101)
    stage.settle()
    with pytest.raises(NotController, match="node 100 is not the active controller, which is node 101"):
        ask(stage, lambda _: 1).result(timeout=0)
    assert stage.controller.leader_id == 101


def test_a_controller_whose_epoch_is_over_can_write_nothing(stage: OneController) -> None:
    # The quorum knows it before the controller does.
    stage.quorum.leads = False
    with pytest.raises(NotController):
        ask(stage, lambda term: term.add(level(1))).result(timeout=0)
    assert not stage.controller.is_active


def test_a_term_that_has_ended_refuses_operations(stage: OneController) -> None:
    old: list[ControllerTerm] = []
    ask(stage, old.append)
    stage.quorum.lose()
    stage.quorum.win()
    stage.settle()
    before = len(stage.quorum.batches)
    with pytest.raises(NotController):
        old[0].run(lambda term: term.add(level(1)))
    assert len(stage.quorum.batches) == before


def test_what_was_not_committed_is_gone_with_the_epoch(stage: OneController) -> None:
    stage.quorum.holds = True
    ask(stage, lambda term: term.add(level(1)))
    stage.quorum.lose()
    stage.quorum.holds = False
    stage.quorum.win()
    stage.settle()
    assert "test" not in ask(stage, lambda term: dict(term.context.metadata.features)).result(timeout=0)


def test_the_leader_again_in_a_later_epoch_begins_anew(stage: OneController) -> None:
    before = ask(stage, lambda term: term).result(timeout=0)
    stage.quorum.win()
    stage.settle()
    after = ask(stage, lambda term: term).result(timeout=0)
    assert after is not before
    assert after.epoch > before.epoch


def test_closing_a_controller_fails_pending_requests(stage: OneController) -> None:
    stage.quorum.holds = True
    future = ask(stage, lambda term: term.add(level(1)))
    stage.controller.close()
    stage.settle()
    with pytest.raises(NotController):
        future.result(timeout=0)


# ---- fail-over -------------------------------------------------------------------------------------------


def test_a_new_controller_elects_where_the_old_one_could_not(stage: OneController) -> None:
    stage.start(1, 2)
    stage.create_topic("t", [1, 2])
    assert stage.partition("t").leader == 1
    # The fence of broker 1 and the election are lost with the leadership.
    stage.quorum.holds = True
    stage.pass_with([], 200)
    stage.quorum.lose()
    stage.quorum.holds = False
    stage.quorum.win()
    stage.pass_with([2], 240)
    assert stage.partition("t").leader == 2
    assert stage.committed.brokers[1].fenced


def test_after_a_fail_over_every_broker_has_a_whole_session(stage: OneController) -> None:
    stage.start(1, 2)
    stage.pass_time(190)
    stage.quorum.lose()
    stage.quorum.win()
    stage.pass_time(199)
    assert not stage.committed.brokers[1].fenced
    stage.pass_time(1)
    assert stage.committed.brokers[1].fenced


def test_a_connection_that_broke_before_the_fail_over_is_remembered(stage: OneController) -> None:
    stage.start(1, 2)
    stage.create_topic("t", [1, 2])
    stage.controller.connection_lost(1)
    stage.quorum.lose()
    stage.quorum.win()
    stage.pass_with([2], 80)
    assert stage.partition("t").leader == 2


def test_a_controller_that_resigns_names_the_next_leader_only_if_one_is_known(
    stage: OneController, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    stage.start(1)
    epoch = stage.quorum.epoch
    stage.quorum.lose()
    stage.settle()
    [line] = [each for each in caplog.messages if "resigns" in each]
    assert (
        line
        == f"controller {stage.controller.node_id} resigns from epoch {epoch}: it no longer leads the quorum"
    )


def test_a_controller_that_cannot_take_over_lets_others_try(
    stage: OneController, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stage.start(1, 2)
    stage.create_topic("t", [1, 2])
    stage.quorum.lose()
    monkeypatch.setattr(stage.quorum, "schedule_append", _refuse)
    stage.pass_time(10)
    # It has to elect a leader at its fail-over, and cannot write that.
    stage.quorum.metadata.replay(FenceBrokerRecord(id=1, epoch=stage.epochs[1]), 0, 99)
    stage.quorum.win()
    epoch = stage.quorum.epoch
    stage.settle()
    assert not stage.controller.is_active
    assert stage.quorum.epoch > epoch, "it resigned"
    assert "BufferExhausted" in caplog.text


def test_a_fence_that_cannot_be_written_is_tried_again(
    stage: OneController, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stage.start(1, 2)
    with monkeypatch.context() as patch:
        patch.setattr(stage.quorum, "schedule_append", _refuse)
        stage.pass_with([2], 240)
    assert "maybeFenceStaleBrokers failed: BufferExhausted" in caplog.text
    assert not stage.committed.brokers[1].fenced
    stage.pass_with([2], 40)
    assert stage.committed.brokers[1].fenced


def test_an_event_that_finds_the_epoch_over_is_logged_as_a_resignation_only(
    stage: OneController, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def lost(*_: object, **__: object) -> int:
        raise NotLeader("node 100 does not lead this epoch")

    caplog.set_level("INFO")
    stage.start(1, 2)
    monkeypatch.setattr(stage.quorum, "schedule_append", lost)
    stage.pass_with([2], 240)
    assert not stage.controller.is_active
    assert {record.levelname for record in caplog.records} == {"INFO"}
    assert "resigns" in caplog.text


@pytest.mark.parametrize("committed", range(5))
def test_a_partly_committed_fence_is_completed_by_the_next_controller(
    stage: OneController, committed: int
) -> None:
    # One broker may have more partitions than a batch holds, and its fence then takes several.
    stage.start(1, 2, 3)
    stage.create_topic("t", [1, 2, 3], [2, 1, 3], [1, 3, 2])
    stage.pass_with([2, 3], 160)
    stage.quorum.holds = True
    stage.pass_time(40)
    assert [type(each).__name__ for each in stage.quorum.batches[-1]] == [
        *["PartitionChangeRecord"] * 3,
        "BrokerRegistrationChangeRecord",
    ]
    assert not stage.quorum.was_atomic
    stage.quorum.commit_first(committed)
    stage.quorum.lose()
    stage.quorum.holds = False
    stage.quorum.win()
    stage.pass_with([2, 3], 240)
    assert stage.committed.brokers[1].fenced
    for number in range(3):
        partition = stage.partition("t", number)
        assert partition.leader in (2, 3)
        assert sorted(partition.isr) == [2, 3]


def test_a_topic_is_created_whole_or_not_at_all(stage: OneController) -> None:
    stage.start(1)
    stage.create_topic("t", [1])
    assert stage.quorum.was_atomic


def _refuse(*_: Any, **__: Any) -> int:
    raise BufferExhausted("too much waits")


# ---- timed events ----------------------------------------------------------------------------------------


def test_an_idle_controller_writes_a_mark_that_all_follow() -> None:
    stage = OneController(dataclasses.replace(CONFIG, metadata_max_idle_interval_ms=500))
    stage.pass_time(1_000)
    assert stage.quorum.batches[1:] == [[NoOpRecord()]] * 2
    stage.pass_time(400)
    ask(stage, lambda term: term.add(level(1)))
    stage.pass_time(100)
    assert stage.quorum.batches[3:] == [[level(1)]], "not idle"


def test_preferred_leaders_get_their_partitions_back() -> None:
    stage = OneController(dataclasses.replace(CONFIG, leader_imbalance_check_interval_seconds=1))
    stage.start(1, 2)
    stage.create_topic("t", [1, 2])
    stage.pass_with([2], 240)
    assert stage.partition("t").leader == 2
    stage.heartbeat(1)
    stage.do(_rejoin)
    stage.pass_with([1, 2], 1_000)
    assert stage.partition("t").leader == 1


@pytest.mark.parametrize("resource", [(2, "t"), (4, "")])
def test_unclean_elections_begin_when_they_are_allowed(
    stage: OneController, resource: tuple[int, str]
) -> None:
    stage.start(1, 2)
    stage.create_topic("t", [1, 2])
    stage.pass_with([2], 240)
    stage.heartbeat(1)
    stage.pass_with([1], 240)
    assert (stage.partition("t").leader, stage.partition("t").isr) == (-1, ())
    assert offline_partitions(stage) == 1
    kind, name = resource
    stage.ask(unclean_allowed(kind, name))
    assert (stage.partition("t").leader, stage.partition("t").isr) == (1, (1,))
    assert offline_partitions(stage) == 0


def offline_partitions(stage: OneController) -> float:
    [name] = [each for each in stage.metrics.values() if "OfflinePartitionsCount" in each]
    return stage.metrics.values()[name]


def unclean_allowed(kind: int, name: str) -> IncrementalAlterConfigsRequest:
    setting = AlterableConfig(name="unclean.leader.election.enable", config_operation=0, value="true")
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=(setting,))
    return IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)


def _rejoin(term: ControllerTerm) -> None:
    (partition,) = term.context.partitions.values()
    change = term.machines.batch.change_of(partition)
    change.set_isr((1, 2), min_isr=1)


# ---- requests --------------------------------------------------------------------------------------------


def test_a_refusal_has_the_shape_of_the_answer(stage: OneController) -> None:
    stage.start(1)
    heartbeat = stage.heartbeat_of(1)
    stage.quorum.lose(leader_id=101)
    stage.settle()
    answer = stage.ask(heartbeat)
    assert answer.error_code is ErrorCode.not_controller
    (topic,) = stage.ask(topic_creation("t", [1])).topics
    assert topic.error_code is ErrorCode.not_controller
    assert "node 101" in topic.error_message


def test_an_error_of_an_operation_is_its_answer(stage: OneController) -> None:
    stage.start(1)
    answer = stage.ask(stage.heartbeat_of(1, broker_epoch=99))
    assert answer.error_code.value == StaleBrokerEpoch.code


def test_it_counts_itself(stage: OneController) -> None:
    assert stage.controller.node_id == NODE_ID
    assert stage.controller.is_active
    assert stage.controller.leader_id == NODE_ID
