"""A node's settings as Kafka's users write them: property names with dots, values as text or numbers.

A name that no part of the node has is refused, with the nearest one that there is. No state; any thread.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any, NamedTuple, get_type_hints

from kreplica.broker.node_config import NodeConfig
from kreplica.common.config import BROKERS_NAMES
from kreplica.common.errors import InvalidConfig

# The parts of a NodeConfig in which a name is looked for, in this order; `log` is that of topics' defaults.
PARTS = ("raft", "controller", "broker", "replica", "group", "log_manager", "cleaner", "metadata_log", "log")

# Times that Kafka has in coarser units, too, with the milliseconds of each. The finest that is given counts.
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
COARSER = {
    "log.retention.ms": {"log.retention.minutes": MINUTE_MS, "log.retention.hours": HOUR_MS},
    "log.roll.ms": {"log.roll.hours": HOUR_MS},
    "log.roll.jitter.ms": {"log.roll.jitter.hours": HOUR_MS},
}


def with_settings(config: NodeConfig, settings: Mapping[str, object]) -> NodeConfig:
    """The configuration with these properties changed.

    Raises InvalidConfig for a name that is not known, and for a value out of its range.
    """
    if not isinstance(settings, Mapping):
        raise InvalidConfig(f"settings are names with values, not {settings!r}")
    changes: dict[str, dict[str, object]] = {}
    for given, value in _in_milliseconds(settings).items():
        if not isinstance(given, str):
            raise InvalidConfig(f"a setting's name is text, not {given!r}")
        name = BROKERS_NAMES.get(given.replace("_", "."), given.replace("_", "."))
        part = next((part for part in PARTS if name in _names(getattr(config, part))), None)
        if part is None:
            near = difflib.get_close_matches(name, known_names(config), 1)
            raise InvalidConfig(f"there is no setting {given!r}" + (f"; is it {near[0]!r}?" if near else ""))
        changes.setdefault(part, {})[name] = value
    return dataclasses.replace(
        config, **{part: _changed(getattr(config, part), new) for part, new in changes.items()}
    )


def _in_milliseconds(settings: Mapping[str, object]) -> dict[str, object]:
    """The settings with times that are given in hours or minutes under the names that have milliseconds."""
    dotted = {str(name).replace("_", "."): name for name in settings}
    found = dict(settings)
    for name, coarser in COARSER.items():
        is_given = name in dotted or BROKERS_NAMES[name] in dotted
        for other, unit_ms in coarser.items():
            if other in dotted:
                count = _parsed(other, found.pop(dotted[other]), int)
                if not is_given:
                    assert isinstance(count, int)
                    found[name] = max(count * unit_ms, -1)
                is_given = True
    return found


class Setting(NamedTuple):
    """A setting as a node has it: its value as text, which reads back, and of which type it is."""

    name: str
    text: str
    kind: type


def settings_of(config: NodeConfig) -> list[Setting]:
    """All settings of a node, each under its first name; the defaults of topics have topics' names."""
    own = {
        "node.id": config.node_id,
        "process.roles": tuple(sorted(config.roles)),
        "log.dirs": config.directories,
        "metadata.log.dir": config.metadata_directory,
        "advertised.listeners": tuple(f"{each.name}://{each.host}:{each.port}" for each in config.endpoints),
    }
    found = {name: value for name, value in own.items() if value != ()}
    for part in PARTS:
        prefix, values = getattr(getattr(config, part), "PREFIX", ""), getattr(config, part)
        for field in dataclasses.fields(values):
            value = getattr(values, field.name)
            if value is not None:
                found.setdefault(prefix + _name(field.name), value)
    return [Setting(name, _text(value), type(value)) for name, value in found.items()]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, (tuple, frozenset)) else str(value)


def known_names(config: NodeConfig) -> list[str]:
    """Every property that `with_settings` takes."""
    names = {name for part in PARTS for name in _names(getattr(config, part))}
    return sorted(names.union(BROKERS_NAMES, *COARSER.values()))


def _names(part: Any) -> frozenset[str]:
    prefix = getattr(part, "PREFIX", "")
    return frozenset(prefix + _name(field.name) for field in dataclasses.fields(part))


def _name(field: str) -> str:
    # The quorum's settings are its controllers' in Kafka's names.
    name = field.replace("_", ".")
    return f"controller.{name}" if name.startswith("quorum.") else name


def _changed(part: Any, settings: Mapping[str, object]) -> Any:
    if hasattr(part, "replace"):
        return part.replace(settings)
    hints = get_type_hints(type(part))
    fields = {}
    for name, value in settings.items():
        field = name.removeprefix("controller.").replace(".", "_")
        fields[field] = _parsed(name, value, hints[field])
    return dataclasses.replace(part, **fields)


def _parsed(name: str, value: object, hint: Any) -> object:
    """The value as its field has it: these parts hold integers, booleans and text."""
    kinds = getattr(hint, "__args__", (hint,))
    text = str(value).strip()
    if bool in kinds and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if int in kinds and not isinstance(value, bool):
        try:
            return int(text)
        except ValueError:
            pass
    if str in kinds:
        return text
    wanted = "true or false" if bool in kinds else "an integer"
    raise InvalidConfig(f"{name} must be {wanted}, not {value!r}")
