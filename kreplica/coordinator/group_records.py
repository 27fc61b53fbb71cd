"""The records of __consumer_offsets, in Kafka 4.3's published schemas for groups of the classic protocol.

A key is an int16 type (0 and 1: an offset of a group, 2: a group) and a message. A value is an int16 schema
version and a message. A record without a value deletes what its key names. The bytes come from disk:
malformed ones raise InvalidRecord, unknown versions UnsupportedVersion. Records are immutable; threads may
share them.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, TypeAlias

from kreplica.common.errors import UnsupportedVersion
from kreplica.common.message import NEVER, Int32, Int64, Record, Since, Tag, Uuid
from kreplica.common.types import Uuid as KafkaUuid
from kreplica.coordinator.record_serde import decode, encode, prefix_of, shown

OFFSET_COMMIT_KINDS = (0, 1)
GROUP_METADATA_KIND = 2
HIGHEST_VERSION = 4
# All Kafka versions read this one; version 4, which 4.3 writes, adds the topic id.
WRITTEN_VERSION = 3


class OffsetCommitKey(Record):
    """The key of the offset that a group has committed for a partition."""

    FLEXIBLE_SINCE: ClassVar[int] = NEVER

    group: str
    topic: str
    partition: Int32


class OffsetCommitValue(Record):
    """A committed offset; times in ms since 1970. `expire_timestamp` is only set by clients before 0.9."""

    FLEXIBLE_SINCE: ClassVar[int] = 4

    offset: Int64
    leader_epoch: Annotated[Int32, Since(3)] = -1
    metadata: str
    commit_timestamp: Int64
    expire_timestamp: Annotated[Int64, Since(1, last=1)] = -1
    topic_id: Annotated[Uuid, Since(4), Tag(0)] = KafkaUuid.ZERO


class GroupMetadataKey(Record):
    """The key of a group."""

    FLEXIBLE_SINCE: ClassVar[int] = NEVER

    group: str


class MemberMetadata(Record):
    """A member of a group in one generation; timeouts in ms."""

    FLEXIBLE_SINCE: ClassVar[int] = 4

    member_id: str
    group_instance_id: Annotated[str | None, Since(3)] = None
    client_id: str
    client_host: str
    rebalance_timeout: Annotated[Int32, Since(1)] = 0
    session_timeout: Int32
    subscription: bytes
    assignment: bytes


class GroupMetadataValue(Record):
    """A group in one generation, with its members' assignments."""

    FLEXIBLE_SINCE: ClassVar[int] = 4

    protocol_type: str
    generation: Int32
    protocol: str | None
    leader: str | None
    current_state_timestamp: Annotated[Int64, Since(2)] = -1
    members: tuple[MemberMetadata, ...]


Key: TypeAlias = OffsetCommitKey | GroupMetadataKey
Value: TypeAlias = OffsetCommitValue | GroupMetadataValue


def encode_key(key: Key) -> bytes:
    """Encode a key. Raises InvalidRecord for a name that is too long."""
    kind = GROUP_METADATA_KIND if isinstance(key, GroupMetadataKey) else OFFSET_COMMIT_KINDS[-1]
    return encode(kind, 0, key)


def encode_value(value: Value, version: int = WRITTEN_VERSION) -> bytes:
    """Encode a value. Raises InvalidRecord, and UnsupportedVersion for a field that the version lacks."""
    return encode(version, version, value)


def decode_key(data: bytes) -> Key | None:
    """Decode a key; None for record types of other groups than those of the classic protocol."""
    kind = prefix_of(data)
    if kind in OFFSET_COMMIT_KINDS:
        return decode(data, OffsetCommitKey, 0)
    return decode(data, GroupMetadataKey, 0) if kind == GROUP_METADATA_KIND else None


def decode_value(key: Key, data: bytes) -> Value:
    """Decode the value of a record with that key."""
    version = prefix_of(data)
    if not 0 <= version <= HIGHEST_VERSION:
        raise UnsupportedVersion(f"version {version} of the value of {type(key).__name__} is unknown")
    if isinstance(key, OffsetCommitKey):
        return decode(data, OffsetCommitValue, version)
    return decode(data, GroupMetadataValue, version)


def to_json(key_data: bytes, data: bytes | None) -> dict[str, object] | None:
    """Return a record's type, value version, key and value, in the form of Kafka's tools.

    Version and value are None for a tombstone. Returns None for an unknown type. Raises what `decode_key` and
    `decode_value` raise.
    """
    key = decode_key(key_data)
    if key is None:
        return None
    name = "OffsetCommit" if isinstance(key, OffsetCommitKey) else "GroupMetadata"
    if data is None:
        return shown(name, key, None, None)
    return shown(name, key, decode_value(key, data), prefix_of(data))
