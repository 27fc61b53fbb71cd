"""`kreplica acl`: manage the access rules of any Kafka-compatible cluster that has an authorizer."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any

from kreplica.cli.kafka_connection import any_broker, check
from kreplica.cli.output import Fact, print_facts
from kreplica.common.dataclass import dataclass
from kreplica.common.errors import InvalidConfig, ResourceNotFound
from kreplica.common.messages.administration import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from kreplica.security.acl import (
    CLUSTER_NAME,
    SUPPORTED,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourceType,
)
from kreplica.security.peer import USER, host_text

COLUMNS = ("principal", "permission", "operation", "resource", "name", "pattern", "host")
VERSIONS = range(2, 4)
OPERATIONS = {each.name.lower().replace("_", "-"): each for each in AclOperation if each > AclOperation.ANY}
ANY_HOST = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """The resources that a command names, by type. `prefix`: the names are prefixes of names."""

    topics: Sequence[str] = ()
    groups: Sequence[str] = ()
    transactional_ids: Sequence[str] = ()
    tokens: Sequence[str] = ()
    users: Sequence[str] = ()
    cluster: bool = False
    prefix: bool = False

    def all(self) -> list[tuple[ResourceType, str]]:
        """Return the type and name of each."""
        return [
            *((ResourceType.TOPIC, name) for name in self.topics),
            *((ResourceType.GROUP, name) for name in self.groups),
            *((ResourceType.TRANSACTIONAL_ID, name) for name in self.transactional_ids),
            *((ResourceType.DELEGATION_TOKEN, name) for name in self.tokens),
            *((ResourceType.USER, _principal(name)) for name in self.users),
            *([(ResourceType.CLUSTER, CLUSTER_NAME)] if self.cluster else []),
        ]

    def pattern_of(self, kind: ResourceType) -> PatternType:
        """Return how the name of a resource is meant; a cluster's is never a prefix."""
        return PatternType.PREFIXED if self.prefix and kind != ResourceType.CLUSTER else PatternType.LITERAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The rules that a command is about; None selects all of them."""

    principal: str | None = None
    operation: str | None = None
    permission: str | None = None
    host: str | None = None

    @property
    def is_everything(self) -> bool:
        return self == Selection()

    def filters(self, resources: Resources) -> Iterable[dict[str, Any]]:
        """Return the fields of a filter for each resource, or of one for any resource."""
        principal, operation, permission, host = self.principal, self.operation, self.permission, self.host
        rules = {
            "principal_filter": None if principal is None else _principal(principal),
            "host_filter": None if host is None else host_text(host),
            "operation": int(AclOperation.ANY if operation is None else _operation(operation)),
            "permission_type": int(AclPermissionType.ANY if permission is None else _permission(permission)),
        }
        named: Sequence[tuple[ResourceType, str | None]] = resources.all() or [(ResourceType.ANY, None)]
        for kind, name in named:
            yield {
                "resource_type_filter": int(kind),
                "resource_name_filter": name,
                "pattern_type_filter": int(PatternType.ANY if name is None else resources.pattern_of(kind)),
                **rules,
            }


def add(
    bootstrap: str,
    principal: str,
    operations: Sequence[str],
    resources: Resources,
    *,
    deny: bool,
    host: str,
    as_json: bool,
) -> int:
    """Add a rule for each operation on each resource; returns the exit code.

    Raises InvalidConfig, also for a rule that could never apply.
    """
    if not resources.all():
        raise InvalidConfig(
            "name a resource: --topic, --group, --transactional-id, --cluster, --user or --delegation-token"
        )
    wanted = [_operation(each) for each in operations]
    for kind, _ in resources.all():
        _check_supported(kind, wanted)
    permission = AclPermissionType.DENY if deny else AclPermissionType.ALLOW
    creations = tuple(
        AclCreation(
            resource_type=int(kind),
            resource_name=name,
            resource_pattern_type=int(resources.pattern_of(kind)),
            principal=_principal(principal),
            host=_host(host),
            operation=int(operation),
            permission_type=int(permission),
        )
        for kind, name in resources.all()
        for operation in wanted
    )
    with any_broker(bootstrap) as broker:
        answer = broker.ask_newest(CreateAclsRequest(creations=creations), VERSIONS)
    for result in answer.results:
        check(result)
    facts = [_fact(each, each.resource_pattern_type) for each in creations]
    print_facts("added rules", COLUMNS, facts, as_json)
    return 0


def list_rules(bootstrap: str, selection: Selection, resources: Resources, as_json: bool) -> int:
    """Print the selected rules, or those of them about a resource; returns the exit code."""
    facts: list[Fact] = []
    with any_broker(bootstrap) as broker:
        for chosen in selection.filters(resources):
            answer = broker.ask_newest(DescribeAclsRequest(**chosen), VERSIONS)
            check(answer)
            for resource in answer.resources:
                facts += [_described(resource, rule) for rule in resource.acls]
    print_facts("rules", COLUMNS, facts, as_json)
    return 0


def remove(
    bootstrap: str, selection: Selection, resources: Resources, *, everything: bool, as_json: bool
) -> int:
    """Remove the selected rules, or those of them about a resource, and print them; returns the exit code.

    Raises InvalidConfig if nothing is selected, ResourceNotFound if there is no such rule.
    """
    if selection.is_everything and not resources.all() and not everything:
        raise InvalidConfig("choose rules by a principal or a resource, or give --all to remove all of them")
    filters = tuple(DeleteAclsFilter(**chosen) for chosen in selection.filters(resources))
    with any_broker(bootstrap) as broker:
        answer = broker.ask_newest(DeleteAclsRequest(filters=filters), VERSIONS)
    facts: list[Fact] = []
    for result in answer.filter_results:
        check(result)
        facts += [_fact(rule, rule.pattern_type) for rule in result.matching_acls]
    if not facts:
        raise ResourceNotFound("there is no such rule")
    print_facts("removed rules", COLUMNS, facts, as_json)
    return 0


def _principal(text: str) -> str:
    kind, colon, name = text.partition(":")
    if not colon:
        return f"{USER}:{text}"
    if kind != USER and kind.lower() == USER.lower():
        raise InvalidConfig(f"there are no principals of the type {kind!r}: is it {USER}:{name}?")
    return text


def _host(text: str) -> str:
    """Return the address as rules compare it."""
    try:
        return text if text == ANY_HOST else host_text(str(ipaddress.ip_address(text)))
    except ValueError:
        raise InvalidConfig(
            f"--host {text[:80]} is no IP address; rules know neither names of hosts nor ranges of addresses"
        ) from None


def _check_supported(kind: ResourceType, operations: Iterable[AclOperation]) -> None:
    """Raise InvalidConfig for an operation that no resource of this type has."""
    for operation in operations:
        if operation != AclOperation.ALL and operation not in SUPPORTED[kind]:
            known = ", ".join(map(_name, SUPPORTED[kind]))
            raise InvalidConfig(
                f"{_name(operation)} does nothing for a {_name(kind)}: there are all, {known}"
            )


def _operation(text: str) -> AclOperation:
    found = OPERATIONS.get(text.lower().replace("_", "-"))
    if found is None:
        raise InvalidConfig(f"{text[:40]!r} is no operation; there are {', '.join(OPERATIONS)}")
    return found


def _permission(text: str) -> AclPermissionType:
    return AclPermissionType[text.upper()]


def _name(value: IntEnum) -> str:
    return value.name.lower().replace("_", "-")


def _described(resource: Any, rule: Any) -> Fact:
    return _row(
        rule, ResourceType(resource.resource_type), resource.resource_name, PatternType(resource.pattern_type)
    )


def _fact(rule: Any, pattern: int) -> Fact:
    return _row(rule, ResourceType(rule.resource_type), rule.resource_name, PatternType(pattern))


def _row(rule: Any, kind: ResourceType, name: str, pattern: PatternType) -> Fact:
    return {
        "principal": rule.principal,
        "permission": _name(AclPermissionType(rule.permission_type)),
        "operation": _name(AclOperation(rule.operation)),
        "resource": _name(kind),
        "name": name,
        "pattern": _name(pattern),
        "host": rule.host,
    }
