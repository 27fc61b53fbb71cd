"""Messages of administrators about the quotas of clients (KIP-546)."""

from __future__ import annotations

from kreplica.common.message import Duration32, Error, Int8, Message

# How a component of a filter matches the names of entities.
MATCH_EXACT, MATCH_DEFAULT, MATCH_SPECIFIED = range(3)


class QuotaFilterComponent(Message):
    """Entities of this type. `match`: the name for MATCH_EXACT, else None."""

    entity_type: str
    match_type: Int8
    match: str | None


class DescribeClientQuotasRequest(Message, api_key=48, versions=(0, 1), flexible=1):
    """Describe the quotas of entities that match all components; without components, of all entities.

    `strict`: entities with components of other types do not match.
    """

    components: tuple[QuotaFilterComponent, ...]
    strict: bool = False


class QuotaEntityData(Message):
    """One component of an entity; a name of None is the default of its type."""

    entity_type: str
    entity_name: str | None


class QuotaValueData(Message):
    key: str
    value: float


class QuotaEntryData(Message):
    entity: tuple[QuotaEntityData, ...]
    values: tuple[QuotaValueData, ...]


class DescribeClientQuotasResponse(Message, api_key=48, versions=(0, 1), flexible=1):
    throttle_time: Duration32
    error_code: Error
    error_message: str | None
    entries: tuple[QuotaEntryData, ...] | None


class QuotaOpData(Message):
    """Set a quota, or remove it; then `value` does not count."""

    key: str
    value: float = 0.0
    remove: bool = False


class AlterQuotaEntryData(Message):
    entity: tuple[QuotaEntityData, ...]
    ops: tuple[QuotaOpData, ...]


class AlterClientQuotasRequest(Message, api_key=49, versions=(0, 1), flexible=1):
    entries: tuple[AlterQuotaEntryData, ...]
    validate_only: bool = False


class AlteredQuotaEntry(Message):
    error_code: Error
    error_message: str | None
    entity: tuple[QuotaEntityData, ...]


class AlterClientQuotasResponse(Message, api_key=49, versions=(0, 1), flexible=1):
    throttle_time: Duration32
    entries: tuple[AlteredQuotaEntry, ...]
