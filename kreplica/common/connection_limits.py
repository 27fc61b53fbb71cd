"""ConnectionLimits: how many connections a node takes, from one address, and a second. Immutable."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple, Self

from kreplica.common.settings import Kind, checked, int32
from kreplica.common.types import INT32_MAX

MAX_CONNECTIONS = "max.connections"
PER_IP = "max.connections.per.ip"
OVERRIDES = "max.connections.per.ip.overrides"
CREATION_RATE = "max.connection.creation.rate"
LISTENER_PREFIX = "listener.name."


def _parse_overrides(value: object) -> str:
    _overrides(value)
    return str(value).strip()


def _overrides(value: object) -> dict[str, int]:
    found = {}
    for each in str(value).split(","):
        if not each.strip():
            continue
        address, _, count = each.strip().rpartition(":")
        try:
            name = canonical(address.strip("[]"))
        except ValueError:
            raise ValueError(f"is not ADDRESS:COUNT,...: {each.strip()[:60]!r} has no IP address") from None
        if not (count.isascii() and count.isdecimal() and int(count) <= INT32_MAX):
            raise ValueError(f"is not ADDRESS:COUNT,...: {each.strip()[:60]!r} has no count")
        found[name] = int(count)
    return found


def canonical(address: str) -> str:
    """Return one text for all texts of an IP address, IPv4 within IPv6 included. Raises ValueError."""
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(found if mapped is None else mapped)


KINDS: Mapping[str, Kind] = {
    MAX_CONNECTIONS: int32(1),
    PER_IP: int32(0),
    OVERRIDES: Kind("string", "ADDRESS:COUNT,...", _parse_overrides),
    CREATION_RATE: int32(1),
}
# Those that a listener may have for itself.
OF_LISTENERS = (MAX_CONNECTIONS, CREATION_RATE)


def kind_of(name: str) -> Kind | None:
    """Return the kind of a limit, with or without the prefix of a listener; None if it is not a limit."""
    if name in KINDS:
        return KINDS[name]
    listener, dot, own = name.removeprefix(LISTENER_PREFIX).partition(".")
    is_of_listener = name.startswith(LISTENER_PREFIX) and listener and dot
    return KINDS[own] if is_of_listener and own in OF_LISTENERS else None


class ConnectionLimits(NamedTuple):
    """The limits in force, by the full names of the settings. Those of listeners have their prefixes."""

    values: Mapping[str, int]
    overrides: Mapping[str, int]

    @classmethod
    def of(cls, *layers: Mapping[str, object]) -> Self:
        """Return the limits from settings; a later layer overrides earlier ones. Raises InvalidConfig."""
        found: dict[str, object] = {}
        for layer in layers:
            found |= {name: value for name, value in layer.items() if kind_of(name) is not None}
        values = {}
        for name, value in found.items():
            kind = kind_of(name)
            assert kind is not None
            values[name] = checked(name, value, kind)
        return cls(values, _overrides(values.pop(OVERRIDES, "")))

    def of_host(self, host: str) -> int:
        """Return how many connections one address may have."""
        if self.overrides:
            with suppress(ValueError):
                host = canonical(host)
        return self.overrides.get(host, self.values.get(PER_IP, INT32_MAX))

    def of_listener(self, listener: str, name: str) -> int:
        """Return the limit `name` of one listener; "" is the whole node."""
        prefix = f"{LISTENER_PREFIX}{listener.lower()}." if listener else ""
        return self.values.get(prefix + name, INT32_MAX)
