"""The log cleaner: filling its map and copying surviving records, beside their limits; a round beside
Kafka's.

One thread. Segments have batches of 160 records of 100 B, with keys of 10 B in random order, mapped and in
the page cache; cleaned segments are new files on the file system of build/.
"""

import itertools
import os
import shutil
import statistics
from pathlib import Path

import numpy as np
import pytest

from bench import memory
from kreplica._core import benchmarks
from kreplica._core.batch_walk import AT_END, SegmentWalk
from kreplica._core.log_segment import LogSegment
from kreplica._core.offset_map import OffsetMap
from kreplica._core.record_filter import RecordFilter
from kreplica._core.region import Region
from kreplica._core.segment_index import OffsetIndex, TimeIndex
from kreplica.common.config import LogConfig
from kreplica.common.types import TopicPartition
from kreplica.log import log_loader
from kreplica.log.cleaner import Cleaner
from kreplica.record import BatchBuilder
from kreplica.runtime.clock import SystemClock
from kreplica.runtime.storage import FileStorage

RECORDS = 160
VALUE_BYTES = 80
KEYS = 7_000_000
MAP_BYTES = 128 << 20
STEP_BYTES = 8 << 20
CAPACITY = 1 << 30
INDEX_BYTES = 10 << 20


@pytest.fixture(scope="module")
def scratch():
    """A directory for the files of a run."""
    path = Path(__file__).parents[1] / "build" / "bench-log-cleaning"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    yield path
    shutil.rmtree(path)


def open_segment(path):
    log, index, times = (
        Region(path.with_suffix(suffix), capacity, writable=True, create=True, prefault_bytes=16 << 20)
        for suffix, capacity in ((".log", CAPACITY), (".index", INDEX_BYTES), (".timeindex", INDEX_BYTES))
    )
    return LogSegment(log, OffsetIndex(index, 0, INDEX_BYTES), TimeIndex(times, 0, INDEX_BYTES), 0)


def written(path, numbers):
    """Write a segment with a record for each number, which is its key."""
    value = os.urandom(VALUE_BYTES)
    builder = BatchBuilder()
    with path.with_suffix(".log").open("wb") as file:
        for start in range(0, len(numbers), RECORDS):
            records = [(b"%010d" % number, value) for number in numbers[start : start + RECORDS]]
            file.write(builder.build(records, base_offset=start, now_ms=1))
    return open_segment(path)


def read_all(segment):
    assert SegmentWalk(segment.region).skip() == AT_END


def fill(offset_map, segment):
    offset_map.put_batches(segment, 0, segment.size, segment.size)


def cleared(offset_map):
    offset_map.clear(0)
    return (offset_map,)


