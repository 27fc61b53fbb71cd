"""The Metadata, DescribeCluster and DescribeTopicPartitions responses."""

from __future__ import annotations

import pytest

from kreplica.broker.metadata_apis import MetadataApis, SuspectedBrokers
from kreplica.broker.request_context import RequestContext
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import InvalidRequest
from kreplica.common.leader_and_isr import LeaderRecoveryState
from kreplica.common.messages.data import (
    Cursor,
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    MetadataRequest,
    MetadataRequestTopic,
)
from kreplica.common.messages.data import DescribeTopicPartitionsRequestTopicRequest as TopicRequest
from kreplica.common.types import Uuid
from kreplica.common.wire import uuid_of
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.records import Endpoint, PartitionRecord, RegisterBrokerRecord, TopicRecord
from kreplica.security.peer import Peer
from tests.support.clock import ManualClock

ORDERS, OTHER = Uuid(bytes([1] * 16)), Uuid(bytes([2] * 16))


def cluster():
    metadata = ClusterMetadata()
    for broker_id, fenced in ((1, False), (2, False), (3, True)):
        metadata.replay(
            RegisterBrokerRecord(
                broker_id=broker_id,
                incarnation_id=Uuid(bytes([broker_id] * 16)),
                broker_epoch=broker_id,
                end_points=(Endpoint(name="P", host="there", port=9090 + broker_id, security_protocol=0),),
                features=(),
                rack="r1",
                fenced=fenced,
            ),
            version=3,
        )
    metadata.replay(TopicRecord(name="orders", topic_id=ORDERS))
    for number, leader in ((0, 1), (1, 3)):
        metadata.replay(
            PartitionRecord(
                partition_id=number,
                topic_id=ORDERS,
                replicas=(1, 3),
                isr=(1, 3),
                removing_replicas=(),
                adding_replicas=(),
                leader=leader,
                leader_epoch=7,
                partition_epoch=9,
                leader_recovery_state=int(LeaderRecoveryState.RECOVERED),
            )
        )
    return metadata


def ask(*topics, suspected=()):
    apis = MetadataApis("cluster", cluster, lambda: 2, lambda: set(suspected))
    wanted = None if topics == (None,) else tuple(topics)
    request = MetadataRequest(topics=wanted, include_topic_authorized_operations=False)
    return apis.handle_metadata(request).result()


def by_name(name):
    return MetadataRequestTopic(topic_id=None, name=name)


def test_brokers_that_are_there():
    response = ask()
    assert [(each.node_id, each.host, each.port, each.rack) for each in response.brokers] == [
        (1, "there", 9091, "r1"),
        (2, "there", 9092, "r1"),
    ]
    assert (response.cluster_id, response.controller_id, response.topics) == ("cluster", 2, ())


def test_a_topic_with_a_leader_that_is_gone():
    (topic,) = ask(None).topics
    assert (topic.name, topic.topic_id, topic.error_code) == ("orders", uuid_of(ORDERS), 0)
    assert [
        (each.partition_index, each.leader_id, each.leader_epoch, each.error_code, each.offline_replicas)
        for each in topic.partitions
    ] == [(0, 1, 7, 0, (3,)), (1, -1, 7, 5, (3,))]


def test_one_that_closed_its_connection_is_named_as_no_leader_and_is_still_there():
    response = ask(None, suspected={1})
    assert [each.node_id for each in response.brokers] == [1, 2]
    assert [(each.leader_id, each.error_code) for each in response.topics[0].partitions] == [(-1, 5), (-1, 5)]


def test_a_leader_is_in_doubt_while_it_is_suspected_and_asked_for():
    suspected = set()
    apis = MetadataApis("cluster", cluster, lambda: 2, lambda: suspected)

    def is_in_doubt(*topics):
        return apis.is_leader_in_doubt(
            MetadataRequest(topics=topics, include_topic_authorized_operations=False)
        )

    by_id = MetadataRequestTopic(topic_id=uuid_of(ORDERS), name=None)
    assert not is_in_doubt(by_name("orders"))
    suspected.add(2)
    assert not is_in_doubt(by_name("orders"), by_name("unknown"))
    suspected.add(1)
    assert is_in_doubt(by_name("orders"))
    assert is_in_doubt(by_id)
    assert not is_in_doubt(by_name("unknown"))


def test_topics_by_name_and_by_id():
    by_id = MetadataRequestTopic(topic_id=uuid_of(ORDERS), name=None)
    gone = MetadataRequestTopic(topic_id=uuid_of(OTHER), name=None)
    response = ask(by_name("orders"), by_id, by_name("nobodys"), gone, by_name("no/name"))
    assert [topic.error_code for topic in response.topics] == [0, 0, 3, 100, 17]
    assert response.topics[2].name == "nobodys"
    assert response.topics[3].topic_id == uuid_of(OTHER)


def test_an_empty_name_beside_an_id_is_no_name():
    known, gone = (MetadataRequestTopic(topic_id=uuid_of(each), name="") for each in (ORDERS, OTHER))
    response = ask(known, gone)
    assert [(topic.name, topic.error_code) for topic in response.topics] == [("orders", 0), (None, 100)]


# ---- DescribeCluster, DescribeTopicPartitions --------------------------------------------------------------


def test_requests_for_the_controller_go_to_a_broker_that_is_there():
    asked = MetadataRequest(topics=(), include_topic_authorized_operations=False)
    for controller, expected in ((2, 2), (3, 1), (100, 1), (None, 1)):
        apis = MetadataApis("cluster", cluster, lambda controller=controller: controller)
        assert apis.handle_metadata(asked).result(0).controller_id == expected


