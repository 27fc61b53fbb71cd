"""PublishedTopics: looks up the ids of topics for a node's RequestChannel. Stateless; any thread."""

from __future__ import annotations

from kreplica.broker.node import Node
from kreplica.common.errors import BrokerNotAvailable
from kreplica.common.types import Uuid


class PublishedTopics:
    """Implements `kreplica.broker.message_conversion.TopicIds` with the node's published metadata."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def topic_id(self, topic: str) -> Uuid | None:
        """Return the id of the topic, or None. Raises BrokerNotAvailable before the node is open."""
        if not self._node.is_open:
            raise BrokerNotAvailable(f"node {self._node.config.node_id} is still starting")
        found = self._node.loader.published.topics.get(topic)
        return None if found is None else found.topic_id
