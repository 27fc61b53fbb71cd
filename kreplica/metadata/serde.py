"""Encodes and decodes the value of a record in the metadata log: a frame around a message.

    frame version   unsigned varint, 1
    api key         unsigned varint: the kind of record
    version         unsigned varint: its schema version
    message         see kreplica.common.message

Bytes come from disks and other nodes and are not trusted: truncated data, trailing bytes or a length out of
bounds raise InvalidRecord; an unknown frame version, kind or version raises UnsupportedVersion.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from kreplica._core.message_reader import MessageReader
from kreplica._core.varint import encode_unsigned_varint
from kreplica.common import message as messages
from kreplica.common.errors import InvalidRecord, InvalidRequest, UnknownMetadataRecord, UnsupportedVersion
from kreplica.metadata.records import RECORDS, MetadataRecord

if TYPE_CHECKING:
    from typing_extensions import Buffer

FRAME_VERSION = 1

R = TypeVar("R", bound=MetadataRecord, covariant=True)
S = TypeVar("S", bound=MetadataRecord)

# (kind, version) -> the frame before a record.
_FRAMES: dict[tuple[type[MetadataRecord], int], bytes] = {}
# For each kind the fields that its first version lacks, sorted by descending version.
_LATER_FIELDS: dict[type[MetadataRecord], list[messages.Field]] = {}


class ApiMessageAndVersion(NamedTuple, Generic[R]):
    """A record and the schema version in which it is written."""

    message: R
    version: int


def in_lowest_version(message: S) -> ApiMessageAndVersion[S]:
    """Return the record with the lowest version of its schema that has every field which is set."""
    kind = type(message)
    later = _LATER_FIELDS.get(kind)
    if later is None:
        fields = [field for field in messages.fields_of(kind) if field.since]
        later = _LATER_FIELDS[kind] = sorted(fields, key=lambda field: -field.since)
    for field in later:
        if getattr(message, field.name) != field.default:
            return ApiMessageAndVersion(message, field.since)
    return ApiMessageAndVersion(message, 0)


def encode(message: MetadataRecord, version: int) -> bytes:
    """Encode a record as a value of the log.

    Raises InvalidRecord if a value does not fit its field, UnsupportedVersion for an unknown version, or one
    that lacks a field which is set.
    """
    kind = type(message)
    frame = _FRAMES.get((kind, version))
    if frame is None:
        numbers = (FRAME_VERSION, kind.API_KEY, _checked(kind, version))
        frame = _FRAMES[kind, version] = b"".join(encode_unsigned_varint(number) for number in numbers)
    return messages.encode(message, version, frame)


def decode(value: Buffer) -> ApiMessageAndVersion[MetadataRecord]:
    """Decode a value of the log.

    Raises InvalidRecord, UnsupportedVersion, or UnknownMetadataRecord for an unknown api key.
    """
    reader = MessageReader(value)
    try:
        frame_version = reader.unsigned_varint()
        if frame_version != FRAME_VERSION:
            raise UnsupportedVersion(f"frame version {frame_version} of a metadata record is not supported")
        api_key, version = reader.unsigned_varint(), reader.unsigned_varint()
    except InvalidRequest as error:
        raise InvalidRecord(f"the frame of a metadata record: {error}", where=error.where) from None
    kind = RECORDS.get(api_key)
    if kind is None:
        raise UnknownMetadataRecord(f"a metadata record has the unknown api key {api_key}")
    return ApiMessageAndVersion(
        messages.decode(kind, _checked(kind, version), value, reader.position), version
    )


def to_json(record: ApiMessageAndVersion[MetadataRecord]) -> dict[str, object]:
    """Return the record as Kafka's DumpLogSegments shows it: its `type`, `version` and `data`."""
    kind = type(record.message)
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).upper()
    data = messages.to_json(record.message, _checked(kind, record.version))
    return {"type": name, "version": record.version, "data": data}


def _checked(kind: type[MetadataRecord], version: int) -> int:
    if not 0 <= version <= kind.HIGHEST_VERSION:
        raise UnsupportedVersion(
            f"{kind.__name__} version {version} is not supported; supported are 0 to {kind.HIGHEST_VERSION}"
        )
    return version
