"""The state of one producer, and its part in one append: _core/producer_append_info, which has the rules.

This module gives the rules the errors that they raise, and decides what an unusual control batch says.
"""

from __future__ import annotations

from kreplica._core.producer_append_info import (
    BATCHES_TO_RETAIN,
    OPEN_ALREADY,
    BatchMetadata,
    CompletedTxn,
    ProducerAppendInfo,
    ProducerStateEntry,
    Verification,
    add_sequence,
    install,
)
from kreplica._core.records import RecordBatch
from kreplica.common import errors
from kreplica.common.types import AppendOrigin
from kreplica.record.control import (
    MARKERS,
    EndTransactionMarker,
    parse_control_key,
    parse_end_transaction_marker,
)

__all__ = [
    "BATCHES_TO_RETAIN",
    "OPEN_ALREADY",
    "BatchMetadata",
    "CompletedTxn",
    "ProducerAppendInfo",
    "ProducerStateEntry",
    "Verification",
    "add_sequence",
]


def _decide_marker(batch: RecordBatch) -> EndTransactionMarker | None:
    """Return the marker in a control batch's first record, or None if it is another record.

    Raises CorruptMessage.
    """
    record = next(iter(batch))
    if parse_control_key(record.key) not in MARKERS:
        return None
    return parse_end_transaction_marker(record.key, record.value)


install(errors, AppendOrigin, _decide_marker)
