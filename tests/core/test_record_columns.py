"""Batches built from Arrow's columns are those built from the same records one by one."""

import struct

import polars
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kreplica.record  # noqa: F401  (gives the core its codecs)
from kreplica._core.arrow import record_columns
from kreplica._core.batch_builder import BatchBuilder
from kreplica._core.record import Record
from kreplica._core.record_columns import RecordColumns
from kreplica.common.errors import InvalidRecord, MessageTooLarge

NOW = 1_700_000_000_000
HEADERS = pyarrow.list_(pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())]))

binary = st.none() | st.binary(max_size=20)
headers = st.lists(st.tuples(st.text(max_size=5), binary), max_size=3)
# Not those that could be seconds.
times_ms = st.none() | st.integers(-1, 10**9 - 1) | st.integers(10**10, 2**53)
rows = st.lists(st.tuples(binary, binary, st.none() | headers, times_ms), min_size=1, max_size=9)


def arrow(given_rows, kind=None):
    keys, values, lists, times = zip(*given_rows, strict=True)
    pairs = [row and [{"key": key, "value": value} for key, value in row] for row in lists]
    return pyarrow.RecordBatch.from_pydict(
        {
            "key": pyarrow.array(keys, kind or pyarrow.binary()),
            "value": pyarrow.array(values, kind or pyarrow.binary()),
            "headers": pyarrow.array(pairs, HEADERS),
            "timestamp": pyarrow.array(times, pyarrow.timestamp("ms")),
        }
    )


def built(records):
    return BatchBuilder().build(records, now_ms=NOW)


@given(rows, st.data())
def test_columns_build_the_same_batch(given_rows, data):
    first = data.draw(st.integers(0, len(given_rows) - 1))
    batch = arrow(given_rows).slice(first)
    assert built(record_columns(batch)) == built(given_rows[first:])


@pytest.mark.parametrize(
    "kind", [pyarrow.binary_view(), pyarrow.large_binary(), pyarrow.string(), pyarrow.string_view()], ids=str
)
def test_every_layout_of_bytes(kind):
    given_rows = [(b"k", b"value", None, 1), (None, b"", [("h", None)], None), (b"", None, [], 3)]
    assert built(record_columns(arrow(given_rows, kind))) == built(given_rows)


def test_dictionaries_fixed_sizes_and_nulls():
    def one(**columns):
        return built(record_columns(pyarrow.RecordBatch.from_pydict(columns)))

    repeated = pyarrow.array(["a", "b", None, "a"]).dictionary_encode()
    assert one(value=repeated) == built([b"a", b"b", None, b"a"])
    assert one(value=pyarrow.array([b"ab", None], pyarrow.binary(2))) == built([b"ab", None])
    assert one(value=pyarrow.nulls(2), key=pyarrow.nulls(2), headers=pyarrow.nulls(2)) == built([None, None])
    assert one(value=pyarrow.nulls(1), timestamp=pyarrow.nulls(1)) == built([None])
    assert one(value=["v"], timestamp=[5]) == built([Record(b"v", timestamp=5)])
    for us in (5000, 5999):
        assert one(value=["v"], timestamp=pyarrow.array([us], pyarrow.timestamp("us", "UTC"))) == built(
            [Record(b"v", timestamp=5)]
        )


