"""Feed a log's files and a producer's batches with noise, until the time is over: the child of test_fuzz.py.

    python -m tests.crash.fuzz DIRECTORY SECONDS SEED

Each input follows from its number alone, which is written to DIRECTORY/input before it is tried: after a
crash or a hang, SEED = that number and SECONDS = 0 tries it again. Exits with 1 at an exception that is not
kreplica's own, and at a record that was never written; says how many inputs it tried.
"""

from __future__ import annotations

import faulthandler
import random
import shutil
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path

import kreplica
from kreplica.common.errors import KreplicaError
from kreplica.log.file_names import STATE_FILE
from kreplica.runtime.storage import FileStorage
from tests.support.batches import build, with_field
from tests.support.logs import OtherBoot

HANG_SECONDS = 30
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, (1 << 63) - 1, (1 << 64) - 1)

Files = dict[str, bytes]
Truth = set[tuple[bytes | None, bytes | None]]


def sound_log(directory: Path, *, clean: bool) -> Files:
    """The files of a log with two segments, every codec, producers, epochs and a transaction left open."""
    log = kreplica.Log.open(directory, index_interval_bytes=100, segment_bytes=2500)
    for number in range(20):
        log.append(
            [(b"k%d" % number, b"v%d" % number * 5), (None, b"w%d" % number)], leader_epoch=number // 7
        )
        producer = {"producer_id": 5, "producer_epoch": 0, "base_sequence": number}
        batch = build(
            [(b"p%d" % number, b"x" * 30)], now_ms=1000 + number, codec=CODECS[number % 5], **producer
        )
        log.append_batch(batch)
    log.append_batch(
        build([b"open"], now_ms=2000, producer_id=6, producer_epoch=0, base_sequence=0, transactional=True)
    )
    if clean:
        log.close()
    else:
        log._log.abandon()
        assert log._lock is not None
        log._lock.release()
    return {file.name: file.read_bytes() for file in directory.iterdir()}


def mutated(noise: random.Random, data: bytes, other: bytes) -> bytes:
    """The bytes, damaged in one to four places."""
    changed = bytearray(data)
    for _ in range(noise.randrange(1, 5)):
        at = noise.randrange(len(changed) + 1)
        kind = noise.randrange(7)
        if kind == 0 and changed:
            changed[at % len(changed)] ^= 1 << noise.randrange(8)
        elif kind == 1:
            size = noise.choice((1, 2, 4, 8))
            number = noise.choice(NUMBERS) & (1 << 8 * size) - 1
            changed[at : at + size] = number.to_bytes(size, "big")
        elif kind == 2:
            del changed[at:]
        elif kind == 3:
            del changed[at : at + noise.randrange(100)]
        elif kind == 4:
            changed[at:at] = noise.randbytes(noise.randrange(20))
        elif kind == 5:
            start = noise.randrange(len(other) + 1)
            changed[at:at] = other[start : start + noise.randrange(300)]
        else:
            changed[at : at + noise.randrange(200)] = bytes(noise.randrange(200))
    return bytes(changed)


def read_through(log: kreplica.Log, truth: Truth) -> None:
    for isolation in ("log_end", "high_watermark", "txn_committed"):
        try:
            for record in log.read(isolation=isolation):
                assert (record.key, record.value) in truth, f"never written: {record}"
        except KreplicaError:
            pass
    for timestamp in (-3, -2, -1, 0, 1010, 1 << 62):
        with suppress(KreplicaError):
            log.offset_for_timestamp(timestamp)


def try_files(noise: random.Random, directory: Path, sound: list[Files], truth: Truth) -> None:
    files = dict(noise.choice(sound))
    for name in noise.sample(sorted(files), noise.choice((1, 1, 1, 2, 3))):
        files[name] = mutated(noise, files[name], files[noise.choice(sorted(files))])
    if noise.randrange(4) == 0:
        files.pop(noise.choice([STATE_FILE, *files]), None)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    for name, data in files.items():
        (directory / name).write_bytes(data)
    storage = noise.choice((FileStorage(), OtherBoot()))
    for read_only in (True, False):
        try:
            with kreplica.Log.open(directory, read_only=read_only, storage=storage) as log:
                read_through(log, truth)
                if not read_only and log.damage is None:
                    log.append([(b"k0", b"v0" * 5)], leader_epoch=1 << 20)
                    read_through(log, truth)
                    log.truncate_to(noise.randrange(log.log_end_offset + 1))
                    read_through(log, truth)
        except KreplicaError:
            pass


def try_batch(noise: random.Random, log: kreplica.Log) -> None:
    records = [(noise.randbytes(3), noise.randbytes(noise.randrange(60)), [("h", b"v")])] * noise.randrange(
        1, 4
    )
    batch = mutated(noise, build(records, now_ms=5, codec=noise.choice(CODECS)), b"")
    if noise.randrange(4) and len(batch) >= 61:
        batch = with_field(batch, 8, ">i", len(batch) - 12)
    end = log.log_end_offset
    try:
        info = log.append_batch(batch)
    except KreplicaError:
        assert log.log_end_offset == end, "a refused batch moved the log's end"
        return
    assert len(list(log.read(info.base_offset))) == info.record_count, "what was accepted does not read"


def main(root: Path, seconds: float, seed: int) -> int:
    sound = [sound_log(root / "clean-0", clean=True), sound_log(root / "killed-0", clean=False)]
    with kreplica.Log.open(root / "clean-0", read_only=True) as log:
        truth: Truth = {(record.key, record.value) for record in log.read()}
    appended = kreplica.Log.open(root / "appended-0")
    until, number = time.monotonic() + seconds, seed
    while True:
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        (root / "input").write_text(str(number))
        noise = random.Random(number)
        try:
            if noise.randrange(3):
                try_files(noise, root / "tried-0", sound, truth)
            else:
                try_batch(noise, appended)
        except BaseException:
            traceback.print_exc()
            print(f"input {number}", file=sys.stderr)
            return 1
        number += 1
        if time.monotonic() >= until:
            print(number - seed)
            return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])))
