"""A Log as one of Python's collections: iterated, indexed, sliced, counted, followed, given to others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy
import polars
import pytest

import kreplica
from kreplica import Log
from kreplica.common.errors import DamagedLog, InvalidFile, LogClosed, NoRecordAtOffset, OffsetOutOfRange
from tests.support.batches import build


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log.open(tmp_path / "t-0") as log:
        yield log


def values(records: Iterator[kreplica.Record] | list[kreplica.Record]) -> list[bytes | None]:
    return [record.value for record in records]


def test_one_record_is_appended_with_all_that_it_has(log: Log) -> None:
    info = log.append_one(b"v", key=b"k", headers=[("h", b"1")], timestamp=1_700_000_000_000)
    assert (info.base_offset, info.record_count) == (0, 1)
    [record] = log
    assert (record.value, record.key, record.headers) == (b"v", b"k", [("h", b"1")])
    assert record.timestamp == 1_700_000_000_000
    log.append_one(None)
    assert log[1].value is None
    with pytest.raises(TypeError):
        log.append_one("text")  # type: ignore[arg-type]


def test_an_empty_log(log: Log) -> None:
    assert len(log) == 0
    assert not log
    assert list(log) == log[:] == log[-5:] == []
    with pytest.raises(OffsetOutOfRange):
        log[0]
    with pytest.raises(OffsetOutOfRange):
        log[-1]
    assert log.to_numpy()["offset"].shape == (0,)


def test_records_by_offset(log: Log) -> None:
    log.append([b"%d" % n for n in range(10)])
    log.append_one(b"10")
    assert len(log) == 11
    assert log
    assert log[0].value == b"0"
    assert log[-1].value == b"10"
    assert log[numpy.int64(4)].value == b"4"
    assert values(log[3:5]) == [b"3", b"4"]
    assert values(log[-2:]) == [b"9", b"10"]
    assert values(log[9:1000]) == [b"9", b"10"]
    assert log[7:3] == log[500:] == []
    for beyond in (11, -12):
        with pytest.raises(OffsetOutOfRange, match=r"is not in \[0, 11\)"):
            log[beyond]
    with pytest.raises(ValueError, match="no step"):
        log[::2]
    with pytest.raises(TypeError, match="must be an integer"):
        log["1"]  # type: ignore[call-overload]


def test_deleted_records_do_not_count(log: Log) -> None:
    log.append([b"%d" % n for n in range(10)])
    log.delete_records(4)
    assert len(log) == 6
    assert values(log[:5]) == [b"4"]
    with pytest.raises(OffsetOutOfRange):
        log[3]


@pytest.mark.parametrize("compression", ["uncompressed", "lz4"])
@pytest.mark.parametrize("is_reader", [False, True])
def test_the_count_is_what_iterating_yields(tmp_path: Path, compression: str, is_reader: bool) -> None:
    settings = {"cleanup_policy": "compact", "compression_type": compression, "segment_bytes": 1 << 20}
    with Log.open(tmp_path / "t-0", **settings) as log:
        for start in range(0, 5000, 10):
            log.append([(b"%d" % (n % 700), b"v" * 300) for n in range(start, start + 10)])
        log.compact()
        log.append([(b"k", b"%d" % n) for n in range(5)])
        log.append_batch(
            build([(b"k", b"t")], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
        )
        log.abort_transaction(7)
        log.delete_records(log.log_end_offset - 5)  # within the batch of five
        reader = Log.open(tmp_path / "t-0", read_only=True) if is_reader else nullcontext(log)
        with reader as opened:
            assert len(opened) == sum(1 for _ in opened.read())


def test_more_batches_than_one_call_counts(log: Log) -> None:
    for _ in range(9000):
        log.append([b"a", b"b"])
    assert len(log) == 18_000


def test_counting_reads_headers_only(tmp_path: Path) -> None:
    with Log.open(tmp_path / "t-0") as log:
        log.append([b"a" * 100])
        log.append([b"b" * 100, b"c"])
        with open(tmp_path / "t-0" / "00000000000000000000.log", "r+b") as file:
            file.seek(file.read().index(b"a" * 100))
            file.write(b"x")
        assert len(log) == 3
        with pytest.raises(DamagedLog):
            for _ in log:
                pass
        with pytest.raises(DamagedLog):  # now the damage is known
            len(log)


def test_a_closed_log_has_no_count(log: Log) -> None:
    log.close()
    with pytest.raises(LogClosed):
        len(log)


def test_a_log_needs_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "t-0"):
        with pytest.raises(InvalidFile, match="/file is a file, where a directory is needed"):
            Log.open(path)
    (tmp_path / "empty-0").mkdir()
    Log.open(tmp_path / "empty-0").close()


def test_only_open_makes_a_log(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"Log\.open\(directory\)"):
        Log(tmp_path / "t-0")


def test_an_offset_that_compaction_emptied(tmp_path: Path) -> None:
    with Log.open(tmp_path / "t-0", cleanup_policy="compact", min_cleanable_dirty_ratio=0) as log:
        for value in (b"a", b"b"):
            log.append([(b"k", value)])
        log.compact()
        assert len(log) == 1
        assert values(list(log)) == [b"b"]
        with pytest.raises(NoRecordAtOffset, match="offset 0"):
            log[0]


def test_a_reader_counts_what_the_writer_appends(tmp_path: Path) -> None:
    with Log.open(tmp_path / "t-0") as log, Log.open(tmp_path / "t-0", read_only=True) as reader:
        log.append([b"a", b"b"])
        assert len(reader) == 2
        assert reader[-1].value == b"b"


@pytest.mark.parametrize("is_reader", [False, True])
def test_a_read_that_follows_gets_what_comes_later(tmp_path: Path, is_reader: bool) -> None:
    with Log.open(tmp_path / "t-0") as log, Log.open(tmp_path / "t-0", read_only=True) as reader:
        log.append([b"0"])
        following = (reader if is_reader else log).read(follow=True, stop=3)
        assert next(following).value == b"0"
        writer = threading.Thread(target=log.append, args=([b"1", b"2", b"3"],))
        writer.start()
        assert values(following) == [b"1", b"2"]
        writer.join()


def test_a_read_that_follows_ends_after_its_timeout(log: Log) -> None:
    log.append([b"0", b"1"])
    assert values(log.read(1, follow=True, timeout=0.01)) == [b"1"]
    assert values(log.read(2, follow=True, timeout=0)) == []
    following = log.read(follow=True)
    next(following)
    log.close()
    with pytest.raises(LogClosed):
        list(following)


def test_arguments_of_a_read_that_follows_are_checked_at_once(log: Log) -> None:
    with pytest.raises(ValueError, match="follow=True"):
        log.read(timeout=1)
    for wrong in (-1, float("nan")):
        with pytest.raises(ValueError, match="at least 0"):
            log.read(follow=True, timeout=wrong)
    text: Any = "a"
    with pytest.raises(TypeError, match="timeout must be a number of seconds, not 'a'"):
        log.read(follow=True, timeout=text)


def test_frames_and_streams(log: Log) -> None:
    log.append([(b"k", b"v"), (None, None)])
    assert polars.DataFrame(log)["value"].to_list() == [b"v", None]
    assert log.to_polars(1, columns=["offset", "value"]).rows() == [(1, None)]
    duckdb = pytest.importorskip("duckdb")
    assert duckdb.sql('select max("offset") from log').fetchall() == [(1,)]


def test_columns_as_arrays(log: Log) -> None:
    log.append([(b"k", b"v", [], 1_000_000_000_000), (b"", b"w", [], 1_000_000_000_001)])
    log.append([b"x"])
    arrays = log.to_numpy(columns=["offset", "timestamp", "key", "value", "producer_id", "leader_epoch"])
    assert arrays["offset"].tolist() == [0, 1, 2]
    assert (
        arrays["timestamp"][:2].tolist()
        == numpy.array([1_000_000_000_000, 1_000_000_000_001], "datetime64[ms]").tolist()
    )
    assert arrays["key"].tolist() == [b"k", b"", None]
    assert arrays["value"].tolist() == [b"v", b"w", b"x"]
    assert arrays["producer_id"].tolist() == [-1, -1, -1]
    assert arrays["leader_epoch"].dtype == numpy.int32
    assert not log.to_numpy(columns=["offset"])["offset"].flags.owndata  # the core's memory
    with pytest.raises(ValueError, match="'headers' cannot be an array"):
        log.to_numpy(columns=["headers"])
    with pytest.raises(ValueError, match="empty or repeated"):
        log.to_numpy(columns=["offset", "offset"])


def test_a_single_column_has_to_be_in_a_list(log: Log) -> None:
    for read in (log.to_numpy, log.to_arrow, log.to_polars, log.column_reader):
        with pytest.raises(TypeError, match=r"columns must be a list of names: \['offset'\]"):
            read(columns="offset")


def test_notebooks_show_a_table(log: Log) -> None:
    log.append([b"0", b"1"])
    shown = log._repr_html_()
    assert "<td>0 to 2 (committed to 2, on disk to 0)</td>" in shown
    assert "none found" in shown
