"""The records of __consumer_offsets, as Kafka 4.3 publishes their schemas for groups of the classic protocol.

A key is an int16 that tells its kind (0 and 1: an offset of a group, 2: a group) and a message; a value is an
int16, the version of its schema, and a message. A record without a value takes back what its key names.
Bytes come from disks: what does not fit is an InvalidRecord, a version that is not known an
UnsupportedVersion. Records are immutable; any thread may share them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeAlias, TypeVar

from kreplica.common.errors import InvalidRecord, UnsupportedVersion
from kreplica.common.types import Uuid as KafkaUuid
from kreplica.metadata.message import Message, Since, Structure, Tag, layout_of
from kreplica.metadata.records import Bytes, Int32, Int64, NullableString, String, Uuid
from kreplica.metadata.wire_types import Array, ByteReader

NEVER = 1 << 15
OFFSET_COMMIT_KINDS = (0, 1)
GROUP_METADATA_KIND = 2
HIGHEST_VERSION = 4
# What every Kafka reads; 4, which 4.3 writes, has the topic's id besides.
WRITTEN_VERSION = 3
_PREFIX = struct.Struct(">h")


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitKey(Message):
    """Names the offset that a group has committed for a partition."""

    FLEXIBLE_SINCE: ClassVar[int] = NEVER

    group: String
    topic: String
    partition: Int32


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitValue(Message):
    """A committed offset; times in ms since 1970. `expire_timestamp` is of clients older than 0.9."""

    FLEXIBLE_SINCE: ClassVar[int] = 4

    offset: Int64
    leader_epoch: Annotated[Int32, Since(3)] = -1
    metadata: String
    commit_timestamp: Int64
    expire_timestamp: Annotated[Int64, Since(1, last=1)] = -1
    topic_id: Annotated[Uuid, Since(4), Tag(0)] = KafkaUuid.ZERO


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadataKey(Message):
    """Names a group."""

    FLEXIBLE_SINCE: ClassVar[int] = NEVER

    group: String


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberMetadata(Message):
    """A member of a group in one generation; timeouts in ms."""

    FLEXIBLE_SINCE: ClassVar[int] = 4

    member_id: String
    group_instance_id: Annotated[NullableString, Since(3)] = None
    client_id: String
    client_host: String
    rebalance_timeout: Annotated[Int32, Since(1)] = 0
    session_timeout: Int32
    subscription: Bytes
    assignment: Bytes


Members: TypeAlias = Annotated[tuple[MemberMetadata, ...], Array(Structure(MemberMetadata))]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadataValue(Message):
    """A group in one generation, with what its members have to do."""

    FLEXIBLE_SINCE: ClassVar[int] = 4

    protocol_type: String
    generation: Int32
    protocol: NullableString
    leader: NullableString
    current_state_timestamp: Annotated[Int64, Since(2)] = -1
    members: Members


Key: TypeAlias = OffsetCommitKey | GroupMetadataKey
Value: TypeAlias = OffsetCommitValue | GroupMetadataValue
M = TypeVar("M", bound=Message)


def encode_key(key: Key) -> bytes:
    """The key's bytes. Raises InvalidRecord where a name does not fit."""
    kind = GROUP_METADATA_KIND if isinstance(key, GroupMetadataKey) else OFFSET_COMMIT_KINDS[-1]
    return _encode(kind, 0, key)


def encode_value(value: Value, version: int = WRITTEN_VERSION) -> bytes:
    """The value's bytes. Raises InvalidRecord, and UnsupportedVersion for a field that it has not."""
    return _encode(version, version, value)


def decode_key(data: bytes) -> Key | None:
    """The key; None for a kind of other groups than those of the classic protocol."""
    kind = _prefix(data)
    if kind in OFFSET_COMMIT_KINDS:
        return _decode(data, OffsetCommitKey, 0)
    return _decode(data, GroupMetadataKey, 0) if kind == GROUP_METADATA_KIND else None


def decode_value(key: Key, data: bytes) -> Value:
    """The value of a record with that key."""
    version = _prefix(data)
    if not 0 <= version <= HIGHEST_VERSION:
        raise UnsupportedVersion(f"version {version} of the value of {type(key).__name__}")
    if isinstance(key, OffsetCommitKey):
        return _decode(data, OffsetCommitValue, version)
    return _decode(data, GroupMetadataValue, version)


def to_json(key_data: bytes, data: bytes | None) -> dict[str, object] | None:
    """A record's type, its value's version, key and value, as Kafka's tools show them; no version and value
    where it takes something back. None for a kind that is not known. Raises as `decode_key`, `decode_value`.
    """
    key = decode_key(key_data)
    if key is None:
        return None
    shown: dict[str, object] = {
        "type": "OffsetCommit" if isinstance(key, OffsetCommitKey) else "GroupMetadata",
        "version": None,
        "key": layout_of(type(key), 0).to_json(key),
        "data": None,
    }
    if data is not None:
        value, version = decode_value(key, data), _prefix(data)
        shown |= {"version": version, "data": layout_of(type(value), version).to_json(value)}
    return shown


def _encode(prefix: int, version: int, message: Message) -> bytes:
    out = bytearray(_PREFIX.pack(prefix))
    layout_of(type(message), version).write(out, message)
    return bytes(out)


def _prefix(data: bytes) -> int:
    kind: int = ByteReader(data).unpack(_PREFIX)[0]
    return kind


def _decode(data: bytes, kind: type[M], version: int) -> M:
    reader = ByteReader(data)
    reader.take(_PREFIX.size)
    message = layout_of(kind, version).read(reader)
    if reader.left:
        raise InvalidRecord(f"{reader.left} bytes behind a {kind.__name__}", where=reader.position)
    return message
