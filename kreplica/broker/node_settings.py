"""Reads and shows a node's settings under Kafka's names, with values as text or numbers.

An unknown name is refused, with the nearest known one. A property of Kafka's that has no effect here is
logged and ignored. No state; any thread.
"""

from __future__ import annotations

import dataclasses
import difflib
import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from kreplica.broker.kafka_settings import IGNORED, check_ignored, check_known
from kreplica.broker.node_config import NodeConfig
from kreplica.common.config import BROKERS_NAMES
from kreplica.common.errors import InvalidConfig
from kreplica.common.settings import as_text, checked, int32, int64

LOGGER = logging.getLogger(__name__)

# The parts of a NodeConfig that are searched for a name, in this order. `log`: the defaults of topics.
PARTS = (
    "raft",
    "controller",
    "broker",
    "replica",
    "group",
    "log_manager",
    "cleaner",
    "metadata_log",
    "server",
    "log",
)

# Times that Kafka also has in larger units, with the milliseconds of each. The smallest unit given counts.
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
COARSER = {
    "log.retention.ms": {"log.retention.minutes": MINUTE_MS, "log.retention.hours": HOUR_MS},
    "log.roll.ms": {"log.roll.hours": HOUR_MS},
    "log.roll.jitter.ms": {"log.roll.jitter.hours": HOUR_MS},
}
COARSE = int32(-1)
LOG_RETENTION_MS = int64(-1)


def with_settings(config: NodeConfig, settings: Mapping[str, object]) -> NodeConfig:
    """Return the configuration with these properties changed.

    Raises InvalidConfig if a name is unknown or refused, or a value out of its range.
    """
    if not isinstance(settings, Mapping):
        raise InvalidConfig(f"settings must be a mapping of names to values, not {settings!r}")
    changes: dict[str, dict[str, object]] = {}
    ignored = []
    for given, value in _in_milliseconds(settings).items():
        if not isinstance(given, str):
            raise InvalidConfig(f"the name of a setting must be text, not {given!r}")
        dotted = given.replace("_", ".")
        if dotted in IGNORED:
            check_ignored(dotted, value)
            ignored.append(dotted)
            continue
        name = BROKERS_NAMES.get(dotted, dotted)
        part = next((part for part in PARTS if name in getattr(config, part).property_names()), None)
        if part is None:
            check_known(dotted)
            near = difflib.get_close_matches(dotted, known_names(config), 1)
            raise InvalidConfig(f"there is no setting {given!r}" + (f"; is it {near[0]!r}?" if near else ""))
        _check_of_brokers(dotted, value)
        changes.setdefault(part, {})[name] = value
    if ignored:
        LOGGER.warning("ignored, see docs/SETTINGS.md: %s", ", ".join(ignored))
    return dataclasses.replace(
        config, **{part: getattr(config, part).replace(new) for part, new in changes.items()}
    )


def _check_of_brokers(name: str, value: object) -> None:
    # As in KafkaConfig.validateValues: a topic's retention.ms may be 0, but not the default of all topics.
    if name == "log.retention.ms" and checked(name, value, LOG_RETENTION_MS) == 0:
        raise InvalidConfig(
            "log.retention.ms=0 would delete every record; give 1 or more, or -1 for no limit"
        )


def _in_milliseconds(settings: Mapping[str, object]) -> dict[str, object]:
    """Return the settings with times in hours or minutes converted to the names in milliseconds."""
    dotted = {str(name).replace("_", "."): name for name in settings}
    found = dict(settings)
    for name, coarser in COARSER.items():
        is_given = name in dotted or BROKERS_NAMES[name] in dotted
        for other, unit_ms in coarser.items():
            if other in dotted:
                count = checked(other, found.pop(dotted[other]), COARSE)
                if not is_given:
                    found[name] = max(count * unit_ms, -1)
                is_given = True
    return found


class Setting(NamedTuple):
    """A setting of a node: its value as text that can be read back, and ConfigDef's name of its type."""

    name: str
    text: str
    type: str


def settings_of(config: NodeConfig) -> list[Setting]:
    """Return all settings of a node, each under its first name. Defaults of topics have topics' names."""
    own: dict[str, tuple[Any, str]] = {
        "node.id": (config.node_id, "int"),
        "process.roles": (tuple(sorted(config.roles)), "list"),
        "log.dirs": (config.directories, "list"),
        "metadata.log.dir": (config.metadata_directory, "string"),
        "advertised.listeners": (
            tuple(f"{each.name}://{each.host}:{each.port}" for each in config.endpoints),
            "list",
        ),
    }
    found = {name: Setting(name, as_text(value), kind) for name, (value, kind) in own.items() if value != ()}
    for part in PARTS:
        values = getattr(config, part)
        for field in dataclasses.fields(values):
            name, value = values.property_name(field.name), getattr(values, field.name)
            if value is not None:
                found.setdefault(name, Setting(name, as_text(value), field.metadata["kind"].type))
    return list(found.values())


def known_names(config: NodeConfig) -> list[str]:
    """Return every property that `with_settings` accepts."""
    names = {name for part in PARTS for name in getattr(config, part).property_names()}
    return sorted(names.union(BROKERS_NAMES, IGNORED, *COARSER.values()))
