"""What a producer sends to its transaction coordinator, and what it makes of the answers."""

from __future__ import annotations

from datetime import timedelta

import pytest

from kreplica.client.group_messages import Membership
from kreplica.client.transaction_manager import ProducerIdAndEpoch, TransactionManager, no_member
from kreplica.common.encoded_request import VersionedRequest, message_of
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import (
    IllegalGeneration,
    InvalidProducerIdMapping,
    ProducerFenced,
    RequestTimedOut,
)
from kreplica.common.future import failed, resolved
from kreplica.common.messages.data import InitProducerIdRequest, InitProducerIdResponse
from kreplica.common.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    EndTxnRequest,
    EndTxnResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from kreplica.common.types import TopicPartition

ZERO = timedelta(0)
NONE = ErrorCode.none
AT, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
MEMBER = Membership("billing", 3, "m-1", None)


class Coordinator:
    """A session that answers at once, as one that blocks does; `errors`: by type of request, used up."""

    def __init__(self, epoch=0):
        self.epoch = epoch
        self.requests = []
        self.errors = {}

    def ask(self, request, error_in, *, timeout_ms):
        assert timeout_ms == 60_000
        self.requests.append(request)
        answered = self.answer(message_of(request), is_old=isinstance(request, VersionedRequest))
        if isinstance(answered, Exception):
            return failed(answered)
        error = error_in(answered)
        return resolved(answered) if error is None else failed(error)

    def answer(self, request, *, is_old):
        code = self.errors.pop(type(request), NONE)
        if isinstance(code, Exception):
            return code
        if isinstance(request, InitProducerIdRequest):
            self.epoch += 1
            return InitProducerIdResponse(
                throttle_time=ZERO, error_code=code, producer_id=7, producer_epoch=self.epoch
            )
        if isinstance(request, AddPartitionsToTxnRequest):
            return _partitions_answer(request, code)
        if isinstance(request, AddOffsetsToTxnRequest):
            return AddOffsetsToTxnResponse(throttle_time=ZERO, error_code=code)
        if isinstance(request, TxnOffsetCommitRequest):
            return _offsets_answer(request, code)
        assert isinstance(request, EndTxnRequest)
        if is_old:
            return EndTxnResponse(throttle_time=ZERO, error_code=code)
        self.epoch += 1
        return EndTxnResponse(throttle_time=ZERO, error_code=code, producer_id=7, producer_epoch=self.epoch)

    @property
    def names(self):
        return [type(message_of(each)).__name__.removesuffix("Request") for each in self.requests]


def _partitions_answer(request, code):
    topics = []
    for topic in request.v3_and_below_topics:
        codes = [ErrorCode.operation_not_attempted if code else NONE] * len(topic.partitions)
        codes[-1] = code
        results = tuple(
            AddPartitionsToTxnPartitionResult(partition_index=number, partition_error_code=each)
            for number, each in zip(topic.partitions, codes, strict=True)
        )
        topics.append(AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=results))
    return AddPartitionsToTxnResponse(throttle_time=ZERO, results_by_topic_v3_and_below=tuple(topics))


