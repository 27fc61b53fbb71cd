"""Run a list of steps on a log until its machine stops at a chosen change or flush.

`Run` keeps every value that ever had an offset, what was acknowledged, and what was flushed. After the stop,
`check` compares a recovered log with that.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress

import kreplica
from kreplica.sim.storage import SimStorage
from tests.support.clock import ManualClock

DIRECTORY = "/data/orders-0"
SEGMENT_BYTES = 16 << 10


class Stopped(BaseException):
    """The machine stops: no more code of the program runs."""


class Run:
    """`stop_at`: the number of the change or flush (from 0) before which the machine stops."""

    def __init__(self, *, durability: str = "page_cache", stop_at: int | None = None, seed: int = 0) -> None:
        self.storage = SimStorage()
        self.storage.make_directory("/data")
        self.storage.sync_directory("/")
        self.durability = durability
        self.random = random.Random(seed)
        self.left = stop_at
        self.values: dict[int, bytes] = {}  # the current value of each offset
        self.written: dict[int, set[bytes]] = {}  # all values that each offset ever had
        self.start = 0
        self.end = 0  # of the acknowledged records
        self.flushed = 0
        # During a truncation, a crash may leave the log as before it or as after it.
        self.least_end = 0
        self.number = 0
        self.log: kreplica.Log | None = None
        self.storage.before = self._before

    def _before(self, _operation: str, _path: str) -> None:
        if self.left is not None:
            if self.left == 0:
                raise Stopped
            self.left -= 1

    def play(self, steps: Sequence[tuple[str, int]]) -> bool:
        """Run the steps; return whether the machine stopped on the way."""
        try:
            self.open()
            self.play_on(steps)
        except Stopped:
            return True
        finally:
            self.storage.before = None
        return False

    def play_on(self, steps: Sequence[tuple[str, int]]) -> None:
        for name, argument in steps:
            getattr(self, name)(argument)

    # ---- steps --------------------------------------------------------------------------------------------

    def open(self) -> None:
        self.log = open_log(self.storage, durability=self.durability)

    def append(self, size: int) -> None:
        assert self.log is not None
        value = self._value(size)
        self.written.setdefault(self.end, set()).add(value)
        info = self.log.append([value])
        assert info.base_offset == self.end
        self.values[self.end] = value
        self.end += 1
        self.least_end = self.end
        if self.durability == "fsync":
            self.flushed = self.end

    def append_batch(self, count: int) -> None:
        assert self.log is not None
        values = [self._value(700) for _ in range(count % 5 + 1)]
        for offset, value in enumerate(values, self.end):
            self.written.setdefault(offset, set()).add(value)
        self.log.append(values)
        self.values.update(enumerate(values, self.end))
        self.end += len(values)
        self.least_end = self.end
        if self.durability == "fsync":
            self.flushed = self.end

    def append_epoch(self, size: int) -> None:
        assert self.log is not None
        value = self._value(size)
        self.written.setdefault(self.end, set()).add(value)
        self.log.append([value], leader_epoch=self.log._log.leader_epoch + 1)
        self.values[self.end] = value
        self.end += 1
        self.least_end = self.end
        if self.durability == "fsync":
            self.flushed = self.end

    def roll(self, _: int) -> None:
        assert self.log is not None
        self.log.roll()

    def flush(self, _: int) -> None:
        assert self.log is not None
        self.log.flush()
        self.flushed = self.end

    def write_back(self, _: int) -> None:
        self.storage.write_back(self.random)

    def reopen(self, _: int) -> None:
        assert self.log is not None
        self.log.close()
        self.flushed = self.end
        self.open()

    def kill(self, _: int) -> None:
        before = self.storage
        self.storage = before.after_kill()
        self.storage.before, before.before = before.before, None
        self.open()
        assert self.log is not None
        self.check(self.log, self.end)

    def truncate(self, back: int) -> None:
        assert self.log is not None
        target = min(self.end, max(self.start, self.end - back % 20))
        # Batches are truncated as a whole.
        least = min((batch.base_offset for batch in self.log.batches(target)), default=target)
        self.least_end = self.flushed = min(self.flushed, least)
        self.log.truncate_to(target)
        self.end = self.least_end = self.log.log_end_offset
        self.flushed = min(self.flushed, self.end)
        for offset in [offset for offset in self.values if offset >= self.end]:
            del self.values[offset]

    def delete(self, records: int) -> None:
        assert self.log is not None
        target = min(self.end, self.start + records % 20)
        self.start = target
        self.log.delete_records(target)
        self.log.delete_old_segments()

    # ---- after the stop -----------------------------------------------------------------------------------

    def _value(self, size: int) -> bytes:
        self.number += 1
        return b"%d:" % self.number + self.random.randbytes(size)

    def check(self, log: kreplica.Log, at_least: int) -> None:
        """Check for damage, records missing below `at_least`, duplicates, and values that were never
        written."""
        assert log.damage is None, log.damage
        records = list(log.read())
        offsets = [record.offset for record in records]
        assert offsets == list(range(log.log_start_offset, log.log_end_offset)), offsets
        assert log.log_end_offset >= at_least, (log.log_end_offset, at_least, log.recovery)
        assert log.log_start_offset <= self.start
        for record in records:
            assert record.value in self.written[record.offset], f"never written at {record.offset}"
            if record.offset < at_least:
                assert record.value == self.values[record.offset], f"an older one at {record.offset}"


def open_log(storage: SimStorage, *, durability: str = "page_cache", read_only: bool = False) -> kreplica.Log:
    return kreplica.Log.open(
        DIRECTORY,
        storage=storage,
        clock=ManualClock(),
        read_only=read_only,
        durability=durability,
        segment_bytes=SEGMENT_BYTES,
        retention_ms=-1,
    )


def abandon(log: kreplica.Log) -> None:
    """Abandon a log as a dying process does."""
    with suppress(Exception):
        log._log.abandon()
