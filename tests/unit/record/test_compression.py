import contextlib
import os
import resource
import struct
import tracemalloc

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kreplica.common import errors
from kreplica.record import Record, RecordBatch, compress, decompress, validate_for_append
from kreplica.record.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD
from tests.support.batches import batch_of, build, record_of, with_crc, with_field
from tests.support.memory import resident_bytes

CODECS = {"gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
XERIAL = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)

every_codec = pytest.mark.parametrize("name", CODECS)
records = st.lists(
    st.builds(
        Record,
        value=st.none() | st.binary(max_size=60),
        key=st.none() | st.binary(max_size=10),
        headers=st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2),
        timestamp=st.integers(-1, 10**9 - 1) | st.integers(10**10, 2**62),
    ),
    min_size=1,
    max_size=6,
)


def facts(batch):
    return [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in RecordBatch(batch)]


# ---- there and back ----------------------------------------------------------------------------------------


@every_codec
@given(st.binary(max_size=2000), st.integers(1, 60))
@settings(max_examples=60)
def test_compressing_then_decompressing_is_the_identity(name, piece, times):
    data = piece * times
    assert bytes(decompress(CODECS[name], compress(CODECS[name], data))) == data


@every_codec
@given(records)
@settings(max_examples=60)
def test_a_compressed_batch_reads_as_the_uncompressed_one(name, given_records):
    plain, compressed = build(given_records), build(given_records, codec=name)
    assert RecordBatch(compressed).codec == name
    assert facts(compressed) == facts(plain)
    assert validate_for_append(compressed) == validate_for_append(plain)
    assert bytes(RecordBatch(compressed).uncompressed()) == plain[61:]


@every_codec
def test_large_inputs_grow_the_output_in_steps(name):
    data = bytes(3_000_000) + os.urandom(100_000)
    assert bytes(decompress(CODECS[name], compress(CODECS[name], data))) == data


@every_codec
def test_what_was_compressed_can_be_any_buffer(name):
    for kind in (bytes, bytearray, memoryview):
        assert bytes(decompress(CODECS[name], kind(bytes(compress(CODECS[name], kind(b"abc")))))) == b"abc"


@pytest.mark.parametrize(
    ("name", "levels", "refused"),
    [
        ("gzip", [-1, 1, 6, 9], [0, 10]),
        ("lz4", [1, 3, 9, 12, 17], [0, 18]),
        ("zstd", [-5, 1, 3, 22], [23, -131073]),
        ("snappy", [1], []),
    ],
)
def test_levels_are_those_of_kafkas_configuration(name, levels, refused):
    data = b"some text, " * 500
    for level in levels:
        batch = build([data], codec=name, level=level)
        assert next(iter(RecordBatch(batch))).value == data
    for level in refused:
        with pytest.raises(ValueError, match="is out of range"):
            build([data], codec=name, level=level)


def test_a_higher_level_compresses_more():
    data = b"".join(b"%d," % (i * i) for i in range(20_000))
    for codec, low, high in ((GZIP, 1, 9), (LZ4, None, 12), (ZSTD, 1, 15)):
        assert len(memoryview(compress(codec, data, high))) < len(memoryview(compress(codec, data, low)))


def test_no_compression_and_no_codec():
    assert compress(NONE, b"abc") == decompress(NONE, b"abc") == b"abc"
    with pytest.raises(errors.DecompressionTooLarge):
        decompress(NONE, b"abc", 2)
    for codec in (5, -1):
        with pytest.raises(errors.UnsupportedCodec):
            compress(codec, b"abc")
        with pytest.raises(errors.UnsupportedCodec):
            decompress(codec, b"abc")


# ---- formats that other programs must read, and write ------------------------------------------------------


