"""ConfigurationControl: changes of the cluster's dynamic settings, checked before they are written.

A change is checked as a whole: the settings of a resource as they would be after it. A name that nobody
knows, a value out of its range and two that contradict each other are an InvalidConfig for that resource;
the other resources of a request are changed. It keeps no state but the metadata it looks at, and belongs to
the controller's loop.
"""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from kio.schema.alter_configs.v2.request import AlterConfigsRequest
from kio.schema.alter_configs.v2.response import AlterConfigsResourceResponse as AlterAnswer
from kio.schema.alter_configs.v2.response import AlterConfigsResponse
from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1.request import (
    AlterableConfig,
    IncrementalAlterConfigsRequest,
)
from kio.schema.incremental_alter_configs.v1.response import AlterConfigsResourceResponse as IncrementalAnswer
from kio.schema.incremental_alter_configs.v1.response import IncrementalAlterConfigsResponse

from kreplica.common.config import (
    BROKERS_NAMES,
    CleanerConfig,
    LogConfig,
    topics_settings,
)
from kreplica.common.errors import (
    BrokerIdNotRegistered,
    InvalidConfig,
    InvalidRequest,
    KreplicaError,
    UnknownTopicOrPartition,
)
from kreplica.common.settings import checked, int64
from kreplica.controller.controller_result import ControllerResult, Records
from kreplica.controller.feature_control import ELIGIBLE_LEADER_REPLICAS
from kreplica.controller.topic_settings import MIN_ISR, settings_by
from kreplica.metadata.cluster_metadata import BROKER_RESOURCE, TOPIC_RESOURCE, ClusterMetadata
from kreplica.metadata.records import ConfigRecord, MetadataRecord, PartitionChangeRecord
from kreplica.metadata.serde import in_lowest_version

SET, DELETE, APPEND, SUBTRACT = range(4)
# The name under which brokers' settings are those of all brokers.
ALL_BROKERS = ""

NO_THROTTLE = timedelta(0)
LISTS = frozenset(
    LogConfig.property_name(field.name)
    for field in dataclasses.fields(LogConfig)
    if field.metadata["kind"].type == "list"
)
TOPIC_SETTINGS = LogConfig.property_names()
# What a broker takes on while it runs: the defaults of its logs, and what its cleaner and its replication
# quota are set to.
REPLICATION_RATES = frozenset({"leader.replication.throttled.rate", "follower.replication.throttled.rate"})
RATE = int64(1)
CLEANER_SETTINGS = CleanerConfig.property_names()
BROKER_SETTINGS = TOPIC_SETTINGS | BROKERS_NAMES.keys() | CLEANER_SETTINGS | REPLICATION_RATES

Change = Callable[[dict[str, str]], None]
# Settings by type and name of resource.
Configs = Mapping[tuple[int, str], Mapping[str, str]]


