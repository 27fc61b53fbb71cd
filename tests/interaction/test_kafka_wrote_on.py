"""Logs that kreplica wrote, that Kafka then changed, and that kreplica opens again.

Kafka removes every file whose name ends with .deleted when it loads a log; `kafka_loads` does that here. The
changes are made by hand: the real Kafka makes them in tests/conformance.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import kreplica
from kreplica.log.file_names import STATE_FILE
from tests.conformance.expectation import FIXTURES, copy_of, expectation
from tests.support.batches import build

LENGTH = 50
LAST = "00000000000000000040.log"


@pytest.fixture(params=["closed", "killed"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A log of offsets 0 to 49, a batch each, in two segments, closed in order or left by a killed writer."""
    with kreplica.Log.open(tmp_path / "written" / "orders-0") as log:
        for i in range(LENGTH):
            if i == 40:
                log.roll()
            log.append([b"value %d" % i])
        log.flush()
        shutil.copytree(tmp_path / "written" / "orders-0", tmp_path / "killed" / "orders-0")
    return tmp_path / {"closed": "written"}.get(request.param, request.param) / "orders-0"


def kafka_loads(log: Path) -> None:
    """What Kafka does before it looks at any segment, and what its recovery leaves: the valid batches."""
    for file in log.glob("*.deleted"):
        file.unlink()
    data = (log / LAST).read_bytes()
    (log / LAST).write_bytes(data[: bounds(data)[-1]])


def bounds(data: bytes) -> list[int]:
    """Where the batches in `data` begin, and where the last one ends."""
    found = [0]
    while (size := int.from_bytes(data[found[-1] + 8 : found[-1] + 12], "big")) > 0:
        found.append(found[-1] + 12 + size)
    return found


def batch(offset: int, value: bytes) -> bytes:
    return bytes(build([value], base_offset=offset, leader_epoch=0, now_ms=1_700_000_000_000))


def append(log: Path) -> list[bytes]:
    with (log / LAST).open("ab") as file:
        file.writelines(batch(offset, b"kafka's") for offset in range(50, 60))
    return [b"value %d" % i for i in range(50)] + [b"kafka's"] * 10


def truncate(log: Path) -> list[bytes]:
    data = (log / LAST).read_bytes()
    (log / LAST).write_bytes(data[: bounds(data)[5]])
    return [b"value %d" % i for i in range(45)]


def replace(log: Path) -> list[bytes]:
    """As a follower that truncates and fetches: the same length in the end, other records."""
    data = (log / LAST).read_bytes()
    with (log / LAST).open("r+b") as file:
        file.seek(bounds(data)[9])
        file.write(batch(49, b"other 49"))
    return [b"value %d" % i for i in range(49)] + [b"other 49"]


def roll(log: Path) -> list[bytes]:
    (log / "00000000000000000050.log").write_bytes(batch(50, b"kafka's"))
    return [b"value %d" % i for i in range(50)] + [b"kafka's"]


def truncate_to_the_former_segment(log: Path) -> list[bytes]:
    for file in log.glob("00000000000000000040.*"):
        file.unlink()
    return [b"value %d" % i for i in range(40)]


def do_nothing(_log: Path) -> list[bytes]:
    return [b"value %d" % i for i in range(50)]


CHANGES = [append, truncate, replace, roll, truncate_to_the_former_segment, do_nothing]


@pytest.mark.parametrize("change", CHANGES)
def test_no_damage_is_reported_and_nothing_valid_is_lost(
    log: Path, change: Callable[[Path], list[bytes]]
) -> None:
    kafka_loads(log)
    expected = change(log)
    with kreplica.Log.open(log, read_only=True) as reader:
        assert [record.value for record in reader.read()] == expected
    with kreplica.Log.open(log) as opened:
        assert opened.damage is None
        assert opened.recovery.cut == []
        assert [record.value for record in opened.read()] == expected
        assert opened.append([b"next"]).base_offset == len(expected)
    with kreplica.Log.open(log) as opened:
        assert opened.recovery.clean
        assert [record.value for record in opened.read()] == [*expected, b"next"]


def test_a_torn_tail_of_kafkas_is_cut_and_kept(log: Path) -> None:
    # Below what kreplica had flushed once: Kafka has put other records there since, and lost them.
    kafka_loads(log)
    truncate(log)
    torn = batch(45, b"torn")[:-3]
    with (log / LAST).open("ab") as file:
        file.write(torn)
    with kreplica.Log.open(log) as opened:
        assert opened.damage is None
        assert [Path(cut.kept_in).read_bytes() for cut in opened.recovery.cut] == [torn]
        assert opened.log_end_offset == 45


def test_a_truncation_without_a_trace_of_kafka_is_damage(log: Path) -> None:
    # The state is there, so no Kafka was: the bytes that are missing were lost.
    truncate(log)
    with kreplica.Log.open(log) as opened:
        assert opened.damage is not None
        assert opened.damage.first_offset == 45


def test_the_state_goes_with_kafkas_loading(log: Path) -> None:
    assert (log / STATE_FILE).exists()
    kafka_loads(log)
    assert not (log / STATE_FILE).exists()


def test_rot_below_kafkas_recovery_point_is_damage_and_stays(tmp_path: Path) -> None:
    source = expectation(FIXTURES / "unclean", "unclean-0")
    directory = copy_of(source.log, tmp_path)
    # The recovery point is 45: the segment that it lies in is read through, and it begins below.
    segment = max(file for file in directory.glob("*.log") if int(file.stem) < 45)
    data = bytearray(segment.read_bytes())
    data[70] ^= 1
    segment.write_bytes(data)
    with kreplica.Log.open(directory) as opened:
        assert opened.damage is not None
        assert opened.damage.first_offset < 45
    assert segment.read_bytes() == data


def test_no_time_entry_leads_to_a_batch_without_records(tmp_path: Path) -> None:
    directory = copy_of(expectation(FIXTURES / "clean", "compacted-0").log, tmp_path)
    for index in directory.glob("*index"):
        index.unlink()
    with kreplica.Log.open(directory, index_interval_bytes=0) as opened:
        latest = {b.last_offset: max((r.timestamp for r in b), default=None) for b in opened.batches()}
        entries = [entry for segment in opened._log.local.segments for entry in segment.time_index]
        assert len(entries) > 10
        assert all(latest[offset] == timestamp for timestamp, offset in entries)
