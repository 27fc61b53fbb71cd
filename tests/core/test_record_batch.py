"""Building, reading and checking uncompressed batches; the codecs are tested in tests/unit/record."""

import contextlib
import gc
import pickle
import struct
import sys
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kreplica._core import crc32c, record_batch, varint
from kreplica._core.batch_builder import BatchBuilder
from kreplica._core.record import Record
from kreplica._core.records import RecordBatch, batches, validate_for_append
from kreplica.common import errors
from tests.support.batches import batch_of, build, record_of, with_field

TWO = build([(b"k", b"v"), b"w"], now_ms=1000)

some_bytes = st.binary(max_size=40)
header_lists = st.lists(st.tuples(st.text(max_size=8), st.none() | some_bytes), max_size=3)
# Not those that could be seconds.
timestamps = st.integers(-1, 10**9 - 1) | st.integers(10**10, 2**62)
records = st.lists(
    st.builds(
        Record,
        value=st.none() | some_bytes,
        key=st.none() | some_bytes,
        headers=header_lists,
        timestamp=timestamps,
    ),
    min_size=1,
    max_size=8,
)


def facts(record):
    return record.key, record.value, record.headers, record.timestamp


# ---- building and reading ----------------------------------------------------------------------------------


def test_a_batch_has_kafkas_bytes():
    batch = build([(b"k", b"vv", [("h", None)], 1003), b""], base_offset=5, leader_epoch=7, now_ms=1001)
    head = struct.unpack_from(">qiibIhiqqqhii", batch)
    crc = crc32c.checksum(batch[21:])
    assert head == (5, len(batch) - 12, 7, 2, crc, 0, 1, 1003, 1003, -1, -1, -1, 2)
    assert batch[61:] == bytes.fromhex("18 00 00 00 02 6b 04 76 76 02 02 68 010c 00 03 02 01 00 00")


@given(records, st.integers(0, 2**40), st.integers(-1, 2**31 - 1))
def test_building_then_reading_is_the_identity(given_records, base_offset, leader_epoch):
    batch = build(given_records, base_offset=base_offset, leader_epoch=leader_epoch)
    read = RecordBatch(batch)
    assert [facts(r) for r in read] == [facts(r) for r in given_records]
    assert [r.offset for r in read] == list(range(base_offset, base_offset + len(given_records)))
    assert (read.base_offset, read.next_offset, read.leader_epoch) == (
        base_offset,
        base_offset + len(given_records),
        leader_epoch,
    )
    assert read.record_count == len(given_records)
    assert read.max_timestamp == max(r.timestamp for r in given_records)
    # What was read builds the same batch again, and a leader accepts it.
    assert build(list(read), base_offset=base_offset, leader_epoch=leader_epoch) == batch
    largest, delta = validate_for_append(batch)
    assert largest == read.max_timestamp == given_records[delta].timestamp


