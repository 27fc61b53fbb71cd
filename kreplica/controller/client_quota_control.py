"""ClientQuotaControl: changes the quotas of clients, and describes them (KIP-546).

The quotas are records of the metadata log. Each entity of a request has a result of its own; the accepted
changes are one atomic batch. It has no state but the metadata. Owned by the controller's loop;
`describe_quotas` reads only and may run anywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import InvalidRequest, KreplicaError, UnsupportedVersion
from kreplica.common.messages.quotas import (
    MATCH_DEFAULT,
    MATCH_EXACT,
    MATCH_SPECIFIED,
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredQuotaEntry,
    AlterQuotaEntryData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    QuotaEntityData,
    QuotaEntryData,
    QuotaFilterComponent,
    QuotaOpData,
    QuotaValueData,
)
from kreplica.common.wire import NO_THROTTLE
from kreplica.controller.controller_broker_request_batch import ControllerResult, Records
from kreplica.metadata.client_quotas import ENTITY_TYPES, IP_ENTITY, check_quota, quota_key
from kreplica.metadata.cluster_metadata import ClusterMetadata, QuotaKey
from kreplica.metadata.records import ClientQuotaRecord, QuotaEntity
from kreplica.metadata.serde import in_lowest_version


class ClientQuotaControl:
    """Checks changes against `metadata` and returns the records to write."""

    def __init__(self, metadata: ClusterMetadata) -> None:
        self._metadata = metadata

    def alter(self, request: AlterClientQuotasRequest) -> ControllerResult[AlterClientQuotasResponse]:
        """Handle AlterClientQuotas (49): set and remove quotas."""
        times = Counter(frozenset(_components(each.entity)) for each in request.entries)
        records: Records = ()
        results = []
        for entry in request.entries:
            error: KreplicaError | None = None
            try:
                if times[frozenset(_components(entry.entity))] > 1:
                    raise InvalidRequest("the request changes the quotas of an entity twice")
                records += tuple(map(in_lowest_version, self._changes(entry)))
            except KreplicaError as raised:
                error = raised
            results.append(altered(entry, error))
        response = AlterClientQuotasResponse(throttle_time=NO_THROTTLE, entries=tuple(results))
        return ControllerResult(() if request.validate_only else records, response)

    def _changes(self, entry: AlterQuotaEntryData) -> list[ClientQuotaRecord]:
        key = quota_key(_components(entry.entity))
        self._check_ops(key, entry.ops)
        known = self._metadata.quotas.get(key, {})
        entity = tuple(QuotaEntity(entity_type=kind, entity_name=name) for kind, name in key)
        return [
            ClientQuotaRecord(
                entity=entity, key=op.key, value=0.0 if op.remove else op.value, remove=op.remove
            )
            for op in entry.ops
            # An unchanged quota needs no record.
            if known.get(op.key) != (None if op.remove else op.value)
        ]

    def _check_ops(self, key: QuotaKey, ops: Sequence[QuotaOpData]) -> None:
        names = Counter(op.key for op in ops)
        for op in ops:
            if names[op.key] > 1:
                raise InvalidRequest(f"the request changes {op.key[:60]!r} of an entity twice")
            check_quota(key, op.key, None if op.remove else op.value)


def altered(entry: AlterQuotaEntryData, error: KreplicaError | None) -> AlteredQuotaEntry:
    """Return the result of one entity."""
    return AlteredQuotaEntry(
        error_code=ErrorCode.none if error is None else ErrorCode(error.code),
        error_message=None if error is None else str(error),
        entity=entry.entity,
    )


def _components(entity: Iterable[QuotaEntityData]) -> Iterator[tuple[str, str | None]]:
    return ((each.entity_type, each.entity_name) for each in entity)


# ---- describe --------------------------------------------------------------------------------------------


def describe_quotas(
    request: DescribeClientQuotasRequest, metadata: ClusterMetadata
) -> DescribeClientQuotasResponse:
    """Handle DescribeClientQuotas (48): the quotas of the entities that match a filter."""
    try:
        _check_filter(request.components)
    except KreplicaError as error:
        return DescribeClientQuotasResponse(
            throttle_time=NO_THROTTLE,
            error_code=ErrorCode(error.code),
            error_message=str(error),
            entries=None,
        )
    found = sorted(metadata.quotas.items(), key=lambda item: [(kind, name or "") for kind, name in item[0]])
    return DescribeClientQuotasResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        error_message=None,
        entries=tuple(
            QuotaEntryData(
                entity=tuple(QuotaEntityData(entity_type=kind, entity_name=name) for kind, name in key),
                values=tuple(QuotaValueData(key=name, value=quotas[name]) for name in sorted(quotas)),
            )
            for key, quotas in found
            if _matches(key, request)
        ),
    )


def _check_filter(components: Sequence[QuotaFilterComponent]) -> None:
    """Raise InvalidRequest or UnsupportedVersion for a filter that matches nothing in any cluster."""
    types = [each.entity_type for each in components]
    for each in components:
        if not each.entity_type:
            raise InvalidRequest("a component of the filter has no entity type")
        if each.entity_type not in ENTITY_TYPES:
            raise UnsupportedVersion(f"entity type {each.entity_type[:40]!r} is unknown")
        if each.match_type not in (MATCH_EXACT, MATCH_DEFAULT, MATCH_SPECIFIED):
            raise UnsupportedVersion(f"match type {each.match_type} is unknown")
        if (each.match_type == MATCH_EXACT) != (each.match is not None):
            raise InvalidRequest("a component of the filter has a name if and only if its match is exact")
    if len(set(types)) < len(types):
        raise InvalidRequest("the filter names an entity type twice")
    if IP_ENTITY in types and len(types) > 1:
        raise InvalidRequest("a filter for ips cannot have components of another type")


def _matches(key: QuotaKey, request: DescribeClientQuotasRequest) -> bool:
    names = dict(key)
    if request.strict and len(names) != len(request.components):
        return False
    for each in request.components:
        if each.entity_type not in names:
            return False
        name = names[each.entity_type]
        if each.match_type == MATCH_SPECIFIED:
            if name is None:
                return False
        elif name != each.match:
            return False
    return True
