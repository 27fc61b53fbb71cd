"""AclControl: adds and removes access rules (ACLs), and describes them.

The rules are records of the metadata log. Each rule to add has a result of its own; the rules that a request
removes go in one atomic batch. Owned by the controller's loop; `describe_acls` reads only and may run
anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Any, TypeVar

from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import InvalidRequest, KreplicaError, PolicyViolation
from kreplica.common.messages.administration import (
    AclCreation,
    AclCreationResult,
    AclDescription,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from kreplica.common.ports import Random
from kreplica.common.types import Uuid
from kreplica.common.wire import NO_THROTTLE
from kreplica.controller.controller_broker_request_batch import ControllerResult, Records
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.records import AccessControlEntryRecord, RemoveAccessControlEntryRecord
from kreplica.metadata.serde import in_lowest_version
from kreplica.security.acl import (
    CLUSTER_NAME,
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourceType,
)

# The most rules that one request may remove: Kafka's limit of the records in one batch.
MOST_REMOVED = 10_000
# The longest text of a rule that an error shows.
SHOWN = 80

E = TypeVar("E", bound=IntEnum)


class AclControl:
    """Checks changes against `metadata` and returns the records to write."""

    def __init__(self, metadata: ClusterMetadata, random: Random) -> None:
        self._metadata = metadata
        self._random = random

    def create(self, request: CreateAclsRequest) -> ControllerResult[CreateAclsResponse]:
        """Handle CreateAcls (30). A rule that exists already is no error."""
        known = {binding_of(record) for record in self._metadata.acls.values()}
        records: Records = ()
        results = []
        for creation in request.creations:
            error: KreplicaError | None = None
            try:
                binding = _checked(creation)
                if binding not in known:
                    known.add(binding)
                    records += (in_lowest_version(self._record(binding)),)
            except KreplicaError as raised:
                error = raised
            results.append(AclCreationResult(error_code=_code(error), error_message=_text(error)))
        return ControllerResult(
            records, CreateAclsResponse(throttle_time=NO_THROTTLE, results=tuple(results))
        )

    def delete(self, request: DeleteAclsRequest) -> ControllerResult[DeleteAclsResponse]:
        """Handle DeleteAcls (31). A rule that several filters select is removed once.

        Raises PolicyViolation if it would remove more than MOST_REMOVED rules.
        """
        removed: dict[Uuid, None] = {}
        results = []
        for asked in request.filters:
            error: KreplicaError | None = None
            matching: list[AccessControlEntryRecord] = []
            try:
                chosen = filter_of(asked)
                matching = [each for each in self._metadata.acls.values() if chosen.matches(binding_of(each))]
            except KreplicaError as raised:
                error = raised
            removed.update(dict.fromkeys(record.id for record in matching))
            results.append(
                DeleteAclsFilterResult(
                    error_code=_code(error),
                    error_message=_text(error),
                    matching_acls=tuple(map(_matching, matching)),
                )
            )
        if len(removed) > MOST_REMOVED:
            raise PolicyViolation(f"the request would remove {len(removed)} rules; at most {MOST_REMOVED} go")
        records = tuple(in_lowest_version(RemoveAccessControlEntryRecord(id=each)) for each in removed)
        answer = DeleteAclsResponse(throttle_time=NO_THROTTLE, filter_results=tuple(results))
        return ControllerResult(records, answer)

    def _record(self, binding: AclBinding) -> AccessControlEntryRecord:
        return AccessControlEntryRecord(
            id=Uuid.generate(self._random),
            resource_type=int(binding.resource_type),
            resource_name=binding.resource_name,
            pattern_type=int(binding.pattern_type),
            principal=binding.principal,
            host=binding.host,
            operation=int(binding.operation),
            permission_type=int(binding.permission_type),
        )


def binding_of(record: AccessControlEntryRecord) -> AclBinding:
    """Return the rule of a record of the metadata."""
    return AclBinding(
        ResourceType(record.resource_type),
        record.resource_name,
        PatternType(record.pattern_type),
        record.principal,
        record.host,
        AclOperation(record.operation),
        AclPermissionType(record.permission_type),
    )


def describe_acls(request: DescribeAclsRequest, metadata: ClusterMetadata) -> DescribeAclsResponse:
    """Handle DescribeAcls (29): the rules that a filter selects, by resource."""
    error: KreplicaError | None = None
    found: dict[tuple[int, str, int], list[AclDescription]] = {}
    try:
        chosen = filter_of(request)
        for record in metadata.acls.values():
            if chosen.matches(binding_of(record)):
                key = (record.resource_type, record.resource_name, record.pattern_type)
                found.setdefault(key, []).append(
                    AclDescription(
                        principal=record.principal,
                        host=record.host,
                        operation=record.operation,
                        permission_type=record.permission_type,
                    )
                )
    except KreplicaError as raised:
        error = raised
    return DescribeAclsResponse(
        throttle_time=NO_THROTTLE,
        error_code=_code(error),
        error_message=_text(error),
        resources=tuple(
            DescribeAclsResource(
                resource_type=kind, resource_name=name, pattern_type=pattern, acls=tuple(acls)
            )
            for (kind, name, pattern), acls in sorted(found.items())
        ),
    )


# ---- from the wire ----------------------------------------------------------------------------------------


def filter_of(asked: Any) -> AclBindingFilter:
    """Return the filter in a request. Raises InvalidRequest for a code that is not known."""
    return AclBindingFilter(
        _known(ResourceType, asked.resource_type_filter),
        asked.resource_name_filter,
        _known(PatternType, asked.pattern_type_filter),
        asked.principal_filter,
        asked.host_filter,
        _known(AclOperation, asked.operation),
        _known(AclPermissionType, asked.permission_type),
    )


def _checked(creation: AclCreation) -> AclBinding:
    """Return the rule to add. Raises InvalidRequest."""
    binding = AclBinding(
        _definite(ResourceType, creation.resource_type, ResourceType),
        creation.resource_name,
        _definite(PatternType, creation.resource_pattern_type, (PatternType.LITERAL, PatternType.PREFIXED)),
        creation.principal,
        creation.host,
        _definite(AclOperation, creation.operation, AclOperation),
        _definite(AclPermissionType, creation.permission_type, AclPermissionType),
    )
    if not binding.resource_name:
        raise InvalidRequest("the resource of a rule needs a name")
    if not all(binding.principal.partition(":")):
        raise InvalidRequest(f"the principal {binding.principal[:SHOWN]!r} must be TYPE:NAME")
    if not binding.host:
        raise InvalidRequest("the host of a rule must be an address or *")
    if binding.resource_type == ResourceType.CLUSTER and binding.resource_name != CLUSTER_NAME:
        raise InvalidRequest(f"the only cluster is {CLUSTER_NAME}, not {binding.resource_name[:SHOWN]!r}")
    return binding


def _known(kind: type[E], code: int) -> E:
    """Return the member of an enumeration. Raises InvalidRequest for UNKNOWN and codes without a member."""
    if not code or code not in kind.__members__.values():
        raise InvalidRequest(f"{code} is not a known {kind.__name__}")
    return kind(code)


def _definite(kind: type[E], code: int, allowed: Iterable[E]) -> E:
    found = _known(kind, code)
    if found.name == "ANY" or found not in allowed:
        raise InvalidRequest(f"a rule cannot have the {kind.__name__} {found.name}")
    return found


def _matching(record: AccessControlEntryRecord) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_code=ErrorCode.none,
        error_message=None,
        resource_type=record.resource_type,
        resource_name=record.resource_name,
        pattern_type=record.pattern_type,
        principal=record.principal,
        host=record.host,
        operation=record.operation,
        permission_type=record.permission_type,
    )


def _code(error: KreplicaError | None) -> ErrorCode:
    return ErrorCode.none if error is None else ErrorCode(error.code)


def _text(error: KreplicaError | None) -> str | None:
    return None if error is None else str(error)
