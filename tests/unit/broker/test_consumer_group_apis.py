"""What the group coordinator of a broker sees of heartbeats and of the cluster's topics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kreplica.broker.consumer_group_apis import ConsumerGroupApis, MetadataTopics
from kreplica.broker.group_apis import GroupPublisher
from kreplica.common.future import Future
from kreplica.common.messages.consumer_groups import ConsumerGroupHeartbeatRequest, TopicPartitions
from kreplica.common.types import Uuid
from kreplica.common.wire import uuid_of
from kreplica.controller.feature_control import GROUP_VERSION
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.metadata.records import PartitionRecord, RemoveTopicRecord, TopicRecord

LATE = Uuid(b"late".ljust(16, b"\0"))


class LookingCoordinator:
    """A coordinator that looks at the topics at the moment when it is notified of a change."""

    def __init__(self, topics: MetadataTopics) -> None:
        self.topics = topics
        self.seen: list[Any] = []

    def change_topics(self, names, *, has_other_names):
        found = {name: (self.topics.topic_id(name), self.topics.partition_count(name)) for name in names}
        self.seen.append((has_other_names, set(self.topics.names()), found, self.topics.offset))

    def delete_topics(self, names):
        self.seen.append(("deleted", set(names)))


def test_the_coordinator_sees_a_topic_when_it_is_notified_of_it_not_when_the_broker_has_its_replicas():
    topics = MetadataTopics()
    coordinator: Any = LookingCoordinator(topics)
    publisher = GroupPublisher(1, coordinator, topics)
    metadata = ClusterMetadata()
    metadata.replay(TopicRecord(name="late", topic_id=LATE))
    metadata.replay(
        PartitionRecord(
            partition_id=0,
            topic_id=LATE,
            replicas=(1,),
            isr=(1,),
            leader=1,
            leader_epoch=0,
            partition_epoch=0,
        )
    )
    publisher.on_metadata_update(metadata.take_delta(), metadata.copy(), OffsetAndEpoch(2, 1))
    assert coordinator.seen == [(True, {"late"}, {"late": (LATE, 1)}, 2)]
    metadata.replay(RemoveTopicRecord(topic_id=LATE))
    publisher.on_metadata_update(metadata.take_delta(), metadata.copy(), OffsetAndEpoch(3, 1))
    assert coordinator.seen[1:] == [("deleted", {"late"}), (True, set(), {"late": (None, 0)}, 3)]


def test_a_topic_that_a_heartbeat_names_twice_has_the_partitions_of_both():
    seen: list[Any] = []

    def consumer_heartbeat(asked):
        seen.append(asked)
        return Future()

    coordinator: Any = SimpleNamespace(consumer_heartbeat=consumer_heartbeat)
    cache: Any = SimpleNamespace(metadata=SimpleNamespace(features={GROUP_VERSION: 1}))
    parts = [TopicPartitions(topic_id=uuid_of(LATE), partitions=numbers) for numbers in ((0, 1), (), (1, 2))]
    request = ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="a", member_epoch=2, topic_partitions=tuple(parts)
    )
    ConsumerGroupApis(coordinator, cache).handle_heartbeat(request)
    assert seen[0].owned == {LATE: {0, 1, 2}}
