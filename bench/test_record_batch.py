"""Record batches: checksums, building, and reading a mapped segment as batches, records and columns.

One thread. A segment has SEGMENT_BYTES of batches of 160 x 100 B, in the temporary directory, mapped and in
the page cache; every read checks every CRC.
"""

import os
import zlib

import numpy as np
import pytest

from kreplica._core import crc32c
from kreplica._core.arrow import to_arrow
from kreplica._core.columns import ColumnBuilder
from kreplica._core.record_batch import stamp_offsets
from kreplica._core.region import Region
from kreplica.record import BatchBuilder, batches, validate_for_append

SEGMENT_BYTES = 256 << 20
RECORDS = 160
ARROW_ROWS = 32_768


@pytest.fixture(scope="module")
def segment(tmp_path_factory):
    """A slice of a whole segment, and its number of batches."""
    path = tmp_path_factory.mktemp("bench") / "00000000000000000000.log"
    batch = bytearray(BatchBuilder().build([os.urandom(100) for _ in range(RECORDS)], now_ms=1))
    count = SEGMENT_BYTES // len(batch)
    with path.open("wb") as file:
        for number in range(count):
            stamp_offsets(batch, number * RECORDS, 0)
            file.write(batch)
    with Region(path, path.stat().st_size) as region:
        yield region.slice(0, path.stat().st_size), count
    path.unlink()


def times(count, function, *arguments):
    def repeat():
        for _ in range(count):
            function(*arguments)

    return repeat


@pytest.mark.parametrize("size", [1024, 16_384])
def test_checksum(row, size):
    """core: CRC-32C of {size} B in the cache, called from Python"""
    data, target = os.urandom(size), bytearray(size)
    row.time(times(10_000, crc32c.checksum, data), 10_000, tuple)
    row.beside("the same and a copy in one pass", times(10_000, crc32c.copy, target, data), 10_000)
    row.beside("zlib's CRC-32", times(1000, zlib.crc32, data), 1000)


@pytest.mark.parametrize(("count", "size"), [(16, 1000), (160, 100)])
def test_build(row, count, size):
    """core: build a batch of {count} x {size} B from a list of bytes, CRC included, per record"""
    values = [os.urandom(size) for _ in range(count)]
    row.time(times(1000, BatchBuilder().build, values), 1000 * count, tuple)
    row.beside("joining the same values", times(1000, b"".join, values), 1000 * count)


@pytest.mark.parametrize(("count", "size"), [(1, 1000), (16, 1000), (160, 100)])
def test_validate(row, count, size):
    """core: all that a leader checks of a ready batch of {count} x {size} B"""
    batch = BatchBuilder().build([os.urandom(size) for _ in range(count)])
    row.time(times(1000, validate_for_append, batch), 1000, tuple)
    row.beside("its CRC alone", times(1000, crc32c.checksum, batch), 1000)


def test_read_batches(row, segment):
    """core: walk 256 MiB by batches of 17 KB, CRC checked, per batch"""
    data, count = segment

    def read():
        for batch in batches(data):
            assert batch.crc_valid

    row.time(read, count, tuple, rounds=5)
    words = np.frombuffer(data, np.uint8, count=data.size // 8 * 8).view(np.uint64)
    row.beside("summing its words with numpy", words.sum, count, rounds=5)


def test_read_records(row, segment):
    """core: read 256 MiB as Python records of 100 B with their values, CRC checked, per record"""
    data, count = segment

    def read():
        for batch in batches(data):
            for record in batch:
                record.value  # noqa: B018

    row.time(read, count * RECORDS, tuple, rounds=3)
    values = [os.urandom(100)] * 10_000
    row.beside("copying bytes objects of 100 B", lambda: [value[:99] for value in values], 10_000)


@pytest.mark.parametrize(
    ("columns", "views"), [(None, False), (None, True), (["value"], False), (["offset", "timestamp"], False)]
)
def test_read_columns(row, segment, columns, views):
    """core: read 256 MiB as Arrow batches of 32,768 x 100 B, columns {columns}, views {views}, per record"""
    data, count = segment

    def read():
        builder, position, rows = ColumnBuilder(columns, views=views), 0, 0
        while position < data.size:
            position = builder.extend(data, position, max_rows=ARROW_ROWS)
            rows += to_arrow(builder.finish()).num_rows
        assert rows == count * RECORDS

    row.time(read, count * RECORDS, tuple, rounds=3)
    row.beside("copying the mapping", lambda: [bytes(data)], count * RECORDS, rounds=3)
