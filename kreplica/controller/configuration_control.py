"""ConfigurationControl: checks changes of the cluster's dynamic settings before they are written.

A resource is checked as a whole, with its settings after the change. An unknown name, a value out of range,
or two settings that contradict each other raise InvalidConfig for that resource; the other resources of the
request are changed. It has no state but the metadata. Owned by the controller's loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from kreplica.common.config import (
    BROKERS_NAMES,
    CleanerConfig,
    LogConfig,
    topics_settings,
)
from kreplica.common.connection_limits import ConnectionLimits
from kreplica.common.connection_limits import kind_of as limit_of
from kreplica.common.dataclass import fields
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import (
    BrokerIdNotRegistered,
    InvalidConfig,
    InvalidRequest,
    KreplicaError,
    UnknownTopicOrPartition,
)
from kreplica.common.messages.administration import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kreplica.common.messages.administration import AlterConfigsResourceResponse as AlterAnswer
from kreplica.common.messages.administration import AlterConfigsResourceResponse as IncrementalAnswer
from kreplica.common.messages.administration import (
    IncrementalAlterConfigsRequestAlterableConfig as AlterableConfig,
)
from kreplica.common.settings import checked, int64
from kreplica.common.wire import NO_THROTTLE
from kreplica.controller.controller_broker_request_batch import ControllerResult, Records
from kreplica.controller.feature_control import ELIGIBLE_LEADER_REPLICAS
from kreplica.controller.topic_settings import MIN_ISR, settings_by
from kreplica.metadata.cluster_metadata import (
    BROKER_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    ClusterMetadata,
)
from kreplica.metadata.records import ConfigRecord, MetadataRecord, PartitionChangeRecord
from kreplica.metadata.serde import in_lowest_version

SET, DELETE, APPEND, SUBTRACT = range(4)
# The resource name that stands for all brokers.
ALL_BROKERS = ""

LISTS = frozenset(
    LogConfig.property_name(field.name)
    for field in fields(LogConfig)
    if field.metadata["kind"].type == "list"
)
TOPIC_SETTINGS = LogConfig.property_names()
# Settings that a running broker applies: the defaults of its logs, its cleaner and its replication quotas.
REPLICATION_RATES = frozenset({"leader.replication.throttled.rate", "follower.replication.throttled.rate"})
RATE = int64(1)
CLEANER_SETTINGS = CleanerConfig.property_names()
BROKER_SETTINGS = TOPIC_SETTINGS | BROKERS_NAMES.keys() | CLEANER_SETTINGS | REPLICATION_RATES

Change = Callable[[dict[str, str]], None]
CheckSettings = Callable[[Mapping[str, str]], object]
# Settings by type and name of the resource.
Configs = Mapping[tuple[int, str], Mapping[str, str]]


def accept(_settings: Mapping[str, str]) -> None:
    """Check nothing: the node has no group coordinator."""


class ConfigurationControl:
    """Checks changes against `metadata` and returns the records to write.

    `fixed_settings`: names of the settings that a node reads only from its file. `check_group_settings`:
    raises InvalidConfig unless a group can have these settings.
    """

    def __init__(
        self,
        metadata: ClusterMetadata,
        fixed_settings: Collection[str] = (),
        check_group_settings: CheckSettings = accept,
    ) -> None:
        self._metadata = metadata
        self._fixed_settings = fixed_settings
        self._check_group_settings = check_group_settings

    def incremental_alter_configs(
        self, request: IncrementalAlterConfigsRequest
    ) -> ControllerResult[IncrementalAlterConfigsResponse]:
        """Handle IncrementalAlterConfigs (44): set, delete, append to or subtract from single settings
        (KIP-339).
        """
        records, answers = self._alter(
            request.resources, lambda configs: lambda known: _apply_all(known, configs), IncrementalAnswer
        )
        response = IncrementalAlterConfigsResponse(throttle_time=NO_THROTTLE, responses=answers)
        return ControllerResult(() if request.validate_only else records, response)

    def alter_configs(self, request: AlterConfigsRequest) -> ControllerResult[AlterConfigsResponse]:
        """Handle AlterConfigs (33): replace all settings of each resource."""
        records, answers = self._alter(
            request.resources, lambda configs: lambda known: _replace_all(known, configs), AlterAnswer
        )
        response = AlterConfigsResponse(throttle_time=NO_THROTTLE, responses=answers)
        return ControllerResult(() if request.validate_only else records, response)

    def records_for(self, resource_type: int, name: str, changed: Mapping[str, str]) -> Records:
        """Return the records that change a resource's settings to `changed`. Raises as `check` does.

        If min.insync.replicas changes and enough replicas are in sync by the new value, the ELR is cleared:
        from now on its members may miss committed records (KIP-966). If too few are in sync, nothing is
        committed and the ELR stays. Clearing it then, as a ClearElrRecord does, could leave a partition
        without any eligible leader.
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
        """Yield records that clear the ELR of the partitions that have enough replicas in sync with
        `configs`.
        """
        for topic in self._metadata.topics.values():
            min_isr = settings_by(configs, topic.name).min_insync_replicas
            for number, partition in topic.partitions.items():
                if partition.elr and len(partition.isr) >= min(min_isr, len(partition.replicas)):
                    yield PartitionChangeRecord(
                        partition_id=number, topic_id=topic.topic_id, eligible_leader_replicas=()
                    )

    def check(self, resource_type: int, name: str, settings: Mapping[str, str]) -> None:
        """Check that a resource can have these settings.

        Raises InvalidConfig if not, InvalidRequest for a type of resource without settings, and
        UnknownTopicOrPartition or BrokerIdNotRegistered if the resource does not exist.
        """
        if resource_type == TOPIC_RESOURCE:
            if name not in self._metadata.topics:
                raise UnknownTopicOrPartition(f"topic {name[:80]!r} does not exist")
            check_topic_settings(settings)
        elif resource_type == BROKER_RESOURCE:
            if name != ALL_BROKERS and not (name.isdecimal() and int(name) in self._metadata.brokers):
                raise BrokerIdNotRegistered(f"broker {name[:80]!r} is not registered")
            self._require_dynamic(settings)
            check_broker_settings(settings)
        elif resource_type == GROUP_RESOURCE:
            if not name:
                raise InvalidRequest("the settings of groups have no default resource: name a group")
            self._check_group_settings(settings)
        else:
            raise InvalidRequest(f"resources of type {resource_type} have no settings that can be changed")

    def _require_dynamic(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self._fixed_settings and not is_dynamic_for_brokers(name):
                raise InvalidConfig(
                    f"{name} cannot be changed at run time: set it in the node's file and restart the node"
                )

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
                    raise InvalidRequest("the request names the resource twice")
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
            raise InvalidRequest(f"the request names {twice[0][:80]} twice")
        if key[0] == BROKER_RESOURCE:
            self._require_dynamic(names)  # to delete one would change nothing
        changed = dict(self._metadata.config(*key))
        change_of(configs)(changed)
        return self.records_for(*key, changed)


def check_topic_settings(settings: Mapping[str, str]) -> None:
    """Raise InvalidConfig unless a topic can have these settings."""
    LogConfig.parse(_known(settings, TOPIC_SETTINGS))


def is_dynamic_for_brokers(name: str) -> bool:
    """Return whether a running broker applies a change of this setting."""
    return name in BROKER_SETTINGS or limit_of(name) is not None


def check_broker_settings(settings: Mapping[str, str]) -> None:
    """Raise InvalidConfig unless a broker can have these settings."""
    limits = [name for name in settings if limit_of(name) is not None]
    ConnectionLimits.of(_of(settings, limits))
    known = _known({name: settings[name] for name in settings if name not in limits}, BROKER_SETTINGS)
    LogConfig.parse(topics_settings(known))
    CleanerConfig.parse(_of(known, CLEANER_SETTINGS))
    for name, value in _of(known, REPLICATION_RATES).items():
        checked(name, value, RATE)


def _known(settings: Mapping[str, str], names: Iterable[str]) -> Mapping[str, str]:
    # An unknown setting would be stored and have no effect, so reject typing errors now.
    unknown = [name for name in settings if name not in names]
    if unknown:
        LogConfig.parse({unknown[0]: settings[unknown[0]]})  # its error suggests the nearest name
        raise InvalidConfig(f"unknown setting {unknown[0][:80]!r}")
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
        raise InvalidRequest(f"{name[:80]} needs a value")
    if operation == SET:
        settings[name] = change.value
        return
    if operation not in (APPEND, SUBTRACT):
        raise InvalidRequest(f"{name[:80]}: unknown operation {operation}")
    if name not in LISTS:
        raise InvalidConfig(f"{name[:80]} is not a list: append and subtract do not apply")
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
            raise InvalidRequest(f"{config.name[:80]} needs a value")
        settings[config.name] = config.value
