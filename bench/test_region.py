"""Regions: copying into a growing file, beside the map at its best, at its worst, and pwrite.

One Python thread, with the prefault thread unless the row says otherwise, on the file system of build/. Each
round is 1 GiB, 64 times the prefault window.
"""

from __future__ import annotations

import functools
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.memory import warm
from kreplica._core.region import Region

TOTAL_BYTES = 1 << 30
POPULATE_WRITE = 23


@pytest.fixture
def path() -> Iterator[Path]:
    made = Path(__file__).parents[1] / "build" / "region.bench"
    made.parent.mkdir(exist_ok=True)
    yield made
    made.unlink(missing_ok=True)


def into_region(path: Path, data: bytes, **options: Any) -> None:
    with Region(path, TOTAL_BYTES, writable=True, create=True, **options) as region:
        for position in range(0, TOTAL_BYTES, len(data)):
            region.write(position, data)
            region.publish(position + len(data))


def by_pwrite(path: Path, data: bytes) -> None:
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    for position in range(0, TOTAL_BYTES, len(data)):
        os.pwrite(file, data, position)
    os.close(file)


def faulted_in(path: Path) -> mmap.mmap:
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(file, 0, TOTAL_BYTES)
    made = mmap.mmap(file, TOTAL_BYTES)
    os.close(file)
    made.madvise(POPULATE_WRITE)
    return made


def into_map(target: mmap.mmap, data: bytes) -> None:
    size = len(data)
    for position in range(0, TOTAL_BYTES, size):
        target[position : position + size] = data


@pytest.mark.parametrize("kib", [16, 64])
def test_append(row: Any, path: Path, kib: int) -> None:
    """_core: {kib} KiB written to a region and published, 1 GiB in all, page cache"""
    data = os.urandom(kib << 10)
    count = TOTAL_BYTES // len(data)

    def fresh() -> tuple[Path, bytes]:
        path.unlink(missing_ok=True)
        warm(TOTAL_BYTES)
        return path, data

    row.time(into_region, count, fresh, rounds=5)
    small = functools.partial(into_region, prefault_bytes=0)
    row.beside("page by page", small, count, fresh, rounds=5)
    row.beside("pwrite", by_pwrite, count, fresh, rounds=5)
    fresh()
    with faulted_in(path) as target:
        row.beside("a map faulted in before", lambda: into_map(target, data), count, rounds=5)


def test_slice(row: Any, path: Path) -> None:
    """_core: a slice of 1 KiB pinned and dropped, from Python"""
    with Region(path, 1 << 20, writable=True, create=True) as region:
        region.write(0, bytes(1 << 20))
        region.publish(1 << 20)
        plain = memoryview(bytes(1 << 20))

        def pin() -> None:
            for _ in range(10_000):
                region.slice(4096, 1024)

        def cut() -> None:
            for _ in range(10_000):
                plain[4096:5120]

        row.time(pin, 10_000, tuple, rounds=20)
        row.beside("a slice of a memoryview", cut, 10_000)
