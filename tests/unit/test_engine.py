"""A standalone Log: what it accepts, what it keeps, and what a closed or lost one does."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow
import pytest

import kreplica
from kreplica import Log, Record
from kreplica._core.batch_builder import BatchBuilder
from kreplica._core.crc32c import checksum
from kreplica.common.config import LogConfig
from kreplica.common.errors import (
    DamagedLog,
    InvalidConfig,
    InvalidFile,
    InvalidRecord,
    LogClosed,
    LogDirLocked,
    NoRecords,
    OffsetOutOfRange,
)
from kreplica.log.repair import repair
from kreplica.log.verify import verify
from kreplica.runtime.clock import SystemClock
from kreplica.runtime.storage import FileStorage


def test_a_read_to_the_end_of_a_damaged_log_fails_behind_the_last_sound_record(tmp_path: Path) -> None:
    with Log.open(tmp_path / "t-0", durability="fsync") as log:
        for value in (b"a", b"b", b"c"):
            log.append([value])
        size = log.size // 3
        shutil.copytree(tmp_path / "t-0", tmp_path / "killed-0")
    [path] = (tmp_path / "killed-0").glob("*.log")
    data = bytearray(path.read_bytes())
    data[size + 17] ^= 1  # the CRC of the second batch
    path.write_bytes(data)
    with Log.open(tmp_path / "killed-0") as log:
        assert log.log_end_offset == 1
        for kept in (log.read(), log.read(0, 2), log.batches(), log.read(isolation="high_watermark")):
            assert next(iter(kept)) is not None
            with pytest.raises(DamagedLog):
                next(iter(kept))
        with pytest.raises(DamagedLog):
            next(log.read(1))
        assert [record.value for record in log.read(0, 1)] == [b"a"]
        assert [record.value for record in log.read(2)] == [b"c"]


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("harm", ["inside a batch", "between batches", "length", "checksum", "value"])
def test_reads_of_damaged_bytes_give_what_is_before_them_and_then_one_error(
    tmp_path: Path, harm: str, read_only: bool
) -> None:
    with Log.open(tmp_path / "t-0") as log:
        for _ in range(5):
            log.append([b"x" * 1000, b"y" * 1000])
        size = log.size // 5
        log.roll()
        log.append([b"z"])
    path = tmp_path / "t-0" / f"{0:020}.log"
    data = bytearray(path.read_bytes())
    if harm == "inside a batch":
        del data[3 * size + 100 :]
    elif harm == "between batches":
        del data[3 * size :]
    else:
        data[3 * size + {"length": 9, "checksum": 17, "value": 100}[harm]] ^= 4
    path.write_bytes(data)
    with Log.open(tmp_path / "t-0", read_only=read_only) as log:
        for read in (log.read, log.batches, log.read):
            found: list[int] = []
            with pytest.raises(DamagedLog, match=f"offsets 6 to .*{path}"):
                found.extend(1 if isinstance(each, Record) else each.record_count for each in read())
            assert sum(found) == 6
        with pytest.raises(DamagedLog, match=f"offsets 6 to .*{path}"):
            log.to_arrow()
        assert [record.offset for record in log.read(10)] == [10]
        assert log.damage is not None
        assert log.damage.first_offset == 6


def test_records_that_do_not_decode_are_damage_although_their_checksum_fits(tmp_path: Path) -> None:
    with Log.open(tmp_path / "t-0") as log:
        for value in (b"a", b"b"):
            log.append([value])
        size = log.size // 2
    path = tmp_path / "t-0" / f"{0:020}.log"
    data = bytearray(path.read_bytes())
    data[size + 61] = 0x7F  # the length of the second batch's record
    data[size + 17 : size + 21] = checksum(bytes(data[size + 21 :])).to_bytes(4, "big")
    path.write_bytes(data)
    with Log.open(tmp_path / "t-0", read_only=True) as log:
        found = log.read()
        assert next(found).value == b"a"
        with pytest.raises(DamagedLog, match="batch at offset 1 cannot be read"):
            next(found)
        with pytest.raises(DamagedLog, match="offsets 1 to 1"):
            log.to_arrow()


@pytest.mark.parametrize("read_only", [False, True])
def test_a_closed_log_says_so(tmp_path: Path, read_only: bool) -> None:
    with kreplica.Log.open(tmp_path / "t-0") as log:
        log.append([b"a"])
    log = kreplica.Log.open(tmp_path / "t-0", read_only=read_only)
    log.close()
    for use in (
        lambda: log.offset_for_timestamp(0),
        log.flush,
        log.to_arrow,
        lambda: list(log.read()),
        lambda: log.offset_for_timestamp(-2),
    ):
        with pytest.raises(LogClosed):
            use()


@pytest.mark.parametrize("settings", [{}, {"compression_type": "zstd"}, {"cleanup_policy": "compact"}])
def test_arrow_in_and_out(tmp_path: Path, settings: dict[str, object]) -> None:
    pairs = pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())])
    batch = pyarrow.RecordBatch.from_pydict(
        {
            "key": ["a", "b", "c"],
            "value": [b"1", None, b""],
            "timestamp": pyarrow.array([5, 6, 7], pyarrow.timestamp("ms", "UTC")),
            "headers": pyarrow.array([[], [{"key": "h", "value": b"x"}], []], pyarrow.list_(pairs)),
        }
    )
    with kreplica.Log.open(tmp_path / "t-0", config=settings) as log:
        assert log.append_arrow(batch).last_offset == 2
        assert log.append_arrow(batch.slice(1)).last_offset == 4
        table = log.to_arrow()
        assert table["key"].to_pylist() == [b"a", b"b", b"c", b"b", b"c"]
        assert table["value"].to_pylist() == [b"1", None, b"", None, b""]
        assert table["timestamp"].cast(pyarrow.int64()).to_pylist() == [5, 6, 7, 6, 7]
        assert table["headers"].to_pylist() == [
            *([], [{"key": "h", "value": b"x"}], []),
            *([{"key": "h", "value": b"x"}], []),
        ]


@pytest.mark.parametrize("records", [(b"k", b"v"), b"v", Record(b"v"), {b"k": b"v"}])
def test_a_record_outside_a_list_is_refused(tmp_path: Path, records: Any) -> None:
    with Log.open(tmp_path / "orders-0") as log:
        with pytest.raises(TypeError, match="records must be a list"):
            log.append(records)
        with pytest.raises(
            NoRecords, match="the list of records is empty: A batch needs at least one record"
        ):
            log.append([])
        assert log.log_end_offset == 0


def test_settings_hold_for_later_openings(tmp_path: Path) -> None:
    with Log.open(tmp_path / "orders-0", segment_bytes=2 << 20, durability="fsync") as log:
        log.append([b"v"])
    with Log.open(tmp_path / "orders-0", config={"cleanup.policy": "compact"}) as log:
        assert (log.config.segment_bytes, log.config.durability, log.config.compact) == (
            2 << 20,
            "fsync",
            True,
        )
    with Log.open(tmp_path / "orders-0", segment_bytes=1 << 30) as log:
        assert (log.config.segment_bytes, log.config.compact) == (1 << 30, True)
    with Log.open(tmp_path / "orders-0", read_only=True, retention_ms=1) as log:
        assert (log.config.retention_ms, log.config.compact) == (1, True)
    with Log.open(tmp_path / "orders-0", config=LogConfig(retention_bytes=7)) as log:
        assert log.config == LogConfig(retention_bytes=7)
    with Log.open(tmp_path / "orders-0") as log:
        assert log.config == LogConfig(retention_bytes=7)


def test_settings_that_are_refused_leave_those_that_hold(tmp_path: Path) -> None:
    with Log.open(tmp_path / "orders-0", max_compaction_lag_ms=10):
        pass
    with pytest.raises(InvalidConfig, match=r"min.compaction.lag.ms"):
        Log.open(tmp_path / "orders-0", min_compaction_lag_ms=11)
    with Log.open(tmp_path / "orders-0") as log:
        assert (log.config.min_compaction_lag_ms, log.config.max_compaction_lag_ms) == (0, 10)


def test_settings_that_rotted_are_an_error_and_not_the_defaults(tmp_path: Path) -> None:
    with Log.open(tmp_path / "orders-0", durability="fsync"):
        pass
    (tmp_path / "orders-0" / "kreplica.settings.json").write_bytes(b'{"version": 0, "settings": {"durabil')
    with pytest.raises(InvalidFile, match=r"kreplica.settings.json"):
        Log.open(tmp_path / "orders-0")
    with Log.open(tmp_path / "orders-0", read_only=True) as log:
        assert list(log.read()) == []
    with Log.open(tmp_path / "orders-0", config=LogConfig(durability="fsync")):
        pass
    with Log.open(tmp_path / "orders-0") as log:
        assert log.config == LogConfig(durability="fsync")


def test_a_bit_of_the_settings_that_flipped_is_found_and_repaired(tmp_path: Path) -> None:
    with Log.open(tmp_path / "orders-0", retention_ms=5000) as log:
        log.append([b"v"])
    file = tmp_path / "orders-0" / "kreplica.settings.json"
    file.write_bytes(file.read_bytes().replace(b"5000", b"1000"))
    (problem,) = verify(FileStorage(), str(tmp_path / "orders-0"))
    assert problem.path == str(file)
    (finding,) = repair(FileStorage(), SystemClock(), str(tmp_path / "orders-0"), apply_changes=True)
    assert finding.action == "remove"
    assert finding.done
    with Log.open(tmp_path / "orders-0") as log:
        assert log.config == LogConfig()
        assert [record.value for record in log.read()] == [b"v"]


def test_a_log_without_references_is_closed_with_a_warning(tmp_path: Path) -> None:
    log = Log.open(tmp_path / "orders-0")
    log.append([b"v"])
    batches, rows = log.batches(), iter(log.column_reader())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del log
        gc.collect()
        # Whatever reads keeps the log open.
        assert next(batches).base_offset == 0
        assert next(rows).rows == 1
    del rows
    with pytest.warns(ResourceWarning, match="orders-0 was not closed"):
        batches.close()  # type: ignore[attr-defined]
    with Log.open(tmp_path / "orders-0") as log:
        assert log.recovery.clean
        assert [record.value for record in log.read()] == [b"v"]


def test_a_log_that_is_open_at_the_end_of_the_process_is_closed(tmp_path: Path) -> None:
    program = "import kreplica, sys; log = kreplica.Log.open(sys.argv[1]); log.append([b'v'])"
    command = [sys.executable, "-W", "always", "-c", program, str(tmp_path / "orders-0")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "ResourceWarning: the log in" in done.stderr
    with Log.open(tmp_path / "orders-0") as log:
        assert log.recovery.clean


def test_the_holder_of_a_log_is_named(tmp_path: Path) -> None:
    with Log.open(tmp_path / "orders-0"):
        with pytest.raises(LogDirLocked, match=rf"in this process \({os.getpid()}\)"):
            Log.open(tmp_path / "orders-0")
        program = "import kreplica, sys; kreplica.Log.open(sys.argv[1])"
        command = [sys.executable, "-c", program, str(tmp_path / "orders-0")]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert f"is locked by another writer, in process {os.getpid()}" in done.stderr


@pytest.mark.parametrize("path", ["", b""])
def test_a_log_needs_a_path(path: Any) -> None:
    with pytest.raises(ValueError, match="path is empty"):
        Log.open(path)


def test_records_that_are_refused_are_named(tmp_path: Path) -> None:
    with Log.open(tmp_path / "orders-0", config={"cleanup.policy": "compact"}) as log:
        with pytest.raises(InvalidRecord) as refused:
            log.append([(b"k", b"v"), b"no key"])
        assert [each.batch_index for each in refused.value.record_errors] == [1]
        assert list(log.read()) == []


BATCH = BatchBuilder().build([b"a batch"], now_ms=1_700_000_000_000)
# What each refuses besides what is no integer.
INTEGERS: dict[str, tuple[Callable[[Log, Any], object], list[int]]] = {
    "append": (lambda log, n: log.append([(b"k", b"v")], leader_epoch=n), [-1, -2, 1 << 31, 1 << 70]),
    "append_batch": (lambda log, n: log.append_batch(BATCH, leader_epoch=n), [-1, -2, 1 << 31, 1 << 70]),
    "append_arrow": (
        lambda log, n: log.append_arrow(pyarrow.table({"value": [b"v"]}), leader_epoch=n),
        [-2, 1 << 31],
    ),
    "truncate_to": (lambda log, n: log.truncate_to(n), [-1, -1 << 70]),
    "delete_records": (lambda log, n: log.delete_records(n), [-1, 6, 1 << 70]),
    "read from": (lambda log, n: list(log.read(n)), [-1, 6, 1 << 70]),
    "read to": (lambda log, n: list(log.read(0, n)), []),
    "batches": (lambda log, n: list(log.batches(n)), [-1, 1 << 70]),
    "to_arrow": (lambda log, n: log.to_arrow(n), [-1, 1 << 70]),
    "to_arrow up to": (lambda log, n: log.to_arrow(0, n), []),
    "piece_rows": (lambda log, n: list(log.column_reader(piece_rows=n)), [-1, 0]),
    "piece_bytes": (lambda log, n: list(log.column_reader(piece_bytes=n)), [-1, 0]),
    "offset_for_timestamp": (lambda log, n: log.offset_for_timestamp(n), []),
    "compact": (lambda log, n: log.compact(dedupe_buffer_size=n), [-1, 0, 1, 1 << 63]),
}


@pytest.mark.parametrize("operation", INTEGERS)
def test_an_integer_that_is_none_or_out_of_range_changes_nothing(tmp_path: Path, operation: str) -> None:
    call, out_of_range = INTEGERS[operation]
    path = tmp_path / "t-0"
    with Log.open(path, cleanup_policy="compact") as log:
        for number in range(5):
            log.append([(b"%d" % number, b"value")])
        names = sorted(os.listdir(path))
        for wrong in (1.5, "1", b"1", Log):
            with pytest.raises(TypeError, match="must be an int"):
                call(log, wrong)
        for wrong in out_of_range:
            with pytest.raises((ValueError, OffsetOutOfRange)):
                call(log, wrong)
        assert sorted(os.listdir(path)) == names
        assert (log.log_start_offset, log.log_end_offset, log._log.leader_epoch) == (0, 5, 0)
    with Log.open(path) as log:
        assert [record.offset for record in log.read()] == list(range(5))


class One:
    """As numpy's integers are."""

    def __index__(self) -> int:
        return 1


def test_what_counts_as_an_integer_is_one(tmp_path: Path) -> None:
    with Log.open(tmp_path / "t-0") as log:
        log.append([b"a", b"b"], leader_epoch=True)
        one: Any = One()
        assert [record.value for record in log.read(one)] == [b"b"]
        log.delete_records(True)
    with Log.open(tmp_path / "t-0") as log:
        assert (log.log_start_offset, log._log.leader_epoch) == (1, 1)


def test_a_time_may_be_looked_up_by_a_datetime_and_not_by_seconds(tmp_path: Path) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    with Log.open(tmp_path / "orders-0") as log:
        log.append([(b"k", b"v", None, at), (b"k", b"w", None, at + timedelta(seconds=1))])
        found = log.offset_for_timestamp(at + timedelta(milliseconds=1))
        assert found is not None
        assert found.offset == 1
        assert log.offset_for_timestamp(-2) is not None
        with pytest.raises(ValueError, match="looks like seconds"):
            log.offset_for_timestamp(int(at.timestamp()))
