"""ConnectionSettings: the limits of a node's connections, from its file and from the cluster's metadata.

Implements `kreplica.metadata.metadata_loader.MetadataPublisher`. Thread rule: any thread reads `limits`; the
publisher's methods belong to the quorum's loop.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from kreplica.broker.node_config import SocketServerConfig
from kreplica.common.connection_limits import KINDS, ConnectionLimits
from kreplica.common.errors import InvalidConfig
from kreplica.metadata.cluster_metadata import (
    BROKER_RESOURCE,
    CLUSTER_DEFAULT,
    ClusterMetadata,
    MetadataDelta,
)
from kreplica.metadata.image_format import OffsetAndEpoch

LOGGER = logging.getLogger(__name__)


class ConnectionSettings:
    """The limits of one node. `config`: those of its file that are for all listeners."""

    def __init__(self, node_id: int, config: SocketServerConfig) -> None:
        self._node_id = node_id
        given = config.properties()
        self._of_file: dict[str, object] = {name: given[name] for name in KINDS}
        self.limits = ConnectionLimits.of(self._of_file)

    def add_of_listeners(self, settings: Mapping[str, object]) -> None:
        """Add the limits of single listeners in the node's file, by their full names."""
        self._of_file |= settings
        self.limits = ConnectionLimits.of(self._of_file)

    def on_metadata_update(
        self,
        delta: MetadataDelta,
        metadata: ClusterMetadata,
        applied: OffsetAndEpoch,  # noqa: ARG002
    ) -> None:
        """Take over changed settings of brokers."""
        if not any(kind == BROKER_RESOURCE for kind, _ in delta.configs):
            return
        of_all = metadata.config(BROKER_RESOURCE, CLUSTER_DEFAULT)
        own = metadata.config(BROKER_RESOURCE, str(self._node_id))
        try:
            self.limits = ConnectionLimits.of(self._of_file, of_all, own)
        except InvalidConfig as error:
            # A node of another version has accepted it. What was in force stays so.
            LOGGER.error("node %d: the limits of connections stay as they were: %s", self._node_id, error)

    def on_leader_change(self, leader: Any) -> None:
        """Do nothing: connections do not depend on the leader of the quorum."""
