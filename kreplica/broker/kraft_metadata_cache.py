"""KRaftMetadataCache: the broker's view of the cluster's metadata, for its replicas and answers.

It holds one immutable ClusterMetadata, which the publisher replaces. Reading needs no lock, and all values of
one ClusterMetadata belong together. Any thread may read; only the publisher's loop sets it.
"""

from __future__ import annotations

from collections.abc import Callable

from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.common.types import TopicPartition, Uuid
from kreplica.metadata.cluster_metadata import ClusterMetadata


class KRaftMetadataCache:
    """Implements `kreplica.replica.metadata_cache.MetadataCache`. `metadata` is the whole metadata.

    `inter_broker_listener`: the name of the listener by which brokers reach each other.
    """

    def __init__(self, inter_broker_listener: str = "") -> None:
        self.metadata = ClusterMetadata()
        self._inter_broker_listener = inter_broker_listener
        # Called after each change, in the publisher's loop.
        self.on_image: Callable[[], object] | None = None

    def set_image(self, metadata: ClusterMetadata) -> None:
        """Use this metadata from now on. It must not change later."""
        self.metadata = metadata
        if self.on_image is not None:
            self.on_image()

    def contains(self, topic_partition: TopicPartition) -> bool:
        """Return whether the partition exists in the cluster."""
        return self.metadata.partition(topic_partition) is not None

    def leader(self, topic_partition: TopicPartition) -> int | None:
        """Return the partition's leader; None if it has no leader or does not exist."""
        partition = self.metadata.partition(topic_partition)
        return None if partition is None or partition.leader == NO_LEADER else partition.leader

    def topic_name(self, topic_id: Uuid) -> str | None:
        """Return the name of the topic with that id."""
        return self.metadata.topic_names.get(topic_id)

    def topic_id(self, topic: str) -> Uuid | None:
        """Return the id of the topic with that name."""
        found = self.metadata.topics.get(topic)
        return None if found is None else found.topic_id

    def is_broker_fenced(self, broker_id: int) -> bool:
        """Return whether the broker is fenced; False for an unknown broker."""
        broker = self.metadata.brokers.get(broker_id)
        return broker is not None and broker.fenced

    def is_broker_shutting_down(self, broker_id: int) -> bool:
        """Return whether the broker is shutting down; False for an unknown broker."""
        broker = self.metadata.brokers.get(broker_id)
        return broker is not None and broker.in_controlled_shutdown

    def rack(self, broker_id: int) -> str | None:
        """Return the broker's rack; None if it has no rack, is fenced, or is unknown."""
        broker = self.metadata.brokers.get(broker_id)
        return None if broker is None or broker.fenced else broker.rack

    def address(self, broker_id: int) -> tuple[str, int] | None:
        """Return where the broker listens for other brokers; None if it is unknown or has no listener."""
        broker = self.metadata.brokers.get(broker_id)
        if broker is None or not broker.endpoints:
            return None
        return broker.address(self._inter_broker_listener)

    def get_alive_broker_epoch(self, broker_id: int) -> int | None:
        """Return the epoch of the broker's registration; None if it is fenced or unknown."""
        broker = self.metadata.brokers.get(broker_id)
        return None if broker is None or broker.fenced else broker.epoch
