"""Converts the ids and error codes in messages.

Ids are cached, since messages repeat the same few topics. No state but these caches; any thread may call.
"""

from __future__ import annotations

import uuid
from datetime import timedelta
from functools import lru_cache

from kreplica.common.errors import BY_CODE, KreplicaError, UnknownServerError
from kreplica.common.message import KEPT_IDS, uuid_of_bytes
from kreplica.common.types import Uuid

# The field throttle_time of a response that does not slow its client down.
NO_THROTTLE = timedelta(0)


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
def _topic_id_of(number: int) -> Uuid:
    return Uuid(number.to_bytes(Uuid.SIZE, "big"))
