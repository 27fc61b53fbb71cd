"""RackAwareReplicaSelector: which replica a consumer had better read from (KIP-392).

The leader tells a consumer that names its rack to fetch from a replica there, if it does not lie in that rack
itself. Only a replica in sync that has what the consumer asks for next is told. No state; any thread may ask.
"""

from __future__ import annotations

from kreplica.common.errors import InvalidConfig
from kreplica.replica.metadata_cache import MetadataCache
from kreplica.replica.partition import Partition
from kreplica.replica.replica_config import ReplicaConfig

RACK_AWARE = "RackAwareReplicaSelector"
KAFKAS_PACKAGE = "org.apache.kafka.common.replica."


class RackAwareReplicaSelector:
    """See the module. `broker_id`: of the leader that is asked."""

    def __init__(self, broker_id: int, metadata: MetadataCache) -> None:
        self._broker_id = broker_id
        self._metadata = metadata

    def select(self, partition: Partition, client_rack: str, fetch_offset: int) -> int | None:
        """The broker to go to from this leader; None where there is none better."""
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
    """What replica.selector.class says; None: everybody reads from leaders. Raises InvalidConfig."""
    name = config.replica_selector_class
    if name is None:
        return None
    if name.removeprefix(KAFKAS_PACKAGE) != RACK_AWARE:
        raise InvalidConfig(f"replica.selector.class: there is {RACK_AWARE}, and no {name[:80]!r}")
    return RackAwareReplicaSelector(broker_id, metadata)
