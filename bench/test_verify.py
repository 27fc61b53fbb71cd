"""Verify and repair a log that is in the page cache, beside the CRC of the same bytes."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import kreplica
from kreplica._core.crc32c import checksum
from kreplica.log.repair import repair
from kreplica.log.verify import verify
from kreplica.runtime.clock import SystemClock
from kreplica.runtime.storage import FileStorage

LOG_BYTES = 1 << 30
STORAGE = FileStorage()
SIZES = pytest.mark.parametrize("size", [1000, 100])


@pytest.fixture
def path(size):
    """A log of 1 GiB in segments of 256 MiB, with batches of 16 records of `size` bytes."""
    path = Path(__file__).parents[1] / "build" / "bench-verify" / "orders-0"
    shutil.rmtree(path.parent, ignore_errors=True)
    noise = np.random.default_rng(1)
    with kreplica.Log.open(path, segment_bytes=256 << 20) as written:
        values = [noise.bytes(size) for _ in range(16)]
        while written.size < LOG_BYTES:
            written.append(values)
    yield path
    shutil.rmtree(path.parent)


def segments(path):
    return [np.memmap(file, dtype=np.uint8, mode="r") for file in sorted(path.glob("*.log"))]


def mebibytes(path):
    return sum(file.stat().st_size for file in path.glob("*.log")) >> 20


@SIZES
def test_verify(row, path):
    """verify: each MiB of batches of 16 x {size} B, from the page cache"""
    count = mebibytes(path)
    row.time(lambda: list(verify(STORAGE, str(path))), count, tuple, rounds=5)
    row.beside("CRC", lambda: [checksum(bytes_) for bytes_ in segments(path)], count, rounds=5)


@SIZES
def test_repair(row, path):
    """repair: each MiB of batches of 16 x {size} B in which it finds nothing, from the page cache"""
    count = mebibytes(path)
    row.time(lambda: list(repair(STORAGE, SystemClock(), str(path))), count, tuple, rounds=5)
    row.beside("CRC", lambda: [checksum(bytes_) for bytes_ in segments(path)], count, rounds=5)
