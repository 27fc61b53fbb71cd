"""Making kio's messages at the price of what they hold, and telling what their fields stand for.

An entity of the package kio is a frozen dataclass with slots, whose constructor takes a generic way round for
each of its fields. `maker` writes a constructor that sets the slots themselves: an equal entity in a third
of the time, which counts where each message of a follower's fetch is made for one record. Ids are kept, since
the same few topics come again with every message. Owns no state but these; any thread may call.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable
from functools import lru_cache
from typing import Any, ParamSpec, TypeVar

from kreplica.common.errors import BY_CODE, KreplicaError, UnknownServerError
from kreplica.common.types import Uuid

P = ParamSpec("P")
E = TypeVar("E")

# Topics that are spoken of at a time; more are only slower.
KEPT_IDS = 16_384


def maker(entity: Callable[P, E]) -> Callable[P, E]:
    """A function with the parameters of the dataclass `entity`, all by keyword, that makes one of it.

    Raises TypeError for a class that does more in its constructor than setting fields.
    """
    fields = dataclasses.fields(entity)  # type: ignore[arg-type]
    if hasattr(entity, "__post_init__") or any(
        field.default_factory is not dataclasses.MISSING or not field.init for field in fields
    ):
        raise TypeError(f"{entity!r} is made by more than setting its fields")
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
    """The id as a message holds it."""
    return uuid_of_bytes(topic_id.raw)


def topic_id_of(held: uuid.UUID | None) -> Uuid:
    """A message's id; Uuid.ZERO where it holds none."""
    return _topic_id_of(held.int) if held else Uuid.ZERO


def error_of(code: int, text: str | None = None) -> KreplicaError | None:
    """The exception for an error code of a response, with the text that came along; None for 0."""
    if code == 0:
        return None
    kind = BY_CODE.get(int(code), UnknownServerError)
    return kind(text) if text else kind()


@lru_cache(KEPT_IDS)
def uuid_of_bytes(raw: bytes) -> uuid.UUID:
    """The id that these bytes are."""
    return uuid.UUID(bytes=raw)


@lru_cache(KEPT_IDS)
def _topic_id_of(number: int) -> Uuid:
    return Uuid(number.to_bytes(Uuid.SIZE, "big"))
