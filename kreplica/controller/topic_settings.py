"""TopicSettings: the settings of topics that the controller decides by.

A topic's own setting counts before the cluster-wide default of brokers, and that before the configuration
of the controller's node. Of min.insync.replicas only records count, and without one Kafka's default, the
lowest: what a node is configured with changes without a record, and to trust more than its leader asks for
would keep replicas eligible that lack what was committed. What was looked up is kept until a record changes
it. Leaders hear of a change later than the controller decides by it, so the record that made it is known,
too. It belongs to the controller's loop.
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
MIN_ISR = "min.insync.replicas"


DEFAULTS = ElectionSettings(LogConfig().min_insync_replicas, LogConfig().unclean_leader_election_enable)


class TopicSettings:
    """The settings as the metadata has them, up to the record at `last_offset`; -1 of none.

    `unclean_leader_election_enable`: as the controller's node is configured.
    """

    def __init__(
        self,
        metadata: ClusterMetadata,
        last_offset: int = -1,
        *,
        unclean_leader_election_enable: bool = False,
    ) -> None:
        self._metadata = metadata
        self._defaults = DEFAULTS._replace(unclean_leader_election_enable=unclean_leader_election_enable)
        self._known: dict[str, ElectionSettings] = {}
        # Which record was the last to change min.insync.replicas: of all topics, and of each. What an earlier
        # controller wrote may be any of them.
        self._all_changed_at = last_offset
        self._changed_at: dict[str, int] = {}

    def of(self, topic: str) -> ElectionSettings:
        """What counts for the topic now; of one that is not there, the defaults."""
        known = self._known.get(topic)
        if known is None:
            known = self._known[topic] = settings_by(self._metadata.configs, topic, self._defaults)
        return known

    def min_isr_changed_at(self, topic: str) -> int:
        """The last record by which the topic may have another min.insync.replicas than when it was made."""
        return max(self._all_changed_at, self._changed_at.get(topic, -1))

    def forget(self, message: MetadataRecord, offset: int) -> None:
        """A record was replayed, of `offset`, that may have changed them."""
        if isinstance(message, ConfigRecord):
            if message.name == MIN_ISR:
                self._note_min_isr(message, offset)
            if message.resource_type == TOPIC_RESOURCE:
                self._known.pop(message.resource_name, None)
            else:
                self._known.clear()
        elif isinstance(message, RemoveTopicRecord):
            self._known.clear()
            topics = self._metadata.topics
            self._changed_at = {name: at for name, at in self._changed_at.items() if name in topics}

    def _note_min_isr(self, message: ConfigRecord, offset: int) -> None:
        if message.resource_type != TOPIC_RESOURCE:
            self._all_changed_at = offset
            return
        # Who is to lead a topic that is being made hears of its settings first.
        topic = self._metadata.topics.get(message.resource_name)
        if topic is not None and topic.partitions:
            self._changed_at[message.resource_name] = offset


def settings_by(
    configs: Mapping[tuple[int, str], Mapping[str, str]], topic: str, defaults: ElectionSettings = DEFAULTS
) -> ElectionSettings:
    """What counts for the topic where `configs` are the settings, by type and name of resource."""
    known = defaults
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
