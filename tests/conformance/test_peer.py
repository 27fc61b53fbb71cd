"""The tests' own means: Kafka takes back what it wrote, on the way that ours goes, and sees what is wrong."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conformance.adoption import read_by_kafka
from tests.conformance.expectation import FIXTURES, expectation, expectations
from tests.conformance.kafka_peer import complaints

pytestmark = pytest.mark.conformance


@pytest.mark.parametrize("trusted", [True, False])
def test_kafka_reads_its_own_directories_under_other_names(tmp_path: Path, trusted: bool) -> None:
    written = {each.log.name.removesuffix("-0"): each for each in expectations(FIXTURES / "clean")}
    # Once the segments below its start are gone, Kafka finds this log's first record by time too.
    written["trimmed"].for_times[0] = (0, 42)
    log_starts = {"trimmed": written["trimmed"].begin}
    logs = {topic: each.log for topic, each in written.items()}
    read = read_by_kafka(tmp_path, logs, trusted=trusted, log_starts=log_starts)
    assert {topic: replace(each, log=logs[topic]) for topic, each in read.items()} == written


def test_kafka_recovers_what_it_left_when_killed(tmp_path: Path) -> None:
    written = {each.log.name.removesuffix("-0"): each for each in expectations(FIXTURES / "unclean")}
    logs = {topic: each.log for topic, each in written.items()}
    read = read_by_kafka(tmp_path, logs, trusted=False)
    assert {topic: replace(each, log=logs[topic]) for topic, each in read.items()} == written


@pytest.mark.parametrize(
    ("name", "position", "complaint"),
    [
        ("00000000000000000012.log", 100, "isvalid: false"),
        ("00000000000000000000.index", 3, "Mismatches in"),
        ("00000000000000000012.timeindex", 7, "timestamp mismatch"),
    ],
)
def test_a_flipped_bit_is_complained_of(tmp_path: Path, name: str, position: int, complaint: str) -> None:
    log = tmp_path / "segments-0"
    shutil.copytree(expectation(FIXTURES / "clean", "segments-0").log, log)
    assert complaints(log) == []
    data = bytearray((log / name).read_bytes())
    data[position] ^= 1
    (log / name).write_bytes(data)
    assert any(complaint in line for line in complaints(log))
