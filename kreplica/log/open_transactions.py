"""List a log's open transactions, which block read_committed readers, and abort one.

A transaction is open from its first batch until its coordinator's marker. If no coordinator will write one (a
hanging transaction, KIP-664), an operator does.
"""

from __future__ import annotations

from typing import NamedTuple

from kreplica._core.log_append_info import LogAppendInfo
from kreplica.common.errors import InvalidTxnState
from kreplica.common.types import AppendOrigin
from kreplica.log.producer_append_info import ProducerStateEntry
from kreplica.log.unified_log import UnifiedLog
from kreplica.record.control import EndTransactionMarker, build_end_transaction_marker


class OpenTransaction(NamedTuple):
    """A transaction without a marker. `last_timestamp`: that of the producer's last batch, ms since 1970."""

    producer_id: int
    producer_epoch: int
    first_offset: int
    last_timestamp: int


def open_transactions(log: UnifiedLog) -> list[OpenTransaction]:
    """Return the open transactions, the oldest first. Raises KafkaStorageError."""
    with log.lock:
        end = log.log_end_offset
        if log.local.read_only and log.producers.map_end_offset < end:
            # A reader beside a live writer does not load producers when it opens the log.
            log.producers.load_for_reader(end)
            log.producers.replay(log.local, end)
        found = [
            OpenTransaction(
                entry.producer_id, entry.producer_epoch, entry.current_txn_first_offset, entry.last_timestamp
            )
            for entry in log.producers.active_producers.values()
            if entry.in_transaction
        ]
    return sorted(found, key=lambda each: each.first_offset)


def abort(log: UnifiedLog, producer_id: int, leader_epoch: int) -> LogAppendInfo:
    """Append a marker that aborts the producer's open transaction, with the producer's current epoch.

    Raises InvalidTxnState without an open transaction, ReadOnlyLog, LogClosed, and like
    UnifiedLog.append_as_leader.
    """
    with log.lock:
        log.require_writable()
        entry = log.producers.last_entry(producer_id) or ProducerStateEntry(producer_id)
        if not entry.in_transaction:
            raise InvalidTxnState(f"{log.topic_partition}: producer {producer_id} has no open transaction")
        marker = build_end_transaction_marker(
            EndTransactionMarker(False, max(entry.coordinator_epoch, 0)),
            producer_id=producer_id,
            producer_epoch=entry.producer_epoch,
            timestamp_ms=log.time_ms(),
        )
        info = log.append_as_leader(marker, leader_epoch, origin=AppendOrigin.COORDINATOR, wait=False)
    if log.durable:
        log.wait_durable(info)
    return info
