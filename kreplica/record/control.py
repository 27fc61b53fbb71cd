"""Control records: the meaning of a control batch's keys and values.

A key is a version (int16) and a type (int16). This module reads and writes the values of end-transaction
markers. The quorum's control records have Kafka's published schemas and are handled by the quorum.
"""

from __future__ import annotations

import enum
import struct
from typing import TYPE_CHECKING

from kreplica._core.batch_builder import BatchBuilder
from kreplica.common.dataclass import dataclass
from kreplica.common.errors import CorruptMessage

if TYPE_CHECKING:
    from typing_extensions import Buffer


_KEY = struct.Struct(">hh")
_END_TXN = struct.Struct(">hi")
_VERSION = 0


class ControlRecordType(enum.IntEnum):
    """The type in a control record's key. Other numbers come from a later Kafka and must be skipped."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


# The types of records that end a transaction.
MARKERS = frozenset({ControlRecordType.ABORT, ControlRecordType.COMMIT})


@dataclass(frozen=True, slots=True)
class EndTransactionMarker:
    """The end of a transaction, written by its coordinator to each of the transaction's partitions."""

    commit: bool
    coordinator_epoch: int

    @property
    def key(self) -> bytes:
        return control_key(ControlRecordType.COMMIT if self.commit else ControlRecordType.ABORT)

    @property
    def value(self) -> bytes:
        return _END_TXN.pack(_VERSION, self.coordinator_epoch)


def control_key(kind: ControlRecordType) -> bytes:
    """Return the key of a control record."""
    return _KEY.pack(_VERSION, kind)


def parse_control_key(key: Buffer | None) -> int:
    """Return the type in a control record's key. Raises CorruptMessage if the key has no type.

    Additional bytes are accepted: a later version may add fields.
    """
    if key is None or len(memoryview(key)) < _KEY.size:
        raise CorruptMessage("the key of a control record has no type")
    version, kind = _KEY.unpack_from(key)
    if version < 0:
        raise CorruptMessage(f"the key of a control record has the invalid version {version}")
    return int(kind)


def parse_end_transaction_marker(key: Buffer | None, value: Buffer | None) -> EndTransactionMarker:
    """Return the end-transaction marker in a control record. Raises CorruptMessage if it holds none."""
    kind = parse_control_key(key)
    if kind not in MARKERS:
        raise CorruptMessage(f"a control record of type {kind} is not the end of a transaction")
    return EndTransactionMarker(kind == ControlRecordType.COMMIT, parse_coordinator_epoch(value))


def parse_coordinator_epoch(value: Buffer | None) -> int:
    """Return the coordinator epoch in the value of an end-transaction marker. Raises CorruptMessage."""
    if value is None or len(memoryview(value)) < _END_TXN.size:
        raise CorruptMessage("an end-transaction marker is truncated")
    version, coordinator_epoch = _END_TXN.unpack_from(value)
    if version < 0:
        raise CorruptMessage(f"an end-transaction marker has the invalid version {version}")
    return int(coordinator_epoch)


def build_end_transaction_marker(
    marker: EndTransactionMarker,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """Build the control batch that ends a producer's transaction in one partition."""
    builder = BatchBuilder()
    builder.transactional = True
    builder.control = True
    builder.producer_id = producer_id
    builder.producer_epoch = producer_epoch
    return builder.build(
        [(marker.key, marker.value)], base_offset=base_offset, leader_epoch=leader_epoch, now_ms=timestamp_ms
    )
