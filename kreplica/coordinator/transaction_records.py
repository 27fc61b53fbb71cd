"""The records of __transaction_state, in Kafka 4.3's published schemas.

A key is an int16 type (0: a transactional id) and a message. A value is an int16 schema version and a
message; a record without a value forgets the id. The bytes come from disk: malformed ones raise
InvalidRecord, unknown versions UnsupportedVersion. Records are immutable; threads may share them.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from kreplica.common.errors import UnsupportedVersion
from kreplica.common.message import NEVER, Int8, Int16, Int32, Int64, Record, Since, Tag
from kreplica.coordinator.record_serde import decode, encode, prefix_of, shown

TRANSACTION_KIND = 0
HIGHEST_VERSION = 1


class TransactionLogKey(Record):
    """The key of a transactional id."""

    FLEXIBLE_SINCE: ClassVar[int] = NEVER

    transactional_id: str


class PartitionsSchema(Record):
    """Partitions of one topic in a transaction."""

    FLEXIBLE_SINCE: ClassVar[int] = 1

    topic: str
    partition_ids: tuple[Int32, ...]


class TransactionLogValue(Record):
    """The state of a transactional id; times in ms since 1970.

    `transaction_partitions`: None in the state Empty. Version 1 has the tagged fields (KIP-890).
    """

    FLEXIBLE_SINCE: ClassVar[int] = 1

    producer_id: Int64
    previous_producer_id: Annotated[Int64, Since(1), Tag(0)] = -1
    next_producer_id: Annotated[Int64, Since(1), Tag(1)] = -1
    producer_epoch: Int16
    next_producer_epoch: Annotated[Int16, Since(1), Tag(3)] = -1
    transaction_timeout_ms: Int32
    transaction_status: Int8
    transaction_partitions: tuple[PartitionsSchema, ...] | None
    transaction_last_update_timestamp_ms: Int64
    transaction_start_timestamp_ms: Int64
    client_transaction_version: Annotated[Int16, Since(1), Tag(2)] = 0


def encode_key(key: TransactionLogKey) -> bytes:
    """Encode a key. Raises InvalidRecord for an id that is too long."""
    return encode(TRANSACTION_KIND, 0, key)


def encode_value(value: TransactionLogValue, version: int) -> bytes:
    """Encode a value. Raises InvalidRecord, and UnsupportedVersion for a field that the version lacks."""
    return encode(version, version, value)


def decode_key(data: bytes) -> TransactionLogKey | None:
    """Decode a key; None for record types that are unknown."""
    if prefix_of(data) != TRANSACTION_KIND:
        return None
    return decode(data, TransactionLogKey, 0)


def decode_value(data: bytes) -> TransactionLogValue:
    """Decode a value."""
    version = prefix_of(data)
    if not 0 <= version <= HIGHEST_VERSION:
        raise UnsupportedVersion(f"version {version} of TransactionLogValue is unknown")
    return decode(data, TransactionLogValue, version)


def to_json(key_data: bytes, data: bytes | None) -> dict[str, object] | None:
    """Return a record's type, value version, key and value, in the form of Kafka's tools.

    Version and value are None for a tombstone. Returns None for an unknown type. Raises what `decode_key` and
    `decode_value` raise.
    """
    key = decode_key(key_data)
    if key is None:
        return None
    if data is None:
        return shown("TransactionLog", key, None, None)
    return shown("TransactionLog", key, decode_value(data), prefix_of(data))
