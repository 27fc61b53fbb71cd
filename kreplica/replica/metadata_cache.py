"""MetadataCache: what a broker knows of the cluster, as far as its replicas need it.

The metadata layer keeps it; here is the port to it. A look takes no lock and may be a moment old.
"""

from __future__ import annotations

from typing import Protocol

from kreplica.common.types import TopicPartition, Uuid


class MetadataCache(Protocol):
    """Topics, partitions and brokers."""

    def contains(self, topic_partition: TopicPartition) -> bool:
        """Whether the cluster has such a partition."""
        ...

    def leader(self, topic_partition: TopicPartition) -> int | None:
        """The partition's leader; None where there is none, or no such partition."""
        ...

    def topic_name(self, topic_id: Uuid) -> str | None: ...

    def topic_id(self, topic: str) -> Uuid | None: ...

    def is_broker_fenced(self, broker_id: int) -> bool:
        """Whether the controller keeps the broker from leading; False of an unknown one."""
        ...

    def is_broker_shutting_down(self, broker_id: int) -> bool: ...

    def rack(self, broker_id: int) -> str | None:
        """The rack of a broker that is there; None where it has none, or is fenced or unknown."""
        ...

    def address(self, broker_id: int) -> tuple[str, int] | None:
        """Where the broker listens for other brokers; None for one that is unknown or has no listener."""
        ...

    def get_alive_broker_epoch(self, broker_id: int) -> int | None:
        """The epoch in which the broker is registered; None for one that is fenced or unknown."""
        ...
