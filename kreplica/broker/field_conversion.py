"""Turning an entity of one version into the same entity of another, field by field.

Fields are taken over by name. One that the other version does not have is left out, and one that is new gets
the default of Kafka's schema, or what such a field holds where nothing is said. Owns no state but the plans,
one for each pair of classes; any thread may call.
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
    """What makes a `target` of a `source`, two versions of one message or of one part of it."""
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
    """The value itself."""
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
    """The entity's field of that name."""
    return next(field for field in dataclasses.fields(entity) if field.name == name)