def test_offset_map(row, scratch):
    """core: offset map of 128 MiB, filling with 7 M keys in random order, a record"""
    memory.warm(2 * MAP_BYTES)
    segment = written(scratch / "keys", np.random.default_rng(1).permutation(KEYS))
    made = OffsetMap(MAP_BYTES, os.urandom(16))
    row.time(lambda it: fill(it, segment), KEYS, lambda: cleared(made), rounds=5)
    assert len(made) == KEYS
    slots = np.zeros((MAP_BYTES // 16, 2), dtype=np.int64)
    order = np.random.default_rng(2).permutation(len(slots))[:KEYS]
    row.beside("adding 1 to a random slot", lambda: benchmarks.touch_slots(slots, order), KEYS)
    row.beside("reading the batches and their CRC", lambda: read_all(segment), KEYS)
    segment.close()


@pytest.mark.parametrize("copies", [2, 10])
def test_record_filter(row, scratch, copies):
    """core: cleaning a segment of 300 MB, each key {copies} times in random order, a record"""
    count = 3_000_000
    numbers = np.random.default_rng(3).permutation(np.arange(count) % (count // copies))
    segment = written(scratch / f"copies-{copies}", numbers)
    offset_map = OffsetMap(MAP_BYTES, os.urandom(16))
    fill(offset_map, segment)
    made = []

    def fresh():
        for target in made:
            target.close()
            for region in target.regions():
                os.remove(region.path)
        memory.warm(512 << 20)
        made[:] = [open_segment(scratch / f"cleaned-{next(names)}")]
        return RecordFilter(offset_map, 1, 1), made[0]

    def clean(used, target):
        position = 0
        while position < segment.size:
            _, position, _ = used.filter_batches(segment, position, segment.size, STEP_BYTES, target)

    names = itertools.count()
    row.time(clean, count, fresh, rounds=5)
    assert made[0].size > segment.size // copies
    batch = segment.region.read(0, segment.position_of(0)[1])
    limit = open_segment(scratch / "limit")
    limit.region.ensure(len(batch) + (1 << 20))
    benchmarks.copy_batches(limit.region, batch, count // RECORDS // copies)
    row.beside(
        "CRC of all, CRC and copy of the rest into faulted-in memory",
        lambda: (read_all(segment), benchmarks.copy_batches(limit.region, batch, count // RECORDS // copies)),
        count,
    )
    for one in (segment, limit, *made):
        one.close()


# ---- a round beside Kafka's --------------------------------------------------------------------------------

LOG_BYTES = 1 << 30
DRAWN_KEYS = 10_000_000
ROUND_MAP_BYTES = 256 << 20  # Kafka's map takes 24 bytes a key; one pass must clean the log


def anonymous_memory():
    """Return the anonymous memory of this process in bytes."""
    rows = Path("/proc/self/status").read_text().splitlines()
    return next(int(row.split()[1]) << 10 for row in rows if row.startswith("RssAnon"))


def clean_round(log, most):
    """Run a whole round as LogCleaner does; append the additional peak memory to `most`."""
    before = anonymous_memory()
    cleaner = Cleaner(OffsetMap(ROUND_MAP_BYTES, os.urandom(16)), 512 << 10)
    run = cleaner.clean(log, 0, log.local.segments.active.base_offset, 1_000_000)
    for step in itertools.count():
        if next(run, None) is None:
            break
        if step % 64 == 0:
            most.append(anonymous_memory() - before)


def opened(path):
    config = LogConfig(cleanup_policy="compact")
    log = log_loader.load(
        str(path),
        TopicPartition("t", 0),
        config,
        FileStorage(),
        SystemClock(),
        log_loader.OpenOptions(is_only_replica=True),
    )
    log.roll()
    return log


def test_round(row, scratch, kafka):
    """log: a round over a whole log of 1 GiB, keys of 16 B drawn from 10 M, values of 100 B, a byte"""
    if kafka is None:
        pytest.skip("without Kafka there is no log to clean")
    filled = scratch / "filled" / "t-0"
    filled.parent.mkdir()
    size = int(
        kafka.measure(
            "fill", log=str(filled), keys=DRAWN_KEYS, records=160, bytes=100, total_bytes=LOG_BYTES
        ).median
    )
    peers, most, logs = [], [], []

    def copied(name):
        path = scratch / name / "t-0"
        shutil.rmtree(path.parent, ignore_errors=True)
        shutil.copytree(filled, path)
        os.sync()
        return path

    def setup():
        # In turns: Kafka cleans a copy of the log before each of our rounds.
        for log in logs:
            log.close()
        rate = kafka.measure("compact", log=str(copied("kafka")), map_bytes=ROUND_MAP_BYTES).median
        peers.append(1e9 / rate)
        path = copied("ours")
        memory.warm(ROUND_MAP_BYTES + (512 << 20))
        logs[:] = [opened(path)]
        return logs[0], most

    row.time(clean_round, size, setup, rounds=3)
    row.peer("Kafka", statistics.median(peers[1:]))
    row.note(f"{max(most) >> 20} MiB of memory at most, the map's {ROUND_MAP_BYTES >> 20} MiB among them")
    logs[0].close()
