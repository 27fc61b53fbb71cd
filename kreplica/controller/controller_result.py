"""ControllerResult: the records that an operation of the controller writes, and its response. Immutable."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from kreplica.metadata.records import MetadataRecord
from kreplica.metadata.serde import ApiMessageAndVersion

T = TypeVar("T")
Records = tuple[ApiMessageAndVersion[MetadataRecord], ...]


class ControllerResult(NamedTuple, Generic[T]):
    """The records are written atomically. `response` is sent once they are committed."""

    records: Records
    response: T