@pytest.mark.parametrize(
    ("given_record", "key", "value", "headers", "timestamp"),
    [
        (b"v", None, b"v", [], 9),
        (None, None, None, [], 9),
        (bytearray(b"v"), None, b"v", [], 9),
        (memoryview(b"xvx")[1:2], None, b"v", [], 9),
        (memoryview(b""), None, b"", [], 9),
        (bytearray(), None, b"", [], 9),
        ((b"k", b"v"), b"k", b"v", [], 9),
        ((None, None), None, None, [], 9),
        ((b"", b""), b"", b"", [], 9),
        ((b"k", b"v", None), b"k", b"v", [], 9),
        ((b"k", b"v", [("é", None), ("", b"")]), b"k", b"v", [("é", None), ("", b"")], 9),
        ((b"k", b"v", (), 5), b"k", b"v", [], 5),
        ((b"k", b"v", [("h", bytearray(b"1"))], None), b"k", b"v", [("h", b"1")], 9),
        (Record(b"v", b"k", [("h", b"1")], 3), b"k", b"v", [("h", b"1")], 3),
        (Record(value=b"v", key=b"k"), b"k", b"v", [], 9),
        (Record(bytearray(b"v"), memoryview(b"k")), b"k", b"v", [], 9),
    ],
)  # fmt: skip
def test_what_counts_as_a_record(given_record, key, value, headers, timestamp):
    (record,) = RecordBatch(build([given_record], now_ms=9))
    assert (record.key, record.value, record.headers, record.timestamp) == (key, value, headers, timestamp)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("text", "record 1: the value must be bytes"),
        (7, "record 1: the value must be bytes"),
        ((b"k",), "record 1: a tuple of 1"),
        ((b"k", b"v", [], 1, 2), "record 1: a tuple of 5"),
        (("k", b"v"), "record 1: the key must be bytes"),
        ((b"k", "v"), "record 1: the value must be bytes"),
        ((b"k", b"v", {"h": b"1"}), "record 1: headers must be"),
        ((b"k", b"v", [(b"h", b"1")]), "record 1: a header must be"),
        ((b"k", b"v", [("h",)]), "record 1: a header must be"),
        ((b"k", b"v", [("h", "1")]), "record 1: a header's value"),
        ((b"k", b"v", [], "now"), "record 1: a timestamp must be"),
    ],
)
def test_what_is_no_record_is_named(bad, message):
    with pytest.raises(TypeError, match=message):
        build([b"fine", bad])


def test_bad_values_are_refused():
    with pytest.raises(ValueError, match="record 0: a timestamp of -2"):
        build([(None, b"v", None, -2)])
    with pytest.raises(ValueError, match="a timestamp"):
        Record(b"v", timestamp=-2)
    with pytest.raises(TypeError, match="a record's value"):
        Record("v")
    with pytest.raises(ValueError, match="unknown codec"):
        build([b"v"], codec="brotli")
    with pytest.raises(errors.InvalidRecord):
        build([])
    with pytest.raises(UnicodeEncodeError):
        build([(None, None, [("\udc80", None)])])


def test_records_come_from_a_list_or_an_iterator():
    assert build(iter([b"a", b"b"])) == build([b"a", b"b"]) == build(deque([b"a", b"b"]))


@pytest.mark.parametrize(
    ("records", "hint"),
    [
        ((b"k", b"v"), r"\[\(key, value\)\] is one record"),
        (b"v", r"use \[record\]"),
        (Record(b"v"), r"use \[record\]"),
        ("v", r"not a str: encode text and put it into a list, as in \[text.encode\(\)\]"),
        ({b"k": b"v"}, r"not a dict: use a list of \(key, value\)"),
        ({b"k": b"v"}, "not a dict"),
        ({b"v"}, "not a set"),
    ],
)
def test_one_record_is_not_taken_for_a_list_of_them(records, hint):
    with pytest.raises(TypeError, match=hint):
        build(records)


def test_a_builder_is_used_again_after_an_error_and_lets_go_of_buffers():
    builder = BatchBuilder()
    value = bytearray(b"v")
    with pytest.raises(TypeError):
        builder.build([value, 3])
    value += b"w"  # a buffer still held would refuse this
    assert [r.value for r in RecordBatch(builder.build([value]))] == [b"vw"]
    value += b"x"


def test_the_size_limit_is_exact():
    size = len(build([b"v" * 100]))
    assert len(build([b"v" * 100], max_size=size)) == size
    with pytest.raises(errors.MessageTooLarge, match=f"a batch of {size} bytes is above max_size={size - 1}"):
        build([b"v" * 100], max_size=size - 1)


