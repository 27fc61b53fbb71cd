"""PartitionHistory: when leaders and ISRs changed, read from the metadata log step by step.

Each call reads at most STEP_BYTES of the log beyond the last call; the first ones go through what the log
has. It keeps the last MOST_CHANGES changes of all partitions. It needs no snapshot, and no copy of the
metadata: a change names what it changes. Thread rule: any thread may call `of`; a lock guards the rest.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from kreplica.common.types import Uuid
from kreplica.metadata.batch_reader import decoded_batches
from kreplica.metadata.records import NO_LEADER_CHANGE, PartitionChangeRecord, PartitionRecord
from kreplica.raft.kafka_metadata_log import KafkaMetadataLog

STEP_BYTES = 1 << 20
MOST_CHANGES = 100_000


class HistoryChange(NamedTuple):
    """A leader and an ISR, and since when they hold; `offset` is that of the change in the metadata log."""

    timestamp: int
    offset: int
    leader: int
    isr: tuple[int, ...]


class _Noted(NamedTuple):
    topic_id: Uuid
    partition: int
    timestamp: int
    offset: int
    leader: int | None
    isr: tuple[int, ...] | None


class PartitionHistory:
    """The changes of leaders and ISRs in the metadata log that `log()` returns."""

    def __init__(self, log: Callable[[], KafkaMetadataLog]) -> None:
        self._log = log
        self._lock = threading.Lock()
        # Guarded by _lock: the next offset to read, and the changes that were read, oldest first.
        self._next = 0
        self._changes: deque[_Noted] = deque(maxlen=MOST_CHANGES)

    def of(self, topic_id: Uuid, partition: int) -> tuple[list[HistoryChange], bool]:
        """Return the partition's changes that are known, and whether all of the log has been read.

        Call again if not. Raises DamagedLog, CorruptMessage, and OffsetOutOfRange if the log was cut.
        """
        with self._lock:
            is_whole = self._read_step()
            noted = [each for each in self._changes if each[:2] == (topic_id, partition)]
        found: list[HistoryChange] = []
        leader: int | None = None
        isr: tuple[int, ...] | None = None
        for each in noted:
            leader = leader if each.leader is None else each.leader
            isr = isr if each.isr is None else each.isr
            # Before both are known, the log begins in the midst of the partition's life.
            if leader is not None and isr is not None:
                found.append(HistoryChange(each.timestamp, each.offset, leader, isr))
        return found, is_whole

    def _read_step(self) -> bool:
        log = self._log()
        self._next = max(self._next, log.start_offset)
        if self._next >= log.high_watermark:
            return True
        read = log.read(self._next, STEP_BYTES, committed_only=True).records
        for batch in decoded_batches(b"" if read is None else read):
            for place, each in enumerate(batch.records):
                offset = batch.base_offset + place
                if offset >= self._next:
                    self._note(each.message, batch.append_timestamp, offset)
            self._next = max(self._next, batch.last_offset + 1)
        return self._next >= log.high_watermark

    def _note(self, record: object, timestamp: int, offset: int) -> None:
        if isinstance(record, PartitionRecord):
            leader: int | None = record.leader
            isr: tuple[int, ...] | None = record.isr
        elif isinstance(record, PartitionChangeRecord):
            leader = None if record.leader == NO_LEADER_CHANGE else record.leader
            isr = record.isr
        else:
            return
        if leader is not None or isr is not None:
            at = record.topic_id, record.partition_id
            self._changes.append(_Noted(*at, timestamp, offset, leader, isr))
