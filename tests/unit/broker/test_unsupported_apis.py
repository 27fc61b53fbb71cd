"""Unsupported APIs: each request gets a response that can be encoded and has Kafka's error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica.broker.api_versions import API_RANGES, request_type, response_type
from kreplica.broker.unsupported_apis import HANDLERS
from kreplica.common.error_code import ErrorCode
from kreplica.common.message import Message, fields_of
from tests.support.messages import messages
from tests.support.versions import answered, received

SAID = {
    ErrorCode.illegal_sasl_state,
    ErrorCode.security_disabled,
    ErrorCode.unsupported_version,
}


def codes(entity: Any) -> Iterator[ErrorCode]:
    """Every error code in the entity."""
    for field in fields_of(type(entity)):
        value = getattr(entity, field.name)
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, ErrorCode):
                yield each
            elif isinstance(each, Message):
                yield from codes(each)


@pytest.mark.parametrize("kind", HANDLERS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_whatever_is_asked_is_refused(kind: type[Any], data: st.DataObject) -> None:
    api = API_RANGES[kind.__api_key__]
    assert request_type(api.api_key, api.handled) is kind
    version = data.draw(st.integers(api.first_read, api.max_version))
    request = data.draw(messages(request_type(api.api_key, version)))
    upgraded, remembered = received(request, None)
    answer = answered(HANDLERS[kind](upgraded).result(0), version, remembered)
    assert type(answer) is response_type(api.api_key, version)
    assert set(codes(answer)) <= SAID
