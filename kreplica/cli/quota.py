"""`kreplica quota`: manage the quotas of clients of any Kafka-compatible cluster."""

from __future__ import annotations

from collections.abc import Sequence

from kreplica.cli.kafka_connection import KafkaConnection, any_broker, check
from kreplica.cli.output import Fact, print_facts
from kreplica.common.dataclass import dataclass
from kreplica.common.errors import InvalidConfig, ResourceNotFound
from kreplica.common.messages.quotas import (
    MATCH_DEFAULT,
    MATCH_EXACT,
    AlterClientQuotasRequest,
    AlterQuotaEntryData,
    DescribeClientQuotasRequest,
    QuotaEntityData,
    QuotaFilterComponent,
    QuotaOpData,
)
from kreplica.metadata.client_quotas import CLIENT_ID_ENTITY, IP_ENTITY, USER_ENTITY, check_quota, quota_key

COLUMNS = ("user", "client-id", "ip", "quota", "value")
# What is shown for the default of a type, which no name can be.
DEFAULT = "<default>"
VERSIONS = range(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """Whose quotas a command is about: names, or the defaults of their types."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None
    default_user: bool = False
    default_client_id: bool = False
    default_ip: bool = False

    def components(self) -> list[tuple[str, str | None]]:
        """Return type and name of each component; None is the default. Raises InvalidConfig."""
        given = (
            (USER_ENTITY, self.user, self.default_user),
            (CLIENT_ID_ENTITY, self.client_id, self.default_client_id),
            (IP_ENTITY, self.ip, self.default_ip),
        )
        for kind, name, is_default in given:
            if name is not None and is_default:
                raise InvalidConfig(f"give either --{kind} or --default-{kind}")
        return [(kind, name) for kind, name, is_default in given if name is not None or is_default]


def list_quotas(bootstrap: str, entity: Entity, as_json: bool) -> int:
    """Print all quotas, or those of the entities with these components; returns the exit code."""
    with any_broker(bootstrap) as broker:
        found = _described(broker, entity, strict=False)
    print_facts("quotas", COLUMNS, [_fact(*each) for each in found], as_json)
    return 0


def set_quotas(bootstrap: str, entity: Entity, settings: Sequence[str], as_json: bool) -> int:
    """Set quotas, each given as NAME=VALUE; returns the exit code. Raises InvalidConfig."""
    key = quota_key(_required(entity))
    quotas = dict(map(_parsed, settings))
    for name, value in quotas.items():
        check_quota(key, name, value)
    ops = tuple(QuotaOpData(key=name, value=value) for name, value in quotas.items())
    with any_broker(bootstrap) as broker:
        _alter(broker, entity, ops)
    facts = [_fact(dict(key), name, value) for name, value in quotas.items()]
    print_facts("set quotas", COLUMNS, facts, as_json)
    return 0


def remove(bootstrap: str, entity: Entity, names: Sequence[str], as_json: bool) -> int:
    """Remove quotas of an entity, or all of them, and print them; returns the exit code.

    Raises InvalidConfig, ResourceNotFound if there is no such quota.
    """
    _required(entity)
    with any_broker(bootstrap) as broker:
        known = _described(broker, entity, strict=True)
        gone = [each for each in known if not names or each[1] in names]
        missing = set(names) - {name for _, name, _ in gone}
        if missing or not gone:
            named = ", ".join(sorted(missing))
            raise ResourceNotFound(
                f"the entity has no quota {named}" if named else "the entity has no quotas"
            )
        _alter(broker, entity, tuple(QuotaOpData(key=name, remove=True) for _, name, _ in gone))
    print_facts("removed quotas", COLUMNS, [_fact(*each) for each in gone], as_json)
    return 0


def _required(entity: Entity) -> list[tuple[str, str | None]]:
    found = entity.components()
    if not found:
        raise InvalidConfig(
            "name an entity: --user, --client-id, both, or --ip; or --default-user, --default-client-id,"
            " --default-ip"
        )
    return found


def _parsed(setting: str) -> tuple[str, float]:
    name, equals, text = setting.partition("=")
    try:
        value = float(text)
    except ValueError:
        equals = ""
    if not equals:
        raise InvalidConfig(f"{setting[:60]!r} must be NAME=VALUE, such as producer_byte_rate=1048576")
    return name.strip().replace("-", "_"), value


def _described(
    broker: KafkaConnection, entity: Entity, *, strict: bool
) -> list[tuple[dict[str, str | None], str, float]]:
    """Return entity, name and value of each quota. `strict`: of no entity with further components."""
    components = tuple(
        QuotaFilterComponent(
            entity_type=kind, match_type=MATCH_DEFAULT if name is None else MATCH_EXACT, match=name
        )
        for kind, name in entity.components()
    )
    answer = broker.ask_newest(DescribeClientQuotasRequest(components=components, strict=strict), VERSIONS)
    check(answer)
    return [
        ({each.entity_type: each.entity_name for each in found.entity}, value.key, value.value)
        for found in answer.entries or ()
        for value in found.values
    ]


def _alter(broker: KafkaConnection, entity: Entity, ops: tuple[QuotaOpData, ...]) -> None:
    components = tuple(
        QuotaEntityData(entity_type=kind, entity_name=name) for kind, name in entity.components()
    )
    entry = AlterQuotaEntryData(entity=components, ops=ops)
    answer = broker.ask_newest(AlterClientQuotasRequest(entries=(entry,)), VERSIONS)
    for result in answer.entries:
        check(result)


def _fact(entity: dict[str, str | None], name: str, value: float) -> Fact:
    shown = {
        kind: "" if kind not in entity else entity[kind] or DEFAULT
        for kind in (USER_ENTITY, CLIENT_ID_ENTITY, IP_ENTITY)
    }
    return {**shown, "quota": name, "value": int(value) if value.is_integer() else value}
