"""kill -9 at any moment: nothing acknowledged is missing, nothing is there twice, the order is right.

Real processes, real files. Each kill is aimed at one kind of work, and counted under the one that the writer
was at when it died. KREPLICA_KILLS sets how many.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import kreplica
from tests.crash.writer import (
    ACKNOWLEDGED,
    COMPACT,
    COMPACTED,
    KEYS,
    PHASES,
    SETTINGS,
    SHARED_BYTES,
    START,
)

KILLS = int(os.environ.get("KREPLICA_KILLS", "80"))
KILLS_PER_LOG = 20
ROOT = Path(__file__).parents[2]
# How long a writer has to get to the phase that a kill is aimed at.
WAIT_S = 5.0
# Kills may miss: the writer goes on while the killer waits for its turn of the processor.
MOST_ATTEMPTS = 5 * KILLS


class WriterServer:
    """The process that forks writers; see writer.py."""

    def __init__(self, shared_path: Path) -> None:
        shared_path.write_bytes(bytes(SHARED_BYTES))
        self.path = shared_path
        with shared_path.open("r+b") as file:
            self.shared = mmap.mmap(file.fileno(), SHARED_BYTES)
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "crash" / "writer.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def kill_one(self, directory: Path, seed: int, aim: int, spins: int, mode: str = "append") -> int:
        """Start a writer and kill it once it is at phase `aim`; the phase at which it died."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.shared[0] = 255
        self.process.stdin.write(f"{directory} {seed} {self.path} {mode}\n")
        self.process.stdin.flush()
        child = int(self.process.stdout.readline())
        shared, deadline = self.shared, time.monotonic() + WAIT_S
        while shared[0] != aim and time.monotonic() < deadline:
            pass
        for _ in range(spins):
            pass
        os.kill(child, signal.SIGKILL)
        status = int(self.process.stdout.readline())
        assert os.WIFSIGNALED(status), f"the writer ended without the kill: {status}"
        return shared[0]

    def number(self, position: int) -> int:
        return int(struct.unpack_from("<q", self.shared, position)[0])

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=10)
        self.process.stdout.close()
        self.shared.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WriterServer]:
    made = WriterServer(tmp_path / "shared")
    try:
        yield made
    finally:
        made.close()


def check(log: kreplica.Log, acknowledged: int, start: int) -> None:
    assert log.damage is None, log.damage
    assert log.log_start_offset <= start
    assert log.log_end_offset >= acknowledged
    offsets = range(log.log_start_offset, log.log_end_offset)
    records = list(log.read())
    assert [record.offset for record in records] == list(offsets)
    assert [int(record.value.partition(b":")[0]) for record in records] == list(offsets)


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_by_kill_9(server: WriterServer, tmp_path: Path, capsys) -> None:
    chance = random.Random(20)
    died: Counter[str] = Counter()
    for number in range(MOST_ATTEMPTS):
        if number >= KILLS and all(died[phase] for phase in PHASES):
            break
        directory = tmp_path / f"orders-{number // KILLS_PER_LOG}"
        if number % KILLS_PER_LOG == 0:
            server.shared[ACKNOWLEDGED : START + 8] = bytes(16)
        phase = server.kill_one(directory, number, number % len(PHASES), chance.randrange(20_000))
        died[PHASES[phase] if phase < len(PHASES) else "start"] += 1
        if directory.exists():
            # Every other time a reader opens the log first, and only the next writer recovers it.
            read_only = bool(number % 2) and server.number(ACKNOWLEDGED) > 0
            with kreplica.Log.open(directory, read_only=read_only, **SETTINGS) as log:
                check(log, server.number(ACKNOWLEDGED), server.number(START))
    with capsys.disabled():
        print(f"\n{died.total()} kills: {dict(sorted(died.items()))}")
    assert not [phase for phase in PHASES if not died[phase]], died


def check_compacted(log: kreplica.Log, acknowledged: int) -> None:
    """The last record of each key is there, and none twice, elsewhere, or with another value."""
    assert log.damage is None, log.damage
    end = log.log_end_offset
    assert end >= acknowledged
    records = list(log.read())
    offsets = [record.offset for record in records]
    assert offsets == sorted(set(offsets))
    assert set(range(max(0, end - KEYS), end)) <= set(offsets)
    assert [int(record.value.partition(b":")[0]) for record in records] == offsets
    assert [int(record.key) for record in records] == [offset % KEYS for offset in offsets]


@pytest.mark.slow
def test_a_cleaner_that_is_killed_takes_no_record_along(
    server: WriterServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(21)
    died: Counter[int] = Counter()
    for number in range(MOST_ATTEMPTS):
        if number >= KILLS // 2 and died[COMPACT] >= KILLS // 8:
            break
        directory = tmp_path / f"keys-{number // KILLS_PER_LOG}"
        if number % KILLS_PER_LOG == 0:
            server.shared[ACKNOWLEDGED : START + 8] = bytes(16)
        died[server.kill_one(directory, number, COMPACT, chance.randrange(60_000), "compact")] += 1
        if directory.exists():
            read_only = bool(number % 2) and server.number(ACKNOWLEDGED) > 0
            with kreplica.Log.open(directory, read_only=read_only, **COMPACTED) as log:
                check_compacted(log, server.number(ACKNOWLEDGED))
    with capsys.disabled():
        print(f"\n{died.total()} kills, {died[COMPACT]} of them while cleaning")
    assert died[COMPACT] >= KILLS // 8
