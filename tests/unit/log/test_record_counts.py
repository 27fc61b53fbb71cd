"""Counts of records and gaps are those of the offsets, in one piece or joined from parts."""

from __future__ import annotations

from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kreplica
from kreplica.common.types import TopicPartition
from kreplica.log import record_counts
from kreplica.log.record_counts import RecordCounts, bounds_of, count, counted, parts_of
from kreplica.log.replica_directories import Replica, open_replica
from kreplica.runtime.clock import SystemClock
from kreplica.runtime.storage import FileStorage
from tests.conformance.expectation import FIXTURES

LOGS = FIXTURES / "clean" / "logs"


def by_hand(offsets: list[int], start: int, stop: int) -> RecordCounts:
    there = [offset in set(offsets) for offset in range(start, stop)]
    gaps = sum(not now and before for before, now in pairwise([True, *there]))
    first, last = (offsets[0], offsets[-1]) if offsets else (None, None)
    return RecordCounts(start, stop, len(offsets), first, last, gaps)


@given(st.sets(st.integers(5, 60)), st.lists(st.integers(0, 70), max_size=6), st.integers(1, 9))
def test_counts_joined_from_parts(there: set[int], cuts: list[int], size: int) -> None:
    offsets, start, stop = sorted(there), 3, 64
    whole = by_hand(offsets, start, stop)
    ends = [start, *sorted(min(max(start, cut), stop) for cut in cuts), stop]
    found = None
    for first, end in pairwise(ends):
        inside = [offset for offset in offsets if first <= offset < end]
        arrays = [numpy.array(inside[at : at + size], numpy.int64) for at in range(0, len(inside), size)]
        part = counted(arrays, first, end)
        assert part == by_hand(inside, first, end)
        found = part if found is None else found.joined(part)
    assert found == whole
    assert whole.missing == stop - start - len(offsets)


@pytest.mark.parametrize("isolation", ["log_end", "high_watermark", "txn_committed"])
@pytest.mark.parametrize("name", ["segments", "compacted", "transactions", "trimmed"])
def test_logs_of_kafkas(name: str, isolation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with kreplica.Log.open(LOGS / f"{name}-0", read_only=True) as log:
        offsets = [record.offset for record in log.read(isolation=isolation)]  # type: ignore[arg-type]
    replica = Replica(TopicPartition(name, 0), str(LOGS / f"{name}-0"))
    with closing(open_replica(FileStorage(), SystemClock(), replica)) as opened:
        bounds = bounds_of(opened, isolation)
        expected = by_hand(offsets, bounds.log_start_offset, bounds.stop)
        assert count(opened, bounds.log_start_offset, bounds.stop, isolation) == expected
        monkeypatch.setattr(record_counts, "PART_BYTES", 1)
        parts = list(parts_of(opened, bounds))
        joined = RecordCounts(bounds.log_start_offset, bounds.log_start_offset)
        for start, stop, _ in parts:
            joined = joined.joined(count(opened, start, stop, isolation))
    assert joined == expected
    assert len(parts) > (name == "segments")


def test_rot_is_counted_and_passed_over(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    with kreplica.Log.open(directory) as log:
        for _ in range(3):
            log.append([b"a", b"b"])
    path = directory / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    replica = Replica(TopicPartition("t", 0), str(directory))
    with closing(open_replica(FileStorage(), SystemClock(), replica)) as opened:
        assert count(opened, 0, 6, "high_watermark") == RecordCounts(0, 6, 4, 0, 5, 1, 1)
