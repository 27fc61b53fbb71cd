"""Converts an entity of one version into the same entity of another, field by field.

Fields are copied by name. A field that the other version lacks is dropped. A new field gets the default of
Kafka's schema, or the value that means "not given". The only state is the plan for each pair of classes; any
thread may call.
"""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from kreplica.common.message_schema import default_of, kind_of
from kreplica.common.wire import maker

Convert = Callable[[Any], Any]


@lru_cache(None)
def converter(source: type[Any], target: type[Any]) -> Convert:
    """Return a function that makes a `target` from a `source`: two versions of one message or part of it."""
    if source is target:
        return unchanged
    given = {field.name: field for field in dataclasses.fields(source)}
    taken: list[tuple[str, Convert]] = []
    defaults: dict[str, Any] = {}
    for field in dataclasses.fields(target):
        name = field.name
        if name in given:
            taken.append((name, _field_converter(given[name], field)))
        else:
            defaults[name] = default_of(field)
    make: Callable[..., Any] = maker(target)

    def convert(message: Any) -> Any:
        return make(**defaults, **{name: of(getattr(message, name)) for name, of in taken})

    return convert


def unchanged(value: Any) -> Any:
    """Return the value."""
    return value


def _field_converter(given: dataclasses.Field[Any], wanted: dataclasses.Field[Any]) -> Convert:
    source, target = kind_of(given), kind_of(wanted)
    of: Convert = unchanged
    if source.entity is not None and target.entity is not None:
        of = converter(source.entity, target.entity)
    if target.is_array and of is not unchanged:
        of = _each(of)
    if source.is_nullable:
        return _or_default(of, None if target.is_nullable else default_of(wanted))
    return of


def _each(of: Convert) -> Convert:
    def convert(values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple([of(value) for value in values])

    return convert


def _or_default(of: Convert, default: Any) -> Convert:
    return lambda value: default if value is None else of(value)


def field_of(entity: type[Any], name: str) -> dataclasses.Field[Any]:
    """Return the entity's field with that name."""
    return next(field for field in dataclasses.fields(entity) if field.name == name)
