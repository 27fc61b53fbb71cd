"""TopicSettings: the topic settings that the controller uses for its decisions.

A topic's own setting comes before the cluster-wide default of brokers, and that before the configuration of
the controller's node. For min.insync.replicas only records count, or else Kafka's default, which is the
lowest value. A node's configuration can change without a record. A value above the one that the leader uses
would keep replicas eligible that miss committed records.

Values are cached until a record changes them. A leader applies a change later than the controller does, so
the offset of the changing record is kept too. Owned by the controller's loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

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
# Topics have few different values of a setting; more of them are only parsed again.
KEPT_VALUES = 256


DEFAULTS = ElectionSettings(LogConfig().min_insync_replicas, LogConfig().unclean_leader_election_enable)


class TopicSettings:
    """The settings in the metadata up to the record at `last_offset`; -1 if there are no records.

    `unclean_leader_election_enable`: the setting of the controller's node.
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
        # The last record that changed min.insync.replicas, for all topics and for each topic. Any record of
        # an earlier controller may have changed it.
        self._all_changed_at = last_offset
        self._changed_at: dict[str, int] = {}

    def of(self, topic: str) -> ElectionSettings:
        """Return the settings of a topic now; the defaults for an unknown topic."""
        known = self._known.get(topic)
        if known is None:
            known = self._known[topic] = settings_by(self._metadata.configs, topic, self._defaults)
        return known

    def min_isr_changed_at(self, topic: str) -> int:
        """Return the offset of the last record that may have changed the topic's min.insync.replicas."""
        return max(self._all_changed_at, self._changed_at.get(topic, -1))

    def forget(self, message: MetadataRecord, offset: int) -> None:
        """Drop the cached values that the record at `offset` may have changed."""
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
        # The leader of a new topic learns of the topic's settings first.
        topic = self._metadata.topics.get(message.resource_name)
        if topic is not None and topic.partitions:
            self._changed_at[message.resource_name] = offset


def settings_by(
    configs: Mapping[tuple[int, str], Mapping[str, str]], topic: str, defaults: ElectionSettings = DEFAULTS
) -> ElectionSettings:
    """Return the settings of a topic if `configs` are the settings by type and name of the resource."""
    known = defaults
    for key in ((BROKER_RESOURCE, CLUSTER_DEFAULT), (TOPIC_RESOURCE, topic)):
        if key in configs:
            known = _over(known, configs[key])
    return known


def _over(settings: ElectionSettings, given: Mapping[str, str]) -> ElectionSettings:
    """Return the settings with `given` over them.

    An invalid value is ignored. It was written by a version that allowed it, and partitions still need
    leaders.
    """
    for name, field in FIELDS.items():
        if name in given:
            try:
                settings = settings._replace(**{field: _parsed(name, given[name])})
            except InvalidConfig:
                continue
    return settings


@lru_cache(KEPT_VALUES)
def _parsed(name: str, text: str) -> Any:
    """Return the value of a topic's setting. Raises InvalidConfig."""
    return getattr(LogConfig.parse({name: text}), FIELDS[name])