def _offsets_answer(request, code):
    return TxnOffsetCommitResponse(
        throttle_time=ZERO,
        topics=tuple(
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=tuple(
                    TxnOffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code)
                    for each in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )


@pytest.fixture
def coordinator():
    return Coordinator()


def manager(coordinator, level=2, **options):
    return TransactionManager("billing-1", coordinator, version=lambda: level, **options)


def test_the_first_transaction_asks_for_a_producer_id_and_the_next_goes_on(coordinator):
    made = manager(coordinator, timeout_ms=5_000)
    assert made.begin().result() == ProducerIdAndEpoch(7, 1)
    made.add([AT]).result()
    made.end(commit=True).result()
    assert made.begin().result() == ProducerIdAndEpoch(7, 2)
    made.add([AT]).result()
    made.end(commit=False).result()
    assert made.begin().result() == ProducerIdAndEpoch(7, 3)
    assert coordinator.names == ["InitProducerId", "EndTxn", "EndTxn"]
    first, commit, abort = coordinator.requests
    assert (first.transactional_id, first.producer_id) == ("billing-1", -1)
    assert first.transaction_timeout == timedelta(seconds=5)
    assert (commit.producer_epoch, commit.committed) == (1, True)
    assert (abort.producer_epoch, abort.committed) == (2, False)


def test_an_empty_transaction_sends_nothing_at_its_end(coordinator):
    made = manager(coordinator)
    made.begin().result()
    made.end(commit=True).result()
    assert coordinator.names == ["InitProducerId"]


def test_under_version_1_the_producer_adds_partitions_and_an_abort_is_followed_by_a_new_epoch(coordinator):
    made = manager(coordinator, level=1)
    made.begin().result()
    assert not made.has(AT)
    made.add([AT, OTHER]).result()
    made.add([AT]).result()
    assert made.has(AT)
    assert made.has(OTHER)
    made.end(commit=True).result()
    assert made.begin().result() == ProducerIdAndEpoch(7, 1)
    assert not made.has(AT)
    made.add([AT]).result()
    made.end(commit=False).result()
    assert made.begin().result() == ProducerIdAndEpoch(7, 2)
    assert coordinator.names == [
        "InitProducerId",
        *("AddPartitionsToTxn", "EndTxn"),
        *("AddPartitionsToTxn", "EndTxn", "InitProducerId"),
    ]
    versions = [each.kind.__version__ for each in coordinator.requests if isinstance(each, VersionedRequest)]
    assert versions == [3, 4, 3, 4]
    assert (coordinator.requests[-1].producer_id, coordinator.requests[-1].producer_epoch) == (7, 1)


def test_the_error_of_added_partitions_is_that_of_the_one_that_was_attempted(coordinator):
    made = manager(coordinator, level=1)
    made.begin().result()
    coordinator.errors[AddPartitionsToTxnRequest] = ErrorCode.invalid_producer_id_mapping
    with pytest.raises(InvalidProducerIdMapping):
        made.add([AT, OTHER]).result()
    assert not made.has(AT)
    assert not made.is_empty


@pytest.mark.parametrize("level", [1, 2])
def test_offsets_are_committed_in_the_name_of_a_member(coordinator, level):
    made, group = manager(coordinator, level), Coordinator()
    made.begin().result()
    made.commit_offsets(group, MEMBER, {AT: 17, OTHER: 4}).result()
    made.commit_offsets(group, no_member("billing"), {AT: 18}).result()
    made.end(commit=True).result()
    added = ["AddOffsetsToTxn"] if level == 1 else []
    assert coordinator.names == ["InitProducerId", *added, "EndTxn"]
    assert group.names == ["TxnOffsetCommit"] * 2
    first, second = map(message_of, group.requests)
    assert (first.generation_id, first.member_id) == (3, "m-1")
    assert (second.generation_id, second.member_id) == (-1, "")
    [topic] = first.topics
    assert [(each.partition_index, each.committed_offset) for each in topic.partitions] == [(0, 17), (1, 4)]


def test_a_member_that_lost_its_partitions_is_refused(coordinator):
    made, group = manager(coordinator), Coordinator()
    made.begin().result()
    group.errors[TxnOffsetCommitRequest] = ErrorCode.illegal_generation
    with pytest.raises(IllegalGeneration):
        made.commit_offsets(group, MEMBER, {AT: 17}).result()
    assert not made.is_empty


def test_offsets_of_a_deleted_topic_no_longer_matter(coordinator):
    made, group = manager(coordinator), Coordinator()
    made.begin().result()
    group.errors[TxnOffsetCommitRequest] = ErrorCode.unknown_topic_or_partition
    made.commit_offsets(group, MEMBER, {AT: 17}).result()
    # The coordinator does not know of the transaction.
    assert made.is_empty
    made.commit_offsets(group, MEMBER, {OTHER: 3}).result()
    group.errors[TxnOffsetCommitRequest] = ErrorCode.unknown_topic_or_partition
    made.commit_offsets(group, MEMBER, {AT: 17}).result()
    assert not made.is_empty


def test_without_an_offset_nothing_is_asked(coordinator):
    made = manager(coordinator)
    made.begin().result()
    made.commit_offsets(coordinator, MEMBER, {}).result()
    made.end(commit=True).result()
    assert coordinator.names == ["InitProducerId"]


@pytest.mark.parametrize("code", [ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch])
def test_a_producer_that_was_replaced_is_fenced(coordinator, code):
    made = manager(coordinator)
    made.begin().result()
    made.add([AT]).result()
    coordinator.errors[EndTxnRequest] = code
    with pytest.raises(ProducerFenced):
        made.end(commit=True).result()


def test_after_an_error_the_producer_starts_again_as_the_one_it_was(coordinator):
    made = manager(coordinator)
    made.begin().result()
    made.add([AT]).result()
    coordinator.errors[EndTxnRequest] = RequestTimedOut()
    with pytest.raises(RequestTimedOut):
        made.end(commit=True).result()
    assert made.begin().result() == ProducerIdAndEpoch(7, 2)
    assert (coordinator.requests[-1].producer_id, coordinator.requests[-1].producer_epoch) == (7, 1)


def test_a_commit_whose_answer_was_lost_can_be_repeated(coordinator):
    made = manager(coordinator)
    made.begin().result()
    made.add([AT]).result()
    coordinator.errors[EndTxnRequest] = RequestTimedOut()
    with pytest.raises(RequestTimedOut):
        made.end(commit=True).result()
    made.end(commit=True).result()
    assert coordinator.requests[-1] == coordinator.requests[-2]


def test_a_rise_of_the_finalized_level_and_another_timeout_start_again(coordinator):
    levels = iter([1, 2, 2])
    made = TransactionManager("billing-1", coordinator, version=lambda: next(levels))
    made.begin().result()
    assert not made.is_second
    made.begin().result()
    assert made.is_second
    made.timeout_ms = 1_000
    made.begin().result()
    assert coordinator.names == ["InitProducerId"] * 3
    assert coordinator.requests[-1].transaction_timeout == timedelta(seconds=1)