def test_snappy_is_written_in_kafkas_framing_and_read_in_both():
    data = os.urandom(5_000) * 20
    framed = bytes(compress(SNAPPY, data))
    assert framed.startswith(XERIAL)
    (size,) = struct.unpack_from(">i", framed, 16)
    assert bytes(cramjam.snappy.decompress_raw(framed[20 : 20 + size])) == data[: 32 << 10]
    assert bytes(decompress(SNAPPY, bytes(cramjam.snappy.compress_raw(data)))) == data
    assert bytes(decompress(SNAPPY, XERIAL)) == b""


def test_lz4_blocks_stand_alone_as_kafka_asks():
    frame = bytes(compress(LZ4, b"x" * 200_000))
    assert struct.unpack_from("<I", frame) == (0x184D2204,)
    assert frame[4] >> 6 == 1  # version
    assert frame[4] & 0x20  # independent blocks
    assert not frame[4] & 0x03  # no reserved bit, no dictionary


def test_a_gzip_stream_of_two_members_is_one():
    two = bytes(compress(GZIP, b"abc")) + bytes(compress(GZIP, b"def"))
    assert bytes(decompress(GZIP, two)) == b"abcdef"


# ---- case 38: decompression bombs --------------------------------------------------------------------------


@every_codec
def test_case_38_the_bound_is_exact(name):
    for size in (1, 5_000, 200_000):
        data = compress(CODECS[name], bytes(size))
        assert len(memoryview(decompress(CODECS[name], data, size))) == size
        with pytest.raises(errors.DecompressionTooLarge):
            decompress(CODECS[name], data, size - 1)


@every_codec
def test_case_38_a_bomb_in_a_batch(name):
    bomb = build([bytes(1 << 20)], codec=name)
    with pytest.raises(errors.DecompressionTooLarge):
        validate_for_append(bomb, max_decompressed=1 << 20)
    batch = RecordBatch(bomb)
    with pytest.raises(errors.DecompressionTooLarge):
        batch.records(max_decompressed=1 << 20)
    batch.max_decompressed = 1 << 20
    with pytest.raises(errors.DecompressionTooLarge):
        list(batch)
    assert len(list(batch.records(max_decompressed=1 << 21))) == 1


def test_case_38_a_gibibyte_of_zeros_with_a_huge_record_count_costs_little_memory():
    section = bytes(compress(GZIP, bytes(16 << 20))) * 64
    bomb = with_field(batch_of(section, 2**31 - 1, attributes=GZIP), 23, ">i", 2**31 - 2)
    assert len(bomb) < 2 << 20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(errors.InvalidCompressedData, match="2147483647 records"):
        validate_for_append(bomb, max_decompressed=16 << 20)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB


def test_case_38_a_snappy_block_that_claims_a_size_it_cannot_have():
    claims = b"\xff\xff\xff\xff\x0f" + b"\x00a"
    for data in (claims, XERIAL + struct.pack(">i", len(claims)) + claims):
        with pytest.raises(errors.InvalidCompressedData, match="claims"):
            decompress(SNAPPY, data)


# ---- case 39: broken, truncated, and followed by something -------------------------------------------------

TEXT = b"one record after another, " * 40


@every_codec
def test_case_39_every_truncation_of_a_stream(name):
    stream = bytes(compress(CODECS[name], TEXT))
    for size in range(len(stream)):
        if name == "snappy" and size == len(XERIAL):
            continue  # a header and no block: a stream of nothing
        with pytest.raises(errors.InvalidCompressedData):
            decompress(CODECS[name], stream[:size])


@every_codec
def test_case_39_a_truncated_stream_in_a_batch(name):
    batch = build([TEXT, TEXT], codec=name)
    for cut in (1, 5, len(batch) - 62, len(batch) - 61):
        short = batch[:-cut]
        short = with_crc(short[:8] + struct.pack(">i", len(short) - 12) + short[12:])
        for read in (validate_for_append, facts):
            with pytest.raises(errors.InvalidCompressedData):
                read(short)


@every_codec
def test_case_39_something_behind_the_stream(name):
    stream = bytes(compress(CODECS[name], TEXT))
    for behind in (b"\x00", b"rubbish", b"\xff" * 20):
        with pytest.raises(errors.InvalidCompressedData):
            decompress(CODECS[name], stream + behind)


