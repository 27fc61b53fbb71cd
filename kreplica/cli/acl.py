"""`kreplica acl`: manage the access rules of any Kafka-compatible cluster that has an authorizer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourceType,
)
from kreplica.security.peer import USER

COLUMNS = ("principal", "permission", "operation", "resource", "name", "pattern", "host")
VERSIONS = range(2, 4)
OPERATIONS = {each.name.lower().replace("_", "-"): each for each in AclOperation if each > AclOperation.ANY}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """The resources that a command names, by type. `prefix`: the names are prefixes of names."""

    topics: Sequence[str] = ()
    groups: Sequence[str] = ()
    transactional_ids: Sequence[str] = ()
    cluster: bool = False
    prefix: bool = False

    def all(self) -> list[tuple[ResourceType, str]]:
        """Return the type and name of each."""
        return [
            *((ResourceType.TOPIC, name) for name in self.topics),
            *((ResourceType.GROUP, name) for name in self.groups),
            *((ResourceType.TRANSACTIONAL_ID, name) for name in self.transactional_ids),
            *([(ResourceType.CLUSTER, CLUSTER_NAME)] if self.cluster else []),
        ]

    def pattern_of(self, kind: ResourceType) -> PatternType:
        """Return how the name of a resource is meant; a cluster's is never a prefix."""
        return PatternType.PREFIXED if self.prefix and kind != ResourceType.CLUSTER else PatternType.LITERAL


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
    """Add a rule for each operation on each resource; returns the exit code. Raises InvalidConfig."""
    if not resources.all():
        raise InvalidConfig("name a resource: --topic, --group, --transactional-id or --cluster")
    permission = AclPermissionType.DENY if deny else AclPermissionType.ALLOW
    creations = tuple(
        AclCreation(
            resource_type=int(kind),
            resource_name=name,
            resource_pattern_type=int(resources.pattern_of(kind)),
            principal=_principal(principal),
            host=host,
            operation=int(_operation(operation)),
            permission_type=int(permission),
        )
        for kind, name in resources.all()
        for operation in operations
    )
    with any_broker(bootstrap) as broker:
        answer = broker.ask_newest(CreateAclsRequest(creations=creations), VERSIONS)
    for result in answer.results:
        check(result)
    facts = [_fact(each, each.resource_pattern_type) for each in creations]
    print_facts("added rules", COLUMNS, facts, as_json)
    return 0


def list_rules(bootstrap: str, principal: str | None, resources: Resources, as_json: bool) -> int:
    """Print the rules of a principal, or about a resource; returns the exit code."""
    facts: list[Fact] = []
    with any_broker(bootstrap) as broker:
        for chosen in _filters(principal, resources):
            answer = broker.ask_newest(DescribeAclsRequest(**chosen), VERSIONS)
            check(answer)
            for resource in answer.resources:
                facts += [_described(resource, rule) for rule in resource.acls]
    print_facts("rules", COLUMNS, facts, as_json)
    return 0


def remove(
    bootstrap: str, principal: str | None, resources: Resources, *, everything: bool, as_json: bool
) -> int:
    """Remove the rules of a principal, or about a resource, and print them; returns the exit code.

    Raises InvalidConfig if nothing is chosen, ResourceNotFound if there is no such rule.
    """
    if principal is None and not resources.all() and not everything:
        raise InvalidConfig("choose rules by a principal or a resource, or give --all to remove all of them")
    filters = tuple(DeleteAclsFilter(**chosen) for chosen in _filters(principal, resources))
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


def _filters(principal: str | None, resources: Resources) -> Iterable[dict[str, Any]]:
    named: Sequence[tuple[ResourceType, str | None]] = resources.all() or [(ResourceType.ANY, None)]
    for kind, name in named:
        yield {
            "resource_type_filter": int(kind),
            "resource_name_filter": name,
            "pattern_type_filter": int(PatternType.ANY if name is None else resources.pattern_of(kind)),
            "principal_filter": None if principal is None else _principal(principal),
            "host_filter": None,
            "operation": int(AclOperation.ANY),
            "permission_type": int(AclPermissionType.ANY),
        }


def _principal(text: str) -> str:
    return text if ":" in text else f"{USER}:{text}"


def _operation(text: str) -> AclOperation:
    found = OPERATIONS.get(text.lower().replace("_", "-"))
    if found is None:
        raise InvalidConfig(f"{text[:40]!r} is no operation; there are {', '.join(OPERATIONS)}")
    return found


def _described(resource: Any, rule: Any) -> Fact:
    return _row(
        rule, ResourceType(resource.resource_type), resource.resource_name, PatternType(resource.pattern_type)
    )


def _fact(rule: Any, pattern: int) -> Fact:
    return _row(rule, ResourceType(rule.resource_type), rule.resource_name, PatternType(pattern))


def _row(rule: Any, kind: ResourceType, name: str, pattern: PatternType) -> Fact:
    return {
        "principal": rule.principal,
        "permission": AclPermissionType(rule.permission_type).name.lower(),
        "operation": AclOperation(rule.operation).name.lower().replace("_", "-"),
        "resource": kind.name.lower().replace("_", "-"),
        "name": name,
        "pattern": pattern.name.lower(),
        "host": rule.host,
    }
