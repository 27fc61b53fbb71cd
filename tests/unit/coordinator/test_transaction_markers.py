"""Markers on their way to partitions whose leaders move, fail and refuse."""

from __future__ import annotations

from collections import deque

import pytest

from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import NetworkException
from kreplica.common.future import failed
from kreplica.coordinator.transaction_markers import Marker, Marking, TransactionMarkers
from tests.support.transaction_stage import AT, OTHER, Brokers
from tests.support.virtual import VirtualMachine

MARKER = Marker(7, 1, True, 3, 2)


class Stage(VirtualMachine):
    def __init__(self):
        super().__init__()
        self.brokers = Brokers()
        self.done = []
        self.markers = TransactionMarkers(
            self.brokers.send,
            leader=self.brokers.leaders.get,
            exists=lambda at: at not in self.brokers.deleted,
            loop=self.loop,
        )

    def add(self, *partitions, marker=MARKER):
        marking = Marking(marker, partitions, lambda: self.done.append(marker))
        self.markers.add(marking)
        self.settle()
        return marking


@pytest.fixture
def stage():
    return Stage()


def test_a_transaction_without_partitions_is_done_at_once(stage):
    stage.add()
    assert (stage.done, stage.brokers.requests) == ([MARKER], 0)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.request_timed_out,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.kafka_storage_error,
        ErrorCode.unknown_server_error,
    ],
)
def test_a_refused_marker_is_sent_to_the_leader_of_then(stage, code):
    stage.brokers.codes[AT] = deque([code])
    stage.add(AT, OTHER)
    assert stage.done == []
    stage.brokers.leaders[AT] = 3
    stage.pass_time(50)
    assert stage.brokers.taken == [(2, OTHER, 7, 1, True), (3, AT, 7, 1, True)]
    assert stage.done == [MARKER]


def test_a_marker_waits_for_a_leader(stage):
    del stage.brokers.leaders[AT]
    stage.add(AT)
    stage.pass_time(100)
    assert stage.done == []
    stage.brokers.leaders[AT] = 2
    stage.pass_time(50)
    assert stage.brokers.taken == [(2, AT, 7, 1, True)]


def test_a_deleted_partition_needs_no_marker(stage):
    del stage.brokers.leaders[AT]
    stage.add(AT, OTHER)
    stage.brokers.deleted.add(AT)
    stage.pass_time(50)
    assert stage.done == [MARKER]


def test_a_lost_request_is_repeated(stage):
    send, lost = stage.brokers.send, [failed(NetworkException("lost"))]
    stage.markers._send = lambda *each: lost.pop() if lost else send(*each)
    stage.add(AT)
    stage.pass_time(50)
    assert stage.done == [MARKER]


@pytest.mark.parametrize(
    "code",
    [
        # A later epoch shows that the transaction has ended.
        ErrorCode.invalid_producer_epoch,
        # No marker can be stored there.
        ErrorCode.unsupported_for_message_format,
        ErrorCode.unsupported_version,
    ],
)
def test_a_marker_that_a_partition_does_not_need_is_not_sent_again(stage, code):
    stage.brokers.codes[AT] = deque([code])
    stage.add(AT)
    assert stage.done == [MARKER]


def test_a_replaced_coordinator_sends_rarely_until_it_resigns(stage, caplog):
    stage.brokers.codes[AT] = deque([ErrorCode.transaction_coordinator_fenced] * 100)
    marking = stage.add(AT)
    stage.pass_time(3_500)
    assert 3 <= stage.brokers.requests <= 5
    # One warning for a transaction, however often its marker is sent.
    assert [each.levelname for each in caplog.records] == ["WARNING"]
    marking.cancel()
    sent = stage.brokers.requests
    stage.pass_time(5_000)
    assert (stage.brokers.requests, stage.done) == (sent, [])


def test_markers_that_come_together_share_a_request(stage):
    stage.brokers.held = []
    stage.add(AT)
    others = [Marker(number, 1, True, 3, 2) for number in range(10, 15)]
    for marker in others:
        stage.add(AT, marker=marker)
    assert stage.brokers.requests == 1
    stage.brokers.release()
    stage.settle()
    assert stage.brokers.requests == 2
    assert stage.done == [MARKER, *others]


def test_a_repeated_answer_ends_a_transaction_once(stage):
    stage.brokers.codes[AT] = deque([ErrorCode.request_timed_out])
    stage.brokers.held = []
    stage.add(AT, OTHER)
    stage.brokers.release()
    stage.settle()
    stage.pass_time(100)
    assert stage.done == [MARKER]
