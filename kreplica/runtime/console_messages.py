"""The messages of one partition, for the console: from an offset or a time on, filtered, a bounded number.

It reads the replica of this node, up to what is committed. One request reads whole batches until it has
SCAN_BYTES or its limit of messages; `next_offset` says where the next request goes on.
"""

from __future__ import annotations

import base64
from typing import Any

from kreplica.common.errors import InvalidRequest
from kreplica.log.unified_log import UnifiedLog

MOST_MESSAGES = 500
SCAN_BYTES = 4 << 20
# What a batch may take when it is decompressed, and what is shown of one key, value or header.
BATCH_BYTES = 16 << 20
SHOWN_BYTES = 64 << 10
# What one answer may show in all.
ANSWER_BYTES = 2 << 20


def messages(
    log: UnifiedLog,
    *,
    offset: int | None,
    timestamp: int | None,
    last: int | None,
    limit: int,
    contains: str,
    isolation: str,
) -> dict[str, Any]:
    """Return the messages from `offset`, from `timestamp` (ms since 1970) or the `last` ones.

    At most `limit`. `contains`: the text that the key or the value has. An offset out of range is moved into
    the log. Raises InvalidRequest if several starts are given, DamagedLog, CorruptMessage.
    """
    if sum(each is not None for each in (offset, timestamp, last)) > 1:
        raise InvalidRequest("give one of offset, time and last")
    if not 0 < limit <= MOST_MESSAGES:
        raise InvalidRequest(f"limit={limit} is not between 1 and {MOST_MESSAGES}")
    first, end = log.log_start_offset, log.upper_bound(isolation)
    start = _start(log, first, end, offset, timestamp, last)
    found: list[dict[str, Any]] = []
    needle = contains.encode()
    next_offset, scanned, shown = start, 0, 0
    for batch in log.batches(start, isolation=isolation):
        scanned += batch.size
        if not batch.is_control:
            for record in batch.records(start=start, max_decompressed=BATCH_BYTES):
                assert record.offset is not None
                if len(found) == limit or shown > ANSWER_BYTES:
                    break
                next_offset = record.offset + 1
                if needle in (record.key or b"") or needle in (record.value or b""):
                    found.append(_message(record, batch))
                    shown += len(record.key or b"") + min(len(record.value or b""), SHOWN_BYTES)
        if len(found) == limit or shown > ANSWER_BYTES:
            break
        next_offset = batch.last_offset + 1
        if scanned >= SCAN_BYTES:
            break
    else:
        next_offset = max(next_offset, end)
    return {
        "messages": found,
        "log_start_offset": first,
        "end_offset": end,
        "start_offset": start,
        "next_offset": next_offset,
        "scanned_bytes": scanned,
    }


def _start(
    log: UnifiedLog, first: int, end: int, offset: int | None, timestamp: int | None, last: int | None
) -> int:
    if timestamp is not None:
        found = log.offset_for_timestamp(timestamp)
        return end if found is None else min(max(found.offset, first), end)
    if offset is not None:
        return min(max(offset, first), end)
    return max(end - (MOST_MESSAGES // 10 if last is None else last), first)


def _message(record: Any, batch: Any) -> dict[str, Any]:
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": record.timestamp_type,
        "key": _bytes(record.key),
        "value": _bytes(record.value),
        "headers": [{"name": name, "value": _bytes(value)} for name, value in record.headers],
        "leader_epoch": batch.leader_epoch,
        "producer_id": batch.producer_id,
        "codec": batch.codec,
        "is_transactional": batch.is_transactional,
    }


def _bytes(data: bytes | None) -> dict[str, Any] | None:
    """Return the bytes as text, or in base64 if they are not UTF-8; at most SHOWN_BYTES, and the size."""
    if data is None:
        return None
    shown = data[:SHOWN_BYTES]
    try:
        # A cut in the midst of a character drops that character, not the reading as text.
        text = shown.decode(errors="strict" if len(shown) == len(data) else "ignore")
    except UnicodeDecodeError:
        return {"size": len(data), "base64": base64.b64encode(shown).decode()}
    return {"size": len(data), "text": text}
