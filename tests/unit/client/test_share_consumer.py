"""A share consumer with a coordinator and leaders that a test plays: sessions, acknowledgements, locks."""

from __future__ import annotations

from datetime import timedelta

import pytest

from kreplica.client.client_config import ClientConfig, ConsumerConfig
from kreplica.client.client_metadata import ClientMetadata
from kreplica.client.share_consumer import (
    ACCEPT,
    BEGIN,
    END,
    EXACTLY,
    GAP,
    LINGER_MS,
    MOST_RECORDS,
    REJECT,
    RELEASE,
    RENEW,
    WHOLE_BATCHES,
    ShareConsumer,
)
from kreplica.common import errors
from kreplica.common.error_code import ErrorCode
from kreplica.common.messages.consumer_groups import Assignment, TopicPartitions
from kreplica.common.messages.data import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kreplica.common.messages.groups import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from kreplica.common.messages.share_groups import (
    AcquiredRecords,
    ShareAcknowledgePartitionData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
    ShareFetchableTopicResponse,
    ShareFetchPartitionData,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    ShareLeaderIdAndEpoch,
)
from kreplica.common.ports import monotonic_ms
from kreplica.common.types import TopicPartition, Uuid
from kreplica.common.wire import uuid_of
from tests.support.batches import build
from tests.support.virtual import AnsweringTransport, VirtualMachine

TOPIC_ID = uuid_of(Uuid(b"%016d" % 7))
NONE = ErrorCode.none
NOBODY = ShareLeaderIdAndEpoch(leader_id=-1, leader_epoch=-1)
LOCK_MS = 10_000
LOCK = timedelta(milliseconds=LOCK_MS)
CONFIG = ConsumerConfig(session_timeout_ms=4_000, max_poll_interval_ms=20_000)
CLIENT = ClientConfig(request_timeout_ms=500, retry_backoff_ms=20, fetch_max_wait_ms=100)


