"""MetadataCache: the port through which replicas see the cluster's metadata.

The metadata layer implements it. Reading takes no lock and may be slightly out of date.
"""

from __future__ import annotations

from typing import Protocol

from kreplica.common.types import TopicPartition, Uuid


class MetadataCache(Protocol):
    """The topics, partitions and brokers that replicas ask for."""

    def contains(self, topic_partition: TopicPartition) -> bool:
        """Return whether the partition exists in the cluster."""
        ...

    def leader(self, topic_partition: TopicPartition) -> int | None:
        """Return the partition's leader; None if it has no leader or does not exist."""
        ...

    def topic_name(self, topic_id: Uuid) -> str | None: ...

    def topic_id(self, topic: str) -> Uuid | None: ...

    def is_broker_fenced(self, broker_id: int) -> bool:
        """Return whether the broker is fenced; False for an unknown broker."""
        ...

    def is_broker_shutting_down(self, broker_id: int) -> bool: ...

    def rack(self, broker_id: int) -> str | None:
        """Return the broker's rack; None if it has no rack, is fenced, or is unknown."""
        ...

    def address(self, broker_id: int) -> tuple[str, int] | None:
        """Return where the broker listens for other brokers; None if it is unknown or has no listener."""
        ...

    def get_alive_broker_epoch(self, broker_id: int) -> int | None:
        """Return the epoch of the broker's registration; None if it is fenced or unknown."""
        ...