def test_attributes_and_producer_fields():
    batch = RecordBatch(
        build([b"v"], producer_id=77, producer_epoch=3, base_sequence=11, transactional=True, now_ms=4)
    )
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (77, 3, 11)
    assert batch.is_transactional
    assert not batch.is_control
    assert (batch.codec, batch.timestamp_type, batch.delete_horizon_ms) == ("none", "create", None)
    assert batch.control_type is None

    control = RecordBatch(build([(b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00\x09")], control=True))
    assert control.is_control
    assert control.control_type == 1

    horizon = RecordBatch(build([(b"k", None, None, 50)], delete_horizon_ms=99))
    assert horizon.delete_horizon_ms == 99
    assert [r.timestamp for r in horizon] == [50]

    appended = RecordBatch(build([(b"k", b"v", None, 50)], log_append_time=True, now_ms=60))
    (record,) = appended
    assert (record.timestamp, record.timestamp_type, appended.max_timestamp) == (60, "log_append", 60)


def test_stamping_in_place():
    batch = bytearray(TWO)
    record_batch.stamp_offsets(batch, 2**40, 12)
    read = RecordBatch(bytes(batch))
    assert (read.base_offset, read.leader_epoch, read.crc_valid) == (2**40, 12, True)
    record_batch.stamp_append_time(batch, 5000)
    read = RecordBatch(bytes(batch))
    assert read.crc_valid
    assert [(r.timestamp, r.timestamp_type) for r in read] == [(5000, "log_append")] * 2
    with pytest.raises(errors.TruncatedInput):
        record_batch.stamp_offsets(bytearray(), 0, 0)
    with pytest.raises(errors.TruncatedInput):
        record_batch.stamp_append_time(bytearray(60), 0)


def test_a_batch_is_a_view_of_its_bytes():
    data = memoryview(b"xx" + TWO + b"yy")
    batch = RecordBatch(data, 2)
    assert memoryview(batch) == TWO
    assert memoryview(batch).readonly
    assert (batch.size, batch.crc) == (len(TWO), struct.unpack_from(">I", TWO, 17)[0])
    held = bytearray(TWO)
    first = next(iter(RecordBatch(held)))
    with pytest.raises(BufferError):
        held += b"z"
    assert first.value == b"v"
    del first
    held += b"z"


# Of a compacted batch, and of one as its producer made it.
DELTAS = st.sets(st.integers(0, 30), min_size=1) | st.integers(1, 31).map(lambda count: set(range(count)))


@given(DELTAS, st.integers(-3, 35), st.integers(-3, 35))
def test_a_range_of_a_batch_is_what_all_of_it_has_there(deltas, start, stop):
    section = b"".join(record_of(delta) for delta in sorted(deltas))
    batch = RecordBatch(batch_of(section, len(deltas), max(deltas)))
    every = [record.offset for record in batch]
    wanted = [offset for offset in every if start <= offset < stop]
    assert every == sorted(deltas)
    assert [r.offset for r in batch.records(start=start, stop=stop)] == wanted
    assert [r.offset for r in batch.records(start=start)] == [o for o in every if start <= o]
    assert [r.offset for r in batch.records(stop=stop)] == [o for o in every if o < stop]


@pytest.mark.parametrize("start", [1, 2, 3])
@pytest.mark.parametrize("deltas", [(0, 2, 3, 4), (1, 2, 3, 4), (0, 1, 2, 2), (0, 1, 3, 2)])
def test_a_batch_that_only_looks_as_if_it_had_no_gaps_is_refused_from_any_offset_on(deltas, start):
    section = b"".join(record_of(delta) for delta in deltas)
    batch = RecordBatch(batch_of(section, 4, 3))
    with pytest.raises(errors.CorruptMessage):
        batch.records()
    with pytest.raises(errors.CorruptMessage):
        batch.records(start=start)


@pytest.mark.parametrize("cut", [1, 3])
def test_what_comes_behind_is_checked_before_the_first_record_is_given(cut):
    whole = b"".join(record_of(delta) for delta in range(4))
    batch = RecordBatch(batch_of(whole[:-cut], 4, 3))
    with pytest.raises(errors.CorruptMessage):
        batch.records(start=2)


def test_walking_from_batch_to_batch():
    one, two = build([b"1", b"2"]), build([b"3"], base_offset=2)
    assert [b.base_offset for b in batches(one + two)] == [0, 2]
    assert [memoryview(b) for b in batches(one + two)] == [one, two]
    assert list(batches(b"")) == []
    for cut in range(1, len(two)):
        assert [b.base_offset for b in batches((one + two)[:-cut], partial=True)] == [0]
        with pytest.raises(errors.CorruptMessage):
            list(batches((one + two)[:-cut]))


def test_records_compare_and_show_what_they_are():
    first, second = RecordBatch(TWO)
    assert first == next(iter(RecordBatch(TWO)))
    assert hash(first) == hash(next(iter(RecordBatch(TWO))))
    assert first != second
    assert Record(b"v", timestamp=1) == Record(b"v", timestamp=1)
    assert Record(b"v") != Record(None)
    assert Record(b"v") != Record(b"v", headers=[("a", None)])
    assert Record(b"v") != b"v"
    assert repr(first) == "Record(offset=0, key=b'k', value=b'v', timestamp=1000)"
    assert repr(Record(b"v", headers=[("h", None)])) == "Record(key=None, value=b'v', headers=[('h', None)])"
    assert Record().offset is Record().timestamp is None


def test_records_can_be_pickled():
    batch = RecordBatch(
        build([(b"k", b"v", [("h", None)], 5), None], base_offset=9, log_append_time=True, now_ms=6)
    )
    for record in [*batch, Record(b"v"), Record(None, b"k", [("h", b"1")], 3)]:
        assert pickle.loads(pickle.dumps(record)) == record


def test_a_batch_with_gaps_reads_but_no_producer_may_send_it():
    sparse = batch_of(record_of(1) + record_of(4), 2, last_delta=6)
    assert [r.offset for r in RecordBatch(sparse)] == [1, 4]
    assert RecordBatch(sparse).last_offset == 6
    with pytest.raises(errors.InvalidOffsetDelta):
        validate_for_append(sparse)
    empty = batch_of(b"", 0, last_delta=6)
    assert list(RecordBatch(empty)) == []
    with pytest.raises(errors.InvalidRecordCount):
        validate_for_append(empty)


# ---- hostile input: the cases that need no codec -----------------------------------------------------------


def refused(batch: bytes, kind: type[errors.KreplicaError]) -> None:
    """Neither a leader nor a reader takes the batch."""
    with pytest.raises(kind) as leader:
        validate_for_append(batch)
    with pytest.raises(kind) as reader:
        list(RecordBatch(batch))
    assert leader.type is reader.type is kind


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 1, 48, len(TWO) - 11, 2**31 - 1])
def test_case_29_batch_length_below_the_header_or_past_the_end(length):
    refused(TWO[:8] + struct.pack(">i", length) + TWO[12:], errors.InvalidBatchLength)


@pytest.mark.parametrize("magic", [0, 1, 3, 255])
def test_case_30_bad_magic(magic):
    refused(TWO[:16] + bytes([magic]) + TWO[17:], errors.UnsupportedMagic)


def test_case_31_bad_crc():
    refused(TWO[:17] + bytes(4) + TWO[21:], errors.InvalidCrc)


@pytest.mark.parametrize("count", [1, 3])
def test_case_32_record_count_unlike_the_records(count):
    batch = with_field(with_field(TWO, 57, ">i", count), 23, ">i", count - 1)
    with pytest.raises(errors.InvalidRecordCount):
        validate_for_append(batch)
    with pytest.raises(errors.CorruptMessage):
        list(RecordBatch(batch))


@pytest.mark.parametrize("count", [-1, -(2**31), 2**31 - 1])
def test_case_33_negative_or_huge_count(count):
    refused(with_field(TWO, 57, ">i", count), errors.InvalidRecordCount)


@pytest.mark.parametrize(
    "record",
    [
        varint.encode_varint(-1) + bytes(10),
        varint.encode_varint(2**31 - 1) + bytes(10),
        record_of(key=varint.encode_varint(-2)),
        record_of(key=varint.encode_varint(-(2**31))),
        record_of(key=varint.encode_varint(2**31 - 1)),
        record_of(value=varint.encode_varint(-2)),
        record_of(value=varint.encode_varint(50)),
        record_of(headers=b"\x02\x01\x01"),  # a null header key
        record_of(headers=b"\x02\x03\x01"),  # a header key of -2
        record_of(headers=b"\x02\x02h\x03"),  # a header value of -2
        record_of(headers=b"\x02\x02h\x40"),
        record_of(headers=b"\x00\x00"),  # a byte behind the last header
    ],
)
def test_case_34_negative_or_long_record_key_value_or_header_length(record):
    refused(batch_of(record, 1), errors.InvalidRecordLength)


def test_case_34_an_overlong_varint_and_a_record_cut_short():
    refused(batch_of(b"\x80" * 5 + bytes(10), 1), errors.InvalidRecordLength)
    refused(batch_of(b"\x04\x00\x00" + bytes(8), 1), errors.TruncatedInput)


def test_case_35_last_offset_delta_unlike_the_records():
    refused(with_field(TWO, 23, ">i", 0), errors.InvalidOffsetDelta)
    refused(with_field(TWO, 23, ">i", -1), errors.InvalidOffsetDelta)
    for delta in (2, 2**31 - 1):
        with pytest.raises(errors.InvalidOffsetDelta):
            validate_for_append(with_field(TWO, 23, ">i", delta))


def test_case_35_offsets_leave_int64():
    refused(struct.pack(">q", 2**63 - 1) + TWO[8:], errors.InvalidOffsetDelta)
    refused(struct.pack(">q", -1) + TWO[8:], errors.InvalidOffsetDelta)
    assert list(RecordBatch(struct.pack(">q", 2**63 - 2) + TWO[8:]))[1].offset == 2**63 - 1


@pytest.mark.parametrize("deltas", [(0, 5, 2), (0, 0), (1, 0), (-1, 0)])
def test_case_36_offsets_go_back_within_a_batch(deltas):
    section = b"".join(record_of(delta) for delta in deltas)
    refused(batch_of(section, len(deltas), last_delta=6 if 5 in deltas else None), errors.InvalidOffsetDelta)


def test_case_36_gaps_in_a_producers_batch():
    with pytest.raises(errors.InvalidOffsetDelta):
        validate_for_append(batch_of(record_of(0) + record_of(2), 2))


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_case_37_unknown_codec(codec):
    refused(with_field(TWO, 21, ">h", codec), errors.UnsupportedCodec)
    assert RecordBatch(with_field(TWO, 21, ">h", codec)).codec == str(codec)


@pytest.mark.parametrize("count", [-1, 1, 2, 2**31 - 1])
def test_case_40_header_count_beyond_what_is_left(count):
    refused(batch_of(record_of(headers=varint.encode_varint(count)), 1), errors.InvalidRecordLength)


def test_case_41_zeros_behind_the_last_batch():
    walk = batches(TWO + bytes(4096))
    assert next(walk).record_count == 2
    with pytest.raises(errors.InvalidBatchLength):
        next(walk)
    with pytest.raises(errors.InvalidRecordLength):
        validate_for_append(TWO + bytes(4096))


def test_bytes_behind_the_records_of_a_batch():
    refused(batch_of(record_of() + b"\x01", 1), errors.InvalidRecordLength)
    with pytest.raises(errors.InvalidRecordLength):
        validate_for_append(TWO + TWO)


def test_timestamps_out_of_range():
    one_later = batch_of(record_of(timestamp=b"\x02"), 1)
    refused(with_field(one_later, 27, ">q", 2**63 - 1), errors.InvalidTimestamp)
    with pytest.raises(errors.InvalidTimestamp):
        validate_for_append(batch_of(record_of(timestamp=b"\x03"), 1))
    for position in (27, 35):
        with pytest.raises(errors.InvalidTimestamp):
            validate_for_append(with_field(TWO, position, ">q", -2))
    with pytest.raises(errors.InvalidTimestamp):
        validate_for_append(with_field(TWO, 21, ">h", 0x08))


def test_a_wrong_max_timestamp_is_found_by_the_records():
    assert validate_for_append(with_field(TWO, 35, ">q", 5)) == (1000, 0)


def test_control_batches_only_where_allowed():
    control = build([(b"\x00\x00\x00\x01", b"")], control=True)
    with pytest.raises(errors.InvalidRecord):
        validate_for_append(control)
    assert validate_for_append(control, allow_control=True) == (-1, 0)
    for short in (None, b"", b"\x00\x00\x00"):
        with pytest.raises(errors.CorruptMessage, match="BAD_CONTROL_RECORD"):
            RecordBatch(build([(short, b"")], control=True)).control_type  # noqa: B018


@pytest.mark.parametrize(
    "fields",
    [
        {"producer_id": 5},
        {"producer_id": 5, "producer_epoch": 0},
        {"producer_id": 5, "base_sequence": 0},
        {"producer_id": -2},
        {"transactional": True},
    ],
)
def test_producer_fields_that_do_not_fit_together(fields):
    with pytest.raises(errors.InvalidRecord):
        validate_for_append(build([b"v"], **fields))


def test_attributes_that_only_a_broker_sets():
    for attributes in (0x40, 0x80, -0x8000):
        with pytest.raises(errors.CorruptMessage, match="BAD_ATTRIBUTES"):
            validate_for_append(with_field(TWO, 21, ">h", attributes))


def test_nothing_at_all():
    for data in (b"", bytes(60)):
        with pytest.raises(errors.TruncatedInput):
            RecordBatch(data)
        with pytest.raises(errors.TruncatedInput):
            validate_for_append(data)
    for position in (-1, len(TWO), len(TWO) + 1):
        with pytest.raises(errors.TruncatedInput):
            RecordBatch(TWO, position)
    with pytest.raises(ValueError, match="without bytes"):
        list(RecordBatch.__new__(RecordBatch))


# ---- damage: no wrong record is ever read ------------------------------------------------------------------

SMALL = build(
    [(b"key", b"value", [("h", b"1")]), None, b"w" * 9], base_offset=7, leader_epoch=2, now_ms=12345
)


def contents(batch: bytes):
    return [(r.timestamp, r.key, r.value, r.headers) for r in RecordBatch(batch)]


def test_every_bit_flip_is_found_or_outside_the_crc():
    right = contents(SMALL)
    for bit in range(8 * len(SMALL)):
        damaged = bytearray(SMALL)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            read = contents(bytes(damaged))
        except errors.CorruptMessage:
            continue
        # The base offset and the leader epoch lie outside the CRC, so Kafka's format cannot detect a change.
        assert bit // 8 < 8 or 12 <= bit // 8 < 16
        assert read == right


def test_every_truncation_is_found():
    for size in range(len(SMALL)):
        with pytest.raises(errors.CorruptMessage):
            contents(SMALL[:size])


@given(st.dictionaries(st.integers(0, len(SMALL) - 1), st.integers(0, 255), min_size=1, max_size=3))
@settings(max_examples=400)
def test_damage_with_a_crc_that_fits_reads_or_fails_cleanly(damage):
    damaged = bytearray(SMALL)
    for place, byte in damage.items():
        damaged[place] = byte
    if damaged[8:12] == SMALL[8:12] and damaged[16] == 2:
        record_batch.stamp_crc(damaged)
    for use in (contents, validate_for_append):
        with contextlib.suppress(errors.KreplicaError):
            use(bytes(damaged))


@given(st.binary(max_size=200), st.integers(0, 5))
def test_rubbish_in_the_records_section_reads_or_fails_cleanly(section, count):
    with contextlib.suppress(errors.KreplicaError):
        assert len(list(RecordBatch(batch_of(section, count, last_delta=5)))) == count


@pytest.mark.parametrize(
    "read", [batches, RecordBatch, lambda view: next(batches(view)), lambda view: [view, batches(view)]]
)
def test_the_collector_clears_what_holds_a_view_of_a_view(read, monkeypatch):
    """The frames of an error that is kept hold such a view."""
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    data = bytearray(BatchBuilder().build([b"v"], now_ms=1))

    def fail():
        held = read(memoryview(data))
        try:
            raise LookupError(held)
        except LookupError as error:
            kept = error  # noqa: F841

    gc.collect()
    fail()
    gc.collect()
    assert not unraisable
    data.append(0)  # no view of it is left
