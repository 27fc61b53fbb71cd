"""Creates kio messages quickly, and converts their ids and error codes.

An entity of the package kio is a frozen dataclass with slots; its generic constructor is slow for each field.
`maker` generates a constructor that sets the slots directly: an equal entity in a third of the time, which
matters for messages created once per record of a fetch. Ids are cached, since messages repeat the same few
topics. No state but these caches; any thread may call.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache
from typing import Any, ParamSpec, TypeVar

from kreplica.common.errors import BY_CODE, KreplicaError, UnknownServerError
from kreplica.common.types import Uuid

P = ParamSpec("P")
E = TypeVar("E")

# The field throttle_time of a response that does not slow its client down.
NO_THROTTLE = timedelta(0)

# Cached topic ids; with more topics in use, conversion is only slower.
KEPT_IDS = 16_384


def maker(entity: Callable[P, E]) -> Callable[P, E]:
    """Return a function that creates dataclass `entity` from keyword arguments, faster than its constructor.

    Raises TypeError for a class whose constructor does more than set fields.
    """
    fields = dataclasses.fields(entity)  # type: ignore[arg-type]
    if hasattr(entity, "__post_init__") or any(
        field.default_factory is not dataclasses.MISSING or not field.init for field in fields
    ):
        raise TypeError(f"{entity!r} cannot be built from its fields alone: its constructor does more")
    scope: dict[str, Any] = {"new": object.__new__, "entity": entity}
    parameters, steps = [], []
    for field in fields:
        name = field.name
        scope[f"set_{name}"] = getattr(entity, name).__set__
        steps.append(f"    set_{name}(made, {name})\n")
        if field.default is dataclasses.MISSING:
            parameters.append(name)
        else:
            scope[f"default_{name}"] = field.default
            parameters.append(f"{name}=default_{name}")
    given = f"*, {', '.join(parameters)}" if parameters else ""
    source = f"def make({given}):\n    made = new(entity)\n{''.join(steps)}    return made\n"
    exec(source, scope)
    make: Callable[P, E] = scope["make"]
    return make


def uuid_of(topic_id: Uuid) -> uuid.UUID:
    """Return the id as a message holds it."""
    return uuid_of_bytes(topic_id.raw)


def topic_id_of(held: uuid.UUID | None) -> Uuid:
    """Return a message's id as a Uuid; Uuid.ZERO if it is None."""
    return _topic_id_of(held.int) if held else Uuid.ZERO


def error_of(code: int, text: str | None = None) -> KreplicaError | None:
    """Return the exception for a response's error code, with its message; None for code 0."""
    if code == 0:
        return None
    kind = BY_CODE.get(int(code), UnknownServerError)
    return kind(text) if text else kind()


@lru_cache(KEPT_IDS)
def uuid_of_bytes(raw: bytes) -> uuid.UUID:
    """Return the UUID of these 16 bytes."""
    return uuid.UUID(bytes=raw)


@lru_cache(KEPT_IDS)
def _topic_id_of(number: int) -> Uuid:
    return Uuid(number.to_bytes(Uuid.SIZE, "big"))
