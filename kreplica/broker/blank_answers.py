"""Answers without a handler: those that refuse a request, or one element of it.

Every field that is not given is neutral: its declared default, null, or else -1, false or empty. No state.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from kreplica.broker.api_versions import response_type
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import KreplicaError
from kreplica.common.message import Field, Message, default_of, fields_of, structure_of

# What names an element of a request, and its answer.
IDS = (*("name", "topic", "topic_name", "topic_id", "group_id"), "resource_type", "resource_name")
# What numbers a partition.
NUMBERS = ("index", "partition_index", "partition", "partition_id")
INTEGERS = frozenset({"int8", "int16", "int32", "int64"})


def blank(kind: Any, **values: Any) -> Any:
    """Return a message with these values."""
    return kind(**{**_neutral(kind), **values})


def refused_whole(request: Message, error: KreplicaError, **values: Any) -> Any:
    """Return the answer that refuses a whole request and has a field for that."""
    kind = response_type(request.__api_key__, request.__version__)
    return blank(kind, **_error_in(kind, error), **values)


def refused_element(kind: Any, asked: Any, error: KreplicaError) -> Any:
    """Return the answer of class `kind` that refuses the element `asked` of a request, such as a topic.

    If the answer has no error of its own, each of its partitions has it.
    """
    known = _names(kind)
    values = {name: getattr(asked, name) for name in IDS if name in known and hasattr(asked, name)}
    if "error_code" in known:
        return blank(kind, **values, **_error_in(kind, error))
    parts = next(field.name for field in fields_of(kind) if field.is_array and field.structure is not None)
    part = structure_of(kind, parts)
    number = next(name for name in NUMBERS if name in _names(part))
    values[parts] = tuple(
        blank(part, **{number: each}, **_error_in(part, error)) for each in partition_numbers(asked)
    )
    return blank(kind, **values)


def partition_numbers(topic: Any) -> tuple[int, ...]:
    """Return the numbers of the partitions that a topic of a request names."""
    parts = next(field.name for field in fields_of(type(topic)) if field.is_array)
    return tuple(each if isinstance(each, int) else _number(each) for each in getattr(topic, parts))


def _number(part: Any) -> int:
    found: int = next(getattr(part, name) for name in NUMBERS if hasattr(part, name))
    return found


def _error_in(kind: Any, error: KreplicaError) -> dict[str, Any]:
    names = _names(kind)
    field = next(name for name in ("error_code", "partition_error_code") if name in names)
    values: dict[str, Any] = {field: ErrorCode(error.code)}
    if "error_message" in names:
        values["error_message"] = str(error)
    return values


@lru_cache(None)
def _names(kind: Any) -> frozenset[str]:
    return frozenset(field.name for field in fields_of(kind))


@lru_cache(None)
def _neutral(kind: Any) -> dict[str, Any]:
    return {field.name: _neutral_value(field) for field in fields_of(kind)}


def _neutral_value(field: Field) -> Any:
    if default_of(field) != 0 or field.is_nullable or field.is_array:
        return default_of(field)
    if field.structure is not None:
        return blank(field.structure)
    assert field.kind is not None
    return -1 if field.kind.name in INTEGERS else default_of(field)
