"""Quotas of clients: altered, each entity with a result of its own, and described through filters."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica.common.error_code import ErrorCode
from kreplica.common.messages.quotas import (
    AlterClientQuotasRequest,
    AlterQuotaEntryData,
    DescribeClientQuotasRequest,
    QuotaEntityData,
    QuotaFilterComponent,
    QuotaOpData,
)
from kreplica.controller.client_quota_control import ClientQuotaControl, describe_quotas
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.records import ClientQuotaRecord

INVALID, NONE = ErrorCode.invalid_request, ErrorCode.none
Entity = dict[str, str | None]


def entry(entity: Entity, *ops: QuotaOpData, **quotas: float | None) -> AlterQuotaEntryData:
    """The change of an entity to these quotas; None removes one."""
    made = [QuotaOpData(key=key, value=value or 0.0, remove=value is None) for key, value in quotas.items()]
    return AlterQuotaEntryData(entity=components(entity), ops=(*ops, *made))


def components(entity: Entity) -> tuple[QuotaEntityData, ...]:
    return tuple(QuotaEntityData(entity_type=kind, entity_name=name) for kind, name in entity.items())


def alter(
    metadata: ClusterMetadata, *entries: AlterQuotaEntryData, validate_only: bool = False
) -> tuple[list[Any], list[ErrorCode]]:
    """The records to write, which are applied, and the result of each entity."""
    request = AlterClientQuotasRequest(entries=entries, validate_only=validate_only)
    result = ClientQuotaControl(metadata).alter(request)
    for record in result.records:
        metadata.replay(*record)
    assert [each.entity for each in result.response.entries] == [each.entity for each in entries]
    return [each.message for each in result.records], [each.error_code for each in result.response.entries]


def describe(
    metadata: ClusterMetadata, *wanted: tuple[str, int, str | None], strict: bool = False
) -> list[tuple[Entity, dict[str, float]]]:
    answer = describe_quotas(request_of(*wanted, strict=strict), metadata)
    assert answer.error_code == NONE
    return [
        (
            {each.entity_type: each.entity_name for each in found.entity},
            {each.key: each.value for each in found.values},
        )
        for found in answer.entries or ()
    ]


def request_of(*wanted: tuple[str, int, str | None], strict: bool = False) -> DescribeClientQuotasRequest:
    return DescribeClientQuotasRequest(
        components=tuple(
            QuotaFilterComponent(entity_type=kind, match_type=match_type, match=match)
            for kind, match_type, match in wanted
        ),
        strict=strict,
    )


def test_quotas_are_set_changed_and_removed() -> None:
    metadata = ClusterMetadata()
    alice = {"user": "alice"}
    assert alter(metadata, entry(alice, producer_byte_rate=1000.0, request_percentage=12.5))[1] == [NONE]
    assert metadata.quotas == {
        (("user", "alice"),): {"producer_byte_rate": 1000.0, "request_percentage": 12.5}
    }
    alter(metadata, entry(alice, producer_byte_rate=None, request_percentage=50.0))
    assert metadata.quotas == {(("user", "alice"),): {"request_percentage": 50.0}}
    alter(metadata, entry(alice, request_percentage=None))
    assert metadata.quotas == {}


def test_an_unchanged_quota_writes_no_record() -> None:
    metadata = ClusterMetadata()
    both = {"user": None, "client-id": "reader"}
    records, _ = alter(metadata, entry(both, consumer_byte_rate=5.0))
    assert len(records) == 1
    assert alter(metadata, entry(both, consumer_byte_rate=5.0, producer_byte_rate=None)) == ([], [NONE])


def test_validate_only_checks_and_writes_nothing() -> None:
    metadata = ClusterMetadata()
    assert alter(
        metadata,
        entry({"user": "alice"}, consumer_byte_rate=5.0),
        entry({"user": "bob"}, consumer_byte_rate=-5.0),
        validate_only=True,
    ) == ([], [NONE, INVALID])
    assert metadata.quotas == {}


@pytest.mark.parametrize(
    "refused",
    [
        entry({}, consumer_byte_rate=1.0),
        entry({"user": ""}, consumer_byte_rate=1.0),
        entry({"ip": "10.0.0.1", "user": "alice"}, connection_creation_rate=1.0),
        entry({"user": "alice"}, no_such_rate=1.0),
        entry({"user": "alice"}, request_percentage=math.nan),
        entry({"user": "alice"}, request_percentage=math.inf),
        entry({"user": "alice"}, consumer_byte_rate=0.5),
        entry({"user": "alice"}, QuotaOpData(key="consumer_byte_rate", value=1.0), consumer_byte_rate=2.0),
    ],
)
def test_an_entity_that_is_refused_leaves_the_others(refused: AlterQuotaEntryData) -> None:
    metadata = ClusterMetadata()
    bob = entry({"user": "bob"}, consumer_byte_rate=5.0)
    records, codes = alter(metadata, refused, bob)
    assert codes == [INVALID, NONE]
    assert len(records) == 1
    assert isinstance(records[0], ClientQuotaRecord)
    assert list(metadata.quotas) == [(("user", "bob"),)]


def test_an_entity_that_is_named_twice_in_any_order_is_refused() -> None:
    metadata = ClusterMetadata()
    records, codes = alter(
        metadata,
        entry({"user": "alice", "client-id": "x"}, consumer_byte_rate=1.0),
        entry({"client-id": "x", "user": "alice"}, consumer_byte_rate=2.0),
    )
    assert (records, codes) == ([], [INVALID, INVALID])


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ([("", 2, None)], INVALID),
        ([("user", 2, None), ("user", 1, None)], INVALID),
        ([("ip", 2, None), ("user", 1, None)], INVALID),
        ([("user", 0, None)], INVALID),
        ([("user", 1, "alice")], INVALID),
        ([("user", 3, None)], ErrorCode.unsupported_version),
        ([("topic", 2, None)], ErrorCode.unsupported_version),
    ],
)
def test_impossible_filters_are_refused(wanted: list[tuple[str, int, str | None]], code: ErrorCode) -> None:
    answer = describe_quotas(request_of(*wanted), ClusterMetadata())
    assert (answer.error_code, answer.entries) == (code, None)


NAMES = st.sampled_from([None, "a", "b"])
ENTITIES = st.fixed_dictionaries({}, optional={"user": NAMES, "client-id": NAMES}).filter(bool)
MATCHES = st.sampled_from([(0, "a"), (0, "b"), (1, None), (2, None)])


@given(
    st.lists(ENTITIES, max_size=6, unique_by=lambda each: tuple(sorted(each.items(), key=str))),
    st.fixed_dictionaries({}, optional={"user": MATCHES, "client-id": MATCHES}),
    st.booleans(),
)
def test_filters_match_as_a_slow_model_does(
    entities: list[Entity], wanted: dict[str, tuple[int, str | None]], strict: bool
) -> None:
    metadata = ClusterMetadata()
    alter(metadata, *(entry(each, consumer_byte_rate=9.0) for each in entities))

    def is_wanted(entity: Entity) -> bool:
        for kind in ("user", "client-id"):
            if kind not in wanted:
                if strict and kind in entity:
                    return False
                continue
            match_type, match = wanted[kind]
            if kind not in entity:
                return False
            if match_type == 0 and entity[kind] != match:
                return False
            if match_type == 1 and entity[kind] is not None:
                return False
            if match_type == 2 and entity[kind] is None:
                return False
        return True

    found = describe(metadata, *((kind, *each) for kind, each in wanted.items()), strict=strict)
    key = str
    expected = sorted((dict(sorted(each.items())) for each in entities if is_wanted(each)), key=key)
    assert sorted((dict(sorted(entity.items())) for entity, _ in found), key=key) == expected
