"""A reader beside a live writer in another process: whole batches only, never past what was published, across
rolls and retention."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

import kreplica
from kreplica._core.log_state import LogStanding, read_standing
from kreplica.common.errors import OffsetOutOfRange
from kreplica.log.file_names import STATE_FILE
from tests.crash.live_writer import SETTINGS

ROOT = Path(__file__).parents[2]
READ_S = 2.0
KILLS = int(os.environ.get("KREPLICA_READER_KILLS", "8"))


def begin_writer(directory: Path) -> subprocess.Popen[bytes]:
    writer = subprocess.Popen(
        [sys.executable, str(ROOT / "tests" / "crash" / "live_writer.py"), str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"go\n"
    return writer


def kill(writer: subprocess.Popen[bytes]) -> None:
    writer.kill()
    writer.communicate()


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "orders-0"
    writer = begin_writer(made)
    assert writer.stdin is not None
    assert writer.stdout is not None
    try:
        yield made
    finally:
        writer.stdin.close()
        assert writer.wait(timeout=20) == 0
        writer.stdout.close()


def published(directory: Path) -> LogStanding:
    while True:
        found = read_standing((directory / STATE_FILE).read_bytes())
        if found is not None:
            return found


def check_offsets(records: list[kreplica.Record], first: int) -> list[list[bytes]]:
    """In order, each at its own offset; return what the values say: offset, batch number, its records."""
    assert [record.offset for record in records] == list(range(first, first + len(records)))
    parts = [record.value.split(b":")[:3] for record in records]
    assert [int(offset) for offset, _, _ in parts] == [record.offset for record in records]
    return parts


def check(records: list[kreplica.Record], first: int) -> None:
    """Every batch is whole, too (the first one may have begun earlier)."""
    parts = check_offsets(records, first)
    batches = [list(group) for _, group in groupby(parts, key=lambda part: part[1])]
    for batch in batches[1:]:
        assert len(batch) == int(batch[0][2]), "a torn batch"


def test_a_follower_of_a_live_writer_sees_whole_published_batches(directory):
    deadline = time.monotonic() + READ_S
    with kreplica.Log.open(directory, read_only=True, **SETTINGS) as log:
        position, seen, overtaken = log.log_start_offset, 0, 0
        bases = set()
        while time.monotonic() < deadline:
            try:
                records = list(log.read(position))
            except OffsetOutOfRange:
                # Retention was faster than this reader.
                overtaken += 1
                position = log.log_start_offset
                continue
            assert position + len(records) <= published(directory).log_end_offset
            check(records, position)
            position += len(records)
            seen += len(records)
            bases.add(log._log.local.segments.active.base_offset)
        assert seen > 1000
        assert len(bases) > 3, "it followed rolls"
        assert log.log_start_offset > 0, "retention went on meanwhile"


def test_each_new_reader_sees_whole_published_batches(directory):
    deadline = time.monotonic() + READ_S
    opened = 0
    while time.monotonic() < deadline:
        with kreplica.Log.open(directory, read_only=True, **SETTINGS) as log:
            end = log._log.log_end_offset
            first = max(log._log.log_start_offset, end - 500)
            records = list(log._log.batches(first, end))
            assert end <= published(directory).log_end_offset
            values = [record for batch in records for record in batch if record.offset >= first]
            check(values, first)
            assert first + len(values) == end
            opened += 1
    assert opened > 10


def read_until(stop: threading.Event, directory: Path, failures: list[BaseException]) -> None:
    """Follow the log, now and then with a new reader; only that retention was faster is no failure."""
    try:
        while not stop.is_set():
            with kreplica.Log.open(directory, read_only=True, **SETTINGS) as log:
                position = log.log_start_offset
                for _ in range(3):
                    try:
                        records = list(log.read(position))
                    except OffsetOutOfRange:
                        position = log.log_start_offset
                        continue
                    check_offsets(records, position)
                    position += len(records)
    except BaseException as error:
        failures.append(error)


def test_readers_go_on_while_a_writer_that_was_killed_recovers(tmp_path):
    directory = tmp_path / "orders-0"
    writer = begin_writer(directory)
    stop, failures = threading.Event(), []
    readers = [threading.Thread(target=read_until, args=(stop, directory, failures)) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(KILLS):
            kill(writer)
            writer = begin_writer(directory)
            assert failures == []
    finally:
        stop.set()
        for reader in readers:
            reader.join()
        kill(writer)
    assert failures == []
