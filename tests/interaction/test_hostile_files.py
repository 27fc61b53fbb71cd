"""Hostile batches and files at the public face: each gets a typed error, and leaves the log as it was.

From a producer they come through `append_batch`; as files they lie in the directory that is opened. What a
single batch's reader says of each field is in tests/core/test_record_batch.py, what recovery makes of every
flipped bit in tests/crash/test_flips.py.
"""

from __future__ import annotations

import struct
from pathlib import Path

import cramjam
import pytest

import kreplica
from kreplica._core import varint
from kreplica.common import errors
from kreplica.common.quorum_state import parse_quorum_state
from kreplica.log.checkpoint import LeaderEpochCheckpointFile, OffsetCheckpointFile
from kreplica.log.file_names import STATE_FILE
from kreplica.runtime.storage import FileStorage
from tests.support.batches import batch_of, build, record_of, with_crc, with_field
from tests.support.logs import OtherBoot

GOOD = build([b"a", b"b"], now_ms=5)


@pytest.fixture
def log(tmp_path: Path):
    with kreplica.Log.open(tmp_path / "t-0") as opened:
        opened.append([b"before"])
        yield opened


def refuses(log: kreplica.Log, batch: bytes, kind: type[errors.KreplicaError]) -> None:
    """The batch is refused so, nothing of it is in the log, and the log goes on."""
    end, size = log.log_end_offset, log.size
    with pytest.raises(kind):
        log.append_batch(batch)
    assert (log.log_end_offset, log.size) == (end, size)
    assert log.append([b"after"]).base_offset == end
    assert [record.value for record in log.read(end)] == [b"after"]


def compressed(section: bytes, count: int, codec: int) -> bytes:
    return batch_of(section, count, attributes=codec)


# ---- batches of a producer --------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [-(1 << 31), -1, 0, 48, len(GOOD) - 11, (1 << 31) - 1])
def test_case_29_batch_length_below_the_header_or_past_the_end(log, length):
    refuses(log, with_field(GOOD, 8, ">i", length), errors.InvalidBatchLength)


@pytest.mark.parametrize("magic", [0, 1, 3, -1])
def test_case_30_bad_magic(log, magic):
    refuses(log, with_field(GOOD, 16, ">b", magic), errors.UnsupportedMagic)


def test_case_31_bad_crc(log):
    refuses(log, GOOD[:17] + b"\0\0\0\0" + GOOD[21:], errors.InvalidCrc)
    refuses(log, GOOD[:-1] + b"\1", errors.InvalidCrc)


@pytest.mark.parametrize(("count", "delta"), [(1, 0), (3, 2)])
def test_case_32_record_count_unlike_the_records(log, count, delta):
    refuses(log, with_field(with_field(GOOD, 57, ">i", count), 23, ">i", delta), errors.CorruptMessage)


@pytest.mark.parametrize("count", [-(1 << 31), -1, 0, (1 << 31) - 1])
@pytest.mark.parametrize("codec", [0, 1, 4])
def test_case_33_negative_or_huge_count(log, count, codec):
    delta = max(count - 1, 0)
    section = {
        0: GOOD[61:],
        1: bytes(cramjam.gzip.compress(GOOD[61:])),
        4: bytes(cramjam.zstd.compress(GOOD[61:])),
    }
    refuses(log, batch_of(section[codec], count, delta, codec), errors.CorruptMessage)


LENGTHS = [varint.encode_varint(length) for length in (-2, -(1 << 31), 1 << 20, (1 << 31) - 1)]


@pytest.mark.parametrize("length", LENGTHS)
def test_case_34_record_key_value_and_header_lengths(log, length):
    refuses(log, batch_of(length + b"\0" * 10, 1), errors.CorruptMessage)
    refuses(log, batch_of(record_of(key=length), 1), errors.CorruptMessage)
    refuses(log, batch_of(record_of(value=length), 1), errors.CorruptMessage)
    refuses(log, batch_of(record_of(headers=b"\2" + length + b"h"), 1), errors.CorruptMessage)
    refuses(log, batch_of(record_of(headers=b"\2\2h" + length), 1), errors.CorruptMessage)


