"""Settings of single groups, which clients change at run time: configurations of resources of type GROUP.

A group's setting is its own, or that of the broker, which has the prefix `group.` Broker settings with `min`
and `max` in their name bound what a group may have. The bounds may change after a group's setting has been
written, so a value in use is brought between them. Stateless but for the metadata; any thread may call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from kreplica.common.errors import InvalidConfig, InvalidTopic
from kreplica.common.iso_duration import duration_ms
from kreplica.common.settings import BOOLEAN, Kind, checked, int32, nearest, one_of
from kreplica.common.types import check_topic_name
from kreplica.coordinator.group_config import GroupConfig
from kreplica.metadata.cluster_metadata import GROUP_RESOURCE, ClusterMetadata

LOGGER = logging.getLogger(__name__)

# Where a share group's dead letters go.
LETTER_TOPIC = "errors.deadletterqueue.topic.name"


def _parse_reset(value: object) -> str:
    text = str(value).strip()
    how, colon, duration = text.partition(":")
    if text not in ("earliest", "latest"):
        if how != "by_duration" or not colon:
            raise ValueError("is not earliest, latest, or by_duration: and a duration such as PT1H")
        try:
            duration_ms(duration)
        except ValueError as error:
            raise ValueError(f"is no by_duration: {error}") from None
    return text


_RESET = Kind("string", "earliest, latest, by_duration:PnDTnHnMnS", _parse_reset)
_ISOLATION = one_of(("read_committed", "read_uncommitted"))


def _parse_letters(value: object) -> str:
    name = str(value).strip()
    if name:
        try:
            check_topic_name(name)
        except InvalidTopic as error:
            raise ValueError(f"is no name of a topic: {error}") from None
        if name.startswith("__"):
            raise ValueError("must not begin with '__', as internal topics do")
    return name


# Every setting of a group, with its type.
GROUP_SETTINGS: Mapping[str, Kind] = {
    "consumer.session.timeout.ms": int32(1),
    "consumer.heartbeat.interval.ms": int32(1),
    "consumer.assignment.interval.ms": int32(0),
    "share.session.timeout.ms": int32(1),
    "share.heartbeat.interval.ms": int32(1),
    "share.assignment.interval.ms": int32(0),
    "share.record.lock.duration.ms": int32(1_000),
    "share.delivery.count.limit": int32(2),
    "share.partition.max.record.locks": int32(100),
    "share.auto.offset.reset": _RESET,
    "share.isolation.level": _ISOLATION,
    "share.renew.acknowledge.enable": BOOLEAN,
    LETTER_TOPIC: Kind("string", "the name of a topic, or nothing", _parse_letters),
    "errors.deadletterqueue.copy.record.enable": BOOLEAN,
    "streams.session.timeout.ms": int32(1),
    "streams.heartbeat.interval.ms": int32(1),
    "streams.assignment.interval.ms": int32(0),
    "streams.num.standby.replicas": int32(0),
    "streams.initial.rebalance.delay.ms": int32(0),
}
# The defaults of those that brokers have no setting for.
DEFAULTS: Mapping[str, Any] = {
    "share.auto.offset.reset": "latest",
    "share.isolation.level": "read_uncommitted",
    "share.renew.acknowledge.enable": True,
    LETTER_TOPIC: "",
    "errors.deadletterqueue.copy.record.enable": False,
}
# A session must be longer than the interval of its heartbeats.
_KINDS_OF_GROUPS = ("consumer", "share", "streams")


def broker_name(name: str) -> str:
    """Return the name of the default of a group's setting."""
    return name if name in DEFAULTS else f"group.{name}"


def broker_value(broker: GroupConfig, name: str) -> Any:
    """Return the value of a group that has no setting of its own."""
    if name in DEFAULTS:
        return DEFAULTS[name]
    return getattr(broker, f"group_{name.replace('.', '_')}")


def check_group_settings(settings: Mapping[str, str], broker: GroupConfig) -> None:
    """Raise InvalidConfig unless a group can have these settings."""
    values = {name: _value(name, text) for name, text in settings.items()}
    prefix, letters = broker.errors_deadletterqueue_topic_name_prefix, values.get(LETTER_TOPIC)
    if letters and not letters.startswith(prefix):
        raise InvalidConfig(
            f"{LETTER_TOPIC}={letters} does not begin with {prefix!r}, which is"
            " errors.deadletterqueue.topic.name.prefix of the brokers"
        )
    for name, value in values.items():
        for bound, limit in _bounds(broker, name).items():
            if (value < limit) if ".min." in bound else (value > limit):
                side = "below the minimum" if ".min." in bound else "above the maximum"
                raise InvalidConfig(f"{name}={value} is {side} of {limit:,}, which is {bound} of the brokers")
    for kind in _KINDS_OF_GROUPS:
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        if session not in values and heartbeat not in values:
            continue
        session_ms = values.get(session, broker_value(broker, session))
        heartbeat_ms = values.get(heartbeat, broker_value(broker, heartbeat))
        if session_ms <= heartbeat_ms:
            raise InvalidConfig(f"{session}={session_ms} is not above {heartbeat}={heartbeat_ms}")


def _value(name: str, text: str) -> Any:
    kind = GROUP_SETTINGS.get(name)
    if kind is None:
        hint = "".join(f"; the nearest is {near!r}" for near in nearest(name[:80], GROUP_SETTINGS))
        raise InvalidConfig(f"groups have no setting {name[:80]!r}{hint}")
    return checked(name, text, kind)


def _bounds(broker: GroupConfig, name: str) -> dict[str, int]:
    """Return the broker's settings that bound a group's, with their values."""
    if name == "streams.num.standby.replicas":
        return {"group.streams.max.standby.replicas": broker.group_streams_max_standby_replicas}
    kind, _, rest = name.partition(".")
    known = broker.property_names()
    found = (f"group.{kind}.{side}.{rest}" for side in ("min", "max"))
    return {bound: getattr(broker, bound.replace(".", "_")) for bound in found if bound in known}


class GroupConfigManager:
    """Looks up the settings of groups: `manager(group_id, name)`.

    `broker`: the settings of this broker. `metadata()`: its view of the cluster.
    """

    def __init__(self, broker: GroupConfig, metadata: Callable[[], ClusterMetadata]) -> None:
        self._broker = broker
        self._metadata = metadata

    def __call__(self, group_id: str, name: str) -> Any:
        """Return the value of a setting for a group, in the setting's type.

        A text that a controller of another version has accepted has no effect if it cannot be read here.
        """
        text = self._metadata().config(GROUP_RESOURCE, group_id).get(name)
        if text is None:
            return broker_value(self._broker, name)
        try:
            value = _value(name, text)
        except InvalidConfig as error:
            LOGGER.warning("group %s: the broker's value counts: %s", group_id, error)
            return broker_value(self._broker, name)
        for bound, limit in _bounds(self._broker, name).items():
            value = max(value, limit) if ".min." in bound else min(value, limit)
        return value
