"""A node's settings as Kafka's users write them: property names with dots, values as text or numbers.

A name that no part of the node has is refused, with the nearest one that there is; a property of Kafka's that
changes nothing here is logged and ignored. No state; any thread.
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

# The parts of a NodeConfig in which a name is looked for, in this order; `log` is that of topics' defaults.
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

# Times that Kafka has in coarser units, too, with the milliseconds of each. The finest that is given counts.
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
COARSER = {
    "log.retention.ms": {"log.retention.minutes": MINUTE_MS, "log.retention.hours": HOUR_MS},
    "log.roll.ms": {"log.roll.hours": HOUR_MS},
    "log.roll.jitter.ms": {"log.roll.jitter.hours": HOUR_MS},
}
COARSE = int32(-1)
LOG_RETENTION_MS = int64(-1)


def with_settings(config: NodeConfig, settings: Mapping[str, object]) -> NodeConfig:
    """The configuration with these properties changed.

    Raises InvalidConfig for a name that is not known or refused, and for a value out of its range.
    """
    if not isinstance(settings, Mapping):
        raise InvalidConfig(f"settings are names with values, not {settings!r}")
    changes: dict[str, dict[str, object]] = {}
    ignored = []
    for given, value in _in_milliseconds(settings).items():
        if not isinstance(given, str):
            raise InvalidConfig(f"a setting's name is text, not {given!r}")
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
    # KafkaConfig.validateValues: a topic's retention.ms may be 0, the default of all topics may not.
    if name == "log.retention.ms" and checked(name, value, LOG_RETENTION_MS) == 0:
        raise InvalidConfig(
            "log.retention.ms=0 would delete every record; give 1 or more, or -1 for no limit"
        )


def _in_milliseconds(settings: Mapping[str, object]) -> dict[str, object]:
    """The settings with times that are given in hours or minutes under the names that have milliseconds."""
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
    """A setting as a node has it: its value as text, which reads back, and ConfigDef's name of its type."""

    name: str
    text: str
    type: str


def settings_of(config: NodeConfig) -> list[Setting]:
    """All settings of a node, each under its first name; the defaults of topics have topics' names."""
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
    """Every property that `with_settings` takes."""
    names = {name for part in PARTS for name in getattr(config, part).property_names()}
    return sorted(names.union(BROKERS_NAMES, IGNORED, *COARSER.values()))
