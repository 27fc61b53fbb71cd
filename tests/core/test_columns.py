"""Columns are what reading the records one by one gives, whatever the codec, the projection and the cuts."""

import os
import struct

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kreplica.record  # noqa: F401  (gives the core its codecs)
from kreplica._core.arrow import to_arrow
from kreplica._core.columns import ColumnBuilder
from kreplica._core.record import Record
from kreplica._core.record_batch import stamp_offsets
from kreplica._core.records import RecordBatch, batches
from kreplica._core.region import Region
from kreplica.common import errors
from tests.conformance.expectation import FIXTURES
from tests.support.batches import batch_of, build, record_of, with_field

COLUMNS = ["key", "value", "offset", "timestamp", "timestamp_type", "headers"]
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

binary = st.none() | st.binary(max_size=12) | st.binary(min_size=13, max_size=40)
records = st.lists(
    st.builds(
        Record,
        value=binary,
        key=binary,
        headers=st.lists(st.tuples(st.text(max_size=8), binary), max_size=3),
        timestamp=st.integers(-1, 10**9 - 1) | st.integers(10**10, 2**53),
    ),
    min_size=1,
    max_size=12,
)
written = st.lists(st.tuples(records, st.sampled_from(CODECS), st.booleans()), max_size=4)


def segment_of(pieces):
    """Batches one after the other; each of (records, codec, whether it is of LogAppendTime)."""
    data, offset = bytearray(), 0
    for given_records, codec, appended in pieces:
        data += build(given_records, base_offset=offset, codec=codec, log_append_time=appended, now_ms=70)
        offset += len(given_records) + 2  # with gaps in between
    return bytes(data)


def columns_of(data, **options):
    builder = ColumnBuilder(options.pop("columns", None), views=options.pop("views", False))
    assert builder.extend(data, **options) == len(memoryview(data))
    made = to_arrow(builder.finish())
    made.validate(full=True)
    return made


def rows_of(made):
    columns = made.drop_columns(["timestamp"]).to_pydict()
    columns["timestamp"] = made["timestamp"].cast(pyarrow.int64()).to_pylist()
    columns["headers"] = [[(h["key"], h["value"]) for h in row] for row in columns["headers"]]
    return list(zip(*(columns[name] for name in COLUMNS), strict=True))


def rows_one_by_one(data):
    return [
        tuple(getattr(record, name) for name in COLUMNS)
        for batch in batches(data)
        if not batch.is_control
        for record in batch
    ]


@pytest.mark.parametrize("views", [False, True])
@given(written)
@settings(max_examples=60)
def test_columns_equal_the_records_read_one_by_one(views, pieces):
    data = segment_of(pieces)
    made = columns_of(data, views=views)
    assert made.column_names == COLUMNS
    assert rows_of(made) == rows_one_by_one(data)


@given(written, st.integers(0, 60), st.integers(0, 60))
@settings(max_examples=60)
def test_a_range_of_offsets(pieces, first, stop):
    data = segment_of(pieces)
    inside = [row for row in rows_one_by_one(data) if first <= row[2] < stop]
    assert rows_of(columns_of(data, first=first, stop=stop)) == inside


@given(written, st.integers(1, 20))
@settings(max_examples=60)
def test_going_on_after_max_rows_loses_nothing(pieces, max_rows):
    data = segment_of(pieces)
    builder = ColumnBuilder(views=True)
    position, rows = 0, []
    while position < len(data):
        position = builder.extend(data, position, max_rows=max_rows)
        assert len(builder) >= max_rows or position == len(data)
        rows += rows_of(to_arrow(builder.finish()))
        assert len(builder) == 0
    assert rows == rows_one_by_one(data)


def test_the_types_are_arrows():
    made = columns_of(build([(b"k", b"v", [("h", None)])]))
    pair = pyarrow.struct(
        [pyarrow.field("key", pyarrow.string(), nullable=False), ("value", pyarrow.binary())]
    )
    assert made.schema.types == [
        pyarrow.binary(),
        pyarrow.binary(),
        pyarrow.int64(),
        pyarrow.timestamp("ms", tz="UTC"),
        pyarrow.dictionary(pyarrow.int8(), pyarrow.string()),
        pyarrow.list_(pair),
    ]
    views = columns_of(build([b"v"]), views=True)
    assert views.schema.types[:2] == [pyarrow.binary_view()] * 2


@pytest.mark.parametrize("name", COLUMNS)
def test_one_column_alone(name):
    data = segment_of([([Record(b"v" * 20, b"k", [("h", b"1")], 5), Record(None)], "none", False)])
    made = columns_of(data, columns=[name])
    assert made.column_names == [name]
    assert made.equals(columns_of(data).select([name]))
    with pytest.raises(ValueError, match="unknown column"):
        ColumnBuilder(["price"])


