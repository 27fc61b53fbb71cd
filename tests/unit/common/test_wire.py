"""Messages made field by field: equal to those of their own constructors."""

from __future__ import annotations

import dataclasses
import uuid
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica.common.dataclass import MISSING
from kreplica.common.error_code import ErrorCode
from kreplica.common.message import at, fields_of, maker
from kreplica.common.messages import data
from kreplica.common.messages.data import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResponseEpochEndOffset,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from kreplica.common.types import Uuid
from kreplica.common.wire import topic_id_of, uuid_of

ApiVersionsRequest: Any = at(data.ApiVersionsRequest, 0)

ENTITIES = [
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ReplicaState,
    FetchResponseEpochEndOffset,
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
]
VALUES = st.one_of(
    st.integers(), st.none(), st.binary(), st.just(timedelta(1)), st.just(ErrorCode.none), st.uuids()
)


@pytest.mark.parametrize("entity", ENTITIES)
@given(data=st.data())
def test_a_made_entity_is_what_its_constructor_makes(entity: Any, data: st.DataObject) -> None:
    given_ = {
        field.name: data.draw(VALUES)
        for field in fields_of(entity)
        if field.default is MISSING or data.draw(st.booleans())
    }
    made, constructed = maker(entity)(**given_), entity(**given_)
    assert type(made) is type(constructed)
    assert made == constructed
    assert repr(made) == repr(constructed)
    assert hash(made) == hash(constructed)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made, fields_of(entity)[0].name, 1)


def test_an_entity_without_fields_is_made_too() -> None:
    assert maker(ApiVersionsRequest)() == ApiVersionsRequest()


def test_what_is_missing_or_unknown_is_refused() -> None:
    make = maker(ReplicaState)
    assert make() == ReplicaState()
    with pytest.raises(TypeError):
        make(replica=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        maker(FetchTopic)()  # type: ignore[call-arg]


@given(st.binary(min_size=16, max_size=16))
def test_ids_there_and_back(raw: bytes) -> None:
    assert uuid_of(Uuid(raw)) == uuid.UUID(bytes=raw)
    assert topic_id_of(uuid.UUID(bytes=raw)) == Uuid(raw)


def test_no_id_is_zero() -> None:
    assert topic_id_of(None) == Uuid.ZERO
