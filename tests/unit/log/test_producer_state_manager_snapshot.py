"""The bytes of producer snapshots; every damage is seen."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica._core.crc32c import checksum
from kreplica.common.errors import InvalidFile
from kreplica.common.types import INT32_MAX, INT64_MAX
from kreplica.log.producer_append_info import BatchMetadata, ProducerStateEntry
from kreplica.log.producer_state_manager import (
    format_snapshot,
    parse_snapshot,
    snapshot_name,
    snapshot_offset,
)
from tests.support.damage import bit_flips, truncations

ENTRIES = [
    ProducerStateEntry(7, 2, 4, 1700, 30, (BatchMetadata(9, 41, 3, 1700),)),
    ProducerStateEntry(1, 0),
]


def with_checksum(body: bytes) -> bytes:
    return struct.pack(">hI", 1, checksum(body)) + body


def test_layout() -> None:
    data = format_snapshot(ENTRIES[:1])
    assert data[:2] == b"\0\1"
    assert struct.unpack(">I", data[2:6])[0] == checksum(data[6:])
    assert struct.unpack(">iqhiqiqiq", data[6:]) == (1, 7, 2, 9, 41, 3, 1700, 4, 30)
    # An empty one as Kafka 4.3.0 writes it.
    assert format_snapshot([]).hex() == "000148674bc700000000"


def test_only_the_last_batch_is_kept() -> None:
    entry = ProducerStateEntry(
        7, 0, batches=(BatchMetadata(0, 5, 0, 1), BatchMetadata(2, 7, 1, 2)), last_timestamp=2
    )
    (read,) = parse_snapshot(format_snapshot([entry]), "f")
    assert read.batches == (BatchMetadata(2, 7, 1, 2),)


def test_producer_without_a_batch() -> None:
    (read,) = parse_snapshot(format_snapshot(ENTRIES[1:]), "f")
    assert repr(read) == repr(ENTRIES[1])
    assert (read.last_sequence, read.last_data_offset, read.in_transaction) == (-1, -1, False)


def test_file_names() -> None:
    assert snapshot_name(42) == "00000000000000000042.snapshot"
    assert snapshot_offset("00000000000000000042.snapshot") == 42
    for other in ("42.snapshot", "00000000000000000042.snapshot.tmp", "٠" * 20 + ".snapshot", "x.log"):
        assert snapshot_offset(other) is None


def test_every_truncation_and_every_flipped_bit_is_seen() -> None:
    data = format_snapshot(ENTRIES)
    for damaged in (*truncations(data), *bit_flips(data), data + b"\0", b""):
        with pytest.raises(InvalidFile, match=r"^t-0/x\.snapshot: "):
            parse_snapshot(damaged, "t-0/x.snapshot")


@pytest.mark.parametrize(
    "body",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 1),
        struct.pack(">i", INT32_MAX),
        struct.pack(">i", 0) + bytes(46),
        struct.pack(">i", 2) + bytes(92),
    ],
)
def test_wrong_counts_and_repetitions_under_a_right_checksum(body: bytes) -> None:
    with pytest.raises(InvalidFile):
        parse_snapshot(with_checksum(body), "f")


BATCHES = st.builds(
    BatchMetadata,
    st.integers(0, INT32_MAX),
    st.integers(0, INT64_MAX),
    st.integers(0, INT32_MAX),
    st.integers(-1, INT64_MAX),
)


@st.composite
def entries(draw: st.DrawFn) -> ProducerStateEntry:
    batches = draw(st.lists(BATCHES, max_size=1))
    return ProducerStateEntry(
        draw(st.integers(0, INT64_MAX)),
        draw(st.integers(-1, 32767)),
        draw(st.integers(-1, INT32_MAX)),
        batches[0].timestamp if batches else draw(st.integers(-1, INT64_MAX)),
        draw(st.integers(-1, INT64_MAX)),
        tuple(batches),
    )


@given(st.lists(entries(), max_size=5, unique_by=lambda entry: entry.producer_id))
def test_round_trip(written: list[ProducerStateEntry]) -> None:
    data = format_snapshot(written)
    read = parse_snapshot(data, "f")
    assert repr(read) == repr(written)
    assert format_snapshot(read) == data


@given(st.binary(max_size=80))
def test_noise_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidFile):
        parse_snapshot(data, "f")
    if len(data) % 46 != 4:
        with pytest.raises(InvalidFile):
            parse_snapshot(with_checksum(data), "f")