@every_codec
@given(st.data())
@settings(max_examples=200)
def test_case_39_a_broken_stream_fails_or_gives_bytes(name, data):
    stream = bytearray(compress(CODECS[name], TEXT))
    for _ in range(data.draw(st.integers(1, 3))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(errors.InvalidCompressedData, errors.DecompressionTooLarge):
        decompress(CODECS[name], bytes(stream), 1 << 20)


@every_codec
@given(st.binary(max_size=100))
@settings(max_examples=100)
def test_case_39_rubbish(name, rubbish):
    with contextlib.suppress(errors.InvalidCompressedData, errors.DecompressionTooLarge):
        decompress(CODECS[name], rubbish, 1 << 20)


@every_codec
def test_records_wrong_inside_a_right_stream(name):
    codec = CODECS[name]

    def refused(section, count, kind):
        bad = batch_of(bytes(compress(codec, section)), count, attributes=codec)
        with pytest.raises(kind):
            validate_for_append(bad)
        with pytest.raises(errors.CorruptMessage):
            facts(bad)

    refused(record_of(0) + record_of(1), 1, errors.InvalidRecordCount)
    refused(record_of(0) + record_of(1), 3, errors.InvalidRecordCount)
    refused(record_of(0) + record_of(5) + record_of(2), 3, errors.InvalidOffsetDelta)
    refused(record_of(0) + b"\x01", 1, errors.InvalidRecordLength)
    refused(record_of(0, key=b"\x03"), 1, errors.InvalidRecordLength)
    refused(b"", 1, errors.InvalidRecordCount)


@every_codec
def test_every_bit_flip_of_a_compressed_batch_is_found_or_outside_the_crc(name):
    batch = build([(b"key", b"value " * 3), b"w"], codec=name, now_ms=3)
    right = [fact[1:] for fact in facts(batch)]
    for bit in range(8 * len(batch)):
        damaged = bytearray(batch)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            read = facts(bytes(damaged))
        except errors.CorruptMessage:
            continue
        assert bit // 8 < 8 or 12 <= bit // 8 < 16
        assert [fact[1:] for fact in read] == right


@pytest.mark.parametrize("name", ["gzip", "lz4", "zstd"])
@pytest.mark.parametrize("count", [1, 1000])
def test_a_bomb_that_is_no_such_records_is_given_up_early(name, count):
    bombs = (b"\0" * (64 << 20), record_of() * count + b"\x40" * (64 << 20))
    for stream in [bytes(compress(CODECS[name], bomb)) for bomb in bombs]:
        tracemalloc.start()
        try:
            with pytest.raises(errors.InvalidCompressedData, match=f"{count} records"):
                decompress(CODECS[name], stream, 256 << 20, count)
            assert tracemalloc.get_traced_memory()[1] < 10 << 20
        finally:
            tracemalloc.stop()


@every_codec
@pytest.mark.parametrize("is_cut", [False, True])
def test_an_error_keeps_nothing_of_what_was_decompressed(name, is_cut):
    size = 16 << 20
    stream = bytes(compress(CODECS[name], bytes(size)))
    stream, bound = (stream[:-5], size) if is_cut else (stream, size - 1)
    kept, before = [], resident_bytes()
    for _ in range(8):
        with pytest.raises(errors.CorruptMessage if is_cut else errors.DecompressionTooLarge) as caught:
            decompress(CODECS[name], stream, bound)
        kept.append(caught.value)
    assert resident_bytes() - before < 2 * size


@every_codec
@given(records)
@settings(max_examples=50)
def test_records_are_never_given_up(name, some):
    some = [Record(value=b"x" * 100_000), *some, Record(value=b"x" * 100_000)]
    section = bytes(RecordBatch(build(some)).uncompressed())
    stream = compress(CODECS[name], section)
    assert bytes(decompress(CODECS[name], stream, len(section), len(some))) == section
