"""A slow model of the log cleaner: batches as data, the map as a dict, the rules record by record."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace

from kreplica._core import varint
from kreplica._core.log_segment import LogSegment
from kreplica._core.records import RecordBatch, batches
from kreplica.record.compression import compress
from tests.support.batches import with_crc
from tests.support.segments import contents, region, segment

LOG_APPEND_TIME, TRANSACTIONAL, CONTROL, DELETE_HORIZON = 8, 16, 32, 64


@dataclass(frozen=True)
class Item:
    """A record; its offset is its batch's base offset plus this delta."""

    delta: int
    key: bytes | None
    value: bytes | None
    timestamp: int = 0
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True)
class Batch:
    """A batch, with gaps between its records as compaction leaves them."""

    base_offset: int
    items: tuple[Item, ...]
    last_delta: int
    attributes: int = 0
    base_timestamp: int = 0
    max_timestamp: int = 0
    leader_epoch: int = 0
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_delta

    @property
    def horizon(self) -> int | None:
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None


def _bytes(data: bytes | None) -> bytes:
    return varint.encode_varint(-1) if data is None else varint.encode_varint(len(data)) + data


def _record(item: Item, base_timestamp: int) -> bytes:
    body = b"\x00" + varint.encode_varlong(item.timestamp - base_timestamp) + varint.encode_varint(item.delta)
    body += _bytes(item.key) + _bytes(item.value) + varint.encode_varint(len(item.headers))
    body += b"".join(_bytes(name.encode()) + _bytes(value) for name, value in item.headers)
    return varint.encode_varint(len(body)) + body


def encode(batch: Batch) -> bytes:
    section = b"".join(_record(item, batch.base_timestamp) for item in batch.items)
    if codec := batch.attributes & 7:
        section = bytes(compress(codec, section))
    head = struct.pack(
        ">qiibIhiqqqhii", batch.base_offset, 49 + len(section), batch.leader_epoch, 2, 0, batch.attributes,
        batch.last_delta, batch.base_timestamp, batch.max_timestamp, batch.producer_id, batch.producer_epoch,
        batch.base_sequence, len(batch.items),
    )  # fmt: skip
    return with_crc(head + section)


def decode(batch: RecordBatch) -> Batch:
    """Return the contents of a verified batch."""
    batch.check()
    attributes = struct.unpack_from(">h", memoryview(batch), 21)[0]
    items = tuple(
        Item(r.offset - batch.base_offset, r.key, r.value, r.timestamp, tuple(r.headers)) for r in batch
    )
    return Batch(
        batch.base_offset, items, batch.last_offset - batch.base_offset, attributes, batch.base_timestamp,
        batch.max_timestamp, batch.leader_epoch, batch.producer_id, batch.producer_epoch, batch.base_sequence,
    )  # fmt: skip


def source_of(data: bytes, base_offset: int = 0) -> LogSegment:
    """Return a segment to clean, with these bytes."""
    made = segment(base_offset=base_offset)
    return LogSegment(region(data, max(len(data), 1)), made.offset_index, made.time_index, base_offset)


def source(log: Iterable[Batch], base_offset: int = 0) -> LogSegment:
    return source_of(b"".join(encode(batch) for batch in log), base_offset)


def read(made: LogSegment) -> list[Batch]:
    return [decode(batch) for batch in batches(contents(made.region))]


def timestamps(batch: Batch) -> list[int]:
    log_append = batch.attributes & LOG_APPEND_TIME
    return [batch.max_timestamp if log_append else item.timestamp for item in batch.items]


class Map:
    """A pass over a log with a map of at most `capacity` keys."""

    def __init__(self, log: Iterable[Batch], first_offset: int, capacity: int) -> None:
        self.offsets: dict[bytes, int] = {}
        self.first_offset = first_offset
        self.latest_offset = first_offset - 1
        self.is_full = False
        for batch in log:
            if batch.last_offset >= first_offset and not self.is_full:
                self._put(batch, capacity)

    def _put(self, batch: Batch, capacity: int) -> None:
        for item in batch.items:
            offset = batch.base_offset + item.delta
            if item.key is None or offset < self.first_offset:
                continue
            if item.key not in self.offsets and len(self.offsets) == capacity:
                self.latest_offset = offset - 1
                self.is_full = True
                return
            self.offsets[item.key] = offset
        self.latest_offset = batch.last_offset


@dataclass
class Round:
    """The rules of one round, record by record."""

    offsets: dict[bytes, int]
    latest_offset: int
    now_ms: int
    delete_retention_ms: int
    retained: frozenset[int] = frozenset()

    def stays(self, batch: Batch, item: Item) -> bool:
        offset = batch.base_offset + item.delta
        if offset > self.latest_offset:
            return True
        if item.key is None or offset < self.offsets.get(item.key, -1):
            return False
        return item.value is not None or batch.horizon is None or self.now_ms < batch.horizon

    def clean(
        self,
        batch: Batch,
        *,
        keep_empty: bool = False,
        discard: bool = False,
        every: bool = False,
        set_horizon: bool = False,
    ) -> Batch | None:
        if batch.base_offset > self.latest_offset and not discard:
            every = True
        items = () if discard else tuple(i for i in batch.items if every or self.stays(batch, i))
        if not items and not (every and not discard and batch.items):
            if not keep_empty and batch.last_offset not in self.retained:
                return batch if every and batch.base_offset > self.latest_offset else None
            return self.emptied(batch) if batch.items else batch
        tombstones = any(item.value is None for item in items) and batch.last_offset <= self.latest_offset
        horizon = (tombstones or set_horizon) and batch.horizon is None
        if len(items) == len(batch.items) and not horizon:
            return batch
        made = replace(batch, items=items)
        if not batch.attributes & LOG_APPEND_TIME:
            made = replace(made, max_timestamp=max(timestamps(made)))
        if horizon:
            made = replace(
                made,
                attributes=made.attributes | DELETE_HORIZON,
                base_timestamp=self.now_ms + self.delete_retention_ms,
            )
        return made

    def emptied(self, batch: Batch) -> Batch:
        kept = LOG_APPEND_TIME | TRANSACTIONAL | CONTROL
        return replace(batch, items=(), attributes=batch.attributes & kept, base_timestamp=-1)