def describe_cluster(**fields):
    request = DescribeClusterRequest(
        **{"include_cluster_authorized_operations": False, "include_fenced_brokers": False, **fields}
    )
    return MetadataApis("cluster", cluster, lambda: 2).handle_describe_cluster(request).result(0)


def test_a_cluster_is_its_brokers():
    response = describe_cluster()
    assert (response.cluster_id, response.controller_id) == ("cluster", 2)
    assert [(each.broker_id, each.port, each.is_fenced) for each in response.brokers] == [
        (1, 9091, False),
        (2, 9092, False),
    ]
    assert [each.is_fenced for each in describe_cluster(include_fenced_brokers=True).brokers] == [
        False,
        False,
        True,
    ]


def test_a_listener_of_brokers_describes_no_controllers():
    response = describe_cluster(endpoint_type=2)
    assert (response.error_code, response.brokers) == (ErrorCode.unsupported_endpoint_type, ())


def describe_topics(*names, limit=10, cursor=None):
    request = DescribeTopicPartitionsRequest(
        topics=tuple(TopicRequest(name=name) for name in names),
        response_partition_limit=limit,
        cursor=None if cursor is None else Cursor(topic_name=cursor[0], partition_index=cursor[1]),
    )
    return MetadataApis("cluster", cluster, lambda: 2).handle_describe_topic_partitions(request)


def test_partitions_are_described_with_their_eligible_leaders():
    response = describe_topics().result(0)
    (topic,) = response.topics
    assert (topic.name, topic.topic_id, response.next_cursor) == ("orders", uuid_of(ORDERS), None)
    assert [(each.leader_id, each.replica_nodes, each.offline_replicas) for each in topic.partitions] == [
        (1, (1, 3), (3,)),
        (-1, (1, 3), (3,)),
    ]


def test_more_than_the_limit_is_asked_for_from_the_cursor_on():
    first = describe_topics("absent", "orders", limit=1).result(0)
    assert [(each.name, len(each.partitions)) for each in first.topics] == [("absent", 0), ("orders", 1)]
    assert first.topics[0].error_code is ErrorCode.unknown_topic_or_partition
    at = first.next_cursor.topic_name, first.next_cursor.partition_index
    second = describe_topics("absent", "orders", limit=1, cursor=at).result(0)
    assert [each.partition_index for each in second.topics[0].partitions] == [1]
    assert second.next_cursor is None


@pytest.mark.parametrize(("limit", "cursor"), [(0, None), (-1, None), (1, ("orders", -1))])
def test_a_limit_or_a_cursor_that_makes_no_sense(limit, cursor):
    assert isinstance(describe_topics(limit=limit, cursor=cursor).exception(0), InvalidRequest)


# ---- topics that do not exist ------------------------------------------------------------------------------


def asked_for(*topics, allow=True):
    """What is to be made then."""
    made = []
    apis = MetadataApis("cluster", cluster, lambda: 2, create=made.append)
    request = MetadataRequest(
        topics=topics, allow_auto_topic_creation=allow, include_topic_authorized_operations=False
    )
    response = apis.handle_metadata(request).result()
    return made, [topic.error_code for topic in response.topics]


def test_a_missing_topic_is_created_and_unknown_meanwhile():
    unknown = ErrorCode.unknown_topic_or_partition
    assert asked_for(by_name("new"), by_name("orders"), by_name("later")) == (
        [["new", "later"]],
        [unknown, ErrorCode.none, unknown],
    )


def test_a_client_that_does_not_allow_it_makes_nothing():
    assert asked_for(by_name("new"), allow=False) == ([], [ErrorCode.unknown_topic_or_partition])


@pytest.mark.parametrize("name", ["", "..", "a/b", "x" * 250, "__consumer_offsets", "__transaction_state"])
def test_what_may_not_be_made_is_not_made(name):
    assert asked_for(by_name(name))[0] == []


def test_a_topic_is_not_made_by_its_id():
    asked = MetadataRequestTopic(topic_id=uuid_of(OTHER), name=None)
    assert asked_for(asked) == ([], [ErrorCode.unknown_topic_id])


def test_a_broker_is_suspected_for_a_while_after_each_closed_connection() -> None:
    clock = ManualClock()
    suspected = SuspectedBrokers(clock, 100)
    assert suspected.current() == set()
    suspected.connection_lost(1)
    clock.now_ms += 60
    suspected.connection_lost(2)
    assert suspected.current() == {1, 2}
    clock.now_ms += 40
    assert suspected.current() == {2}
    suspected.connection_lost(1)
    clock.now_ms += 60
    assert suspected.current() == {1}


# ---- listeners ---------------------------------------------------------------------------------------------


def test_a_client_of_a_listener_that_the_leader_lacks_gets_the_error_that_it_knows():
    apis = MetadataApis("cluster", cluster, lambda: 2)
    request = MetadataRequest(topics=None, include_topic_authorized_operations=False)
    peer = Peer("/10.0.0.1", listener="OTHER")
    found = {}
    for version in (5, 6):
        answer = apis.handle_metadata(request, RequestContext(version, "a", peer)).result(0)
        assert (answer.brokers, answer.controller_id) == ((), -1)
        found[version] = [each.error_code for each in answer.topics[0].partitions]
    away = ErrorCode.leader_not_available
    # The leader of the second partition is fenced, whatever its listeners.
    assert found == {5: [away, away], 6: [ErrorCode.listener_not_found, away]}
