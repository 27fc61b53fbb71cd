"""RackAwareReplicaSelector: chooses the replica that a consumer should read from (KIP-392).

If a consumer names its rack and the leader is in another rack, the leader redirects it to a replica there.
The replica must be in sync and have the consumer's next record. No state; any thread may call.
"""

from __future__ import annotations

from kreplica.common.errors import InvalidConfig
from kreplica.replica.metadata_cache import MetadataCache
from kreplica.replica.partition import Partition
from kreplica.replica.replica_config import ReplicaConfig

RACK_AWARE = "RackAwareReplicaSelector"
KAFKAS_PACKAGE = "org.apache.kafka.common.replica."


class RackAwareReplicaSelector:
    """Chooses replicas for consumers of the leader `broker_id`."""

    def __init__(self, broker_id: int, metadata: MetadataCache) -> None:
        self._broker_id = broker_id
        self._metadata = metadata

    def select(self, partition: Partition, client_rack: str, fetch_offset: int) -> int | None:
        """Return the broker to read from instead of this leader, or None."""
        if self._metadata.rack(self._broker_id) == client_rack:
            return None
        near = [
            replica
            for replica in partition.remote_replicas
            if replica.broker_id in partition.isr
            and replica.log_start_offset <= fetch_offset <= replica.log_end_offset
            and self._metadata.rack(replica.broker_id) == client_rack
        ]
        best = max(near, key=lambda replica: replica.log_end_offset, default=None)
        return None if best is None else best.broker_id


def selector_of(
    config: ReplicaConfig, broker_id: int, metadata: MetadataCache
) -> RackAwareReplicaSelector | None:
    """Return the selector in replica.selector.class, or None to read from leaders. Raises InvalidConfig."""
    name = config.replica_selector_class
    if name is None:
        return None
    if name.removeprefix(KAFKAS_PACKAGE) != RACK_AWARE:
        raise InvalidConfig(
            f"replica.selector.class={name[:80]!r} is not supported: use {RACK_AWARE}, or leave it out"
        )
    return RackAwareReplicaSelector(broker_id, metadata)
