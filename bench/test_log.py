"""The log: append, sustained append, look-up and recovery, each beside its limit or a peer.

One thread unless a line says otherwise, on files of the file system of build/ (never tmpfs). A round writes
ROUND_BYTES, sixteen times what the prefaulter may run ahead. Limits and peers are timed in the same run.
"""

import itertools
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

import kreplica
from bench import memory
from kreplica._core import benchmarks
from kreplica._core.batch_builder import BatchBuilder
from kreplica._core.batch_walk import AT_END, SegmentWalk
from kreplica._core.crc32c import checksum
from kreplica._core.log_segment import LogSegment
from kreplica._core.log_state import LogState
from kreplica._core.region import Region
from kreplica._core.segment_index import OffsetIndex, TimeIndex

ROUND_BYTES = 512 << 20
SUSTAINED_BYTES = 4 << 30
SEGMENT_BYTES = 1 << 30
INDEX_BYTES = 10 << 20


@pytest.fixture(scope="module")
def scratch():
    """A directory for the files of a run."""
    path = Path(__file__).parents[1] / "build" / "bench-log"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def fresh(scratch):
    """Return an empty directory at each call, with physical memory available; removes the previous one."""
    numbers = itertools.count()
    made = []

    def make():
        for path in made:
            shutil.rmtree(path, ignore_errors=True)
        made[:] = [scratch / f"t-{next(numbers)}"]
        made[0].mkdir()
        memory.warm(2 * ROUND_BYTES)
        return made[0]

    yield make
    for path in made:
        shutil.rmtree(path, ignore_errors=True)


def open_segment(path, max_bytes=SEGMENT_BYTES):
    log = Region(path / "0.log", max_bytes, writable=True, create=True)
    index = Region(path / "0.index", INDEX_BYTES, writable=True, create=True)
    times = Region(path / "0.timeindex", INDEX_BYTES, writable=True, create=True)
    state = LogState(Region(path / "kreplica.state.deleted", 4096, writable=True, create=True), "x" * 36)
    state.update(log_end_offset=0)
    segment = LogSegment(
        log, OffsetIndex(index, 0, INDEX_BYTES), TimeIndex(times, 0, INDEX_BYTES), 0, max_bytes=max_bytes
    )
    return segment, state


def batch_of(count, size=1000):
    return BatchBuilder().build([os.urandom(size) for _ in range(count)], now_ms=1)


def prefaulted(path, size):
    region = Region(path / "limit", size + (1 << 20), writable=True, create=True)
    block = bytes(1 << 20)
    for position in range(0, size, len(block)):
        region.write(position, block)
    return region


@pytest.mark.parametrize("records", [1, 16])
def test_core_append(row, fresh, kafka, records):
    """core: append of a ready batch of {records} x 1000 B"""
    batch = batch_of(records)
    count = ROUND_BYTES // len(batch)
    row.time(benchmarks.append_batches, count, lambda: (*open_segment(fresh()), batch, count), rounds=9)
    limit = prefaulted(fresh(), ROUND_BYTES)
    row.beside(
        "CRC and copy into faulted-in memory", lambda: benchmarks.copy_batches(limit, batch, count), count
    )
    limit.close()
    row.beside_kafka(kafka, "append", records=records, bytes=1000)