def test_anything_that_exports_arrow_is_taken():
    wanted = built([(b"k", b"a"), (None, b"b")])
    table = pyarrow.table({"key": [b"k", None], "value": [b"a", b"b"]})
    in_chunks = pyarrow.concat_tables([table.slice(0, 1), table.slice(1)])
    frame = polars.DataFrame({"key": [b"k", None], "value": ["a", "b"]})
    for rows in (table, in_chunks, table.to_reader(), frame, table.to_batches()[0]):
        assert built(record_columns(rows)) == wanted
    headers = polars.DataFrame({"value": ["v"], "headers": [[{"key": "h", "value": b"1"}]]})
    assert built(record_columns(headers)) == built([(None, b"v", [("h", b"1")])])
    assigned = table.append_column("offset", [[7, 8]]).append_column("timestamp_type", [["create"] * 2])
    assert built(record_columns(assigned)) == wanted
    with pytest.raises(TypeError, match="list has neither"):
        record_columns([b"v"])


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed(codec):
    builder = BatchBuilder()
    builder.codec = codec
    given_rows = [(b"k", b"v" * 100, [("h", b"x")], n) for n in range(50)]
    assert builder.build(record_columns(arrow(given_rows))) == builder.build(given_rows)


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ({"key": ["k"]}, ValueError),
        ({"value": [1]}, TypeError),
        ({"value": ["v"], "key": [1.5]}, TypeError),
        ({"value": ["v"], "timestamp": ["now"]}, TypeError),
        ({"value": ["v"], "timestamp": [-2]}, ValueError),
        ({"value": ["v"], "timestamp": [1_795_388_400]}, ValueError),
        ({"value": ["v"], "kee": ["k"]}, ValueError),
        ({"value": ["v"], "headers": [["h"]]}, TypeError),
        ({"value": ["v"], "headers": [[{"key": "h"}]]}, TypeError),
        ({"value": ["v"], "headers": pyarrow.array([[{"key": None, "value": b""}]], HEADERS)}, ValueError),
        ({"value": ["v"], "headers": pyarrow.array([[None]], HEADERS)}, ValueError),
        ({"value": pyarrow.array([], pyarrow.binary())}, InvalidRecord),
    ],
)
def test_what_cannot_be_built(columns, error):
    with pytest.raises(error):
        built(record_columns(pyarrow.RecordBatch.from_pydict(columns)))


def test_the_size_of_a_batch_is_bounded():
    builder = BatchBuilder()
    builder.max_size = 1000
    with pytest.raises(MessageTooLarge):
        builder.build(record_columns(pyarrow.RecordBatch.from_pydict({"value": [b"v" * 1000]})))


# ---- buffers that contradict themselves ------------------------------------------------------------------


def ends(*numbers):
    return struct.pack(f"={len(numbers)}i", *numbers)


@pytest.mark.parametrize(
    "column",
    [
        (0, None, ends(0, 1), b"ab"),  # an offset too few
        (0, None, ends(0, 1, 3), b"ab"),  # past the data
        (0, None, ends(0, 2, 1), b"ab"),
        (0, None, ends(-1, 1, 2), b"ab"),
        (0, None, ends(0, -(2**31), 2), b"ab"),
        (0, None, ends(0, 0, 1), None),
        (0, b"", ends(0, 1, 2), b"ab"),  # no bits
        (1, None, ends(0, 1, 2), b"ab"),
        (-1, None, ends(0, 1, 2), b"ab"),
        (2**40, None, ends(0, 1, 2), b"ab"),
        (0, None, memoryview(ends(0, 0, 1, 0, 2, 0))[::2], b"ab"),
    ],
)
def test_offsets_are_checked_against_their_buffers(column):
    good = (0, None, ends(0, 1, 2), b"ab")
    assert built(RecordColumns(2, good)) == built([b"a", b"b"])
    with pytest.raises((ValueError, BufferError)):
        RecordColumns(2, column)
    with pytest.raises((ValueError, BufferError)):
        RecordColumns(2, good, column)
    with pytest.raises((ValueError, BufferError)):
        RecordColumns(1, (0, None, ends(0, 1), b"a"), headers=(0, None, ends(0, 2), 2, good, column))


@pytest.mark.parametrize(
    "lists",
    [(0, None, ends(0, 2), 1), (0, None, ends(1, 0), 1), (0, None, ends(0), 1), (0, b"", ends(0, 1), 1)],
)
def test_lists_are_checked_against_what_they_list(lists):
    one = (0, None, ends(0, 1), b"a")
    assert built(RecordColumns(1, one, headers=(0, None, ends(0, 1), 1, one, one))) == built(
        [(None, b"a", [("a", b"a")])]
    )
    with pytest.raises(ValueError):
        RecordColumns(1, one, headers=(*lists, one, one))


def test_timestamps_are_checked_against_their_buffer():
    with pytest.raises(ValueError):
        RecordColumns(1, (0, None, ends(0, 1), b"a"), timestamp=(0, None, bytes(7)))
    with pytest.raises(ValueError):
        RecordColumns(-1, (0, None, ends(0, 1), b"a"))


def test_a_buffer_cannot_shrink_under_the_columns():
    data = bytearray(b"ab")
    columns = RecordColumns(2, (0, None, ends(0, 1, 2), data))
    with pytest.raises(BufferError):
        data.clear()
    assert len(columns) == 2
