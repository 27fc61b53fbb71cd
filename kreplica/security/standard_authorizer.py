"""StandardAuthorizer: decides by ACLs who may do what. Reads no clock, random number or file.

Ownership: a snapshot of rules never changes; new rules make another. Any thread may ask.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kreplica.security.acl import (
    WILDCARD,
    AclBinding,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourceType,
)
from kreplica.security.peer import THIS_PROCESS, USER, Peer

EVERYONE = f"{USER}:{WILDCARD}"
# The name by which Kafka asks first when any resource of a type would do.
ANY_RESOURCE_NAME = "hardcode"

_EVERY_BIT = sum(1 << operation for operation in AclOperation if operation > AclOperation.ALL)
_IMPLYING = {
    AclOperation.DESCRIBE: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.DELETE,
        AclOperation.ALTER,
    ),
    AclOperation.DESCRIBE_CONFIGS: (AclOperation.ALTER_CONFIGS,),
}


def _denied(operation: AclOperation) -> int:
    return _EVERY_BIT if operation == AclOperation.ALL else 1 << operation


def _allowed(operation: AclOperation) -> int:
    implied = sum(1 << weaker for weaker, stronger in _IMPLYING.items() if operation in stronger)
    return _denied(operation) | implied


# (operations allowed, operations denied) by (principal, host), as bits.
_Rules = Mapping[tuple[str, str], tuple[int, int]]


class _TypeRules(NamedTuple):
    """The rules of one type of resource. `lengths`: of the prefixes, ascending."""

    literal: Mapping[str, _Rules]
    prefixed: Mapping[str, _Rules]
    lengths: tuple[int, ...]
    rules: tuple[AclBinding, ...]

    def candidates(self, name: str) -> list[_Rules]:
        """The rules whose pattern covers `name`."""
        found = [self.literal[text] for text in {name, WILDCARD} if text in self.literal]
        for length in self.lengths:
            if length > len(name):
                break
            rules = self.prefixed.get(name[:length])
            if rules is not None:
                found.append(rules)
        return found


def _type_rules(rules: Iterable[AclBinding]) -> _TypeRules:
    kept = tuple(rules)
    names: dict[PatternType, dict[str, dict[tuple[str, str], tuple[int, int]]]] = {
        PatternType.LITERAL: {},
        PatternType.PREFIXED: {},
    }
    for rule in kept:
        masks = names[rule.pattern_type].setdefault(rule.resource_name, {})
        allowed, denied = masks.get((rule.principal, rule.host), (0, 0))
        if rule.permission_type == AclPermissionType.DENY:
            denied |= _denied(rule.operation)
        else:
            allowed |= _allowed(rule.operation)
        masks[rule.principal, rule.host] = allowed, denied
    prefixed = names[PatternType.PREFIXED]
    lengths = tuple(sorted({len(prefix) for prefix in prefixed}))
    return _TypeRules(names[PatternType.LITERAL], prefixed, lengths, kept)


class StandardAuthorizer:
    """Kafka's authorizer over one set of rules."""

    def __init__(
        self,
        rules: Iterable[AclBinding] = (),
        super_users: frozenset[str] = frozenset(),
        *,
        allow_everyone_if_no_acl_found: bool = False,
    ) -> None:
        by_type: dict[ResourceType, list[AclBinding]] = {}
        for rule in rules:
            by_type.setdefault(rule.resource_type, []).append(rule)
        self._by_type = {kind: _type_rules(found) for kind, found in by_type.items()}
        self._super_users = super_users
        self._default = allow_everyone_if_no_acl_found

    def authorize(self, peer: Peer, operation: AclOperation, kind: ResourceType, name: str) -> bool:
        """Whether `peer` may do `operation` on the resource."""
        return bool(self.authorized_operations(peer, kind, name) >> operation & 1)

    def authorized_operations(self, peer: Peer, kind: ResourceType, name: str) -> int:
        """What `peer` may do on the resource: a bit for each code of an operation."""
        if self._is_above_rules(peer):
            return _EVERY_BIT
        rules = self._by_type.get(kind)
        candidates = rules.candidates(name) if rules is not None else []
        if not candidates:
            return _EVERY_BIT if self._default else 0
        principal = f"{peer.principal.type}:{peer.principal.name}"
        host = peer.host.removeprefix("/")
        allowed = denied = 0
        for masks in candidates:
            for key in ((principal, WILDCARD), (principal, host), (EVERYONE, WILDCARD), (EVERYONE, host)):
                found = masks.get(key)
                if found is not None:
                    allowed |= found[0]
                    denied |= found[1]
        return allowed & ~denied

    def authorize_by_resource_type(self, peer: Peer, operation: AclOperation, kind: ResourceType) -> bool:
        """Whether `peer` may do `operation` on at least one resource of the type, existing or not."""
        if self.authorize(peer, operation, kind, ANY_RESOURCE_NAME):
            return True
        rules = self._by_type.get(kind)
        if rules is None:
            return False
        asked = (AclOperation.ALL, operation)
        matching = [rule for rule in rules.rules if rule.operation in asked and _is_of(rule, peer)]
        denying = {
            (rule.pattern_type, rule.resource_name)
            for rule in matching
            if rule.permission_type == AclPermissionType.DENY
        }
        if (PatternType.LITERAL, WILDCARD) in denying:
            return False
        return any(
            rule.permission_type == AclPermissionType.ALLOW and not _is_dominated(rule, denying)
            for rule in matching
        )

    def _is_above_rules(self, peer: Peer) -> bool:
        return peer is THIS_PROCESS or f"{peer.principal.type}:{peer.principal.name}" in self._super_users


def _is_of(rule: AclBinding, peer: Peer) -> bool:
    return rule.principal in (f"{peer.principal.type}:{peer.principal.name}", EVERYONE) and rule.host in (
        WILDCARD,
        peer.host.removeprefix("/"),
    )


def _is_dominated(rule: AclBinding, denying: set[tuple[PatternType, str]]) -> bool:
    name = rule.resource_name
    if rule.pattern_type == PatternType.LITERAL:
        if name == WILDCARD:
            return False
        if (PatternType.LITERAL, name) in denying:
            return True
    return any((PatternType.PREFIXED, name[:length]) in denying for length in range(1, len(name) + 1))
