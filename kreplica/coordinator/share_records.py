"""The records of __share_group_state, in Kafka 4.3's published schemas.

A key is an int16 type (0: a snapshot, 1: an update) and the name of a share group's partition; a value is an
int16 schema version and a message. A snapshot without a value forgets the partition. An update changes the
snapshot of the same epoch. The bytes come from disk: malformed ones raise InvalidRecord, unknown versions
UnsupportedVersion. Records are immutable; threads may share them.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, TypeAlias

from kreplica.common.errors import UnsupportedVersion
from kreplica.common.message import NEVER, Int8, Int16, Int32, Int64, Record, Tag, Uuid
from kreplica.coordinator.record_serde import decode, encode, prefix_of, shown

SNAPSHOT_KIND, UPDATE_KIND = 0, 1
VERSION = 0


class ShareSnapshotKey(Record):
    """The key of a snapshot, and of its tombstone."""

    FLEXIBLE_SINCE: ClassVar[int] = NEVER

    group_id: str
    topic_id: Uuid
    partition: Int32


class ShareUpdateKey(Record):
    """The key of an update."""

    FLEXIBLE_SINCE: ClassVar[int] = NEVER

    group_id: str
    topic_id: Uuid
    partition: Int32


class StateBatch(Record):
    """Records in one state."""

    FLEXIBLE_SINCE: ClassVar[int] = 0

    first_offset: Int64
    last_offset: Int64
    delivery_state: Int8
    delivery_count: Int16


class ShareSnapshotValue(Record):
    """The whole state of a partition; timestamps in ms since 1970."""

    FLEXIBLE_SINCE: ClassVar[int] = 0

    snapshot_epoch: Int32
    state_epoch: Int32
    leader_epoch: Int32
    start_offset: Int64
    delivery_complete_count: Annotated[Int32, Tag(0)] = -1
    create_timestamp: Int64
    write_timestamp: Int64
    state_batches: tuple[StateBatch, ...]


class ShareUpdateValue(Record):
    """A change of the snapshot with that epoch; a start offset of -1 leaves it as it is."""

    FLEXIBLE_SINCE: ClassVar[int] = 0

    snapshot_epoch: Int32
    leader_epoch: Int32
    start_offset: Int64
    delivery_complete_count: Annotated[Int32, Tag(0)] = -1
    state_batches: tuple[StateBatch, ...]


Key: TypeAlias = ShareSnapshotKey | ShareUpdateKey
Value: TypeAlias = ShareSnapshotValue | ShareUpdateValue


def encode_key(key: Key) -> bytes:
    """Encode a key. Raises InvalidRecord for a group id that is too long."""
    return encode(SNAPSHOT_KIND if isinstance(key, ShareSnapshotKey) else UPDATE_KIND, 0, key)


def encode_value(value: Value) -> bytes:
    """Encode a value."""
    return encode(VERSION, VERSION, value)


def decode_key(data: bytes) -> Key | None:
    """Decode a key; None for record types that are unknown."""
    kind = prefix_of(data)
    if kind == SNAPSHOT_KIND:
        return decode(data, ShareSnapshotKey, 0)
    return decode(data, ShareUpdateKey, 0) if kind == UPDATE_KIND else None


def decode_value(key: Key, data: bytes) -> Value:
    """Decode the value of a record with that key."""
    version = prefix_of(data)
    if version != VERSION:
        raise UnsupportedVersion(f"version {version} of the value of {type(key).__name__} is unknown")
    if isinstance(key, ShareSnapshotKey):
        return decode(data, ShareSnapshotValue, version)
    return decode(data, ShareUpdateValue, version)


def to_json(key_data: bytes, data: bytes | None) -> dict[str, object] | None:
    """Return a record's type, value version, key and value, in the form of Kafka's tools.

    Version and value are None for a tombstone. Returns None for an unknown type. Raises what `decode_key` and
    `decode_value` raise.
    """
    key = decode_key(key_data)
    if key is None:
        return None
    name = "ShareSnapshot" if isinstance(key, ShareSnapshotKey) else "ShareUpdate"
    if data is None:
        return shown(name, key, None, None)
    return shown(name, key, decode_value(key, data), prefix_of(data))