class Stage:
    """The consumer, with topic t, whose partitions are led by `leaders`; node 1 is the coordinator."""

    def __init__(self, leaders=(1,), max_records=None):
        self.machine = VirtualMachine()
        self.transport = AnsweringTransport()
        self.leaders = list(leaders)
        self.heartbeats = []
        self.assigned = range(len(leaders))
        shared = {"transport": self.transport, "loop": self.machine.loop}
        metadata = ClientMetadata(lambda: [1], config=CLIENT, **shared)
        self.consumer = ShareConsumer(
            "g",
            "m",
            ["t"],
            metadata,
            lambda: [1],
            clock=self.machine.clock,
            max_records=max_records,
            config=CONFIG,
            client_config=CLIENT,
            **shared,
        )
        self.open = []  # (node, request, future) of those to leaders that are not answered

    def pass_time(self, duration_ms=10):
        for _ in range(max(duration_ms // 10, 1)):
            self.machine.pass_time(min(10, duration_ms))
            self._answer_others()

    def _answer_others(self):
        while self.transport.sent:
            sent, self.transport.sent[:] = list(self.transport.sent), []
            for node_id, request, future in sent:
                if isinstance(request, (ShareFetchRequest, ShareAcknowledgeRequest)):
                    self.open.append((node_id, request, future))
                elif isinstance(request, ShareGroupHeartbeatRequest):
                    self.heartbeats.append(request)
                    future.set_result(self._heard(request))
                elif isinstance(request, FindCoordinatorRequest):
                    future.set_result(found())
                else:
                    assert isinstance(request, MetadataRequest)
                    future.set_result(self._metadata())
            self.machine.settle()

    def _heard(self, request):
        numbers = tuple(self.assigned)
        assigned = Assignment(topic_partitions=(TopicPartitions(topic_id=TOPIC_ID, partitions=numbers),))
        return ShareGroupHeartbeatResponse(
            error_code=NONE,
            member_id="m",
            member_epoch=max(request.member_epoch, 2),
            heartbeat_interval=timedelta(seconds=1),
            assignment=assigned,
        )

    def _metadata(self):
        partitions = tuple(
            MetadataResponsePartition(
                error_code=NONE, partition_index=number, leader_id=node_id, replica_nodes=(), isr_nodes=()
            )
            for number, node_id in enumerate(self.leaders)
        )
        topic = MetadataResponseTopic(error_code=NONE, name="t", topic_id=TOPIC_ID, partitions=partitions)
        return MetadataResponse(brokers=(), controller_id=1, topics=(topic,))

    def next(self, node_id=1):
        """Return the next request to the leader."""
        for _ in range(200):
            for receiver, request, _ in self.open:
                if receiver == node_id:
                    return request
            self.pass_time()
        raise AssertionError(f"no request comes to node {node_id}")

    def _take(self, node_id):
        request = self.next(node_id)
        (index,) = [n for n, each in enumerate(self.open) if each[1] is request]
        return self.open.pop(index)[1:]

    def fetched(
        self,
        records=(),
        *,
        partition=0,
        node_id=1,
        error=NONE,
        refused=NONE,
        session=NONE,
        count=1,
        last=None,
    ):
        """Answer a fetch with records at these offsets; return the request."""
        request, future = self._take(node_id)
        assert isinstance(request, ShareFetchRequest)
        acquired = ()
        if records:
            end = records[-1] if last is None else last
            acquired = (AcquiredRecords(first_offset=records[0], last_offset=end, delivery_count=count),)
        data = ShareFetchPartitionData(
            partition_index=partition,
            error_code=error,
            acknowledge_error_code=refused,
            current_leader=NOBODY,
            records=b"".join(build([b"%d" % offset], base_offset=offset) for offset in records),
            acquired_records=acquired,
        )
        partitions = (data,) if records or error or acknowledged(request) else ()
        topics = (ShareFetchableTopicResponse(topic_id=TOPIC_ID, partitions=partitions),)
        future.set_result(
            ShareFetchResponse(
                error_code=session,
                acquisition_lock_timeout=LOCK,
                responses=topics if partitions else (),
                node_endpoints=(),
            )
        )
        self.pass_time()
        return request

    def stored(self, *, node_id=1, error=NONE, session=NONE):
        """Answer an acknowledgement; return the request."""
        request, future = self._take(node_id)
        assert isinstance(request, ShareAcknowledgeRequest)
        partitions = tuple(
            ShareAcknowledgePartitionData(
                partition_index=each.partition_index, error_code=error, current_leader=NOBODY
            )
            for topic in request.topics
            for each in topic.partitions
        )
        topics = (ShareAcknowledgeTopicResponse(topic_id=TOPIC_ID, partitions=partitions),)
        future.set_result(
            ShareAcknowledgeResponse(
                error_code=session,
                acquisition_lock_timeout=LOCK,
                responses=topics if partitions else (),
                node_endpoints=(),
            )
        )
        self.pass_time()
        return request

    def lose(self, node_id=1):
        request, future = self._take(node_id)
        future.set_exception(errors.NetworkException("lost"))
        self.pass_time()
        return request

    def poll(self, max_wait_ms=1_000):
        future = self.consumer.poll(max_wait_ms)
        self.pass_time()
        return future

    def taken(self, offsets, **options):
        """Poll, and claim records at these offsets."""
        found = self.held(offsets, **options)
        assert all(self.consumer.claim(each) for each in found)
        return found

    def held(self, offsets, **options):
        """Poll and get records at these offsets, without claiming them."""
        future = self.poll()
        self.fetched(offsets, **options)
        return future.result(0)


def found():
    coordinator = Coordinator(key="g", node_id=1, host="", port=0, error_code=NONE, error_message=None)
    return FindCoordinatorResponse(coordinators=(coordinator,))


def acknowledged(request):
    """(first, last, kind) of all acknowledgements in the request, by partition where there are several."""
    return [
        (each.first_offset, each.last_offset, *each.acknowledge_types)
        for topic in request.topics
        for partition in topic.partitions
        for each in partition.acknowledgement_batches
    ]


def offsets(found):
    return [each.record.offset for each in found]


def test_a_member_joins_opens_a_session_and_takes_records():
    stage = Stage()
    future = stage.poll()
    first = stage.fetched([3, 4], count=2)
    assert stage.heartbeats[0].subscribed_topic_names == ("t",)
    assert (first.share_session_epoch, first.group_id, first.member_id) == (BEGIN, "g", "m")
    assert [each.partition_index for each in first.topics[0].partitions] == [0]
    got = future.result(0)
    assert [each.record.value for each in got] == [b"3", b"4"]
    assert {(each.at, each.delivery_count) for each in got} == {(TopicPartition("t", 0), 2)}
    stage.pass_time(500)
    assert stage.open == []  # nothing is fetched for a program that does not wait


def test_acknowledgements_travel_with_the_next_fetch():
    stage = Stage()
    one, two, three = stage.taken([0, 1, 2])
    for each, kind in ((two, REJECT), (three, ACCEPT), (one, ACCEPT)):
        stage.consumer.acknowledge_later(each, kind)
    stage.poll()
    request = stage.fetched([5])
    assert request.share_session_epoch == 1
    assert acknowledged(request) == [(0, 0, ACCEPT), (1, 1, REJECT), (2, 2, ACCEPT)]
    for each in stage.taken([6, 7]):
        stage.consumer.acknowledge_later(each, ACCEPT)
    stage.poll()
    assert acknowledged(stage.next()) == [(6, 7, ACCEPT)]


def test_without_another_fetch_acknowledgements_are_sent_after_a_moment():
    stage = Stage()
    (one,) = stage.taken([0])
    stage.consumer.acknowledge_later(one, ACCEPT)
    stage.pass_time(LINGER_MS - 10)
    assert stage.open == []
    stage.pass_time(20)
    request = stage.stored()
    assert (request.share_session_epoch, acknowledged(request)) == (1, [(0, 0, ACCEPT)])


def test_an_acknowledgement_that_a_program_waits_for_is_sent_at_once():
    stage = Stage()
    one, two, three = stage.taken([0, 1, 2])
    first = stage.consumer.acknowledge(one, ACCEPT)
    stage.pass_time()
    others = [stage.consumer.acknowledge(two, RELEASE), stage.consumer.acknowledge(three, RELEASE)]
    stage.pass_time()
    assert len(stage.open) == 1  # the others wait for its answer
    assert acknowledged(stage.stored()) == [(0, 0, ACCEPT)]
    assert first.result(0) is None
    assert acknowledged(stage.stored()) == [(1, 2, RELEASE)]
    assert [each.exception(0) for each in others] == [None, None]


def test_an_acknowledgement_that_is_too_late_does_not_fail_others(caplog):
    stage = Stage()
    one, two, three = stage.held([0, 1, 2])
    stage.consumer.claim(one)
    while one.deadline_ms > monotonic_ms(stage.machine.clock):
        stage.pass_time(10)
        while stage.open:
            stage.stored()
    late = stage.consumer.acknowledge(one, ACCEPT)
    assert stage.consumer.claim(two)
    accepted = stage.consumer.acknowledge(two, ACCEPT)
    stage.pass_time()
    assert acknowledged(stage.stored()) == [(1, 1, ACCEPT)]
    assert isinstance(late.exception(0), errors.InvalidRecordState)
    assert accepted.exception(0) is None
    assert "t-0, offset 0: accepted or rejected too late" in caplog.text
    assert stage.consumer.claim(three)
    stage.pass_time(LOCK_MS)
    stage.consumer.acknowledge_later(three, ACCEPT)
    stage.poll()
    assert acknowledged(stage.next()) == []


def test_a_record_whose_lock_has_run_out_is_refused(caplog):
    stage = Stage()
    (one,) = stage.taken([0])
    future = stage.consumer.acknowledge(one, ACCEPT)
    stage.stored(error=ErrorCode.invalid_record_state)
    assert isinstance(future.exception(0), errors.InvalidRecordState)
    assert "t-0, offset 0: accepted or rejected too late" in caplog.text


def test_an_acknowledgement_that_was_not_stored_is_repeated():
    stage = Stage()
    (one,) = stage.taken([0])
    future = stage.consumer.acknowledge(one, ACCEPT)
    stage.stored(error=ErrorCode.coordinator_not_available)
    assert not future.done()
    assert acknowledged(stage.stored()) == [(0, 0, ACCEPT)]
    assert future.exception(0) is None


def test_an_acknowledgement_is_not_repeated_when_the_lock_has_run_out():
    stage = Stage()
    (one,) = stage.taken([0])
    future = stage.consumer.acknowledge(one, ACCEPT)
    stage.pass_time(LOCK_MS)
    stage.stored(error=ErrorCode.coordinator_not_available)
    assert isinstance(future.exception(0), errors.CoordinatorNotAvailable)


def test_a_renewal_is_sent_alone_and_moves_the_deadline():
    stage = Stage()
    (one,) = stage.taken([0])
    before = one.deadline_ms
    stage.pass_time(LOCK_MS // 2)
    future = stage.consumer.acknowledge(one, RENEW)
    stage.poll()
    request = stage.stored()
    assert (request.is_renew_ack, acknowledged(request)) == (True, [(0, 0, RENEW)])
    assert future.exception(0) is None
    assert one.deadline_ms >= before + LOCK_MS // 2
    assert acknowledged(stage.next()) == []


def test_a_renewed_record_that_is_accepted_in_the_same_request_is_accepted():
    stage = Stage()
    one, two = stage.taken([0, 1])
    stage.consumer.acknowledge(two, RELEASE)
    stage.pass_time()
    futures = [stage.consumer.acknowledge(one, RENEW), stage.consumer.acknowledge(one, ACCEPT)]
    stage.stored()
    assert acknowledged(stage.stored()) == [(0, 0, ACCEPT)]
    assert [each.exception(0) for each in futures] == [None, None]


def test_offsets_without_records_are_acknowledged_as_gaps():
    stage = Stage()
    assert offsets(stage.taken([2], last=4)) == [2]
    assert acknowledged(stage.stored()) == [(3, 4, GAP)]  # at once


@pytest.mark.parametrize(
    "session", [ErrorCode.share_session_not_found, ErrorCode.invalid_share_session_epoch]
)
def test_a_lost_session_begins_again_and_its_records_are_lost(session):
    stage = Stage()
    (one,) = stage.taken([0])
    future = stage.consumer.acknowledge(one, ACCEPT)
    stage.stored(session=session)
    assert isinstance(future.exception(0), errors.InvalidRecordState)
    again = stage.poll()
    request = stage.fetched([0], count=2)
    assert (request.share_session_epoch, acknowledged(request)) == (BEGIN, [])
    assert again.result(0)[0].delivery_count == 2


def test_after_a_lost_answer_the_outcome_is_unknown():
    stage = Stage()
    (one,) = stage.taken([0])
    future = stage.consumer.acknowledge(one, ACCEPT)
    stage.lose()
    assert isinstance(future.exception(0), errors.NetworkException)
    late = stage.consumer.acknowledge(one, ACCEPT)
    stage.pass_time()
    assert isinstance(late.exception(0), errors.InvalidRecordState)
    stage.poll()
    assert stage.next().share_session_epoch == BEGIN


@pytest.mark.parametrize("error", [3, 6, 74, 100])
def test_a_partition_that_moves_is_fetched_from_its_new_leader(error):
    stage = Stage([1, 2])
    future = stage.poll()
    stage.next(2)
    stage.leaders = [2, 2]
    stage.fetched(error=ErrorCode(error))
    stage.pass_time(50)
    stage.fetched(node_id=2)
    moved = stage.fetched([9], node_id=2)
    assert [each.partition_index for each in moved.topics[0].partitions] == [0]
    assert offsets(future.result(0)) == [9]


def test_each_leader_has_a_session():
    stage = Stage([1, 2])
    future = stage.poll()
    assert stage.next(1).share_session_epoch == stage.next(2).share_session_epoch == BEGIN
    stage.fetched([4], partition=1, node_id=2)
    (one,) = future.result(0)
    accepted = stage.consumer.acknowledge(one, ACCEPT)
    assert acknowledged(stage.stored(node_id=2)) == [(4, 4, ACCEPT)]
    assert accepted.done()
    again = stage.poll()
    stage.fetched([0, 1], node_id=1)
    assert offsets(again.result(0)) == [0, 1]


def test_a_partition_that_is_taken_away_is_forgotten_and_may_be_acknowledged():
    stage = Stage([1, 1])
    (one,) = stage.taken([0])
    stage.assigned = [1]
    stage.pass_time(1_100)
    future = stage.consumer.acknowledge(one, ACCEPT)
    assert acknowledged(stage.stored()) == [(0, 0, ACCEPT)]
    assert future.exception(0) is None
    stage.poll()
    assert stage.fetched().forgotten_topics_data[0].partitions == (0,)
    assert stage.next().forgotten_topics_data == ()


def test_the_number_of_records_follows_the_program():
    stage = Stage()
    limits = []
    for _ in range(11):
        found = stage.poll()
        limits.append(stage.fetched([0]).max_records)
        assert stage.consumer.claim(found.result(0)[0])
        assert stage.open == []
    assert limits == [1, 2, 4, 8, 16, 32, 64, 128, 256, MOST_RECORDS, MOST_RECORDS]
    stage.taken([0])
    stage.pass_time(LOCK_MS // 2)
    stage.poll()
    request = stage.fetched([0])
    assert (request.max_records, request.share_acquire_mode) == (1, EXACTLY)


def test_many_records_are_fetched_in_whole_batches_and_a_given_number_exactly():
    stage = Stage(max_records=20)
    for _ in range(3):
        stage.poll()
        request = stage.fetched([0])
        assert (request.max_records, request.share_acquire_mode) == (20, EXACTLY)
    adaptive = Stage()
    for _ in range(9):
        adaptive.taken([0])
    adaptive.poll()
    assert adaptive.next().share_acquire_mode == WHOLE_BATCHES


def test_a_poll_ends_without_records_and_the_next_one_gets_what_comes():
    stage = Stage()
    future = stage.poll(50)
    stage.pass_time(100)
    assert future.result(0) == []
    stage.fetched([1])
    assert offsets(stage.poll().result(0)) == [1]


def test_closing_sends_acknowledgements_ends_the_sessions_and_leaves():
    stage = Stage()
    one, _ = stage.taken([0, 1])
    stage.consumer.acknowledge_later(one, ACCEPT)
    closed, again = stage.consumer.close(), stage.consumer.close()
    request = stage.stored()
    assert (request.share_session_epoch, acknowledged(request)) == (END, [(0, 0, ACCEPT)])
    stage.pass_time()
    assert closed.done()
    assert again.done()
    assert stage.heartbeats[-1].member_epoch == -1
    assert stage.poll().result(0) == []


def test_closing_waits_for_a_fetch_and_survives_a_dead_leader():
    stage = Stage()
    future = stage.poll()
    closed = stage.consumer.close()
    stage.pass_time()
    assert future.result(0) == []
    stage.lose()
    stage.pass_time()
    assert closed.done()
    (one,) = Stage().taken([0])
    late = stage.consumer.acknowledge(one, ACCEPT)
    stage.pass_time()
    assert isinstance(late.exception(0), errors.InvalidRecordState)


def test_a_program_that_stalls_leaves_the_group():
    stage = Stage()
    stage.taken([0])
    stage.pass_time(CONFIG.max_poll_interval_ms + 2_000)
    assert stage.heartbeats[-1].member_epoch == -1


def test_a_group_of_another_kind_fails_every_poll():
    stage = Stage()
    stage._heard = lambda _: ShareGroupHeartbeatResponse(
        error_code=ErrorCode.group_id_not_found, member_epoch=0, heartbeat_interval=timedelta(0)
    )
    future = stage.poll()
    assert isinstance(future.exception(0), errors.GroupIdNotFound)
    assert isinstance(stage.poll().exception(0), errors.GroupIdNotFound)


def test_a_corrupt_batch_fails_the_poll():
    stage = Stage()
    future = stage.poll()
    good = build([b"good"])
    request, reply = stage._take(1)
    assert isinstance(request, ShareFetchRequest)
    data = ShareFetchPartitionData(
        partition_index=0,
        error_code=NONE,
        acknowledge_error_code=NONE,
        current_leader=NOBODY,
        records=good[:-1] + bytes([good[-1] ^ 1]),
        acquired_records=(AcquiredRecords(first_offset=0, last_offset=0, delivery_count=1),),
    )
    topics = (ShareFetchableTopicResponse(topic_id=TOPIC_ID, partitions=(data,)),)
    reply.set_result(
        ShareFetchResponse(
            error_code=NONE, acquisition_lock_timeout=LOCK, responses=topics, node_endpoints=()
        )
    )
    stage.pass_time()
    assert isinstance(future.exception(0), errors.CorruptMessage)


def renewals(request):
    assert request.is_renew_ack
    return acknowledged(request)


def test_the_locks_of_records_that_wait_for_the_program_are_renewed():
    stage = Stage()
    one, two, three = stage.held([0, 1, 2])
    assert stage.consumer.claim(one)
    for _ in range(4):
        stage.pass_time(LOCK_MS // 3)
        assert renewals(stage.stored()) == [(1, 2, RENEW)]
        stage.consumer.claim(one)  # the program is alive
    assert stage.consumer.claim(two)
    assert two.deadline_ms > one.deadline_ms
    stage.pass_time(LOCK_MS // 3)
    assert renewals(stage.stored()) == [(2, 2, RENEW)]
    assert stage.consumer.claim(three)
    stage.pass_time(LOCK_MS)
    assert stage.open == []  # the program has all of them


def test_renewals_travel_apart_from_acknowledgements():
    stage = Stage()
    one, two = stage.held([0, 1])
    stage.consumer.claim(one)
    stage.pass_time(LOCK_MS // 3)
    accepted = stage.consumer.acknowledge(one, ACCEPT)
    stage.pass_time()
    # The record is no longer locked here, for a reason that this member cannot see.
    assert renewals(stage.stored(error=ErrorCode.invalid_record_state)) == [(1, 1, RENEW)]
    request = stage.stored()
    assert (request.is_renew_ack, acknowledged(request)) == (False, [(0, 0, ACCEPT)])
    assert accepted.exception(0) is None
    stage.pass_time(LOCK_MS)
    assert not stage.consumer.claim(two)


def test_a_claimed_record_is_not_renewed_although_it_was_about_to_be():
    stage = Stage()
    one, two, three = stage.held([0, 1, 2])
    stage.consumer.claim(one)
    stage.pass_time(LOCK_MS // 3 - 20)
    stage.consumer.acknowledge(one, ACCEPT)
    stage.pass_time(40)  # the acceptance is under way when the renewals are due
    stage.consumer.claim(two)
    assert acknowledged(stage.stored()) == [(0, 0, ACCEPT)]
    assert renewals(stage.stored()) == [(2, 2, RENEW)]
    assert stage.consumer.claim(three)


def test_a_program_stuck_in_one_record_gives_back_the_others_and_gets_one_at_a_time():
    stage = Stage([1, 2])
    stage.taken([0])
    stage.lose(2)
    one, two = stage.held([1, 2])
    stage.pass_time(40)
    stage.fetched(node_id=2)
    stage.consumer.claim(one)
    for _ in range(3):
        stage.pass_time(LOCK_MS // 3)
        assert renewals(stage.stored()) == [(2, 2, RENEW)]
    stage.pass_time(LOCK_MS // 3)
    request = stage.stored()
    assert (request.is_renew_ack, acknowledged(request)) == (False, [(2, 2, RELEASE)])
    assert not stage.consumer.claim(two)
    turns = []
    stage.poll()
    for _ in range(4):
        ((node_id, request, _),) = stage.open  # one fetch at a time
        turns.append(node_id)
        assert request.max_records == 1
        stage.fetched(node_id=node_id)
    assert turns in ([1, 2, 1, 2], [2, 1, 2, 1])


def test_records_that_were_delivered_before_are_kept_until_the_program_counts_as_dead():
    stage = Stage(max_records=3)
    one, *others = stage.held([0, 1, 2], count=2)
    stage.consumer.claim(one)
    sent = []
    while not sent or (1, 2, RENEW) in sent[-1]:
        stage.pass_time(10)
        if stage.open:
            sent.append(acknowledged(stage.stored()))
    assert monotonic_ms(stage.machine.clock) > CONFIG.max_poll_interval_ms
    assert sent[-1] == [(1, 2, RELEASE)]
    assert not any(stage.consumer.claim(each) for each in others)


def test_a_program_that_claims_records_is_alive():
    stage = Stage(max_records=5)
    for each in stage.held([0, 1, 2, 3, 4]):
        stage.pass_time(CONFIG.max_poll_interval_ms // 3)
        while stage.open:
            stage.stored()
        assert stage.consumer.claim(each)
    assert {each.member_epoch for each in stage.heartbeats} == {BEGIN, 2}


def test_held_records_of_a_partition_that_is_taken_away_are_released_at_once():
    stage = Stage([1, 1])
    one, two = stage.held([0, 1])
    stage.consumer.claim(one)
    stage.assigned = [1]
    stage.pass_time(1_100)
    assert acknowledged(stage.stored()) == [(1, 1, RELEASE)]
    assert not stage.consumer.claim(two)


def test_held_records_of_a_lost_session_are_not_given_out():
    stage = Stage()
    one, two = stage.held([0, 1])
    stage.consumer.claim(one)
    stage.consumer.acknowledge(one, ACCEPT)
    stage.lose()
    assert not stage.consumer.claim(two)


def test_a_member_is_settled_without_partitions_once_it_had_some():
    stage = Stage()
    assert not stage.consumer.is_settled
    stage.taken([0])
    assert stage.consumer.is_settled
    stage.assigned = []
    stage.pass_time(1_100)
    stage.poll()
    stage.fetched()
    assert stage.consumer.is_settled
