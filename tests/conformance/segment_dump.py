"""All that a log or its files say, in the words of java/Dump.java, but read by kreplica's own classes.

Needs no Java. Bytes are text, a character each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kreplica
from kreplica._core.record import Record
from kreplica._core.records import RecordBatch, batches
from kreplica.log.transaction_index import parse_entries


def dump(directory: Path) -> list[dict[str, Any]]:
    """Each segment with all its batches, their records, and its aborted transactions."""
    return [_segment(file) for file in sorted(directory.glob("*.log"))]


def view(log: kreplica.Log) -> dict[str, Any]:
    """What is known of an open log: its offsets, its records in both isolation levels, and its producers."""
    producers = {}
    for producer_id, entry in log._log.producers.active_producers.items():
        batches_of = [
            [each.first_sequence, each.last_sequence, each.first_offset, each.last_offset, each.timestamp]
            for each in entry.batches
        ]
        standing = [entry.producer_epoch, entry.last_timestamp, entry.current_txn_first_offset, batches_of]
        producers[str(producer_id)] = standing
    return {
        "start": log.log_start_offset,
        "end": log.log_end_offset,
        "last_stable": log.last_stable_offset,
        "records": [line_of(record) for record in log.read()],
        "committed": [line_of(record) for record in log.read(isolation="txn_committed")],
        "producers": producers,
    }


def standing(seen: dict[str, Any]) -> dict[str, Any]:
    """What was seen of a log, but of each producer only what its next batch is checked against: epoch, last
    sequence, last offset, and where its open transaction begins.

    A snapshot holds no more batches than the last, recovery finds all that are left; and a marker that is
    gone was the latest thing of its producer.
    """
    producers = {
        producer_id: [
            epoch,
            batches_of[-1][1] if batches_of else -1,
            batches_of[-1][3] if batches_of else -1,
            first,
        ]
        for producer_id, (epoch, _, first, batches_of) in seen["producers"].items()
    }
    return {**seen, "producers": producers}


def _segment(file: Path) -> dict[str, Any]:
    data = file.read_bytes()
    base = int(file.stem)
    index = file.with_suffix(".txnindex")
    entries = parse_entries(index.read_bytes(), str(index), base) if index.exists() else ()
    return {
        "base": base,
        "bytes": len(data),
        "batches": [_batch(batch) for batch in batches(data)],
        "aborted": [
            [each.producer_id, each.first_offset, each.last_offset, each.last_stable_offset]
            for each in entries
        ],
    }


def _batch(batch: RecordBatch) -> dict[str, Any]:
    batch.check()
    compressed = batch.codec != "none"
    return {
        "base": batch.base_offset,
        "last": batch.last_offset,
        "epoch": batch.leader_epoch,
        "attributes": int.from_bytes(memoryview(batch)[21:23], "big"),
        "base_timestamp": batch.base_timestamp,
        "max_timestamp": batch.max_timestamp,
        "producer": [batch.producer_id, batch.producer_epoch, batch.base_sequence],
        "count": batch.record_count,
        "horizon": batch.delete_horizon_ms,
        # Two encoders of a codec may write other bytes for the same records.
        "crc": None if compressed else int.from_bytes(batch.crc.to_bytes(4, "big"), "big", signed=True),
        "bytes": None if compressed else batch.size,
        "records": [line_of(record) for record in batch],
    }


def line_of(record: Record) -> list[Any]:
    """A record's offset, timestamp, key, value and headers."""
    headers = [[name, _text(value)] for name, value in record.headers]
    return [record.offset, record.timestamp, _text(record.key), _text(record.value), headers]


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")
