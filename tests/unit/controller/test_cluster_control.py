"""ClusterControl: registration, epochs, fencing, controlled shutdown, offline directories."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from kreplica.common.error_code import ErrorCode
from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.common.messages.administration import UnregisterBrokerRequest
from kreplica.common.messages.controllers import AssignReplicasToDirsRequest, ControllerRegistrationRequest
from kreplica.common.messages.controllers import AssignReplicasToDirsRequestDirectoryData as DirectoryData
from kreplica.common.messages.controllers import AssignReplicasToDirsRequestPartitionData as PartitionData
from kreplica.common.messages.controllers import AssignReplicasToDirsRequestTopicData as TopicData
from kreplica.common.types import Uuid
from kreplica.metadata.records import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    RegisterBrokerRecord,
)
from kreplica.metadata.registrations import LOST_DIRECTORY
from tests.support.one_controller import OneController, directory_of, registration


@pytest.fixture
def stage() -> OneController:
    return OneController()


def directories(*ids: Uuid) -> tuple[uuid.UUID, ...]:
    return tuple(uuid.UUID(bytes=each.raw) for each in ids)


# ---- registration ----------------------------------------------------------------------------------------


def test_the_epoch_of_a_broker_is_the_offset_of_its_registration(stage: OneController) -> None:
    expected = stage.quorum.next_offset
    assert stage.register(1).broker_epoch == expected
    assert stage.committed.brokers[1].epoch == expected
    assert stage.register(2).broker_epoch == expected + 1


def test_it_is_also_where_the_quorum_writes_a_record_in_between(stage: OneController) -> None:
    real = stage.quorum.schedule_append
    offset = stage.quorum.next_offset

    def interrupted(*arguments: Any, **named: Any) -> int:
        stage.quorum.schedule_append = real  # type: ignore[method-assign]
        stage.quorum.append_control_record()
        return real(*arguments, **named)

    stage.quorum.schedule_append = interrupted  # type: ignore[method-assign]
    assert stage.register(1).broker_epoch == offset + 1


def test_a_new_broker_is_fenced(stage: OneController) -> None:
    stage.register(1)
    assert stage.committed.brokers[1].fenced


def test_the_answer_is_given_when_it_is_committed(stage: OneController) -> None:
    stage.quorum.holds = True
    future = stage.apis.handle(registration(1))
    stage.settle()
    assert not future.done()


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"cluster_id": "another"}, ErrorCode.inconsistent_cluster_id),
        ({"features": ()}, ErrorCode.unsupported_version),
        ({"log_dirs": ()}, ErrorCode.invalid_request),
        ({"log_dirs": directories(directory_of(1)) * 2}, ErrorCode.invalid_request),
        ({"log_dirs": directories(LOST_DIRECTORY)}, ErrorCode.invalid_request),
        ({"log_dirs": directories(directory_of(7))}, ErrorCode.invalid_request),
    ],
    ids=["cluster", "features", "no directory", "directory twice", "reserved id", "another broker's"],
)
def test_what_is_no_registration_is_refused(
    stage: OneController, changes: dict[str, Any], error: ErrorCode
) -> None:
    stage.register(7)
    assert stage.register(1, **changes).error_code is error
    assert 1 not in stage.committed.brokers


def test_a_second_broker_of_that_id_is_refused_while_the_first_may_live(stage: OneController) -> None:
    stage.start(1)
    assert stage.register(1, life=2).error_code is ErrorCode.duplicate_broker_registration
    stage.pass_time(200)
    assert stage.register(1, life=2).error_code is ErrorCode.none


def test_a_registration_that_comes_twice_is_the_same(stage: OneController) -> None:
    # The first answer was lost.
    first = stage.register(1).broker_epoch
    assert stage.register(1).broker_epoch == first
    assert not stage.heartbeat(1).is_fenced
    assert stage.register(1).broker_epoch == first
    assert not stage.committed.brokers[1].fenced


def test_a_new_life_has_a_new_epoch_and_the_old_one_is_stale(stage: OneController) -> None:
    stage.start(1)
    old = stage.epochs[1]
    stage.pass_time(200)
    assert stage.register(1, life=2).broker_epoch > old
    assert stage.heartbeat(1, broker_epoch=old).error_code is ErrorCode.stale_broker_epoch


def test_one_that_comes_back_after_a_crash_is_believed_to_have_nothing(stage: OneController) -> None:
    # KIP-966: broker 1 died last, so it alone had all; after an unclean stop it may have lost it.
    stage.start(1, 2)
    stage.create_topic("t", [1, 2], min_insync_replicas="2")
    stage.pass_with([2], 240)
    stage.pass_with([2], 40)
    assert stage.partition("t").isr == (2,)
    assert stage.partition("t").elr == (1,)
    stage.register(1, life=2, previous_broker_epoch=-1)
    assert stage.partition("t").elr == ()


def test_one_that_stopped_in_order_keeps_its_word(stage: OneController) -> None:
    stage.start(1, 2)
    stage.create_topic("t", [1, 2], min_insync_replicas="2")
    stage.pass_with([2], 240)
    stage.register(1, life=2, previous_broker_epoch=stage.epochs[1])
    assert stage.partition("t").elr == (1,)


def test_unregistering_takes_it_out_of_every_isr(stage: OneController) -> None:
    stage.start(1, 2)
    stage.create_topic("t", [1, 2])
    response = stage.ask(UnregisterBrokerRequest(broker_id=1))  # type: ignore[arg-type]
    assert response.error_code is ErrorCode.none
    assert 1 not in stage.committed.brokers
    assert (stage.partition("t").leader, stage.partition("t").isr) == (2, (2,))
    assert stage.heartbeat(1).error_code is ErrorCode.stale_broker_epoch
    again = stage.ask(UnregisterBrokerRequest(broker_id=1))  # type: ignore[arg-type]
    assert again.error_code is ErrorCode.broker_id_not_registered


def test_a_controller_registers_the_features_that_it_supports(stage: OneController) -> None:
    request = ControllerRegistrationRequest(
        controller_id=100,  # type: ignore[arg-type]
        incarnation_id=uuid.UUID(int=5),
        zk_migration_ready=False,
        listeners=(),
        features=registration(1).features,  # type: ignore[arg-type]
    )
    assert stage.ask(request).error_code is ErrorCode.none
    assert stage.committed.controllers[100].incarnation_id == Uuid((5).to_bytes(16, "big"))


# ---- fencing ---------------------------------------------------------------------------------------------


def test_a_broker_is_unfenced_once_it_has_its_own_registration(stage: OneController) -> None:
    stage.register(1)
    behind = stage.heartbeat(1, current_metadata_offset=stage.epochs[1] - 1)
    assert (behind.is_caught_up, behind.is_fenced) == (False, True)
    there = stage.heartbeat(1, current_metadata_offset=stage.epochs[1])
    assert (there.is_caught_up, there.is_fenced) == (True, False)
    assert not stage.committed.brokers[1].fenced


def test_a_silent_broker_is_fenced_and_others_lead(stage: OneController) -> None:
    stage.start(1, 2, 3)
    stage.create_topic("t", [1, 2, 3])
    stage.pass_with([2, 3], 200)
    assert stage.committed.brokers[1].fenced
    assert (stage.partition("t").leader, stage.partition("t").isr) == (2, (2, 3))


def test_the_fence_and_the_elections_are_one_batch(stage: OneController) -> None:
    # So no reader ever sees a fenced broker lead, or in an ISR.
    stage.start(1, 2)
    stage.create_topic("t", [1, 2])
    stage.pass_with([2], 200)
    kinds = [type(record) for record in stage.quorum.batches[-1]]
    assert sorted(kinds, key=lambda kind: kind.__name__) == [
        BrokerRegistrationChangeRecord,
        PartitionChangeRecord,
    ]


def test_two_sessions_that_end_in_one_tick(stage: OneController) -> None:
    # KAFKA-13173: the first election must not choose the broker that is fenced next.
    stage.start(1, 2, 3)
    stage.create_topic("t", [1, 2, 3])
    stage.pass_with([3], 160)
    before = len(stage.quorum.batches)
    stage.pass_time(40)
    assert len(stage.quorum.batches) == before + 1
    assert stage.committed.brokers[1].fenced
    assert stage.committed.brokers[2].fenced
    assert (stage.partition("t").leader, stage.partition("t").isr) == (3, (3,))
    leaders = [
        record.leader for record in stage.quorum.batches[-1] if isinstance(record, PartitionChangeRecord)
    ]
    assert leaders == [3], "no other leader in between"


def test_a_broker_that_comes_back_leads_its_leaderless_partitions(stage: OneController) -> None:
    stage.start(1)
    stage.create_topic("t", [1])
    stage.pass_time(200)
    assert stage.partition("t").leader == NO_LEADER
    stage.heartbeat(1)
    assert stage.partition("t").leader == 1


def test_a_broker_may_ask_to_be_fenced(stage: OneController) -> None:
    stage.start(1, 2)
    stage.create_topic("t", [1, 2])
    assert stage.heartbeat(1, want_fence=True).is_fenced
    assert stage.partition("t").leader == 2


def test_a_stalled_controller_fences_no_broker(stage: OneController) -> None:
    # A step of its own takes 500 ms; heartbeats wait meanwhile.
    stage.start(1, 2)
    stage.pass_time(100)
    stage.loop.post(lambda: stage.time.advance_to(stage.time.now_ns + 500_000_000))
    future = stage.apis.handle(stage.heartbeat_of(1))
    stage.settle()
    assert future.result(timeout=0).error_code is ErrorCode.none
    assert not stage.committed.brokers[1].fenced
    assert not stage.committed.brokers[2].fenced
    stage.pass_with([1], 120)
    assert stage.committed.brokers[2].fenced, "its session goes on from where it was"


def test_a_closed_connection_brings_the_election_forward(stage: OneController) -> None:
    stage.start(1, 2)
    stage.create_topic("t", [1, 2])
    stage.controller.connection_lost(1)
    stage.pass_with([2], 79)
    assert stage.partition("t").leader == 1
    stage.pass_time(1)
    assert stage.partition("t").leader == 2


def test_a_connection_that_is_made_anew_changes_nothing(stage: OneController) -> None:
    stage.start(1, 2)
    stage.create_topic("t", [1, 2])
    stage.controller.connection_lost(1)
    stage.pass_with([1, 2], 400)
    assert stage.partition("t").leader == 1


def test_a_broker_that_flaps_is_given_more_time(stage: OneController) -> None:
    stage.start(1, 2)
    fenced_after = []
    for _ in range(3):
        passed_ms = 0
        while not stage.committed.brokers[1].fenced:
            stage.pass_with([2], 20)
            passed_ms += 20
        fenced_after.append(passed_ms)
        stage.heartbeat(1)
    assert fenced_after == [200, 400, 800]


# ---- leaving in order ------------------------------------------------------------------------------------


def test_leaders_move_before_a_broker_may_stop(stage: OneController) -> None:
    stage.start(1, 2, 3)
    stage.create_topic("t", [1, 2, 3])
    first = stage.heartbeat(1, want_shut_down=True)
    assert not first.should_shut_down
    assert stage.committed.brokers[1].in_controlled_shutdown
    assert stage.partition("t").leader == 2
    # The others have not heard of it yet.
    assert not stage.heartbeat(1, want_shut_down=True).should_shut_down
    stage.heartbeat(2)
    assert not stage.heartbeat(1, want_shut_down=True).should_shut_down
    stage.heartbeat(3)
    assert stage.heartbeat(1, want_shut_down=True).should_shut_down
    assert stage.committed.brokers[1].fenced
    assert stage.partition("t").isr == (2, 3)


def test_a_broker_that_leads_nothing_may_stop_at_once(stage: OneController) -> None:
    stage.start(1, 2)
    stage.create_topic("t", [1, 2])
    assert stage.heartbeat(2, want_shut_down=True).should_shut_down
    assert stage.partition("t").isr == (1,)


def test_a_shutdown_does_not_wait_for_partitions_without_another_replica(stage: OneController) -> None:
    stage.start(1, 2)
    stage.create_topic("t", [1])
    assert not stage.heartbeat(1, want_shut_down=True).should_shut_down
    stage.heartbeat(2)
    assert stage.heartbeat(1, want_shut_down=True).should_shut_down
    assert stage.partition("t").leader == NO_LEADER


def test_one_that_is_leaving_may_come_back_at_once(stage: OneController) -> None:
    stage.start(1, 2)
    stage.create_topic("t", [1, 2])
    stage.heartbeat(1, want_shut_down=True)
    assert stage.register(1, life=2).error_code is ErrorCode.none


def test_a_fail_over_in_between_does_not_lose_the_shutdown(stage: OneController) -> None:
    stage.start(1, 2)
    stage.create_topic("t", [1, 2])
    stage.heartbeat(1, want_shut_down=True)
    stage.quorum.lose()
    stage.quorum.win()
    stage.settle()
    assert not stage.heartbeat(1, want_shut_down=True).should_shut_down
    stage.heartbeat(2)
    assert stage.heartbeat(1, want_shut_down=True).should_shut_down


# ---- directories -----------------------------------------------------------------------------------------


def test_replicas_in_a_directory_that_failed_are_offline(stage: OneController) -> None:
    both = directory_of(1), directory_of(1, 1)
    assert stage.register(1, log_dirs=directories(*both)).error_code is ErrorCode.none
    stage.heartbeat(1)
    stage.start(2)
    stage.create_topic("t", [1, 2], [1, 2])
    assignment(stage, "t", both[0], 0)
    assignment(stage, "t", both[1], 1)
    stage.heartbeat(1, offline_log_dirs=directories(both[0]))
    assert [stage.partition("t", number).leader for number in (0, 1)] == [2, 1]
    assert [stage.partition("t", number).isr for number in (0, 1)] == [(2,), (1, 2)]
    assert stage.committed.brokers[1].directories == (both[1],)
    before = len(stage.quorum.batches)
    stage.heartbeat(1, offline_log_dirs=directories(both[0]))
    assert len(stage.quorum.batches) == before, "reported once"
    # The failure has to be reported again to a new controller.
    stage.quorum.lose()
    stage.quorum.win()
    stage.heartbeat(1, offline_log_dirs=directories(both[0]))
    offline = stage.do(lambda term: dict(term.context.offline_directories))
    assert offline == {1: frozenset({both[0]})}


def assignment(stage: OneController, topic: str, directory: Uuid, *numbers: int) -> Any:
    topic_id = stage.committed.topics[topic].topic_id if topic in stage.committed.topics else Uuid(b"x" * 16)
    request = AssignReplicasToDirsRequest(
        broker_id=1,  # type: ignore[arg-type]
        broker_epoch=stage.epochs[1],  # type: ignore[arg-type]
        directories=(
            DirectoryData(
                id_=uuid.UUID(bytes=directory.raw),
                topics=(
                    TopicData(
                        topic_id=uuid.UUID(bytes=topic_id.raw),
                        partitions=tuple(PartitionData(partition_index=each) for each in numbers),  # type: ignore[arg-type]
                    ),
                ),
            ),
        ),
    )
    (directory,) = stage.ask(request).directories
    return [each.error_code for each in directory.topics[0].partitions]


def test_a_broker_reports_the_directories_of_its_replicas(stage: OneController) -> None:
    both = directory_of(1), directory_of(1, 1)
    stage.register(1, log_dirs=directories(*both))
    stage.heartbeat(1)
    stage.start(2, 3)
    stage.create_topic("t", [1, 2], [2, 3])
    assert assignment(stage, "t", both[1], 0, 1, 2) == [
        ErrorCode.none,
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_or_partition,
    ]
    assert stage.partition("t").directories == (both[1], directory_of(2))
    assert stage.partition("t").leader == 1
    assert assignment(stage, "u", both[1], 0) == [ErrorCode.unknown_topic_id]


def test_a_replica_in_a_directory_that_is_lost_goes_offline(stage: OneController) -> None:
    stage.start(1, 2)
    stage.create_topic("t", [1, 2])
    assert assignment(stage, "t", LOST_DIRECTORY, 0) == [ErrorCode.none]
    assert (stage.partition("t").leader, stage.partition("t").isr) == (2, (2,))


def test_a_registration_keeps_its_kind(stage: OneController) -> None:
    stage.register(1, rack="r1")
    (record,) = [each for each in stage.quorum.batches[-1] if isinstance(each, RegisterBrokerRecord)]
    assert (record.rack, record.fenced, record.log_dirs) == ("r1", True, (directory_of(1),))
