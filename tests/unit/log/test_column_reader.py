"""Columns of a log are what reading it record by record gives: ranges, transactions, gaps, damage."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kreplica
from kreplica.common.config import LogConfig
from kreplica.common.errors import DamagedLog, LogClosed, OffsetOutOfRange
from kreplica.common.isolation import Isolation
from kreplica.common.types import TopicPartition
from kreplica.log import column_reader
from kreplica.log.column_reader import COLUMNS, ColumnReader, arrow_batches
from kreplica.log.live_reader import LiveReader
from kreplica.log.repair import repair
from kreplica.log.unified_log import UnifiedLog
from kreplica.runtime.clock import SystemClock
from kreplica.runtime.storage import FileStorage
from tests.conformance.expectation import FIXTURES
from tests.support.logs import ManualClock
from tests.unit.log.diff.replicas import batch, replica

PARTITIONS = sorted(
    path for end in ("clean", "unclean") for path in (FIXTURES / end / "logs").iterdir() if path.is_dir()
)
NAMES = ("offset", "timestamp", "timestamp_type", "key", "value", "headers")
ISOLATIONS = ("log_end", "txn_committed")


def opened(directory: Path | str) -> UnifiedLog:
    partition = TopicPartition("t", 0)
    return LiveReader(str(directory), partition, LogConfig(), FileStorage(), SystemClock()).open()


def rows(batches: list[pyarrow.RecordBatch]) -> list[tuple[object, ...]]:
    found = []
    for each in batches:
        each.validate(full=True)
        columns = {name: each.column(name) for name in NAMES}
        columns["timestamp"] = columns["timestamp"].cast(pyarrow.int64())
        lists = {name: column.to_pylist() for name, column in columns.items()}
        lists["headers"] = [[(pair["key"], pair["value"]) for pair in row] for row in lists["headers"]]
        found += list(zip(*lists.values(), strict=True))
    return found


def read_rows(log: kreplica.Log, **options: object) -> list[tuple[object, ...]]:
    return [tuple(getattr(record, name) for name in NAMES) for record in log.read(**options)]  # type: ignore[arg-type]


def offsets(reader: ColumnReader) -> list[int]:
    return [offset for each in arrow_batches(reader, ["offset"]) for offset in each["offset"].to_pylist()]


# ---- as record by record ----------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda path: f"{path.parts[-3]}-{path.name}")
@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("piece_rows", [1, 1 << 16])
def test_the_records_of_a_log_of_kafkas(
    partition: Path, isolation: Isolation, piece_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(column_reader, "PIECE_ROWS", piece_rows)
    with kreplica.Log.open(partition, read_only=True) as log:
        expected = read_rows(log, isolation=isolation)
        assert rows(list(log.arrow_batches(isolation=isolation))) == expected
        assert rows(list(log.arrow_batches(isolation=isolation, views=True))) == expected


@given(st.data())
def test_any_range_of_a_log_with_transactions(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["transactions-0", "compacted-0", "segments-0"]))
    isolation: Isolation = data.draw(st.sampled_from(["log_end", "txn_committed"]))
    with kreplica.Log.open(FIXTURES / "clean" / "logs" / name, read_only=True) as log:
        start = data.draw(st.integers(log.log_start_offset, log.log_end_offset))
        stop = data.draw(st.none() | st.integers(0, log.log_end_offset + 5))
        expected = read_rows(log, start=start, stop=stop, isolation=isolation)
        assert rows(list(log.arrow_batches(start, stop, isolation=isolation))) == expected


@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_with_nulls_and_headers(tmp_path: Path, codec: str) -> None:
    with kreplica.Log.open(tmp_path / "t-0", config={"compression.type": codec}) as log:
        for number in range(20):
            log.append([None, (None, b""), (b"k", None), kreplica.Record(b"v" * 50, headers=[("h", None)])])
            if number == 9:
                log.roll()
        assert rows(list(log.arrow_batches())) == read_rows(log)
        table = log.to_arrow(10, 30, columns=["value", "offset"])
        assert table.column_names == ["value", "offset"]
        assert table["offset"].to_pylist() == list(range(10, 30))
        assert log.to_arrow(80).num_rows == 0
        assert log.to_arrow(80).schema == log.to_arrow().schema


def test_a_chunk_may_end_within_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kreplica.log.log_walk.CHUNK_BYTES", 1000)
    with kreplica.Log.open(tmp_path / "t-0") as log:
        for size in (10, 300, 700, 5000, 1, 939, 940, 20):
            log.append([bytes(size)])
        assert log.to_arrow().num_rows == 8


def test_pieces_are_bounded_by_their_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_reader, "PIECE_BYTES", 10_000)
    with kreplica.Log.open(tmp_path / "t-0", compression_type="zstd") as log:
        for _ in range(30):
            log.append([bytes(3000)])
        assert [each.num_rows for each in log.arrow_batches()] == [4] * 7 + [2]


def test_beside_a_writer(tmp_path: Path) -> None:
    with (
        kreplica.Log.open(tmp_path / "t-0", segment_bytes=2000) as writer,
    ):
        writer.append([bytes(300)])
        with kreplica.Log.open(tmp_path / "t-0", read_only=True) as reader:
            for number in range(2, 30):
                writer.append([bytes(300)])
                assert reader.to_arrow().num_rows == writer.to_arrow().num_rows == number


def test_ranges_outside_of_the_log(tmp_path: Path) -> None:
    with kreplica.Log.open(tmp_path / "t-0") as log:
        log.append([b"a", b"b"])
        log.delete_records(1)
        for start in (0, 3):
            with pytest.raises(OffsetOutOfRange):
                log.to_arrow(start)
        with pytest.raises(ValueError, match="unknown column"):
            log.to_arrow(columns=["colour"])
    with pytest.raises(LogClosed):
        log.to_arrow()


# ---- times ------------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=4), max_size=8), st.data())
def test_a_range_of_times(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[int]], data: st.DataObject
) -> None:
    times = [time for each in batches for time in each]
    with kreplica.Log.open(tmp_path_factory.mktemp("times") / "t-0", segment_bytes=200) as log:
        for each in batches:
            log.append([kreplica.Record(b"v", timestamp=time) for time in each])
        start = data.draw(st.none() | st.integers(0, 45))
        stop = data.draw(st.none() | st.integers(0, 45))
        reader = ColumnReader(log._log, ["offset"], from_time=start, to_time=stop)
        wanted = [
            offset
            for offset, time in enumerate(times)
            if (start is None or time >= start) and (stop is None or time < stop)
        ]
        assert offsets(reader) == wanted
        assert reader.next_offset == len(times)


# ---- damage -----------------------------------------------------------------------------------------------


LOG = [batch(0, [b"a", b"b"]), batch(2, [b"c"]), batch(3, [b"d", b"e"]), batch(5, [b"f"])]


def rotten(batches: list[bytes], index: int, at: int) -> list[bytes]:
    changed = bytearray(batches[index])
    changed[at] ^= 1
    return [*batches[:index], bytes(changed), *batches[index + 1 :]]


@pytest.mark.parametrize("at", [7, 8, 11, 16, 17, 30, 61, 70], ids="byte {}".format)
@pytest.mark.parametrize("rolled", [False, True])
def test_rot_names_its_offset_and_may_be_passed_over(tmp_path: Path, at: int, rolled: bool) -> None:
    there = rotten(LOG, 1, at)
    directory = replica(tmp_path / "t-0", *([there[:2], there[2:]] if rolled else [there]))
    with pytest.raises(DamagedLog, match="offsets 2 to 2") as caught:
        offsets(ColumnReader(opened(directory), COLUMNS, own=True))
    assert caught.value.where == 2
    reader = ColumnReader(opened(directory), COLUMNS, own=True, skip_damaged=True)
    assert offsets(reader) == [0, 1, 3, 4, 5]
    assert [(damage.first_offset, damage.next_offset) for damage in reader.skipped] == [(2, 3)]
    assert (reader.rows, reader.next_offset) == (5, 6)


@pytest.mark.parametrize("mask", [1, 2, 4, 64])
def test_offsets_that_rotted_are_never_handed_out(tmp_path: Path, mask: int) -> None:
    for index in range(1, 4):
        changed = bytearray(LOG[index])
        changed[7] ^= mask
        there = [*LOG[:index], bytes(changed), *LOG[index + 1 :], batch(6, [b"last"])]
        log = opened(replica(tmp_path / f"{index}" / "t-0", there))
        reader = ColumnReader(log, COLUMNS, own=True, skip_damaged=True)
        lost = [0, 1, 2, 3, 4, 5, 6][(2, 3, 5)[index - 1] : (3, 5, 6)[index - 1]]
        assert offsets(reader) == [offset for offset in range(7) if offset not in lost]


def test_what_comes_before_the_rot_is_handed_out(tmp_path: Path) -> None:
    directory = replica(tmp_path / "t-0", rotten(LOG, 2, 70))
    reader = ColumnReader(opened(directory), ["offset"], own=True)
    batches = arrow_batches(reader, ["offset"])
    assert next(batches)["offset"].to_pylist() == [0, 1, 2]
    with pytest.raises(DamagedLog):
        next(batches)
    assert offsets(ColumnReader(opened(directory), ["offset"], own=True, stop=3)) == [0, 1, 2]
    assert offsets(ColumnReader(opened(directory), ["offset"], own=True, start=5)) == [5]


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_log_that_recovery_found_damaged(tmp_path: Path, isolation: str) -> None:
    with kreplica.Log.open(tmp_path / "t-0") as log:
        for number in range(6):
            log.append([b"%d" % number * 50])
    path = tmp_path / "t-0" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[len(data) // 2 + 3] ^= 1
    path.write_bytes(data)
    (tmp_path / "t-0" / f"{0:020d}.index").write_bytes(bytes(8))  # so that it is recovered
    reader = ColumnReader(opened(tmp_path / "t-0"), ["offset"], own=True, isolation=isolation)
    with pytest.raises(DamagedLog) as caught:
        offsets(reader)
    assert caught.value.where == 3
    reader = ColumnReader(
        opened(tmp_path / "t-0"), ["offset"], own=True, isolation=isolation, skip_damaged=True
    )
    assert offsets(reader) == [0, 1, 2, 4, 5]
    assert [damage.first_offset for damage in reader.skipped] == [3]


def test_a_file_that_is_cut_short(tmp_path: Path) -> None:
    with kreplica.Log.open(tmp_path / "t-0") as log:
        for _ in range(10):
            log.append([bytes(3000)])
    path = tmp_path / "t-0" / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:10_000])
    with pytest.raises(DamagedLog):
        offsets(ColumnReader(opened(tmp_path / "t-0"), ["offset"], own=True))
    reader = ColumnReader(opened(tmp_path / "t-0"), ["offset"], own=True, skip_damaged=True)
    assert offsets(reader) == [0, 1, 2]
    assert [(damage.first_offset, damage.next_offset) for damage in reader.skipped] == [(3, 10)]


def test_quarantined_records_are_reported_without_an_error(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    with kreplica.Log.open(directory) as log:
        for number in range(6):
            log.append([b"%d" % number * 50])
    path = directory / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[len(data) // 2 + 70] ^= 1
    path.write_bytes(data)
    list(repair(FileStorage(), ManualClock(), str(directory), apply_changes=True))
    reader = ColumnReader(opened(directory), ["offset"], own=True)
    assert offsets(reader) == [0, 1, 2, 4, 5]
    assert [(damage.first_offset, damage.next_offset) for damage in reader.skipped] == [(3, 4)]
    reader = ColumnReader(opened(directory), ["offset"], own=True, stop=3)
    assert offsets(reader) == [0, 1, 2]
    assert reader.skipped == []


@pytest.mark.parametrize("segment", [0, 1])
def test_a_log_that_goes_on_beside_what_rotted(tmp_path: Path, segment: int) -> None:
    directory = tmp_path / "t-0"
    with kreplica.Log.open(directory, segment_bytes=1000) as log:
        for number in range(20):
            log.append([kreplica.Record(b"%03d" % number * 20, timestamp=number)])
    path = sorted(directory.glob("*.log"))[segment]
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    first = int(path.name[:20])
    with kreplica.Log.open(directory, segment_bytes=1000) as log:
        log.append([kreplica.Record(b"more", timestamp=20)])
        everything = [offset for offset in range(21) if offset != first]
        for from_time in (None, 0, first, first + 1):
            reader = ColumnReader(
                opened(directory), ["offset"], own=True, skip_damaged=True, from_time=from_time
            )
            assert offsets(reader) == [offset for offset in everything if offset >= (from_time or 0)]
        with pytest.raises(DamagedLog) as caught:
            log.to_arrow()
        assert caught.value.where == first
        assert log.to_arrow(first + 1).num_rows == 20 - first
