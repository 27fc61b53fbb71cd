"""ControllerResult: what a controller's operation wants written, and what it answers then. Immutable."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from kreplica.metadata.records import MetadataRecord
from kreplica.metadata.serde import ApiMessageAndVersion

T = TypeVar("T")
Records = tuple[ApiMessageAndVersion[MetadataRecord], ...]


class ControllerResult(NamedTuple, Generic[T]):
    """The records are written at once or not at all; `response` is given once they are committed."""

    records: Records
    response: T
