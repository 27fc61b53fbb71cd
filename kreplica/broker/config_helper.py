"""ConfigHelper: describes the settings of topics, groups and this broker, with the source of each value.

A topic's setting is its own, the broker's, the cluster-wide one of brokers, the node's, or the default, in
this order; a group's is its own, the node's, or the default. The values that are overridden are its synonyms.
It keeps only the node's configuration, and what
the first question has made of it; any thread may call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

from kreplica.broker.node_config import NodeConfig
from kreplica.broker.node_settings import Setting, settings_of
from kreplica.common.config import BROKERS_NAMES, LogConfig, topics_settings
from kreplica.common.dataclass import fields
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import InvalidRequest, KreplicaError, UnknownTopicOrPartition
from kreplica.common.future import Future, resolved
from kreplica.common.messages.administration import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ListedConfigResource,
)
from kreplica.common.settings import as_text
from kreplica.common.wire import NO_THROTTLE
from kreplica.controller.configuration_control import ALL_BROKERS, is_dynamic_for_brokers
from kreplica.coordinator.group_config import GroupConfig
from kreplica.coordinator.group_settings import GROUP_SETTINGS, broker_name, broker_value
from kreplica.metadata.cluster_metadata import (
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    ClusterMetadata,
)

# The source of a setting (DescribeConfigsResponse.ConfigSource).
OF_TOPIC, OF_BROKER, OF_ALL_BROKERS, OF_NODE, DEFAULT, OF_GROUP = 1, 2, 3, 4, 5, 8
# ConfigDef.Type, as in the answer.
TYPES = {"boolean": 1, "string": 2, "int": 3, "short": 4, "long": 5, "double": 6, "list": 7, "password": 9}


class _Layer(NamedTuple):
    """The settings of one source, as text by the source's own names."""

    source: int
    values: Mapping[str, str]
    name_of: Callable[[str], str] = str