def test_nothing_gives_columns_without_rows():
    for views in (False, True):
        made = columns_of(b"", views=views)
        assert (made.num_rows, made.column_names) == (0, COLUMNS)
    control = build([(b"\x00\x00\x00\x01", b"")], control=True)
    assert columns_of(control).num_rows == 0
    assert RecordBatch(control).to_arrow().num_rows == 0


def test_a_batch_to_arrow():
    batch = RecordBatch(build([(b"k", b"value longer than a view"), None], codec="zstd", base_offset=7))
    for views in (False, True):
        made = batch.to_arrow(["value", "offset"], views=views)
        assert made.to_pydict() == {"value": [b"value longer than a view", None], "offset": [7, 8]}
    batch.max_decompressed = 10
    with pytest.raises(errors.DecompressionTooLarge):
        batch.to_arrow()


def test_views_lie_in_the_mapping(tmp_path):
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(build([b"v" * 100, b"short"]) + build([b"w" * 100], base_offset=2, codec="lz4"))
    region = Region(path, 1 << 20)
    data = region.slice(0, path.stat().st_size)
    made = columns_of(data, views=True, columns=["value"])
    del data
    _, _, own, mapped = made["value"].buffers()
    assert region.contains_address(mapped.address)
    assert not region.contains_address(own.address)
    assert region.pins == 1
    assert made["value"].to_pylist() == [b"v" * 100, b"short", b"w" * 100]
    del made, own, mapped
    assert region.pins == 0


def test_header_names_become_utf8():
    keys = [
        b"\xff",
        b"a\xc3",
        "ä€𝄞".encode(),
        b"\xed\xa0\x80",
        b"\xe2\x82x",
        b"\xc0\x80",
        b"\xf4\x90\x80\x80",
    ]
    headers = b"".join(struct.pack("B", 2 * len(key)) + key + b"\x01" for key in keys)
    data = batch_of(record_of(headers=struct.pack("B", 2 * len(keys)) + headers), 1)
    (row,) = rows_of(columns_of(data))
    assert [name for name, _ in row[5]] == ["?", "a?", "ä€𝄞", "???", "??x", "??", "????"]


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        (with_field(build([b"v", b"w"]), 57, ">i", 1), errors.InvalidRecordLength),
        (with_field(build([b"v", b"w"]), 23, ">i", 0), errors.InvalidOffsetDelta),
        (with_field(build([b"v"]), 21, ">h", 5), errors.UnsupportedCodec),
        (build([b"v"])[:-1] + b"\x01", errors.InvalidCrc),
        (build([b"v"])[:-1], errors.InvalidBatchLength),
        (bytes(100), errors.InvalidBatchLength),
        (batch_of(record_of(2) + record_of(1), 2, last_delta=5), errors.InvalidOffsetDelta),
        (batch_of(record_of(0) + record_of(1, key=b"\x40"), 2), errors.InvalidRecordLength),
        (batch_of(b"", 1, attributes=1), errors.InvalidCompressedData),
    ],
)
@pytest.mark.parametrize("views", [False, True])
def test_a_bad_batch_is_an_error_and_adds_nothing(bad, kind, views):
    good = build([(b"k" * 20, b"v" * 20, [("h", b"1")]), None], now_ms=1)
    builder = ColumnBuilder(views=views)
    data = good + bad
    with pytest.raises(kind) as raised:
        builder.extend(data)
    assert raised.value.where in (len(good), None)
    assert len(builder) == 2
    more = bytearray(build([(None, b"w" * 20), (b"", b"")]))
    stamp_offsets(more, 2, 0)
    builder.extend(bytes(more))
    assert rows_of(to_arrow(builder.finish())) == rows_one_by_one(good + bytes(more))


def test_a_checked_range_skips_the_crc():
    other_crc = bytearray(build([b"v"]))
    other_crc[17] ^= 1
    assert columns_of(bytes(other_crc), checked=True).num_rows == 1
    with pytest.raises(errors.InvalidCrc):
        columns_of(bytes(other_crc))


def test_bad_positions():
    data = build([b"v"])
    builder = ColumnBuilder()
    assert builder.extend(data, len(data)) == len(data)
    for position in (-1, len(data) + 1):
        with pytest.raises(ValueError, match="position"):
            builder.extend(data, position)


def test_a_lost_page_leaves_nothing_behind(tmp_path):
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(build([b"v" * 3000]) + build([b"w" * 30_000], base_offset=1))
    with Region(path, 1 << 20) as region:
        data = region.slice(0, path.stat().st_size)
        assert data.mapped
        os.truncate(path, 4096)
        builder = ColumnBuilder()
        with pytest.raises(errors.MappedPageLost):
            builder.extend(data)
        assert len(builder) == 0


@pytest.mark.parametrize("partition", sorted(p.name for p in (FIXTURES / "clean" / "logs").glob("*-0")))
def test_columns_of_what_kafka_wrote(partition):
    for segment in sorted((FIXTURES / "clean" / "logs" / partition).glob("*.log")):
        data = segment.read_bytes()
        for views in (False, True):
            assert rows_of(columns_of(data, views=views)) == rows_one_by_one(data)