@pytest.mark.parametrize("delta", [-1, 0, 2, (1 << 31) - 1])
def test_case_35_last_offset_delta(log, delta):
    refuses(log, with_field(GOOD, 23, ">i", delta), errors.CorruptMessage)


@pytest.mark.parametrize("deltas", [(0, 0), (1, 0), (0, 2), (0, -1), (1, 2)])
def test_case_36_offsets_that_go_back_within_a_batch(log, deltas):
    section = b"".join(record_of(delta) for delta in deltas)
    refuses(log, batch_of(section, 2), errors.CorruptMessage)


def test_case_36_epochs_that_go_back(log):
    log.append([b"newer"], leader_epoch=7)
    with pytest.raises(errors.FencedLeaderEpoch):
        log.append([b"older"], leader_epoch=6)
    with pytest.raises(errors.FencedLeaderEpoch):
        log.append_batch(GOOD, leader_epoch=6)
    assert log.log_end_offset == 2


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_case_37_unknown_codec(log, codec):
    refuses(log, batch_of(GOOD[61:], 2, attributes=codec), errors.UnsupportedCodec)


BOMB = record_of(value=varint.encode_varint(300 << 20) + bytes(300 << 20))


@pytest.mark.parametrize(
    ("codec", "compress"),
    [(1, lambda data: cramjam.gzip.compress(data, 1)), (4, lambda data: cramjam.zstd.compress(data, 1))],
    ids=["gzip", "zstd"],
)
def test_case_38_a_decompression_bomb(log, codec, compress):
    section = bytes(compress(BOMB))
    assert len(section) < 1 << 20 or codec == 1
    if len(section) >= 1 << 20:
        section = section[: (1 << 20) - 100]
    refuses(log, compressed(section, 1, codec), errors.MessageTooLarge)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_case_39_a_stream_that_is_cut_short(log, codec):
    whole = build([b"value" * 50, b"other" * 50], codec=codec, now_ms=5)
    for size in range(62, len(whole)):
        cut = with_crc(with_field(whole[:size], 8, ">i", size - 12))
        end = log.log_end_offset
        with pytest.raises(errors.CorruptMessage):
            log.append_batch(cut)
        assert log.log_end_offset == end
    refuses(log, with_crc(with_field(whole + b"tail", 8, ">i", len(whole) - 8)), errors.CorruptMessage)


@pytest.mark.parametrize("count", [-1, 2, 1 << 20, (1 << 31) - 1])
def test_case_40_header_count_beyond_what_is_left(log, count):
    refuses(log, batch_of(record_of(headers=varint.encode_varint(count)), 1), errors.CorruptMessage)


# ---- files ------------------------------------------------------------------------------------------------


def lay(directory: Path, files: dict[str, bytes]) -> Path:
    directory.mkdir()
    for name, data in files.items():
        (directory / name).write_bytes(data)
    return directory


def log_name(base_offset: int) -> str:
    return f"{base_offset:020}.log"


def values(log: kreplica.Log) -> list[bytes | None]:
    return [record.value for record in log.read()]


FIRST, SECOND = build([b"a", b"b"], base_offset=0, now_ms=5), build([b"c"], base_offset=2, now_ms=6)


@pytest.mark.parametrize(
    ("case", "bad"),
    [
        (29, with_field(SECOND, 8, ">i", 7)),
        (29, with_field(SECOND, 8, ">i", 1 << 30)),
        (30, with_field(SECOND, 16, ">b", 1)),
        (31, SECOND[:-1] + b"?"),
        (32, with_field(SECOND, 57, ">i", 2)),
        (33, with_field(SECOND, 57, ">i", -1)),
        (35, with_field(SECOND, 23, ">i", -1)),
        (35, build([b"c"], base_offset=(1 << 63) - 1)),
        (36, build([b"c"], base_offset=1)),
        (39, SECOND[:-1]),
        (41, bytes(5000)),
    ],
)
def test_cases_29_to_41_as_the_tail_of_a_file(tmp_path, case, bad):
    path = lay(tmp_path / "t-0", {log_name(0): FIRST + bad})
    before = (path / log_name(0)).read_bytes()
    with kreplica.Log.open(path, read_only=True) as log:
        assert values(log) == [b"a", b"b"]
    assert (path / log_name(0)).read_bytes() == before
    with kreplica.Log.open(path) as log:
        assert (values(log), log.damage) == ([b"a", b"b"], None)
        if case == 41:
            assert log.recovery.cut == []
        else:
            (cut,) = log.recovery.cut
            assert Path(cut.kept_in).read_bytes() == bad
        assert log.append([b"next"]).base_offset == 2
    with kreplica.Log.open(path) as log:
        assert values(log) == [b"a", b"b", b"next"]


