"""Reads the offsets committed by a group from a replica of __consumer_offsets, without its coordinator.

Thread rule: pure functions; the log belongs to the caller.
"""

from __future__ import annotations

from kreplica.common.errors import KreplicaError
from kreplica.common.types import TopicPartition
from kreplica.coordinator.group_records import OffsetCommitKey, OffsetCommitValue, decode_key, decode_value
from kreplica.log.unified_log import UnifiedLog
from kreplica.record import Record


def committed_offsets(log: UnifiedLog, group: str) -> dict[TopicPartition, int]:
    """Return the offsets that `group` has committed in this log, a partition of __consumer_offsets.

    Reads up to the last stable offset and skips records of unknown types. Raises DamagedLog, CorruptMessage,
    KafkaStorageError.
    """
    found: dict[TopicPartition, int] = {}
    name = group.encode()
    for batch in log.batches(log.log_start_offset, isolation="txn_committed"):
        for record in () if batch.is_control else batch:
            # The key contains the group's name verbatim; this skips most records of other groups cheaply.
            if record.key is not None and name in record.key:
                _take(found, group, record)
    return found


def _take(found: dict[TopicPartition, int], group: str, record: Record) -> None:
    try:
        key = decode_key(record.key or b"")
        if not isinstance(key, OffsetCommitKey) or key.group != group:
            return
        value = None if record.value is None else decode_value(key, record.value)
    except KreplicaError:
        return
    at = TopicPartition(key.topic, key.partition)
    if isinstance(value, OffsetCommitValue):
        found[at] = value.offset
    else:
        found.pop(at, None)
