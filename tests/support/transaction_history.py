"""A random history of transactions in a log, and what readers of committed records have to see of it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

from kreplica.common.types import AppendOrigin
from kreplica.log.unified_log import UnifiedLog
from kreplica.record.control import EndTransactionMarker, build_end_transaction_marker
from tests.support.batches import build
from tests.support.logs import NOW_MS, open_log

# Segments of a few batches.
SEGMENT_BYTES = 1_000


class History(NamedTuple):
    """What was written: all records, those a reader of committed records sees, and the last stable offset."""

    records: list[tuple[int, bytes]]
    committed: list[tuple[int, bytes]]
    last_stable_offset: int


class _Producer:
    def __init__(self, producer_id: int) -> None:
        self.id = producer_id
        self.epoch = 0
        self.sequence = 0
        self.open: list[tuple[int, bytes]] = []
        self.opened = -1


class HistoryWriter:
    """Writes transactions of several producers and plain batches, in turns that `seed` decides.

    Markers have the producer's epoch, or the next one: as an end by a client under transaction version 1
    and 2, or as a fence. Some come without an open transaction, as a coordinator repeats them.
    """

    def __init__(self, path: Path, seed: int, **settings: object) -> None:
        self.path = path
        self._settings = {"segment_bytes": SEGMENT_BYTES, **settings}
        self._chance = random.Random(seed)
        self._producers = [_Producer(producer_id) for producer_id in range(1, 5)]
        self._records: list[tuple[int, bytes]] = []
        self._committed: list[tuple[int, bytes]] = []
        self._coordinator_epoch = 0
        self.log = self.open()

    def open(self) -> UnifiedLog:
        """Open the log, again after `close`."""
        self.log = open_log(self.path, **self._settings)
        return self.log

    def history(self) -> History:
        """Return what was written so far."""
        end = self.log.log_end_offset
        stable = min((each.opened for each in self._producers if each.open), default=end)
        committed = sorted(each for each in self._committed if each[0] < stable)
        return History(sorted(self._records), committed, stable)

    def write(self, steps: int) -> None:
        """Append that many batches and markers."""
        for _ in range(steps):
            producer = self._chance.choice(self._producers)
            kind = self._chance.choices(("data", "plain", "end", "marker", "roll"), (10, 4, 4, 1, 1))[0]
            if kind == "data":
                self._data(producer)
            elif kind == "plain":
                self._plain()
            elif kind == "roll":
                self.log.roll()
            elif producer.open or kind == "marker":
                self._end(producer)

    def _values(self) -> list[bytes]:
        first, count = self.log.log_end_offset, self._chance.randint(1, 4)
        return [b"%d" % offset for offset in range(first, first + count)]

    def _data(self, producer: _Producer) -> None:
        values, first = self._values(), self.log.log_end_offset
        fields = {"producer_id": producer.id, "producer_epoch": producer.epoch, "now_ms": NOW_MS}
        batch = build(values, transactional=True, base_sequence=producer.sequence, **fields)
        self.log.append_as_leader(batch, 0)
        if not producer.open:
            producer.opened = first
        producer.sequence += len(values)
        self._note(producer.open, first, values)

    def _plain(self) -> None:
        values, first = self._values(), self.log.log_end_offset
        self.log.append_as_leader(build(values, now_ms=NOW_MS), 0)
        self._note(self._committed, first, values)

    def _note(self, found: list[tuple[int, bytes]], first: int, values: list[bytes]) -> None:
        noted = list(enumerate(values, first))
        self._records += noted
        found += noted

    def _end(self, producer: _Producer) -> None:
        commit = self._chance.random() < 0.5
        if self._chance.random() < 0.5:
            producer.epoch += 1
            producer.sequence = 0
        self._coordinator_epoch += self._chance.randint(0, 1)
        marker = build_end_transaction_marker(
            EndTransactionMarker(commit, self._coordinator_epoch),
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            timestamp_ms=NOW_MS,
        )
        self.log.append_as_leader(marker, 0, origin=AppendOrigin.COORDINATOR)
        if commit:
            self._committed += producer.open
        producer.open = []
