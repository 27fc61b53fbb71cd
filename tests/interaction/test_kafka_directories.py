"""Directories that Kafka 4.3.0 wrote (tests/data/kafka-4.3) read as its own consumer read them."""

from __future__ import annotations

from pathlib import Path

import pytest

import kreplica
from tests.conformance.expectation import FIXTURES, Expectation, copy_of, differences, expectations

CLEAN, UNCLEAN = (expectations(FIXTURES / ending) for ending in ("clean", "unclean"))


def each_partition(expected: list[Expectation]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("expected", expected, ids=[each.log.name for each in expected])


def files(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()}


@each_partition(CLEAN + UNCLEAN)
def test_read_only_reads_all_and_changes_nothing(expected: Expectation) -> None:
    before = files(expected.log)
    with kreplica.Log.open(expected.log, read_only=True) as log:
        assert differences(log, expected) == []
    assert files(expected.log) == before


@each_partition(CLEAN + UNCLEAN)
def test_opened_to_write_it_loads_or_recovers_and_goes_on(expected: Expectation, tmp_path: Path) -> None:
    log_directory = copy_of(expected.log, tmp_path)
    with kreplica.Log.open(log_directory) as log:
        assert differences(log, expected) == []
        assert log.append([b"next"]).base_offset == expected.end
    with kreplica.Log.open(log_directory) as log:
        assert [record.value for record in log.read(start=expected.end)] == [b"next"]