class ConfigurationControl:
    """Looks at `metadata`, and says what is to be written.

    `fixed_settings`: the names of the settings that a node takes from its file alone.
    """

    def __init__(self, metadata: ClusterMetadata, fixed_settings: Collection[str] = ()) -> None:
        self._metadata = metadata
        self._fixed_settings = fixed_settings

    def incremental_alter_configs(
        self, request: IncrementalAlterConfigsRequest
    ) -> ControllerResult[IncrementalAlterConfigsResponse]:
        """IncrementalAlterConfigs (44): set, delete, append to or subtract from single settings (KIP-339)."""
        records, answers = self._alter(
            request.resources, lambda configs: lambda known: _apply_all(known, configs), IncrementalAnswer
        )
        response = IncrementalAlterConfigsResponse(throttle_time=NO_THROTTLE, responses=answers)
        return ControllerResult(() if request.validate_only else records, response)

    def alter_configs(self, request: AlterConfigsRequest) -> ControllerResult[AlterConfigsResponse]:
        """AlterConfigs (33): the settings of each resource are those that are given, and no others."""
        records, answers = self._alter(
            request.resources, lambda configs: lambda known: _replace_all(known, configs), AlterAnswer
        )
        response = AlterConfigsResponse(throttle_time=NO_THROTTLE, responses=answers)
        return ControllerResult(() if request.validate_only else records, response)

    def records_for(self, resource_type: int, name: str, changed: Mapping[str, str]) -> Records:
        """The records that make a resource's settings `changed`. Raises as `check` does.

        Where enough are in sync by another min.insync.replicas, who was eligible besides is so no more: from
        now on it may lack what is committed (KIP-966). Where too few are, nothing is committed, and everybody
        stays eligible: to forget them all, as a ClearElrRecord does, would leave a partition without anybody
        in sync to nobody.
        """
        self.check(resource_type, name, changed)
        before = self._metadata.config(resource_type, name)
        names = [each for each in sorted({*before, *changed}) if before.get(each) != changed.get(each)]
        records: list[MetadataRecord] = [
            ConfigRecord(resource_type=resource_type, resource_name=name, name=each, value=changed.get(each))
            for each in names
        ]
        is_for_topics = resource_type == TOPIC_RESOURCE or name == ALL_BROKERS
        if MIN_ISR in names and is_for_topics and self._metadata.features.get(ELIGIBLE_LEADER_REPLICAS):
            records += self._no_longer_eligible({**self._metadata.configs, (resource_type, name): changed})
        return tuple(in_lowest_version(record) for record in records)

    def _no_longer_eligible(self, configs: Configs) -> Iterator[PartitionChangeRecord]:
        """The partitions in which enough are in sync by these settings lose who was eligible besides."""
        for topic in self._metadata.topics.values():
            min_isr = settings_by(configs, topic.name).min_insync_replicas
            for number, partition in topic.partitions.items():
                if partition.elr and len(partition.isr) >= min(min_isr, len(partition.replicas)):
                    yield PartitionChangeRecord(
                        partition_id=number, topic_id=topic.topic_id, eligible_leader_replicas=()
                    )

    def check(self, resource_type: int, name: str, settings: Mapping[str, str]) -> None:
        """Raises InvalidConfig unless a resource can have these settings, InvalidRequest for a type of
        resource that has none, UnknownTopicOrPartition or BrokerIdNotRegistered where it does not exist.
        """
        if resource_type == TOPIC_RESOURCE:
            if name not in self._metadata.topics:
                raise UnknownTopicOrPartition(f"there is no topic {name[:80]!r}")
            check_topic_settings(settings)
        elif resource_type == BROKER_RESOURCE:
            if name != ALL_BROKERS and not (name.isdecimal() and int(name) in self._metadata.brokers):
                raise BrokerIdNotRegistered(f"there is no broker {name[:80]!r}")
            for setting in settings:
                if setting in self._fixed_settings and not is_dynamic_for_brokers(setting):
                    raise InvalidConfig(
                        f"{setting} cannot be changed while a node runs: set it in the node's file and start"
                        " the node again"
                    )
            check_broker_settings(settings)
        else:
            raise InvalidRequest(f"no settings of resources of type {resource_type} can be changed")

    def _alter(
        self, resources: Sequence[Any], change_of: Callable[[Any], Change], answer: Callable[..., Any]
    ) -> tuple[Records, tuple[Any, ...]]:
        times = Counter((int(each.resource_type), each.resource_name) for each in resources)
        records: Records = ()
        answers = []
        for resource in resources:
            key = int(resource.resource_type), resource.resource_name
            error: KreplicaError | None = None
            try:
                if times[key] > 1:
                    raise InvalidRequest("the resource is there twice")
                records += self._altered(key, resource.configs, change_of)
            except KreplicaError as raised:
                error = raised
            answers.append(
                answer(
                    error_code=ErrorCode.none if error is None else ErrorCode(error.code),
                    error_message=None if error is None else str(error),
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
            )
        return records, tuple(answers)

    def _altered(self, key: tuple[int, str], configs: Any, change_of: Callable[[Any], Change]) -> Records:
        names = Counter(config.name for config in configs)
        if twice := [name for name, times in names.items() if times > 1]:
            raise InvalidRequest(f"{twice[0][:80]} is there twice")
        changed = dict(self._metadata.config(*key))
        change_of(configs)(changed)
        return self.records_for(*key, changed)


def check_topic_settings(settings: Mapping[str, str]) -> None:
    """Raises InvalidConfig unless a topic can have these settings."""
    LogConfig.parse(_known(settings, TOPIC_SETTINGS))


def is_dynamic_for_brokers(name: str) -> bool:
    """Whether a broker takes another value of that setting while it runs."""
    return name in BROKER_SETTINGS


def check_broker_settings(settings: Mapping[str, str]) -> None:
    """Raises InvalidConfig unless a broker can have these settings."""
    known = _known(settings, BROKER_SETTINGS)
    LogConfig.parse(topics_settings(known))
    CleanerConfig.parse(_of(known, CLEANER_SETTINGS))
    for name, value in _of(known, REPLICATION_RATES).items():
        checked(name, value, RATE)


def _known(settings: Mapping[str, str], names: Iterable[str]) -> Mapping[str, str]:
    # A setting of nobody's would be kept and do nothing: a typing error that is found too late.
    unknown = [name for name in settings if name not in names]
    if unknown:
        LogConfig.parse({unknown[0]: settings[unknown[0]]})  # tells the nearest name
        raise InvalidConfig(f"there is no setting {unknown[0][:80]!r}")
    return settings


def _of(settings: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    return {name: settings[name] for name in settings if name in names}


def _apply_all(settings: dict[str, str], changes: Iterable[AlterableConfig]) -> None:
    for change in changes:
        _apply(settings, change)


def _apply(settings: dict[str, str], change: AlterableConfig) -> None:
    name, operation = change.name, int(change.config_operation)
    if operation == DELETE:
        settings.pop(name, None)
        return
    if change.value is None:
        raise InvalidRequest(f"{name[:80]} gets no value")
    if operation == SET:
        settings[name] = change.value
        return
    if operation not in (APPEND, SUBTRACT):
        raise InvalidRequest(f"{name[:80]}: operation {operation}")
    if name not in LISTS:
        raise InvalidConfig(f"{name[:80]} is no list, to which something could be appended")
    default = LogConfig().properties()[name]
    items = [item for item in settings.get(name, default).split(",") if item]
    given = [item.strip() for item in change.value.split(",") if item.strip()]
    if operation == APPEND:
        items += [item for item in given if item not in items]
    else:
        items = [item for item in items if item not in given]
    settings[name] = ",".join(items)


def _replace_all(settings: dict[str, str], configs: Iterable[Any]) -> None:
    settings.clear()
    for config in configs:
        if config.value is None:
            raise InvalidRequest(f"{config.name[:80]} gets no value")
        settings[config.name] = config.value
