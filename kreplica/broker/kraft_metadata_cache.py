"""KRaftMetadataCache: what this broker knows of the cluster, as its replicas and its answers need it.

It holds one ClusterMetadata that nobody changes; the publisher puts another in its place. So a look takes no
lock, and all that one look sees is of one moment. Any thread may look; the publisher's loop alone sets it.
"""

from __future__ import annotations

from collections.abc import Callable

from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.common.types import TopicPartition, Uuid
from kreplica.metadata.cluster_metadata import ClusterMetadata


class KRaftMetadataCache:
    """Implements `kreplica.replica.metadata_cache.MetadataCache`; `metadata` is all of it."""

    def __init__(self) -> None:
        self.metadata = ClusterMetadata()
        # Called after each change, in the publisher's loop.
        self.on_image: Callable[[], object] | None = None

    def set_image(self, metadata: ClusterMetadata) -> None:
        """Use this metadata, which must not change any more, from now on."""
        self.metadata = metadata
        if self.on_image is not None:
            self.on_image()

    def contains(self, topic_partition: TopicPartition) -> bool:
        """Whether the cluster has such a partition."""
        return self.metadata.partition(topic_partition) is not None

    def leader(self, topic_partition: TopicPartition) -> int | None:
        """The partition's leader; None where there is none, or no such partition."""
        partition = self.metadata.partition(topic_partition)
        return None if partition is None or partition.leader == NO_LEADER else partition.leader

    def topic_name(self, topic_id: Uuid) -> str | None:
        """The name of the topic of that id."""
        return self.metadata.topic_names.get(topic_id)

    def topic_id(self, topic: str) -> Uuid | None:
        """The id of the topic of that name."""
        found = self.metadata.topics.get(topic)
        return None if found is None else found.topic_id

    def is_broker_fenced(self, broker_id: int) -> bool:
        """Whether the controller keeps the broker from leading; False of an unknown one."""
        broker = self.metadata.brokers.get(broker_id)
        return broker is not None and broker.fenced

    def is_broker_shutting_down(self, broker_id: int) -> bool:
        """Whether the broker is giving up its leaderships; False of an unknown one."""
        broker = self.metadata.brokers.get(broker_id)
        return broker is not None and broker.in_controlled_shutdown

    def rack(self, broker_id: int) -> str | None:
        """The rack of a broker that is there; None where it has none, or is fenced or unknown."""
        broker = self.metadata.brokers.get(broker_id)
        return None if broker is None or broker.fenced else broker.rack

    def address(self, broker_id: int) -> tuple[str, int] | None:
        """Where the broker listens for other brokers; None for one that is unknown or has no listener."""
        broker = self.metadata.brokers.get(broker_id)
        if broker is None or not broker.endpoints:
            return None
        return broker.endpoints[-1].host, broker.endpoints[-1].port

    def get_alive_broker_epoch(self, broker_id: int) -> int | None:
        """The epoch in which the broker is registered; None for one that is fenced or unknown."""
        broker = self.metadata.brokers.get(broker_id)
        return None if broker is None or broker.fenced else broker.epoch