def test_case_36_an_epoch_that_goes_back_in_a_file(tmp_path):
    older = build([b"c"], base_offset=2, leader_epoch=3)
    path = lay(tmp_path / "t-0", {log_name(0): build([b"a", b"b"], leader_epoch=5) + older})
    with kreplica.Log.open(path) as log:
        assert values(log) == [b"a", b"b"]
        assert Path(log.recovery.cut[0].kept_in).read_bytes() == older


@pytest.mark.parametrize("read_only", [True, False])
def test_case_42_a_file_name_unlike_its_base_offset(tmp_path, read_only):
    for number, data in enumerate([FIRST, build([b"x"], base_offset=1 << 40)]):
        path = lay(tmp_path / f"t-{number}", {log_name(1000): data})
        with pytest.raises(errors.InvalidFile):
            kreplica.Log.open(path, read_only=read_only)
        assert (path / log_name(1000)).read_bytes() == data


@pytest.mark.parametrize("read_only", [True, False])
def test_case_43_a_foreign_segment(tmp_path, read_only):
    foreign = build([b"x", b"y", b"z"], base_offset=0)
    path = lay(tmp_path / "t-0", {log_name(0): FIRST + SECOND, log_name(3): foreign})
    with pytest.raises(errors.InvalidFile):
        kreplica.Log.open(path, read_only=read_only)
    assert (path / log_name(3)).read_bytes() == foreign


def test_case_43_a_segment_of_another_log_put_into_a_closed_one(tmp_path):
    path = tmp_path / "t-0"
    with kreplica.Log.open(path) as log:
        log.append([b"a", b"b", b"c"])
        log.roll()
        log.append([b"d"])
    size = (path / log_name(0)).stat().st_size
    foreign = build([bytes(size - 61 - 7 - 1)], base_offset=50)
    (path / log_name(0)).write_bytes(foreign[:size])
    for read_only in (True, False):
        try:
            with kreplica.Log.open(path, read_only=read_only) as log:
                with pytest.raises(errors.KreplicaError):
                    values(log)
        except errors.KreplicaError:
            pass


def test_what_is_in_the_directory_but_no_log(tmp_path):
    with pytest.raises(errors.KreplicaError):
        kreplica.Log.open(tmp_path / "missing", read_only=True)
    empty = lay(tmp_path / "t-0", {})
    with pytest.raises(errors.InvalidFile):
        kreplica.Log.open(empty, read_only=True)
    names = {"x.log": b"1", "-0000000000000000001.log": b"2", "00000000000000000000.log.bak": b"3"}
    strange = lay(tmp_path / "t-1", names)
    with kreplica.Log.open(strange) as log:
        assert log.log_end_offset == 0
    assert {name: (strange / name).read_bytes() for name in names} == names


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize(
    "index",
    [b"", b"\0", struct.pack(">ii", 5, 1 << 30), struct.pack(">ii", -1, -1), b"\xff" * 800, bytes(800)],
    ids=["empty", "short", "past the end", "negative", "ones", "zeros"],
)
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("clean", [True, False])
def test_case_44_an_index_that_does_not_fit(tmp_path, suffix, index, read_only, clean):
    path = tmp_path / "t-0"
    with kreplica.Log.open(path, index_interval_bytes=100) as log:
        for number in range(30):
            log.append([kreplica.Record(value=b"%d" % number, timestamp=1000 + number)])
            if number == 15:
                log.roll()
    if not clean:
        (path / STATE_FILE).unlink()
    for base_offset in (0, 16):
        (path / f"{base_offset:020}{suffix}").write_bytes(index)
    with kreplica.Log.open(path, read_only=read_only, index_interval_bytes=100) as log:
        for start in range(30):
            assert next(log.read(start)).value == b"%d" % start
            found = log.offset_for_timestamp(1000 + start)
            assert found is not None
            assert found.offset == start
        if not read_only:
            assert log.append([b"next"]).base_offset == 30


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b'{"data_version":2,"clusterId":"","leaderId":1,"leaderEpoch":1}',
        b'{"data_version":"0"}',
        b'{"data_version":0,"leaderId":"one"}',
        b"\xff\xfe",
    ],
)
def test_case_45_a_quorum_state_of_another_version(text):
    with pytest.raises((errors.InvalidFile, errors.UnsupportedVersion)):
        parse_quorum_state(text, "quorum-state")


