"""KRaftMetadataCache: what one broker's replicas ask of the cluster."""

from kreplica.broker.kraft_metadata_cache import KRaftMetadataCache
from kreplica.common.types import TopicPartition, Uuid
from kreplica.metadata import records as kinds
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.replica.metadata_cache import MetadataCache
from tests.support.metadata_log import topic

A, B = Uuid(b"a" * 16), Uuid(b"b" * 16)


def broker(broker_id: int, **fields: object) -> kinds.RegisterBrokerRecord:
    return kinds.RegisterBrokerRecord(
        broker_id=broker_id,
        incarnation_id=A,
        broker_epoch=10 + broker_id,
        end_points=(),
        features=(),
        rack=None,
        **fields,
    )


def test_it_answers_for_topics_partitions_and_brokers() -> None:
    cache: MetadataCache = KRaftMetadataCache()
    metadata = ClusterMetadata()
    records = [
        *topic(A, "t", partitions=2),
        kinds.PartitionChangeRecord(partition_id=1, topic_id=A, leader=-1),
        broker(1, fenced=False),
        broker(2, fenced=True),
        broker(3, fenced=False, in_controlled_shutdown=True),
    ]
    for record in records:
        metadata.replay(record)
    assert not cache.contains(TopicPartition("t", 0))
    assert isinstance(cache, KRaftMetadataCache)
    cache.set_image(metadata)
    assert cache.contains(TopicPartition("t", 0))
    assert not cache.contains(TopicPartition("t", 2))
    assert not cache.contains(TopicPartition("u", 0))
    assert [cache.leader(TopicPartition("t", number)) for number in range(3)] == [1, None, None]
    assert (cache.topic_name(A), cache.topic_name(B)) == ("t", None)
    assert (cache.topic_id("t"), cache.topic_id("u")) == (A, None)
    assert [cache.is_broker_fenced(broker_id) for broker_id in (1, 2, 3, 9)] == [False, True, False, False]
    assert [cache.is_broker_shutting_down(broker_id) for broker_id in (1, 2, 3, 9)] == [
        *(False, False, True, False)
    ]
    assert [cache.get_alive_broker_epoch(broker_id) for broker_id in (1, 2, 3, 9)] == [11, None, 13, None]