class ConfigHelper:
    """Answers DescribeConfigs. `metadata()`: the node's view of the cluster."""

    def __init__(self, config: NodeConfig, metadata: Callable[[], ClusterMetadata]) -> None:
        self._config = config
        self._node_id = config.node_id
        self._metadata = metadata

    # A node describes its settings rarely, and must start quickly.

    @cached_property
    def _settings(self) -> dict[str, Setting]:
        return {_brokers_name(each.name): each for each in settings_of(self._config)}

    @cached_property
    def _defaults(self) -> dict[str, str]:
        known = {_brokers_name(each.name): each.text for each in settings_of(_default_node(self._config))}
        return {name: text for name, text in known.items() if name in self._settings}

    @cached_property
    def _of_node(self) -> dict[str, str]:
        defaults = self._defaults
        return {name: each.text for name, each in self._settings.items() if defaults.get(name) != each.text}

    @cached_property
    def _topic_defaults(self) -> dict[str, str]:
        return LogConfig().properties()

    @cached_property
    def _topic_types(self) -> dict[str, str]:
        return {
            LogConfig.property_name(field.name): field.metadata["kind"].type for field in fields(LogConfig)
        }

    @cached_property
    def _of_node_for_topics(self) -> dict[str, str]:
        return self._config.log.overrides()

    def handle_describe_configs(self, request: DescribeConfigsRequest) -> Future[DescribeConfigsResponse]:
        """Handle DescribeConfigs (32)."""
        results = tuple(self._describe(each, request.include_synonyms) for each in request.resources)
        return resolved(DescribeConfigsResponse(throttle_time=NO_THROTTLE, results=results))

    def _describe(self, asked: DescribeConfigsResource, with_synonyms: bool) -> DescribeConfigsResult:
        error: KreplicaError | None = None
        configs: tuple[DescribeConfigsResourceResult, ...] = ()
        try:
            found = self._configs(asked.resource_type, asked.resource_name, with_synonyms)
            wanted = asked.configuration_keys
            configs = tuple(each for each in found if not wanted or each.name in wanted)
        except KreplicaError as raised:
            error = raised
        return DescribeConfigsResult(
            error_code=ErrorCode.none if error is None else ErrorCode(error.code),
            error_message=None if error is None else str(error),
            resource_type=asked.resource_type,
            resource_name=asked.resource_name,
            configs=configs,
        )

    def _configs(
        self, resource_type: int, name: str, with_synonyms: bool
    ) -> Iterator[DescribeConfigsResourceResult]:
        if resource_type == TOPIC_RESOURCE:
            return self._of_topic(name, with_synonyms)
        if resource_type == GROUP_RESOURCE:
            if not name:
                raise InvalidRequest("the settings of groups have no default resource: name a group")
            return self._of_group(name, with_synonyms)
        if resource_type != BROKER_RESOURCE:
            raise InvalidRequest(f"resources of type {resource_type} have no settings")
        if name == ALL_BROKERS:
            given = _as_brokers(self._metadata().config(BROKER_RESOURCE, ALL_BROKERS))
            layers = (_Layer(OF_ALL_BROKERS, given),)
            return (self._result(each, "string", False, layers, with_synonyms) for each in sorted(given))
        if name != str(self._node_id):
            raise InvalidRequest(
                f"broker {name[:80]!r} is not this broker, {self._node_id}: ask each broker for its own"
                " settings"
            )
        return self._of_broker(with_synonyms)

    def _of_topic(self, topic: str, with_synonyms: bool) -> Iterator[DescribeConfigsResourceResult]:
        metadata = self._metadata()
        if topic not in metadata.topics:
            raise UnknownTopicOrPartition(f"topic {topic[:80]!r} does not exist")
        of_broker = topics_settings(metadata.config(BROKER_RESOURCE, str(self._node_id)))
        of_all = topics_settings(metadata.config(BROKER_RESOURCE, ALL_BROKERS))
        layers = (
            _Layer(OF_TOPIC, metadata.config(TOPIC_RESOURCE, topic)),
            _Layer(OF_BROKER, of_broker, _brokers_name),
            _Layer(OF_ALL_BROKERS, of_all, _brokers_name),
            _Layer(OF_NODE, self._of_node_for_topics, _brokers_name),
            _Layer(DEFAULT, self._topic_defaults, _brokers_name),
        )
        return (
            self._result(name, kind, False, layers, with_synonyms)
            for name, kind in sorted(self._topic_types.items())
        )

    def _of_group(self, group_id: str, with_synonyms: bool) -> Iterator[DescribeConfigsResourceResult]:
        of_node = {name: as_text(broker_value(self._config.group, name)) for name in GROUP_SETTINGS}
        default = {name: as_text(broker_value(GroupConfig(), name)) for name in GROUP_SETTINGS}
        layers = (
            _Layer(OF_GROUP, self._metadata().config(GROUP_RESOURCE, group_id)),
            _Layer(
                OF_NODE, {name: text for name, text in of_node.items() if text != default[name]}, broker_name
            ),
            _Layer(DEFAULT, default, broker_name),
        )
        return (
            self._result(name, kind.type, False, layers, with_synonyms)
            for name, kind in sorted(GROUP_SETTINGS.items())
        )

    def handle_list_config_resources(
        self, request: ListConfigResourcesRequest
    ) -> Future[ListConfigResourcesResponse]:
        """Handle ListConfigResources (74): all topics and brokers, and the groups that have settings."""
        metadata = self._metadata()
        names: dict[int, Iterable[str]] = {
            TOPIC_RESOURCE: metadata.topics,
            BROKER_RESOURCE: map(str, metadata.brokers),
            BROKER_LOGGER_RESOURCE: map(str, metadata.brokers),
            CLIENT_METRICS_RESOURCE: (),
            GROUP_RESOURCE: (name for kind, name in metadata.configs if kind == GROUP_RESOURCE),
        }
        wanted = set(map(int, request.resource_types)) or names.keys()
        if not wanted <= names.keys():
            refused = ListConfigResourcesResponse(
                throttle_time=NO_THROTTLE, error_code=ErrorCode.unsupported_version, config_resources=()
            )
            return resolved(refused)
        found = tuple(
            ListedConfigResource(resource_name=name, resource_type=kind)
            for kind in sorted(wanted)
            for name in sorted(names[kind])
        )
        return resolved(
            ListConfigResourcesResponse(
                throttle_time=NO_THROTTLE, error_code=ErrorCode.none, config_resources=found
            )
        )

    def _of_broker(self, with_synonyms: bool) -> Iterator[DescribeConfigsResourceResult]:
        metadata = self._metadata()
        layers = (
            _Layer(OF_BROKER, _as_brokers(metadata.config(BROKER_RESOURCE, str(self._node_id)))),
            _Layer(OF_ALL_BROKERS, _as_brokers(metadata.config(BROKER_RESOURCE, ALL_BROKERS))),
            _Layer(OF_NODE, self._of_node),
            _Layer(DEFAULT, self._defaults),
        )
        names = {name for layer in layers for name in layer.values}
        for name in sorted(names):
            known = self._settings.get(name)
            kind = "string" if known is None else known.type
            yield self._result(name, kind, not is_dynamic_for_brokers(name), layers, with_synonyms)

    def _result(
        self,
        name: str,
        kind: str,
        is_read_only: bool,
        layers: Collection[_Layer],
        with_synonyms: bool,
    ) -> DescribeConfigsResourceResult:
        having = [layer for layer in layers if name in layer.values]
        is_secret = kind == "password"
        synonyms = tuple(
            DescribeConfigsSynonym(
                name=layer.name_of(name),
                value=None if is_secret else layer.values[name],
                source=layer.source,
            )
            for layer in having
        )
        return DescribeConfigsResourceResult(
            name=name,
            value=None if is_secret else having[0].values[name],
            read_only=is_read_only,
            config_source=having[0].source,
            is_sensitive=is_secret,
            synonyms=synonyms if with_synonyms else (),
            config_type=TYPES[kind],
            documentation=None,
        )


_BROKERS_NAME_OF = {of_topics: of_brokers for of_brokers, of_topics in BROKERS_NAMES.items()}


def _brokers_name(name: str) -> str:
    return _BROKERS_NAME_OF.get(name, name)


def _as_brokers(settings: Mapping[str, str]) -> dict[str, str]:
    """Return brokers' settings under brokers' names. The input may have some under topics' names."""
    return {_brokers_name(name): value for name, value in settings.items()}


def _default_node(config: NodeConfig) -> NodeConfig:
    return NodeConfig(
        node_id=config.node_id,
        cluster_id=config.cluster_id,
        directories=config.directories,
        roles=config.roles,
        metadata_directory=config.metadata_directory,
    )