OFFSETS = b"0\n2\nt 0 5\nt 1 7\n"


def test_case_46_a_partial_checkpoint(tmp_path):
    file = tmp_path / "replication-offset-checkpoint"
    file.write_bytes(OFFSETS)
    assert len(OffsetCheckpointFile(FileStorage(), str(file)).read()) == 2
    for size in range(1, len(OFFSETS)):
        file.write_bytes(OFFSETS[:size])
        with pytest.raises(errors.InvalidFile):
            OffsetCheckpointFile(FileStorage(), str(file)).read()
    epochs = b"0\n1\n5 12\n"
    for size in range(1, len(epochs)):
        (tmp_path / "leader-epoch-checkpoint").write_bytes(epochs[:size])
        with pytest.raises(errors.InvalidFile):
            LeaderEpochCheckpointFile(FileStorage(), str(tmp_path)).read()


def test_case_46_a_partial_epoch_checkpoint_beside_a_log_is_made_anew(tmp_path):
    path = tmp_path / "t-0"
    with kreplica.Log.open(path) as log:
        log.append([b"a"], leader_epoch=3)
        log.append([b"b"], leader_epoch=5)
    whole = (path / "leader-epoch-checkpoint").read_bytes()
    for damaged in (whole[:3], b"", b"rubbish", whole[:-2]):
        (path / "leader-epoch-checkpoint").write_bytes(damaged)
        for read_only in (True, False):
            try:
                with kreplica.Log.open(path, read_only=read_only) as log:
                    assert values(log) == [b"a", b"b"]
            except errors.InvalidFile:
                pass


@pytest.mark.parametrize("clean", [True, False])
def test_case_46_a_partial_producer_snapshot_is_passed_over(tmp_path, clean):
    path = tmp_path / "t-0"
    with kreplica.Log.open(path) as log:
        for number in range(3):
            producer = {"producer_id": 9, "producer_epoch": 0, "base_sequence": number}
            log.append_batch(build([b"%d" % number], now_ms=5, **producer))
            log.roll()
    for snapshot in path.glob("*.snapshot"):
        snapshot.write_bytes(snapshot.read_bytes()[:-1])
    storage = None if clean else OtherBoot()
    with kreplica.Log.open(path, read_only=True, storage=storage) as log:
        assert values(log) == [b"0", b"1", b"2"]
    with kreplica.Log.open(path, storage=storage) as log:
        repeated = build([b"2"], now_ms=5, producer_id=9, producer_epoch=0, base_sequence=2)
        assert log.append_batch(repeated).duplicate


@pytest.mark.parametrize("image", [b"", b"KRLOG", bytes(256), b"KRLOG\0\0\1" + b"\xff" * 248, b"x" * 70000])
def test_a_state_file_that_says_nothing(tmp_path, image):
    path = tmp_path / "t-0"
    with kreplica.Log.open(path) as log:
        log.append([b"a", b"b"])
    for read_only in (True, False):
        (path / STATE_FILE).write_bytes(image)
        try:
            with kreplica.Log.open(path, read_only=read_only) as log:
                assert values(log) == [b"a", b"b"]
        except errors.InvalidFile:
            assert len(image) > 65536