def test_core_append_sustained(row, fresh):
    """core: append of a ready 16 KiB batch over 4 GiB, four segments of 1 GiB"""
    batch = batch_of(16)
    count = SEGMENT_BYTES // len(batch)

    def append_all(path):
        for number in range(SUSTAINED_BYTES // SEGMENT_BYTES):
            (path / str(number)).mkdir()
            segment, state = open_segment(path / str(number))
            benchmarks.append_batches(segment, state, batch, count)
            segment.close()

    def write_all():
        path = fresh()
        for number in range(SUSTAINED_BYTES // SEGMENT_BYTES):
            descriptor = os.open(path / str(number), os.O_WRONLY | os.O_CREAT)
            for at in range(count):
                os.pwrite(descriptor, batch, at * len(batch))
            os.close(descriptor)

    total = count * (SUSTAINED_BYTES // SEGMENT_BYTES)
    row.time(append_all, total, lambda: (fresh(),), rounds=3)
    row.beside("pwrite", write_all, total, rounds=3)


def test_append_as_leader(row, fresh, kafka):
    """UnifiedLog.append_as_leader from Python, a ready batch of 1 x 1000 B"""
    batch = batch_of(1)
    count = ROUND_BYTES // len(batch)

    def append_all(log):
        append = log._log.append_as_leader
        for _ in range(count):
            append(batch, 0)
        log.close()

    def opened():
        log = kreplica.Log.open(fresh() / "t-0")
        log.append_batch(batch)
        return (log,)

    row.time(append_all, count, opened, rounds=5)
    row.beside_kafka(kafka, "append", records=1, bytes=1000)


def appends(log, values, count):
    for _ in range(count):
        log.append(values)
    log.close()


def test_append_values(row, fresh):
    """Log.append of 16 values of 1000 B, per record"""
    lmdb = pytest.importorskip("lmdb")
    values = [os.urandom(1000) for _ in range(16)]
    data = b"".join(values)
    count = ROUND_BYTES // len(data)
    row.time(appends, count * 16, lambda: (kreplica.Log.open(fresh() / "t-0"), values, count), rounds=5)

    def write_all():
        descriptor = os.open(fresh() / "plain", os.O_WRONLY | os.O_CREAT)
        for _ in range(count):
            os.write(descriptor, data)
        os.close(descriptor)

    def put_all():
        with lmdb.open(str(fresh()), map_size=4 * ROUND_BYTES, sync=False) as env:
            for base in range(0, count * 16, 16):
                with env.begin(write=True) as transaction:
                    for at, value in enumerate(values, base):
                        transaction.put(at.to_bytes(8, "big"), value, append=True)

    row.beside("os.write", write_all, count * 16, rounds=5)
    row.beside("lmdb put(append=True), unsynced", put_all, count * 16, rounds=3)


def test_append_values_beside_a_busy_thread(row, fresh):
    """Log.append of 16 values of 1000 B, per record, one busy Python thread in the process"""
    values = [os.urandom(1000) for _ in range(16)]
    count = ROUND_BYTES // 16_000
    done = threading.Event()

    def spin():
        while not done.is_set():
            sum(range(100))

    busy = threading.Thread(target=spin)
    busy.start()
    try:
        row.time(appends, count * 16, lambda: (kreplica.Log.open(fresh() / "t-0"), values, count), rounds=5)
    finally:
        done.set()
        busy.join()
    row.beside(
        "no busy thread", lambda: appends(kreplica.Log.open(fresh() / "t-0"), values, count), count * 16
    )


def test_two_threads(row, fresh):
    """two threads, each its own log, 64 KiB batches, per batch of both"""
    batch = batch_of(64)
    count = ROUND_BYTES // len(batch) // 2

    def append_all(log):
        for _ in range(count):
            log.append_batch(batch)

    def two():
        path = fresh()
        with kreplica.Log.open(path / "t-0") as one_log, kreplica.Log.open(path / "t-1") as other_log:
            threads = [threading.Thread(target=append_all, args=(log,)) for log in (one_log, other_log)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def one():
        with kreplica.Log.open(fresh() / "t-0") as log:
            append_all(log)

    row.time(two, 2 * count, tuple, rounds=5)
    row.beside("one thread, one log", one, count, rounds=5)


@pytest.fixture(scope="module")
def filled(scratch):
    """A closed segment of 512 MiB in batches of 1 KiB, and its end offset."""
    path = scratch / "filled"
    path.mkdir()
    segment, state = open_segment(path)
    batch = batch_of(1)
    benchmarks.append_batches(segment, state, batch, (512 << 20) // len(batch))
    yield segment, state.log_end_offset
    segment.close()


def test_lookup(row, filled, kafka):
    """core: look a random offset's batch up, 1 KiB batches"""
    segment, end = filled
    offsets = np.random.default_rng(1).integers(0, end, 200_000)
    row.time(benchmarks.locate_offsets, len(offsets), lambda: (segment, offsets))
    row.beside_kafka(kafka, "read", records=1, bytes=1000)


def test_recovery_scan(row, fresh):
    """recovery scan of a 1 GiB segment with both indexes rebuilt, per GiB"""
    batch = batch_of(16)
    segment, state = open_segment(fresh())
    benchmarks.append_batches(segment, state, batch, (SEGMENT_BYTES - (1 << 20)) // len(batch))

    def recover():
        segment.forget()
        assert SegmentWalk(segment.region, feeds=segment).skip() == AT_END

    row.time(recover, 1, tuple, rounds=5)
    row.beside("CRC alone", lambda: checksum(segment.region.slice(0, segment.size)), 1, rounds=5)
    segment.close()
