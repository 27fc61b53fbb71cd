"""Declarations of messages: their versions are those of kio, and each version has its own class."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from datetime import timedelta
from typing import Annotated, Any

import pytest

from kreplica.common.errors import UnsupportedVersion
from kreplica.common.message import (
    Int32,
    Message,
    Since,
    at,
    default_of,
    fields_of,
    in_version,
    replace,
    structure_of,
)
from kreplica.common.messages.data import FetchRequest, FetchTopic
from tests.support.messages import declared_kinds, kio_class

KINDS = declared_kinds()
REQUEST = FetchRequest(
    replica_id=3, max_wait=timedelta(0), min_bytes=1, topics=(FetchTopic(topic="t", partitions=()),)
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.__name__}-{kind.__version__}")
def test_a_declared_version_has_the_fields_of_kio_in_their_order(kind: type[Message]) -> None:
    theirs = kio_class(kind)
    present = [field for field in fields_of(kind) if field.is_in(kind.__version__)]
    assert [field.name for field in present] == [field.name for field in dataclasses.fields(theirs)]
    assert (kind.__api_key__, kind.__version__) == (theirs.__api_key__, theirs.__version__)
    assert kind.__flexible__ == theirs.__flexible__
    for field, declared in zip(present, dataclasses.fields(theirs), strict=True):
        assert field.tag == declared.metadata.get("tag")
        if declared.default is not dataclasses.MISSING and not dataclasses.is_dataclass(declared.default):
            assert default_of(field) == declared.default


def test_a_class_of_one_version_has_only_its_fields() -> None:
    old: Any = at(FetchRequest, 4)
    assert not hasattr(old, "session_id")
    assert [field.name for field in fields_of(structure_of(old, "topics"))] == ["topic", "partitions"]
    assert at(FetchRequest, 17) is FetchRequest
    with pytest.raises(UnsupportedVersion, match="FetchRequest version 18 is not declared"):
        at(FetchRequest, 18)


def test_a_message_in_another_version_keeps_the_fields_that_both_have() -> None:
    old: Any = in_version(REQUEST, 12)
    assert (old.__version__, old.replica_id, old.topics[0].topic) == (12, 3, "t")
    assert not hasattr(old.topics[0], "topic_id")


def test_a_message_is_a_value() -> None:
    assert pickle.loads(pickle.dumps(REQUEST)) == copy.deepcopy(REQUEST) == REQUEST
    assert hash(replace(REQUEST)) == hash(REQUEST)
    assert replace(REQUEST, min_bytes=2) != REQUEST
    assert "min_bytes=1" in repr(REQUEST)
    with pytest.raises(dataclasses.FrozenInstanceError):
        REQUEST.min_bytes = 2  # type: ignore[misc]


def test_a_field_that_some_versions_lack_needs_a_default() -> None:
    with pytest.raises(TypeError, match="give it a default"):
        fields_of(_Incomplete)


class _Incomplete(Message):
    added: Annotated[Int32, Since(2)]