# ---- what is left out, and in which order batches may come -----------------------------------------------


def test_leader_epoch_and_producer_id():
    data = build([b"a", b"b"], leader_epoch=7, producer_id=5, producer_epoch=0, base_sequence=0)
    data += build([b"c"], base_offset=2)
    made = columns_of(data, columns=["leader_epoch", "producer_id", "offset"])
    assert made.to_pydict() == {
        "offset": [0, 1, 2],
        "leader_epoch": [7, 7, None],
        "producer_id": [5, 5, None],
    }


@given(written, st.integers(-1, 2**53), st.integers(-1, 2**53))
@settings(max_examples=40)
def test_a_range_of_times_is_that_of_the_records(pieces, start, stop):
    data = segment_of(pieces)
    builder = ColumnBuilder()
    builder.from_time, builder.to_time = start, stop
    assert builder.extend(data) == len(data)
    wanted = [row for row in rows_one_by_one(data) if start <= row[COLUMNS.index("timestamp")] < stop]
    assert rows_of(to_arrow(builder.finish())) == wanted


def test_aborted_transactions_are_hidden():
    def batch(offset, producer_id, transactional=True):
        return build(
            [b"x"],
            base_offset=offset,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=transactional,
        )

    data = b"".join(
        [
            *(batch(0, 1), batch(1, 2), batch(2, 1), batch(3, 3), batch(4, 1, transactional=False)),
            *(batch(5, 1), batch(9, 1), batch(12, 2)),
        ]
    )
    builder = ColumnBuilder(["offset"])
    builder.hide_aborted([(2, 12, 13, 14), (1, 2, 6, 7), (1, 10, 11, 12), (7, 0, 99, 99)])
    builder.extend(data)
    assert to_arrow(builder.finish())["offset"].to_pylist() == [0, 1, 3, 4, 9]
    builder.hide_aborted([])
    builder.extend(data)
    assert builder.finish().rows == 8


@pytest.mark.parametrize("wrong", [(1,), "no", [("a", "b", "c")], [(1, 2)]])
def test_transactions_that_are_none(wrong):
    with pytest.raises((TypeError, ValueError, IndexError)):
        ColumnBuilder().hide_aborted([wrong] if isinstance(wrong, tuple) else wrong)


def test_a_builder_stops_at_the_limit_of_bytes():
    data = b"".join(build([bytes(100)] * 2, base_offset=2 * n) for n in range(5))
    builder = ColumnBuilder(["value"])
    assert builder.extend(data, max_bytes=300) == 2 * len(data) // 5
    assert builder.data_bytes == 400
    assert builder.finish().rows == 4
    assert builder.data_bytes == 0


def ordered(data, next_offset, following=1 << 60, **options):
    builder = ColumnBuilder(["offset"])
    builder.next_offset = next_offset
    builder.extend(data, following=following, **options)
    return builder


def test_the_next_offset_follows_the_batches():
    data = build([b"a", b"b"], base_offset=5) + build([b"c"], base_offset=9)
    assert ordered(data, 3).next_offset == 10
    assert ordered(data, 5, stop=9).next_offset == 9
    assert ordered(data, 5, max_rows=1).next_offset == 7
    assert ordered(b"", 5).next_offset == 5


@pytest.mark.parametrize(
    ("bases", "following", "bad"),
    [
        ([0, 1, 3], 7, 1),  # the second begins within the first
        ([0, 6, 4], 8, 1),  # the second reaches past the third, which fits behind the first
        ([0, 2, 40], 20, 2),  # the last reaches past what follows
        ([0, 1 << 62, 4], 8, 1),
    ],
)
def test_offsets_that_rotted_are_refused(bases, following, bad):
    batches_there = [build([b"a", b"b"], base_offset=base) for base in bases]
    builder = ColumnBuilder(["offset"])
    builder.next_offset = 0
    with pytest.raises(errors.OffsetsOutOfOrder):
        builder.extend(b"".join(batches_there), following=following)
    assert builder.position == sum(map(len, batches_there[:bad]))
    assert builder.next_offset == 2 * bad
    assert builder.finish().rows == 2 * bad


def test_a_gap_is_no_disorder():
    data = build([b"a"], base_offset=0) + build([b"b"], base_offset=7) + build([b"c"], base_offset=8)
    assert ordered(data, 0, following=9).next_offset == 9


def test_after_a_bad_batch_the_builder_goes_on():
    good, bad = build([b"a"], base_offset=3), bytearray(build([b"b"], base_offset=4))
    bad[-2] ^= 1
    builder = ColumnBuilder(["offset"])
    builder.next_offset = 0
    with pytest.raises(errors.InvalidCrc):
        builder.extend(good + bytes(bad))
    assert (builder.position, builder.next_offset) == (len(good), 4)
    builder.extend(build([b"c"], base_offset=5))
    assert to_arrow(builder.finish())["offset"].to_pylist() == [3, 5]
