"""Client quotas: the kinds of quotas, the entities that may have them, and the checks of both.

No state; any thread may call.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kreplica.common.errors import InvalidRequest
from kreplica.common.types import INT32_MAX, INT64_MAX
from kreplica.metadata.cluster_metadata import QuotaKey

USER_ENTITY, CLIENT_ID_ENTITY, IP_ENTITY = "user", "client-id", "ip"
ENTITY_TYPES = (USER_ENTITY, CLIENT_ID_ENTITY, IP_ENTITY)

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"

# Client ids are any text that a client sends, so names need a bound.
LONGEST_NAME = 255
# A whole number may be this far from one, as it comes from a text.
FRACTION = 1e-6


class QuotaKind(NamedTuple):
    """A kind of quota. `most`: the largest value of a whole number; None: any finite number."""

    most: int | None
    is_of_ip: bool = False


KINDS: Mapping[str, QuotaKind] = {
    PRODUCER_BYTE_RATE: QuotaKind(INT64_MAX),
    CONSUMER_BYTE_RATE: QuotaKind(INT64_MAX),
    REQUEST_PERCENTAGE: QuotaKind(None),
    CONTROLLER_MUTATION_RATE: QuotaKind(None),
    CONNECTION_CREATION_RATE: QuotaKind(INT32_MAX, is_of_ip=True),
}


def quota_key(components: Iterable[tuple[str, str | None]]) -> QuotaKey:
    """Return the key of an entity in the metadata. Raises InvalidRequest for an impossible entity."""
    given = tuple(components)
    key = tuple(sorted(given, key=lambda each: each[0]))
    types = [kind for kind, _ in key]
    if not key:
        raise InvalidRequest("the entity has no components: name a user, a client id or an ip")
    for kind, name in key:
        if kind not in ENTITY_TYPES:
            raise InvalidRequest(f"entity type {kind[:40]!r} must be one of {', '.join(ENTITY_TYPES)}")
        if name is not None and not 0 < len(name) <= LONGEST_NAME:
            raise InvalidRequest(
                f"the name of the {kind} has {len(name)} characters; it must have 1 to {LONGEST_NAME}"
            )
    if len(set(types)) < len(types):
        raise InvalidRequest(f"the entity names a {types[0]} twice")
    if IP_ENTITY in types:
        if len(types) > 1:
            raise InvalidRequest("an ip cannot be combined with a user or a client id")
        check_ip(key[0][1])
    return key


def check_ip(name: str | None) -> None:
    """Raise InvalidRequest if the name of an ip is no address; None is the default."""
    if name is None:
        return
    try:
        ipaddress.ip_address(name)
    except ValueError:
        raise InvalidRequest(f"{name[:40]!r} is not an IP address; names of hosts are not resolved") from None


def check_quota(key: QuotaKey, name: str, value: float | None) -> None:
    """Raise InvalidRequest unless the entity may have this quota; a value of None removes it."""
    kind = KINDS.get(name)
    is_of_ip = key[0][0] == IP_ENTITY
    if kind is None or kind.is_of_ip != is_of_ip:
        known = ", ".join(each for each, other in KINDS.items() if other.is_of_ip == is_of_ip)
        raise InvalidRequest(f"there is no quota {name[:60]!r} for this entity: there are {known}")
    if value is None:
        return
    if not math.isfinite(value) or value <= 0:
        raise InvalidRequest(f"{name}={value} must be a finite number above 0")
    if kind.most is None:
        return
    if abs(value - round(value)) > FRACTION or round(value) < 1:
        raise InvalidRequest(f"{name}={value} must be a whole number from 1 on")
    if value > float(kind.most):
        raise InvalidRequest(f"{name}={value} is above the maximum of {kind.most}")
