"""Messages made field by field: equal to those of their own constructors."""

from __future__ import annotations

import dataclasses
import uuid
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.api_versions.v0.request import ApiVersionsRequest
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v17 import request, response

from kreplica.common.types import Uuid
from kreplica.common.wire import maker, topic_id_of, uuid_of

ENTITIES = [
    request.FetchPartition,
    request.FetchRequest,
    request.FetchTopic,
    request.ReplicaState,
    response.EpochEndOffset,
    response.FetchableTopicResponse,
    response.FetchResponse,
    response.PartitionData,
]
VALUES = st.one_of(
    st.integers(), st.none(), st.binary(), st.just(timedelta(1)), st.just(ErrorCode.none), st.uuids()
)


@pytest.mark.parametrize("entity", ENTITIES)
@given(data=st.data())
def test_a_made_entity_is_what_its_constructor_makes(entity: Any, data: st.DataObject) -> None:
    given_ = {
        field.name: data.draw(VALUES)
        for field in dataclasses.fields(entity)
        if field.default is dataclasses.MISSING or data.draw(st.booleans())
    }
    made, constructed = maker(entity)(**given_), entity(**given_)
    assert type(made) is type(constructed)
    assert made == constructed
    assert repr(made) == repr(constructed)
    assert hash(made) == hash(constructed)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made, dataclasses.fields(entity)[0].name, 1)


def test_an_entity_without_fields_is_made_too() -> None:
    assert maker(ApiVersionsRequest)() == ApiVersionsRequest()


def test_what_is_missing_or_unknown_is_refused() -> None:
    make = maker(request.ReplicaState)
    assert make() == request.ReplicaState()
    with pytest.raises(TypeError):
        make(replica=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        maker(request.FetchTopic)()  # type: ignore[call-arg]


@dataclasses.dataclass(frozen=True, slots=True)
class Checked:
    number: int

    def __post_init__(self) -> None:
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, slots=True)
class Listing:
    numbers: list[int] = dataclasses.field(default_factory=list)


@pytest.mark.parametrize("entity", [Checked, Listing])
def test_a_class_that_does_more_is_refused(entity: Any) -> None:
    with pytest.raises(TypeError):
        maker(entity)


@given(st.binary(min_size=16, max_size=16))
def test_ids_there_and_back(raw: bytes) -> None:
    assert uuid_of(Uuid(raw)) == uuid.UUID(bytes=raw)
    assert topic_id_of(uuid.UUID(bytes=raw)) == Uuid(raw)


def test_no_id_is_zero() -> None:
    assert topic_id_of(None) == Uuid.ZERO
