"""Every operation of a log against the n-th failure of each system call; the process of test_refused_calls.

    python -m tests.crash.refused_calls DIRECTORY SEED STEP

One operation is done on a log of some segments, epochs, producers and transactions, while one call fails, or
all from that one on. Then the calls work again, and what was acknowledged is there: for the log that goes on,
for one that a kill leaves at that moment, and after each later opening. No record is there that was never
appended, and only typed errors were raised. STEP: one case in STEP is tried; the seed chooses them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import shutil
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import kreplica
from kreplica._core.log_state import read_standing
from kreplica.common.errors import KafkaStorageError, KreplicaError
from kreplica.common.types import AppendOrigin
from kreplica.log.file_names import STATE_FILE
from kreplica.log.verify import verify
from kreplica.record.control import EndTransactionMarker, build_end_transaction_marker
from kreplica.runtime.storage import FileStorage
from tests.support.batches import build

OPEN, CREATE, WRITE, GROW, RESIZE, FLUSH, NAME, REMOVE, READ, LOOK, MAP, SHORT = (1 << n for n in range(12))
FAULTS = {
    "a full disk": (CREATE | WRITE | GROW | NAME, errno.ENOSPC),
    "a full disk that takes a half": (CREATE | WRITE | GROW | NAME | SHORT, errno.ENOSPC),
    "a quota": (WRITE | GROW, errno.EDQUOT),
    "no inodes": (CREATE, errno.ENOSPC),
    "no descriptors": (OPEN | CREATE, errno.EMFILE),
    "no maps": (MAP, errno.ENOMEM),
    "a disk that fails to write": (CREATE | WRITE | GROW | RESIZE | FLUSH | NAME | REMOVE, errno.EIO),
    "a disk that fails to read": (OPEN | READ | LOOK | MAP, errno.EIO),
    "a disk that turned read-only": (CREATE | OPEN | WRITE | GROW | RESIZE | NAME | REMOVE, errno.EROFS),
}

calls = ctypes.CDLL(None)


@dataclass
class Case:
    """A log, and what is known of it.

    `must`: acknowledged values by offset; `may`: those that were appended without an answer, or were to go.
    `start`: the log may not begin above it. `transaction`: its first offset, and whether it is "open",
    "aborted" or "committed", where that is known. `other`: a log that was to be made.
    """

    path: Path
    durability: str
    must: dict[int, bytes | None] = field(default_factory=dict)
    may: dict[int, set[bytes | None]] = field(default_factory=dict)
    start: int = 0
    transaction: tuple[int, str] | None = None
    other: Path | None = None
    log: kreplica.Log | None = None

    def open(self, path: Path | None = None) -> kreplica.Log:
        return kreplica.Log.open(
            path or self.path,
            durability=self.durability,
            segment_bytes=3_000,
            index_interval_bytes=200,
            retention_ms=-1,
            cleanup_policy="compact",
            min_cleanable_dirty_ratio=0,
        )

    @property
    def opened(self) -> kreplica.Log:
        assert self.log is not None
        return self.log

    def append(self, size: int = 100, *, epoch: int | None = None, count: int = 1) -> None:
        base = self.opened._log.log_end_offset
        values = [b"%d:%d" % (base + at, size) + bytes(size) for at in range(count)]
        for at, value in enumerate(values):
            self.may.setdefault(base + at, set()).add(value)
        pairs = [(b"key %d" % ((base + at) % 7), value) for at, value in enumerate(values)]
        assert self.opened.append(pairs, leader_epoch=epoch).base_offset == base
        self.must.update(enumerate(values, base))

    def produce(self, sequence: int, *, transactional: bool = False) -> None:
        base = self.opened._log.log_end_offset
        value = b"produced %d" % base
        self.may.setdefault(base, set()).add(value)
        batch = build(
            [(b"produced", value)],
            producer_id=9 if transactional else 8,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=transactional,
        )
        self.opened.append_batch(batch)
        self.must[base] = value
        if transactional and sequence == 0:
            self.transaction = base, "open"

    def end(self, *, commit: bool) -> None:
        assert self.transaction is not None
        first, self.transaction = self.transaction[0], None
        marker = build_end_transaction_marker(
            EndTransactionMarker(commit, 0), producer_id=9, producer_epoch=0, timestamp_ms=1_700_000_000_000
        )
        self.opened._log.append_as_leader(marker, 1, origin=AppendOrigin.COORDINATOR)
        self.transaction = first, "committed" if commit else "aborted"

    # ---- what is tried ------------------------------------------------------------------------------------

    def release(self, offsets: Iterable[int]) -> None:
        """These records may go, or stay."""
        for each in list(offsets):
            self.may.setdefault(each, set()).add(self.must.pop(each))

    def cut(self, offset: int) -> None:
        self.release(each for each in self.must if each >= offset)
        self.transaction = None
        self.opened.truncate_to(offset)

    def begin_anew(self, offset: int) -> None:
        self.release(self.must)
        self.transaction = None
        self.start = offset
        self.opened._log.truncate_fully_and_start_at(offset)

    def delete(self, offset: int) -> None:
        self.start = offset
        self.release(each for each in self.must if each < offset)
        self.transaction = None
        self.opened.delete_records(offset)
        self.opened.delete_old_segments()

    def compact(self) -> None:
        newest = {record.key: record.offset for record in self.opened.read()}
        self.release(each for each in self.must if each not in newest.values())
        self.opened.compact()

    def reopen(self) -> None:
        self.opened.close()
        self.log = self.open()

    def reopen_after_kill(self) -> None:
        self.let_go()
        self.log = self.open()

    def read_beside(self) -> None:
        with kreplica.Log.open(self.path, read_only=True) as reader:
            self.check(reader)

    def make_another(self) -> None:
        self.other = self.path.parent / "logs" / "other-0"
        self.open(self.other).close()

    def append_large(self) -> None:
        log = self.opened._log
        log.configure(log.config.replace({"segment.bytes": 1 << 20}))
        self.append(100_000)

    def idle_and_go_on(self) -> None:
        self.opened._log.idle()
        self.append()

    # ---- what is held against it --------------------------------------------------------------------------

    def check(self, log: kreplica.Log) -> None:
        assert log.damage is None, log.damage
        found = {}
        for batch in log.batches():
            for record in () if batch.is_control else batch:
                found[record.offset] = record.value
        missing = [offset for offset in self.must if offset not in found]
        assert not missing, (
            f"acknowledged, and gone: {missing} of [{log.log_start_offset}, {log.log_end_offset})"
        )
        for offset, value in found.items():
            known = self.may.get(offset, set()) | ({self.must[offset]} if offset in self.must else set())
            if offset >= log.log_start_offset:
                assert value in known, f"never appended at {offset}: {value!r:.60}"
        assert log.log_start_offset <= self.start, (log.log_start_offset, self.start)
        if self.transaction is not None:
            self.check_transaction(log, *self.transaction)

    def check_transaction(self, log: kreplica.Log, first: int, outcome: str) -> None:
        found = {record.offset for record in log.read(isolation="txn_committed")}
        assert (first in found) == (outcome == "committed"), outcome
        if outcome == "open":
            assert log.last_stable_offset == first
        else:
            assert {offset for offset in self.must if offset != first} <= found

    def check_other(self) -> None:
        """A log that could not be made is made the next time, and known as our own."""
        if self.other is not None:
            for number in range(2):
                with self.open(self.other) as log:
                    assert log.append([(b"k", b"%d" % number)]).base_offset == number
            found = read_standing((self.other / STATE_FILE).read_bytes())
            assert found is not None
            assert not found.has_gaps
            shutil.rmtree(self.other.parent)

    def let_go(self) -> None:
        """As a kill does."""
        log, self.log = self.log, None
        if log is not None:
            try:
                log._log.abandon()
            finally:
                assert log._lock is not None
                log._lock.release()

    def check_as_killed(self) -> None:
        left = self.path.parent / "killed-0"
        shutil.copytree(self.path, left)
        may = {offset: set(values) for offset, values in self.may.items()}
        goes_on = Case(left, self.durability, dict(self.must), may, self.start, self.transaction)
        goes_on.log = goes_on.open()
        goes_on.check_to_the_end()
        shutil.rmtree(left)

    def check_to_the_end(self) -> None:
        """The log goes on, and is opened twice more."""
        log = self.opened
        if log._log.is_offline:
            try:
                self.append()
            except KafkaStorageError:
                pass
            else:
                raise AssertionError("appended though offline")
        else:
            self.check(log)
            self.append()
            log.roll()
            self.append(epoch=log._log.leader_epoch + 1)
            self.check(log)
        log.close()
        self.log = log = self.open()
        self.check(log)
        self.append()
        log.close()
        problems = list(verify(FileStorage(), str(self.path)))
        assert not problems, problems
        self.log = log = self.open()
        assert log.recovery.clean
        self.check(log)
        log.close()
        self.log = None


OPERATIONS: dict[str, Callable[[Case], object]] = {
    "append": lambda case: case.append(),
    "append a large batch": lambda case: case.append_large(),
    "append many": lambda case: [case.append(300) for _ in range(12)],
    "append in a new epoch": lambda case: case.append(epoch=5),
    "append of a producer": lambda case: case.produce(0),
    "append to a transaction": lambda case: case.produce(1, transactional=True),
    "abort": lambda case: case.end(commit=False),
    "commit": lambda case: case.end(commit=True),
    "roll": lambda case: case.opened.roll(),
    "roll twice": lambda case: (case.opened.roll(), case.append(), case.opened.roll()),
    "flush": lambda case: case.opened.flush(),
    "flush after a roll": lambda case: (case.opened.roll(), case.append(), case.opened.flush()),
    "cut in the last segment": lambda case: case.cut(case.opened.log_end_offset - 1),
    "cut over segments": lambda case: case.cut(9),
    "begin anew lower": lambda case: case.begin_anew(4),
    "begin anew higher": lambda case: case.begin_anew(1_000),
    "delete records": lambda case: case.delete(20),
    "delete all records": lambda case: case.delete(case.opened.log_end_offset),
    "compact": lambda case: case.compact(),
    "close and open": lambda case: case.reopen(),
    "open after a kill": lambda case: case.reopen_after_kill(),
    "read beside": lambda case: case.read_beside(),
    "make a log": lambda case: case.make_another(),
    "idle": lambda case: case.idle_and_go_on(),
}


def prepared(path: Path, durability: str) -> Case:
    case = Case(path, durability)
    case.log = case.open()
    for number in range(24):
        case.append(200, epoch=number // 12)
    case.produce(0, transactional=True)
    return case


def attempted(case: Case, operation: Callable[[Case], object], fault: str, nth: int, *, on: bool) -> int:
    """Do it while the call of that number fails, and those after it if `on`; how many calls there were."""
    kinds, number = FAULTS[fault]
    calls.refuse_arm(kinds, nth, number, on)
    try:
        operation(case)
    except KreplicaError:
        if not calls.refuse_refused():
            raise
    finally:
        seen = calls.refuse_disarm()
    return seen


def tried(path: Path, durability: str, name: str, fault: str, nth: int, *, on: bool) -> None:
    case = prepared(path, durability)
    try:
        attempted(case, OPERATIONS[name], fault, nth, on=on)
        case.check_as_killed()
        if case.log is None or case.log._log.closed:
            case.log = case.open()
        case.check_to_the_end()
        case.check_other()
    finally:
        case.let_go()
        shutil.rmtree(path)


def cases(path: Path) -> Iterator[tuple[str, str, str, int, bool]]:
    """All cases; a trial run of each operation counts its calls."""
    for durability in ("page_cache", "fsync"):
        for name, operation in OPERATIONS.items():
            for fault in FAULTS:
                case = prepared(path, durability)
                count = attempted(case, operation, fault, -1, on=False)
                case.let_go()
                shutil.rmtree(path)
                shutil.rmtree(path.parent / "logs", ignore_errors=True)
                for nth in range(count):
                    yield durability, name, fault, nth, False
                    yield durability, name, fault, nth, True


def main(root: Path, seed: int, step: int) -> int:
    calls.refuse_below(os.fsencode(root))
    chosen = random.Random(seed)
    count = failed = 0
    for durability, name, fault, nth, on in cases(root / "counted-0"):
        if chosen.randrange(step):
            continue
        count += 1
        try:
            tried(root / "t-0", durability, name, fault, nth, on=on)
        except Exception:
            failed += 1
            print(f"{name}, {durability}: {fault}, call {nth}{' and later' if on else ''}", file=sys.stderr)
            traceback.print_exc(limit=-8)
            shutil.rmtree(root / "killed-0", ignore_errors=True)
            shutil.rmtree(root / "logs", ignore_errors=True)
        if failed == 20:
            break
    print(count)
    assert len(os.listdir("/proc/self/fd")) < 100, "descriptors are left open"
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
