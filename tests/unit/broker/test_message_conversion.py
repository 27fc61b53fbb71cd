"""Each version that is read becomes the one that the handlers take, and each answer that which was asked."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica.broker.api_versions import API_RANGES, FETCH, request_type, response_type
from kreplica.broker.group_conversion import FIRST_OF_SEVERAL
from kreplica.broker.message_conversion import FETCH_BY_ID
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import InvalidRequest
from kreplica.common.message import at, in_version, structure_of
from kreplica.common.messages import administration, data
from kreplica.common.messages.data import (
    FetchableTopicResponse,
    FetchResponse,
    MetadataResponse,
    MetadataResponseTopic,
    PartitionData,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from kreplica.common.types import Uuid
from tests.support.messages import messages, written
from tests.support.versions import answered, received

OldDeleteTopicsRequest: Any = at(administration.DeleteTopicsRequest, 3)
FetchRequest4: Any = at(data.FetchRequest, 4)
FetchTopic4: Any = structure_of(FetchRequest4, "topics")
OldFetchPartition: Any = structure_of(FetchTopic4, "partitions")
FetchRequest: Any = at(data.FetchRequest, 12)
FetchTopic: Any = structure_of(FetchRequest, "topics")
FetchPartition: Any = structure_of(FetchTopic, "partitions")
MetadataRequest0: Any = at(data.MetadataRequest, 0)
MetadataRequest1: Any = at(data.MetadataRequest, 1)
ProduceResponse3: Any = at(data.ProduceResponse, 3)

ORDERS = uuid.UUID(int=7)
READ = [
    (api, version) for api in API_RANGES.values() for version in range(api.first_read, api.max_version + 1)
]


class Topics:
    """Knows one topic."""

    def topic_id(self, topic: str) -> Uuid | None:
        return Uuid(ORDERS.bytes) if topic == "orders" else None


def handled(request: Any) -> tuple[Any, Any]:
    return received(request, Topics())


@given(data=st.data())
def test_every_request_becomes_one_that_the_handler_takes(data: st.DataObject) -> None:
    api, version = data.draw(st.sampled_from(READ))
    request = data.draw(messages(request_type(api.api_key, version)))
    upgraded, _ = received(request, Topics())
    assert type(upgraded) is request_type(api.api_key, api.handled)
    written(upgraded)


@given(data=st.data())
def test_every_answer_becomes_one_of_the_version_that_was_asked(data: st.DataObject) -> None:
    by_name = [each for each in READ if each[0].api_key not in {FETCH, *FIRST_OF_SEVERAL}]
    api, version = data.draw(st.sampled_from(by_name))
    response = data.draw(messages(response_type(api.api_key, api.handled)))
    assert answered(response, version, None) == in_version(response, version)


def test_what_the_newer_version_says_of_itself_is_the_schemas_default() -> None:
    request, _ = handled(fetch_4("orders"))
    assert request.replica_state.replica_id == -1
    assert request.topics[0].partitions[0].current_leader_epoch == -1
    assert request.topics[0].partitions[0].last_fetched_epoch == -1
    assert (request.rack_id, request.isolation_level, request.cluster_id) == ("", 1, None)


def test_no_topics_stood_for_all_of_them_before_there_was_null() -> None:
    assert handled(MetadataRequest0(topics=()))[0].topics is None
    assert handled(MetadataRequest1(topics=()))[0].topics == ()
    assert handled(MetadataRequest1(topics=None))[0].topics is None


def test_the_first_version_listed_the_resources_of_client_metrics() -> None:
    old: Any = at(administration.ListConfigResourcesRequest, 0)
    assert handled(old())[0].resource_types == (16,)
    every = administration.ListConfigResourcesRequest(resource_types=())
    assert handled(every)[0].resource_types == ()


def test_topics_were_deleted_by_name() -> None:
    request = OldDeleteTopicsRequest(topic_names=("a", "b"), timeout=timedelta(seconds=1))
    assert [topic.name for topic in handled(request)[0].topics] == ["a", "b"]


def test_null_is_nothing_where_the_older_version_has_no_null() -> None:
    topic = MetadataResponseTopic(
        error_code=ErrorCode.unknown_topic_id, name=None, topic_id=ORDERS, partitions=()
    )
    response = MetadataResponse(
        throttle_time=timedelta(0), brokers=(), cluster_id="c", controller_id=1, topics=(topic,)
    )
    assert answered(response, 11, None).topics[0].name == ""
    assert answered(response, 12, None).topics[0].name is None


def test_a_produce_answer_loses_what_the_older_version_has_no_place_for() -> None:
    answer = PartitionProduceResponse(
        index=1,
        error_code=ErrorCode.invalid_record,
        base_offset=-1,
        log_append_time=None,
        log_start_offset=4,
        record_errors=(),
        error_message="no",
    )
    response = ProduceResponse(
        responses=(TopicProduceResponse(name="t", partition_responses=(answer,)),), throttle_time=timedelta(0)
    )
    old = answered(response, 3, None)
    assert isinstance(old, ProduceResponse3)
    (partition,) = old.responses[0].partition_responses
    assert (partition.index, partition.error_code) == (1, ErrorCode.invalid_record)
    assert not hasattr(partition, "log_start_offset")


# ---- Fetch -------------------------------------------------------------------------------------------------


def fetch_4(*names: str) -> FetchRequest4:
    partition = OldFetchPartition(partition=3, fetch_offset=5, partition_max_bytes=100)
    return FetchRequest4(
        max_wait=timedelta(seconds=1),
        min_bytes=1,
        isolation_level=1,
        topics=tuple(FetchTopic4(topic=name, partitions=(partition,)) for name in names),
    )


def answer(error: ErrorCode = ErrorCode.none, topic_id: uuid.UUID = ORDERS) -> FetchResponse:
    partition = PartitionData(
        partition_index=3, error_code=error, high_watermark=9, aborted_transactions=None, records=b"r"
    )
    topic = FetchableTopicResponse(topic_id=topic_id, partitions=(partition,))
    return FetchResponse(
        throttle_time=timedelta(0), error_code=ErrorCode.none, session_id=0, responses=(topic,)
    )


@pytest.mark.parametrize("version", [4, 5, 6, 7, 8, 9, 10, 11, 12])
def test_old_fetches_name_topics_and_are_answered_by_name(version: int) -> None:
    request, names = handled(fetch_4("orders"))
    assert [topic.topic_id for topic in request.topics] == [ORDERS]
    assert request.topics[0].partitions[0].fetch_offset == 5
    old = answered(answer(), version, names)
    assert type(old) is response_type(FETCH, version)
    assert [topic.topic for topic in old.responses] == ["orders"]
    assert old.responses[0].partitions[0].records == b"r"
    assert written(old)


def test_an_unknown_name_is_answered_at_once_beside_the_known_ones() -> None:
    request, names = handled(fetch_4("absent", "orders"))
    assert [topic.topic_id for topic in request.topics] == [ORDERS]
    assert request.max_wait == timedelta(0)
    old = answered(answer(), 11, names)
    assert [topic.topic for topic in old.responses] == ["orders", "absent"]
    (unknown,) = old.responses[1].partitions
    assert (unknown.partition_index, unknown.error_code) == (3, ErrorCode.unknown_topic_or_partition)
    assert written(old)


def test_errors_about_ids_become_errors_about_names() -> None:
    _, names = handled(fetch_4("orders"))
    old = answered(answer(ErrorCode.unknown_topic_id), 9, names)
    assert old.responses[0].partitions[0].error_code == ErrorCode.unknown_topic_or_partition


def test_a_session_by_name_is_declined_and_one_by_id_is_not() -> None:
    partition = FetchPartition(partition=3, fetch_offset=5, partition_max_bytes=100)
    by_name = FetchRequest(
        max_wait=timedelta(seconds=1),
        min_bytes=1,
        session_id=0,
        session_epoch=0,
        topics=(FetchTopic(topic="orders", partitions=(partition,)),),
        forgotten_topics_data=(),
    )
    assert handled(by_name)[0].session_epoch == -1
    kind = request_type(FETCH, FETCH_BY_ID)
    by_id = kind(
        max_wait=timedelta(seconds=1), min_bytes=1, session_epoch=0, topics=(), forgotten_topics_data=()
    )
    assert handled(by_id)[0].session_epoch == 0


def test_what_the_answer_cannot_say_is_not_left_out() -> None:
    _, names = handled(fetch_4("orders"))
    refused = FetchResponse(
        throttle_time=timedelta(0), error_code=ErrorCode.invalid_request, session_id=0, responses=()
    )
    assert answered(refused, 7, names).error_code == ErrorCode.invalid_request
    with pytest.raises(InvalidRequest):
        answered(refused, 6, names)
    with pytest.raises(InvalidRequest, match="not requested"):
        answered(answer(topic_id=uuid.UUID(int=8)), 6, names)
