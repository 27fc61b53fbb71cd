"""ShareFetch and ShareAcknowledge at a simulated broker: sessions, errors and their order, waits, locks."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from kreplica.common.error_code import ErrorCode as E
from kreplica.common.errors import (
    CoordinatorNotAvailable,
    FencedLeaderEpoch,
    FencedStateEpoch,
    GroupIdNotFound,
    InvalidRequest,
    NotCoordinator,
)
from kreplica.common.messages.share_groups import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
)
from kreplica.common.share_state import ACKNOWLEDGED, ShareState, StateBatch
from kreplica.common.types import INT32_MAX, Uuid
from kreplica.common.wire import uuid_of
from kreplica.share import delayed_share_fetch
from tests.support.share_members import ShareMembers, error


def test_a_record_is_fetched_and_accepted() -> None:
    share = ShareMembers()
    share.produce(b"a", b"b")
    assert share.acquired(share.fetch()) == {0: [(0, 1, 1)]}
    done = share.acknowledge("a", (0, 1, 1))
    assert error(done) == E.none
    assert done.result(0).acquisition_lock_timeout == timedelta(seconds=30)
    state = share.persister.states[share.key()]
    assert (state.start_offset, list(state.batches)) == (
        0,
        [StateBatch(0, 0, ACKNOWLEDGED, 1), StateBatch(1, 1, ACKNOWLEDGED, 1)],
    )
    share.produce(b"c")
    assert share.acquired(share.fetch()) == {0: [(2, 2, 1)]}


def test_a_fetch_waits_for_records_and_one_waiting_member_gets_them() -> None:
    share = ShareMembers()
    first, second = share.fetch("a", max_wait_ms=500), share.fetch("b", max_wait_ms=500)
    assert not first.done()
    share.produce(b"a")
    assert share.acquired(first) == {0: [(0, 0, 1)]}
    assert not second.done()
    share.at.pass_time(500)
    assert share.acquired(second) == {}
    assert second.result(0).responses == ()


def test_a_fetch_waits_for_enough_bytes_or_its_time() -> None:
    share = ShareMembers()
    done = share.fetch(max_wait_ms=500, min_bytes=1_000)
    share.produce(b"a")
    assert not done.done()
    share.at.pass_time(500)
    assert share.acquired(done) == {0: [(0, 0, 1)]}
    done = share.fetch(max_wait_ms=500, min_bytes=1_000)
    share.produce(b"b" * 2_000)
    assert share.acquired(done) == {0: [(1, 1, 1)]}


def test_released_records_are_delivered_to_a_member_that_waits() -> None:
    share = ShareMembers()
    share.produce(b"a", b"b")
    share.fetch("a")
    waiting = share.fetch("b", max_wait_ms=60_000)
    share.acknowledge("a", (1, 1, 2))
    assert share.acquired(waiting) == {0: [(1, 1, 2)]}
    waiting = share.fetch("b", max_wait_ms=60_000)
    share.at.pass_time(30_000)
    assert share.acquired(waiting) == {0: [(0, 0, 2)]}
    assert [StateBatch(0, 0, 0, 1)] in [each.batches for each in share.persister.writes]


def test_acknowledgements_in_a_fetch_are_answered_without_waiting_for_records() -> None:
    share = ShareMembers()
    share.produce(b"a")
    share.fetch()
    share.persister.held = []
    done = share.fetch("a", (0, 0, 1), max_wait_ms=500)
    assert not done.done()
    share.persister.release()
    share.at.settle()
    [topic] = done.result(0).responses
    assert topic.partitions[0].acknowledge_error_code == E.none
    assert topic.partitions[0].acquired_records == ()


def test_acknowledgements_and_new_records_in_one_fetch() -> None:
    share = ShareMembers()
    share.produce(b"a")
    share.fetch()
    share.produce(b"b")
    assert share.acquired(share.fetch("a", (0, 0, 2), max_wait_ms=500)) == {0: [(1, 1, 1)]}
    assert share.acquired(share.fetch("a", (1, 1, 1), max_wait_ms=500)) == {0: [(0, 0, 2)]}


def test_partitions_take_turns_and_share_the_limit() -> None:
    share = ShareMembers(partitions=2)
    share.fetch(numbers=[0, 1])
    for number in (0, 1):
        share.produce(b"a", b"b", b"c", number=number)
    assert share.acquired(share.fetch(numbers=[0, 1], max_records=4)) == {0: [(0, 2, 1)], 1: [(0, 2, 1)]}
    share.produce(b"d", number=0)
    share.produce(b"d", number=1)
    first = share.acquired(share.fetch(numbers=[], max_records=1))
    second = share.acquired(share.fetch(numbers=[], max_records=1))
    assert {*first, *second} == {0, 1}
    share.produce(b"e", number=1)
    assert share.acquired(share.fetch(numbers=[], forgotten=[1])) == {}


def test_exact_limit_and_only_the_batches_with_acquired_records() -> None:
    share = ShareMembers()
    share.produce(b"a", b"b")
    share.produce(b"c", b"d")
    done = share.fetch(max_records=3, share_acquire_mode=1)
    assert share.acquired(done) == {0: [(0, 2, 1)]}
    assert share.acquired(share.fetch(max_records=3, share_acquire_mode=1)) == {0: [(3, 3, 1)]}


def test_markers_are_passed_over_and_no_more_is_read_than_can_be_acquired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delayed_share_fetch, "MOST_READS", 1)
    share = ShareMembers()
    share.fetch()
    for _ in range(3):
        share.end_transaction()
    share.produce(b"a")
    share.produce(b"b")
    assert share.acquired(share.fetch(max_records=1, max_wait_ms=9_000)) == {0: [(3, 3, 1)]}
    assert share.acquired(share.fetch(max_records=1, max_wait_ms=9_000)) == {0: [(4, 4, 1)]}


# ---- checks and their order --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"group_id": None, "member_id": None}, E.invalid_request),
        ({"member_id": None}, E.invalid_request),
        ({"member_id": ""}, E.invalid_request),
        ({"member_id": "m" * 37}, E.invalid_request),
        ({"is_renew_ack": True, "epoch": 1}, E.invalid_request),
        ({"epoch": 1}, E.share_session_not_found),
        ({"epoch": -1}, E.share_session_not_found),
        ({"topic_id": Uuid(b"x" * 16)}, E.unknown_topic_id),
        ({"numbers": [7]}, E.unknown_topic_or_partition),
    ],
)
def test_errors_of_a_fetch(fields: dict[str, Any], expected: E) -> None:
    share = ShareMembers()
    assert error(share.fetch(**fields)) == expected


def test_without_the_feature_both_are_unsupported() -> None:
    share = ShareMembers()
    share.cache.metadata.features.clear()
    assert error(share.fetch(group_id=None)) == E.unsupported_version
    assert error(share.acknowledge("a", (0, 0, 1), group_id=None)) == E.unsupported_version


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"group_id": None}, E.invalid_request),
        ({"member_id": ""}, E.invalid_request),
        ({"epoch": 0}, E.invalid_share_session_epoch),
        ({"member_id": "b", "epoch": 3}, E.share_session_not_found),
        ({"epoch": 9}, E.invalid_share_session_epoch),
        ({"topic_id": Uuid(b"x" * 16)}, E.unknown_topic_id),
        ({"number": 7}, E.unknown_topic_or_partition),
        ({}, E.none),
    ],
)
def test_errors_of_an_acknowledgement(fields: dict[str, Any], expected: E) -> None:
    share = ShareMembers()
    share.produce(b"a")
    share.fetch()
    assert error(share.acknowledge("a", (0, 0, 1), **fields)) == expected


@pytest.mark.parametrize(
    ("acks", "version", "renews", "expected"),
    [
        ([(1, 0, 1)], 2, False, E.invalid_request),
        ([(0, 1, 1), (1, 2, 1)], 2, False, E.invalid_request),
        ([(2, 3, 1), (0, 1, 1)], 2, False, E.invalid_request),
        ([(0, 1)], 2, False, E.invalid_request),
        ([(0, 2, 1, 1)], 2, False, E.invalid_request),
        ([(0, 0, 5)], 2, True, E.invalid_request),
        ([(0, 0, -1)], 2, False, E.invalid_request),
        ([(0, 0, 4)], 2, False, E.invalid_request),
        ([(0, 0, 4)], 1, True, E.invalid_request),
        ([(0, 0, 4)], 2, True, E.none),
        ([(0, 3, 1, 2, 3, 0)], 2, False, E.none),
        ([(0, 4, 1)], 2, False, E.invalid_request),  # behind the end
    ],
)
def test_malformed_acknowledgements(acks: Any, version: int, renews: bool, expected: E) -> None:
    share = ShareMembers()
    share.produce(b"a", b"b", b"c", b"d")
    share.fetch()
    done = share.acknowledge("a", *acks, version=version, is_renew_ack=renews)
    assert error(done) == expected
    if expected:
        assert share.persister.states[share.key()].batches in ((), [])


@pytest.mark.parametrize(
    ("second", "expected", "accepted"),
    [
        ((1, 1, 1), E.none, [StateBatch(0, 0, ACKNOWLEDGED, 1), StateBatch(1, 1, ACKNOWLEDGED, 1)]),
        ((0, 0, 1), E.invalid_request, []),
    ],
)
def test_a_partition_that_is_acknowledged_twice_in_a_request(
    second: Any, expected: E, accepted: list[StateBatch]
) -> None:
    share = ShareMembers()
    share.produce(b"a", b"b")
    share.fetch()
    topics = tuple(
        AcknowledgeTopic(
            topic_id=uuid_of(share.topic_id),
            partitions=(
                AcknowledgePartition(
                    partition_index=0,
                    acknowledgement_batches=(
                        AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=(kind,)),
                    ),
                ),
            ),
        )
        for first, last, kind in ((0, 0, 1), second)
    )
    assert error(share.acknowledge("a", topics=topics)) == expected
    assert list(share.persister.states[share.key()].batches) == accepted


def test_another_members_record() -> None:
    share = ShareMembers()
    share.produce(b"a")
    share.fetch("a")
    share.fetch("b")
    assert error(share.acknowledge("b", (0, 0, 1))) == E.invalid_record_state


def test_renewals_in_a_fetch_bring_no_records() -> None:
    share = ShareMembers()
    share.produce(b"a")
    share.fetch()
    share.produce(b"b")
    zero = {"max_bytes": 0, "min_bytes": 0, "max_records": 0, "max_wait_ms": 0}
    share.at.pass_time(20_000)
    done = share.fetch("a", (0, 0, 4), is_renew_ack=True, **zero)
    assert error(done) == E.none
    assert share.acquired(done) == {}
    share.at.pass_time(20_000)
    assert share.acquired(share.fetch("b")) == {0: [(1, 1, 1)]}
    zero["max_wait_ms"] = 1
    assert error(share.fetch("a", (0, 0, 4), is_renew_ack=True, **zero)) == E.invalid_request


# ---- sessions ----------------------------------------------------------------------------------------------


def test_session_epochs() -> None:
    share = ShareMembers()
    assert error(share.fetch(epoch=0)) == E.none
    assert error(share.fetch(epoch=2)) == E.invalid_share_session_epoch
    assert error(share.fetch(epoch=1)) == E.none
    assert error(share.fetch(epoch=1)) == E.invalid_share_session_epoch
    session = share.manager.sessions.use("g", "a", 2)
    session.epoch = INT32_MAX
    assert error(share.fetch(epoch=INT32_MAX)) == E.none
    assert error(share.fetch(epoch=1)) == E.none
    assert error(share.fetch("a", (0, 0, 1), epoch=0)) == E.invalid_request


def test_the_end_of_a_session_frees_its_records() -> None:
    share = ShareMembers()
    share.produce(b"a", b"b")
    share.fetch()
    done = share.fetch("a", (0, 0, 1), epoch=-1)
    assert error(done) == E.none
    assert len(share.manager.sessions) == 0
    assert share.acquired(share.fetch("b")) == {0: [(1, 1, 2)]}
    assert error(share.acknowledge("b", (1, 1, 1), epoch=-1)) == E.none
    assert len(share.manager.sessions) == 0


def test_a_partition_that_is_acknowledged_and_forgotten_is_not_fetched() -> None:
    share = ShareMembers()
    share.produce(b"a")
    share.fetch()
    share.produce(b"b")
    # A member that has lost the partition acknowledges the rest of it so.
    assert error(share.fetch("a", (0, 0, 1), forgotten=[0])) == E.none
    assert share.acquired(share.fetch("a", numbers=[])) == {}
    assert share.acquired(share.fetch("b")) == {0: [(1, 1, 1)]}


def test_without_sessions_of_its_group_a_share_partition_is_read_again() -> None:
    share = ShareMembers()
    share.produce(b"a", b"b")
    share.fetch("a")
    share.fetch("b")
    share.acknowledge("a", (0, 1, 1))
    share.fetch("a", epoch=-1)
    # An administrator resets the offsets, which takes a group without members.
    share.persister.initialize(share.key(), 9, 0)
    share.epochs.clear()
    assert share.acquired(share.fetch("a")) == {}
    share.fetch("a", epoch=-1)
    share.fetch("b", epoch=-1)
    share.epochs.clear()
    assert share.acquired(share.fetch("a")) == {0: [(0, 1, 1)]}


def test_a_closed_connection_ends_its_sessions() -> None:
    share = ShareMembers()
    connection = object()
    share.produce(b"a")
    share.fetch("a", connection=connection)
    waiting = share.fetch("b", max_wait_ms=9_000, connection=object())
    own = share.fetch("a", max_wait_ms=9_000, connection=connection)
    share.apis.client_gone(connection)
    share.at.settle()
    assert share.acquired(own) == {}
    assert share.acquired(waiting) == {0: [(0, 0, 2)]}
    assert error(share.fetch("a")) == E.share_session_not_found


def test_too_many_sessions_are_refused_after_the_wait() -> None:
    share = ShareMembers(max_sessions=2)
    share.fetch("a")
    share.fetch("b")
    done = share.fetch("c", max_wait_ms=500)
    assert not done.done()
    share.at.pass_time(500)
    assert error(done) == E.share_session_limit_reached
    share.fetch("a", epoch=-1)
    share.epochs.clear()
    assert error(share.fetch("c")) == E.none
    assert error(share.fetch("b")) == E.none


def test_a_second_fetch_of_a_session_ends_the_wait_of_the_first() -> None:
    share = ShareMembers()
    first = share.fetch(max_wait_ms=9_000)
    second = share.fetch(max_wait_ms=9_000)
    assert share.acquired(first) == {}
    share.produce(b"a")
    assert share.acquired(second) == {0: [(0, 0, 1)]}


# ---- the share coordinator, and the partition's leader -----------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "expected", "is_dropped"),
    [
        (CoordinatorNotAvailable(), E.coordinator_not_available, False),
        (NotCoordinator(), E.coordinator_not_available, False),
        (GroupIdNotFound(), E.group_id_not_found, True),
        (FencedLeaderEpoch(), E.not_leader_or_follower, True),
        (FencedStateEpoch(), E.not_leader_or_follower, True),
        (InvalidRequest(), E.unknown_server_error, False),
    ],
)
def test_errors_of_the_share_coordinator(failure: Any, expected: E, is_dropped: bool) -> None:
    share = ShareMembers()
    share.produce(b"a")
    share.fetch()
    share.persister.error = failure
    assert error(share.acknowledge("a", (0, 0, 1))) == expected
    share.persister.error = None
    # A share partition that is dropped is read again, and its records are acquired anew.
    found = share.acquired(share.fetch("b"))
    assert found == ({0: [(0, 0, 1)]} if is_dropped else {})
    if not is_dropped:
        assert error(share.acknowledge("a", (0, 0, 1))) == E.none
    share.persister.error = failure
    if is_dropped:
        assert error(share.acknowledge("b", (0, 0, 1))) == expected
        done = share.fetch("b", max_wait_ms=100)
        assert error(done) == expected


def test_a_new_leader_epoch_reads_the_state_anew() -> None:
    share = ShareMembers()
    share.produce(b"a", b"b")
    share.fetch()
    share.acknowledge("a", (0, 0, 1))
    waiting = share.fetch("b", max_wait_ms=9_000)
    share.at.elect(2)
    share.at.settle()
    assert error(waiting) == E.not_leader_or_follower
    assert error(share.acknowledge("a", (1, 1, 1))) == E.not_leader_or_follower
    share.at.elect(1)
    share.at.settle()
    # The acquisition of the former term is gone; its delivery count was never stored.
    assert share.acquired(share.fetch("b", max_wait_ms=100)) == {0: [(1, 1, 1)]}
    assert share.persister.states[share.key()].leader_epoch == share.at.partition().leader_epoch


def test_a_write_of_a_replaced_leader_fails() -> None:
    share = ShareMembers()
    share.produce(b"a")
    share.fetch()
    share.persister.held = []
    done = share.acknowledge("a", (0, 0, 1))
    state = share.persister.states[share.key()]
    share.persister.states[share.key()] = state._replace(leader_epoch=99)
    share.persister.release()
    share.at.settle()
    assert error(done) == E.not_leader_or_follower


@pytest.mark.parametrize(("reset", "first"), [("earliest", 0), ("latest", None), (0, None), (1 << 40, 0)])
def test_where_a_new_group_begins(reset: Any, first: int | None) -> None:
    share = ShareMembers()
    share.config = share.config._replace(reset=reset)
    share.produce(b"a")
    assert share.acquired(share.fetch()) == ({} if first is None else {0: [(first, first, 1)]})
    # The place is stored, so the next leader begins there, and the group's lag is known.
    stored = share.persister.states[share.key()]
    assert (stored.start_offset, stored.delivery_complete_count) == (1 if first is None else first, 0)


def test_a_stored_state_goes_on() -> None:
    share = ShareMembers()
    share.produce(b"a", b"b", b"c")
    share.persister.states[share.key()] = ShareState(5, 0, 1, [StateBatch(2, 2, ACKNOWLEDGED, 1)])
    assert share.acquired(share.fetch()) == {0: [(1, 1, 1)]}


def test_deleted_records_are_passed_over() -> None:
    share = ShareMembers()
    share.produce(b"a")
    share.produce(b"b")
    share.fetch()
    share.at.manager().delete_records({share.at.partitions[0]: 1}, 1_000)
    share.at.settle()
    share.produce(b"c")
    assert share.acquired(share.fetch()) == {0: [(2, 2, 1)]}
    assert error(share.acknowledge("a", (0, 0, 1))) == E.invalid_record_state
    assert error(share.acknowledge("a", (0, 1, 1))) == E.none


def test_the_limit_of_locks_can_be_changed() -> None:
    share = ShareMembers(max_record_locks=2)
    share.produce(b"a")
    share.produce(b"b")
    share.produce(b"c")
    assert share.acquired(share.fetch()) == {0: [(0, 1, 1)]}
    assert share.acquired(share.fetch()) == {}
    share.config = share.config._replace(settings=share.config.settings._replace(max_record_locks=3))
    assert share.acquired(share.fetch()) == {0: [(2, 2, 1)]}


def test_what_members_do_is_counted_under_kafkas_names() -> None:
    share = ShareMembers()
    share.produce(b"a", b"b", b"c", b"d")
    share.fetch()
    share.acknowledge("a", (0, 1, 1), (2, 2, 2))
    tags = "group=g,partition=0,topic=t"
    share.at.pass_time(30_000)
    found = {name.partition(":type=")[2]: value for name, value in share.metrics.values().items()}
    assert {name: value for name, value in found.items() if value} == {
        "ShareGroupMetrics,name=RecordAcknowledgementsPerSec,ackType=Accept": 2,
        "ShareGroupMetrics,name=RecordAcknowledgementsPerSec,ackType=Release": 1,
        f"SharePartitionMetrics,name=AcquisitionLockTimeoutPerSec,{tags}": 1,
        f"SharePartitionMetrics,name=InFlightMessageCount,{tags}": 2,
        f"SharePartitionMetrics,name=InFlightBatchCount,{tags}": 2,
        "ShareSessionCache,name=ShareSessionsCount": 1,
        "BrokerTopicMetrics,name=TotalShareFetchRequestsPerSec": 1,
        "BrokerTopicMetrics,name=TotalShareAcknowledgementRequestsPerSec": 1,
    }
    share.fetch(epoch=-1, numbers=[])
    assert not [name for name in share.metrics.values() if "SharePartitionMetrics" in name]
