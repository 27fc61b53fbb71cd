"""TopicSettings: the settings of topics that the controller decides by.

A topic's own setting counts before the cluster-wide default of brokers, and that before Kafka's. What was
looked up is kept until a record changes it. It belongs to the controller's loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kreplica.common.config import LogConfig
from kreplica.common.errors import InvalidConfig
from kreplica.metadata.cluster_metadata import (
    BROKER_RESOURCE,
    CLUSTER_DEFAULT,
    TOPIC_RESOURCE,
    ClusterMetadata,
)
from kreplica.metadata.records import ConfigRecord, MetadataRecord, RemoveTopicRecord


class ElectionSettings(NamedTuple):
    """min.insync.replicas and unclean.leader.election.enable of a topic."""

    min_insync_replicas: int
    unclean_leader_election_enable: bool


FIELDS = {name.replace("_", "."): name for name in ElectionSettings._fields}


DEFAULTS = ElectionSettings(LogConfig().min_insync_replicas, LogConfig().unclean_leader_election_enable)


class TopicSettings:
    """The settings as the metadata has them."""

    def __init__(self, metadata: ClusterMetadata) -> None:
        self._metadata = metadata
        self._known: dict[str, ElectionSettings] = {}

    def of(self, topic: str) -> ElectionSettings:
        """What counts for the topic now; of one that is not there, the defaults."""
        known = self._known.get(topic)
        if known is None:
            known = self._known[topic] = settings_by(self._metadata.configs, topic)
        return known

    def forget(self, message: MetadataRecord) -> None:
        """A record was replayed that may have changed them."""
        if isinstance(message, ConfigRecord):
            if message.resource_type == TOPIC_RESOURCE:
                self._known.pop(message.resource_name, None)
            else:
                self._known.clear()
        elif isinstance(message, RemoveTopicRecord):
            self._known.clear()


def settings_by(configs: Mapping[tuple[int, str], Mapping[str, str]], topic: str) -> ElectionSettings:
    """What counts for the topic where `configs` are the settings, by type and name of resource."""
    known = DEFAULTS
    for key in ((BROKER_RESOURCE, CLUSTER_DEFAULT), (TOPIC_RESOURCE, topic)):
        if key in configs:
            known = _over(known, configs[key])
    return known


def _over(settings: ElectionSettings, given: Mapping[str, str]) -> ElectionSettings:
    """The settings with what is given over them; a value that is not allowed counts for nothing, since it was
    written by somebody who allowed it, and partitions need leaders all the same.
    """
    for name, field in FIELDS.items():
        if name in given:
            try:
                config = LogConfig.parse({name: given[name]})
            except InvalidConfig:
                continue
            settings = settings._replace(**{field: getattr(config, field)})
    return settings
