"""Every flipped bit and every truncation of a segment: no wrong record is ever read, and nothing crashes.

A small segment is tried whole, through every way of opening a log. `make flips` tries a large one of
KREPLICA_FLIP_BYTES, step by step.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import kreplica
from kreplica.common.errors import KreplicaError
from kreplica.log.file_names import STATE_FILE
from tests.support.damage import bit_flips, truncations
from tests.support.logs import OtherBoot

SEGMENT = "00000000000000000000.log"
FLIP_BYTES = int(os.environ.get("KREPLICA_FLIP_BYTES", "0"))

# All flips of a large segment would take days: a bit of each such step, and a truncation there. A prime, so
# that the steps fall on all fields.
LARGE_STRIDE_BYTES = 97

# How a log comes to its opening: closed in order, its writer killed, the machine restarted, or no state
# file there, as Kafka leaves it.
ENDINGS = ("clean", "killed", "restarted", "stateless")

Fact = tuple[int | None, bytes | None, bytes | None, int | None, tuple[tuple[str, bytes | None], ...]]


def written(directory: Path, batches: int, value_size: int, ending: str) -> None:
    log = kreplica.Log.open(directory, index_interval_bytes=200)
    noise = random.Random(7)
    for number in range(batches):
        records = [
            kreplica.Record(value=noise.randbytes(value_size), key=b"k%d" % number, timestamp=1000 + number),
            kreplica.Record(value=None, key=b"n", headers=[("h", b"v")], timestamp=2000 + number),
        ]
        log.append(records)
    if ending == "clean":
        log.close()
    else:
        # As a killed process leaves it: what it wrote, and no farewell.
        log._log.abandon()
        log._lock.release()
    if ending == "stateless":
        (directory / STATE_FILE).unlink()


def facts(directory: Path, *, read_only: bool, ending: str) -> list[Fact]:
    """What a reader of the log gets until the end or an error, and that error."""
    storage = OtherBoot() if ending == "restarted" else None
    found: list[Fact] = []
    try:
        with kreplica.Log.open(directory, read_only=read_only, storage=storage) as log:
            starts = [log.log_start_offset, 2]
            if log.damage is not None and log.damage.next_offset is not None:
                starts.append(log.damage.next_offset)
            for start in starts:
                try:
                    for record in log.read(start=start):
                        found.append(
                            (record.offset, record.key, record.value, record.timestamp, tuple(record.headers))
                        )
                except KreplicaError:
                    continue
    except KreplicaError:
        pass
    return found


class Bench:
    """A directory that is damaged, read, and laid anew, many times."""

    def __init__(self, path: Path, ending: str, batches: int, value_size: int) -> None:
        self.ending = ending
        self.sound = path / "sound-0"
        self.tried = path / "tried-0"
        written(self.sound, batches, value_size, ending)
        segment = self.sound / SEGMENT
        if ending != "clean":
            # Allocated ahead: the zeros behind the last batch are of no interest here.
            segment.write_bytes(segment.read_bytes()[: valid_bytes(segment.read_bytes())])
        self.files = {file.name: file.read_bytes() for file in self.sound.iterdir()}
        self.log = self.files[SEGMENT]
        self.truth = set(facts(self.laid(self.log), read_only=True, ending=ending))
        assert len(self.truth) == 2 * batches

    def laid(self, log: bytes) -> Path:
        self.tried.mkdir(exist_ok=True)
        for file in self.tried.iterdir():
            if self.files.get(file.name) is None:
                file.unlink()
        for name, data in (self.files | {SEGMENT: log}).items():
            file = self.tried / name
            if not file.exists() or file.stat().st_size != len(data) or file.read_bytes() != data:
                file.write_bytes(data)
        return self.tried

    def wrong(self, log: bytes, *, read_only: bool) -> set[Fact]:
        return set(facts(self.laid(log), read_only=read_only, ending=self.ending)) - self.truth


def valid_bytes(log: bytes) -> int:
    position = 0
    while position + 61 <= len(log) and (length := int.from_bytes(log[position + 8 : position + 12], "big")):
        position += 12 + length
    return position


def of_the_last_offset(bench: Bench, log: bytes) -> bool:
    """Whether only the offset of the last batch was changed: nothing but a state file knows what it was."""
    position, last = 0, 0
    while position < len(bench.log):
        last = position
        position += 12 + int.from_bytes(bench.log[position + 8 : position + 12], "big")
    return log[:last] + log[last + 8 :] == bench.log[:last] + bench.log[last + 8 :]


@pytest.fixture
def fast_path() -> Iterator[Path]:
    """A directory in memory where the machine has one: no disk is on trial here."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as path:
        yield Path(path)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("read_only", [True, False], ids=["reader", "writer"])
def test_every_flip_and_truncation_of_a_small_segment(fast_path: Path, ending: str, read_only: bool) -> None:
    bench = Bench(fast_path, ending, 3, 5)
    for damaged in damages(bench.log):
        if ending in ("restarted", "stateless") and of_the_last_offset(bench, damaged):
            continue
        assert bench.wrong(damaged, read_only=read_only) == set()


def damages(log: bytes) -> Iterator[bytes]:
    yield from bit_flips(log)
    yield from truncations(log)


@pytest.mark.skipif(not FLIP_BYTES, reason="make flips")
@pytest.mark.parametrize("ending", ENDINGS)
def test_flips_of_a_large_segment(fast_path: Path, ending: str) -> None:
    bench = Bench(fast_path, ending, max(1, FLIP_BYTES // 8192), 8000)
    noise = random.Random(11)
    for position in range(0, len(bench.log), LARGE_STRIDE_BYTES):
        assert bench.wrong(bench.log[:position], read_only=True) == set(), position
        damaged = bytearray(bench.log)
        damaged[position] ^= 1 << noise.randrange(8)
        if ending in ("restarted", "stateless") and of_the_last_offset(bench, bytes(damaged)):
            continue
        assert bench.wrong(bytes(damaged), read_only=True) == set(), position
