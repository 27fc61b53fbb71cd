"""Every flipped bit of what no CRC covers: base offset, length, leader epoch and magic of a batch.

Each has no effect, or is named; no wrong record is read, none is missing without a word, and no wrong epoch
reaches the checkpoint. By default every few bits are tried; `make flips` tries all (KREPLICA_FLIP_BYTES).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import kreplica
from kreplica.common.errors import KreplicaError
from kreplica.log.checkpoint import LEADER_EPOCH_CHECKPOINT, LeaderEpochCheckpointFile
from kreplica.log.file_names import STATE_FILE
from kreplica.log.verify import verify
from kreplica.runtime.storage import FileStorage
from tests.support.logs import OtherBoot

ALL = int(os.environ.get("KREPLICA_FLIP_BYTES", "0")) > 0
STRIDE = 1 if ALL else 5
# How a log comes to its opening: closed in order; its writer killed; the machine restarted, with all or
# nothing known to be flushed; and no state file there, as Kafka leaves it.
ENDINGS = ("clean", "killed", "restarted", "restarted, flushed", "stateless")

EPOCHS = (1, 1, 2, 5, 5, 5, 6)
CLOSED = 3  # the number of batches in the first segment
VALUES = [b"value %d" % number for number in range(len(EPOCHS))]
BATCHES = (0, CLOSED - 1, CLOSED, CLOSED + 1, len(EPOCHS) - 1)
HEADER_BITS = 17 * 8


def written(directory: Path, ending: str) -> None:
    durability = "fsync" if ending == "restarted, flushed" else "page_cache"
    log = kreplica.Log.open(directory, durability=durability)
    for number, epoch in enumerate(EPOCHS):
        if number == CLOSED:
            log.roll()
        log.append([VALUES[number]], leader_epoch=epoch)
    if ending == "clean":
        log.close()
        return
    if durability == "fsync":
        log.flush()
        log._log.flush_state()
    log._log.abandon()
    log._lock.release()
    if ending == "stateless":
        (directory / STATE_FILE).unlink()


class Bench:
    """A directory that is laid anew for each flip."""

    def __init__(self, path: Path, ending: str) -> None:
        self.ending = ending
        sound = path / "sound-0"
        written(sound, ending)
        self.files = {file.name: file.read_bytes() for file in sound.iterdir()}
        self.tried = path / "tried-0"
        self.tried.mkdir()
        self.epochs = self.checkpoint(sound)
        self.storage = OtherBoot() if ending.startswith("restarted") else FileStorage()

    def checkpoint(self, directory: Path) -> set[tuple[int, int]]:
        path = directory / LEADER_EPOCH_CHECKPOINT
        return set(LeaderEpochCheckpointFile.parse(path.read_bytes(), str(path)))

    def laid(self, batch: int, bit: int) -> Path:
        for file in self.tried.iterdir():
            file.unlink()
        for name, data in self.files.items():
            (self.tried / name).write_bytes(data)
        name = f"{0 if batch < CLOSED else CLOSED:020d}.log"
        data = bytearray(self.files[name])
        position = 0
        for _ in range(batch if batch < CLOSED else batch - CLOSED):
            position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
        data[position + bit // 8] ^= 1 << bit % 8
        (self.tried / name).write_bytes(data)
        return self.tried

    def opened(self, *, read_only: bool) -> kreplica.Log:
        return kreplica.Log.open(self.tried, read_only=read_only, storage=self.storage)


def try_one(bench: Bench, *, read_only: bool) -> str:
    """Open the log and read it from each offset on; return what was reported."""
    try:
        log = bench.opened(read_only=read_only)
    except KreplicaError as error:
        return f"open: {error}"
    said = []
    # A reader takes all damage behind the last flush for the torn end of the log, which was not acknowledged.
    ends_early = read_only and bench.ending in ("restarted", "stateless")
    with log:
        for cut in log.recovery.cut:
            said.append(f"cut: {cut}")
        for start in range(len(VALUES)):
            try:
                records = list(log.read(start=start))
            except KreplicaError as error:
                said.append(f"read: {error}")
                continue
            found = [(record.offset, record.value) for record in records]
            assert set(found) <= set(enumerate(VALUES)), (start, found)
            if len(found) < len(VALUES) - start and not ends_early:
                assert log.recovery.cut or log.damages, (start, found, "left out without a word")
        for damage in log.damages:
            said.append(f"damage: {damage}")
    if not read_only:
        assert bench.checkpoint(bench.tried) <= bench.epochs, "a wrong epoch was written"
    return "; ".join(said)


def flips() -> Iterator[tuple[int, int]]:
    for number, batch in enumerate(BATCHES):
        for bit in range(number % STRIDE, HEADER_BITS, STRIDE):
            yield batch, bit


def is_unknowable(bench: Bench, batch: int, bit: int) -> bool:
    """A higher offset of the last batch: nothing but a state file that is believed knows what it was."""
    return batch == len(EPOCHS) - 1 and bit < 64 and bench.ending in ("restarted", "stateless")


def only_recovery_knows(bench: Bench, batch: int, bit: int) -> bool:
    """The same where the log was flushed up to there: it says so when it is opened."""
    return batch == len(EPOCHS) - 1 and bit < 64 and bench.ending == "restarted, flushed"


@pytest.fixture
def fast_path() -> Iterator[Path]:
    """A directory in memory where the machine has one: no disk is on trial here."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as path:
        yield Path(path)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("read_only", [True, False], ids=["reader", "writer"])
def test_a_flip_in_a_log_is_named_or_without_effect(fast_path: Path, ending: str, read_only: bool) -> None:
    bench = Bench(fast_path, ending)
    for batch, bit in flips():
        if is_unknowable(bench, batch, bit):
            continue
        bench.laid(batch, bit)
        found = list(verify(bench.storage, str(bench.tried)))
        assert found or only_recovery_knows(bench, batch, bit), (batch, bit, "verify finds nothing")
        try_one(bench, read_only=read_only)
