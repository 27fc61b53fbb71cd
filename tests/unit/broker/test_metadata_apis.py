"""What clients are told of the cluster."""

from __future__ import annotations

from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic

from kreplica.broker.metadata_apis import MetadataApis
from kreplica.common.leader_and_isr import LeaderRecoveryState
from kreplica.common.types import Uuid
from kreplica.common.wire import uuid_of
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.records import Endpoint, PartitionRecord, RegisterBrokerRecord, TopicRecord

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


def ask(*topics):
    apis = MetadataApis("cluster", cluster, lambda: 2)
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


def test_topics_by_name_and_by_id():
    by_id = MetadataRequestTopic(topic_id=uuid_of(ORDERS), name=None)
    gone = MetadataRequestTopic(topic_id=uuid_of(OTHER), name=None)
    response = ask(by_name("orders"), by_id, by_name("nobodys"), gone, by_name("no/name"))
    assert [topic.error_code for topic in response.topics] == [0, 0, 3, 100, 17]
    assert response.topics[2].name == "nobodys"
    assert response.topics[3].topic_id == uuid_of(OTHER)
