"""Both readers over directories that are written, cleaned, cut and damaged meanwhile give the same."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import kreplica
from kreplica.common.types import AppendOrigin, TopicPartition
from kreplica.log.checkpoint import OffsetCheckpointFile
from kreplica.log.file_names import STATE_FILE
from kreplica.log.log_loader import OpenOptions
from kreplica.record.control import EndTransactionMarker, build_end_transaction_marker
from kreplica.runtime.storage import FileStorage
from tests.support.batches import batch_of, build, record_of, with_crc
from tests.support.logs import NOW_MS, open_log
from tests.support.spark_session import frame_of

CODECS = ("gzip", "snappy", "lz4", "zstd", "uncompressed")
BATCH_LENGTH = 8
RECORDS = 61


def read(spark: SparkSession, path: Path, reader: dict[str, str], **options: Any) -> DataFrame:
    given = {name.replace("__", "."): str(value) for name, value in options.items()}
    return frame_of(spark, path, **reader, **given)


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row.offset for row in frame.select("offset").collect())


def batch(*payload: bytes, **fields: Any) -> bytes:
    return build(list(payload), now_ms=NOW_MS, **fields)


# ---- beside a writer --------------------------------------------------------------------------------------


def test_nothing_above_the_published_marks_is_seen(
    spark: SparkSession, reader: dict[str, str], tmp_path: Path
) -> None:
    log = open_log(tmp_path / "t-0", options=OpenOptions())
    log.append_as_leader(batch(b"0", b"1", b"2"), 0)
    sent = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    log.append_as_leader(batch(b"3", base_sequence=0, **sent), 0)
    log.append_as_leader(batch(b"4"), 0)
    committed = {"kafka__isolation__level": "read_committed"}
    assert read(spark, tmp_path, reader).count() == 0
    log.update_high_watermark(2)
    # A watermark may lie within a batch.
    assert offsets(read(spark, tmp_path, reader)) == [0, 1]
    log.update_high_watermark(5)
    assert read(spark, tmp_path, reader).count() == 5
    assert offsets(read(spark, tmp_path, reader, **committed)) == [0, 1, 2]
    marker = build_end_transaction_marker(
        EndTransactionMarker(False, 0), producer_id=7, producer_epoch=0, timestamp_ms=NOW_MS
    )
    log.append_as_leader(marker, 0, origin=AppendOrigin.COORDINATOR)
    log.update_high_watermark(6)
    assert offsets(read(spark, tmp_path, reader)) == [0, 1, 2, 3, 4]
    assert offsets(read(spark, tmp_path, reader, **committed)) == [0, 1, 2, 4]
    log.close()


def test_segments_come_and_go(spark: SparkSession, reader: dict[str, str], tmp_path: Path) -> None:
    """The writer is open, its active segment allocated ahead, others rolled, deleted and compacted."""
    with kreplica.Log.open(
        tmp_path / "t-0",
        segment_bytes=600,
        retention_bytes=1500,
        cleanup_policy="compact,delete",
        retention_ms=-1,
    ) as log:
        for n in range(60):
            log.append([kreplica.Record(b"%d" % n, key=b"%d" % (n % 7), timestamp=NOW_MS + n)])
        assert offsets(read(spark, tmp_path, reader)) == list(range(60))
        assert log.delete_old_segments() > 0
        first = log.log_start_offset
        assert offsets(read(spark, tmp_path, reader)) == list(range(first, 60))
        log.roll()
        log.compact()
        with kreplica.Log.open(tmp_path / "t-0", read_only=True) as beside:
            expected = [record.offset for record in beside.read()]
        assert len(expected) < 60 - first
        frame = read(spark, tmp_path, reader)
        assert offsets(frame) == expected
        assert frame.count() == len(expected)


@pytest.mark.parametrize("codec", ["uncompressed", "lz4"])
def test_a_range_that_begins_in_a_gap(
    spark: SparkSession, reader: dict[str, str], tmp_path: Path, codec: str
) -> None:
    """Compaction has taken the records at a batch's end: none of it is in the range, and all that follows."""
    with kreplica.Log.open(tmp_path / "t-0", cleanup_policy="compact", compression_type=codec) as log:
        for n in range(3):
            log.append([kreplica.Record(b"v", key=key, timestamp=NOW_MS) for key in (b"%d" % n, b"x", b"y")])
            log.roll()
        log.compact()
        log.append([kreplica.Record(b"v", key=b"end", timestamp=NOW_MS)])
    for start in range(10):
        expected = [n for n in (0, 3, 6, 7, 8, 9) if n >= start]
        frame = read(spark, tmp_path, reader, startingOffsets=json.dumps({"t": {"0": start}}))
        assert offsets(frame) == expected, start
        assert frame.count() == len(expected), start


def test_a_group_without_records_is_none(spark: SparkSession, reader: dict[str, str], tmp_path: Path) -> None:
    """A range may hold offsets and no records: of a gap, of a marker, of what was aborted."""
    log = open_log(tmp_path / "t-0", options=OpenOptions())
    sent = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    log.append_as_leader(batch(b"0", base_sequence=0, **sent), 0)
    aborted = EndTransactionMarker(False, 0)
    marker = build_end_transaction_marker(aborted, producer_id=7, producer_epoch=0, timestamp_ms=NOW_MS)
    log.append_as_leader(marker, 0, origin=AppendOrigin.COORDINATOR)
    log.update_high_watermark(2)
    log.close()
    frame = read(spark, tmp_path, reader, kafka__isolation__level="read_committed")
    assert frame.count() == 0
    for each in (frame, read(spark, tmp_path, reader).where("offset > 1000")):
        assert each.groupBy("topic", "partition").count().collect() == []


def test_a_directory_that_a_kafka_has_taken(
    spark: SparkSession, reader: dict[str, str], tmp_path: Path
) -> None:
    """While it runs, its high watermark's checkpoint is the bound; then the end of the log."""
    with kreplica.Log.open(tmp_path / "t-0") as log:
        for n in range(3):
            log.append([b"%d" % n, b"x"])
    (tmp_path / "t-0" / "kreplica.state.deleted").unlink()
    (tmp_path / "replication-offset-checkpoint").write_text("0\n1\nt 0 3\n")
    lock = FileStorage().lock_directory(str(tmp_path))
    try:
        assert offsets(read(spark, tmp_path, reader)) == [0, 1, 2]
    finally:
        lock.release()
    assert offsets(read(spark, tmp_path, reader)) == list(range(6))


# ---- bad bytes --------------------------------------------------------------------------------------------


def hostile_batches() -> list[bytes]:
    """Batches whose checksum fits and whose records do not."""
    good = record_of()
    sections = [
        (b"\xff" * 12, 1),  # a length of more than 64 bits
        (b"\xfe\xff\xff\xff\x0f" + good, 1),  # a record of 2 GiB
        (b"\x01" + good, 1),  # of -1 bytes
        (record_of(key=b"\xfe\xff\xff\xff\x0f"), 1),
        (record_of(value=b"\xfe\xff\xff\xff\x0f"), 1),
        (record_of(value=b"\x03"), 1),  # a value of -2 bytes
        (record_of(delta=5), 1),  # behind the batch's last offset
        (record_of(delta=1) + record_of(delta=0), 2),
        (record_of(headers=b"\xfe\xff\xff\xff\x0f"), 1),
        (good + b"rubbish", 1),
        (good[:-1], 1),
    ]
    found = [batch_of(section, count) for section, count in sections]
    found += [batch_of(b"no frame of this codec", 1, attributes=codec) for codec in (1, 2, 3, 4)]
    return found


def damaged_logs(path: Path, count: int, seed: int) -> None:
    """Partitions t-0, t-1, ... of six batches each, of every codec, in which some bytes are changed."""
    source = random.Random(seed)
    for number in range(count):
        directory = path / f"t-{number}"
        with kreplica.Log.open(directory, compression_type=CODECS[number % len(CODECS)]) as log:
            for n in range(6):
                log.append([kreplica.Record(b"%d" % n * 9, key=b"k", timestamp=NOW_MS) for _ in range(4)])
        file = directory / f"{0:020}.log"
        data = bytearray(file.read_bytes())
        starts = positions(data)
        bad = source.randrange(len(starts))
        begin, end = starts[bad], [*starts[1:], len(data)][bad]
        if number % 3 == 0:
            # The checksum fits, and what is in the batch does not.
            data[source.randrange(begin + RECORDS, end)] = source.randrange(256)
            data[begin:end] = with_crc(data[begin:end])
        elif number % 3 == 1:
            data[source.randrange(begin, end)] ^= 1 << source.randrange(8)
        else:
            data[begin + BATCH_LENGTH : begin + BATCH_LENGTH + 4] = source.randbytes(4)
        file.write_bytes(data)


def positions(data: bytes) -> list[int]:
    found, at = [], 0
    while at + RECORDS <= len(data):
        found.append(at)
        at += 12 + struct.unpack_from(">i", data, at + BATCH_LENGTH)[0]
    return found


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(
        (row.partition, row.offset, bytes(row.key or b""), bytes(row.value or b""), str(row.timestamp))
        for row in frame.select("partition", "offset", "key", "value", "timestamp").collect()
    )


def test_both_pass_over_the_same(spark: SparkSession, tmp_path: Path) -> None:
    damaged_logs(tmp_path, 45, seed=8)
    found = {
        name: rows(read(spark, tmp_path, {"reader": name}, skipDamaged=True)) for name in ("jvm", "python")
    }
    assert found["jvm"] == found["python"]
    assert 45 * 16 < len(found["jvm"]) < 45 * 24


def test_records_that_lie_are_an_error_with_its_place(spark: SparkSession, tmp_path: Path) -> None:
    batches = hostile_batches()
    for number, bad in enumerate(batches):
        directory = tmp_path / f"t-{number}"
        with kreplica.Log.open(directory) as log:
            log.append([b"good"])
        # As Kafka leaves it: without a state of ours, bounded by the end of the file alone.
        (directory / "kreplica.state.deleted").unlink()
        with open(directory / f"{0:020}.log", "ab") as file:
            file.write(with_crc(struct.pack(">q", 1) + bad[8:]))
    for name in ("jvm", "python"):
        frame = read(spark, tmp_path, {"reader": name}, skipDamaged=True, includeHeaders=True)
        found = frame.selectExpr("partition", "offset", "value", "headers").collect()
        assert sorted(row.partition for row in found) == list(range(len(batches))), name
        assert {(row.offset, bytes(row.value)) for row in found} == {(0, b"good")}
    for number in (0, 3, 9, 14):
        one = read(spark, tmp_path / f"t-{number}", {"reader": "jvm"})
        with pytest.raises(
            PySparkException, match=rf"t-{number}: damaged records, offsets 1 to .*bytes \d+ to \d+"
        ):
            rows(one)


def test_a_file_that_is_cut_under_its_writer(
    spark: SparkSession, reader: dict[str, str], tmp_path: Path
) -> None:
    with kreplica.Log.open(tmp_path / "t-0") as log:
        for n in range(40):
            log.append([b"%03d" % n * 100])
    file = tmp_path / "t-0" / f"{0:020}.log"
    with open(file, "r+b") as cut:
        cut.truncate(file.stat().st_size // 2)
    with pytest.raises(PySparkException, match="t-0: damaged records, offsets 20 to"):
        rows(read(spark, tmp_path, reader))
    assert offsets(read(spark, tmp_path, reader, skipDamaged=True)) == list(range(20))


@pytest.mark.parametrize("of_kafka", [False, True], ids=["kreplica's", "kafka's"])
@pytest.mark.parametrize("lost", [1, 3, 5])
def test_a_marker_that_is_lost_hides_nothing_behind_it(
    spark: SparkSession, reader: dict[str, str], tmp_path: Path, lost: int, of_kafka: bool
) -> None:
    """Where a transaction ended is known from the index of those aborted, whatever became of its marker."""
    log = open_log(tmp_path / "t-0")
    for number, commit in enumerate((False, True, False, True)):
        sent = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
        log.append_as_leader(batch(b"%d" % number, base_sequence=number, **sent), 0)
        marker = build_end_transaction_marker(
            EndTransactionMarker(commit, 0), producer_id=7, producer_epoch=0, timestamp_ms=NOW_MS
        )
        log.append_as_leader(marker, 0, origin=AppendOrigin.COORDINATOR)
    log.roll()
    log.append_as_leader(batch(b"end"), 0)
    log.close()
    if of_kafka:
        (tmp_path / "t-0" / "kreplica.state.deleted").unlink()
    file = tmp_path / "t-0" / f"{0:020}.log"
    data = bytearray(file.read_bytes())
    data[positions(data)[lost] + RECORDS] ^= 1
    file.write_bytes(data)
    found = read(spark, tmp_path, reader, skipDamaged=True, kafka__isolation__level="read_committed")
    assert offsets(found) == [2, 6, 8]
    assert found.count() == 3


def test_several_directories_of_one_partition(
    spark: SparkSession, reader: dict[str, str], tmp_path: Path
) -> None:
    """That replica is read which knows most to be committed."""
    for node, count in (("a", 3), ("b", 5)):
        with kreplica.Log.open(tmp_path / node / "t-0") as log:
            log.append([b"%d" % n for n in range(count)])
    shutil.copytree(tmp_path / "b", tmp_path / "c")
    assert offsets(read(spark, tmp_path / "[abc]", reader)) == list(range(5))


# ---- what is missing of a log that Kafka wrote -----------------------------------------------------------


def written_by_kafka(path: Path) -> list[Path]:
    """The segments of a log with a record at each offset below 60, in which nothing of kreplica's lies."""
    with kreplica.Log.open(path, segment_bytes=4000) as log:
        for number in range(60):
            log.append([b"%03d" % number * 100])
    (path / STATE_FILE).unlink()
    segments = sorted(path.glob("*.log"))
    assert len(segments) > 4
    return segments


def lose_end(segments: list[Path]) -> tuple[int, int]:
    """A closed segment ends with its first batch."""
    os.truncate(segments[2], 12 + int.from_bytes(segments[2].read_bytes()[8:12], "big"))
    return int(segments[2].stem) + 1, int(segments[3].stem)


def lose_all(segments: list[Path]) -> tuple[int, int]:
    os.truncate(segments[2], 0)
    return int(segments[2].stem), int(segments[3].stem)


def lose_middle(segments: list[Path]) -> tuple[int, int]:
    for each in segments[2].parent.glob(segments[2].stem + ".*"):
        each.unlink()
    return int(segments[2].stem), int(segments[3].stem)


def lose_first(segments: list[Path]) -> tuple[int, int]:
    for each in segments[0].parent.glob(segments[0].stem + ".*"):
        each.unlink()
    return 0, int(segments[1].stem)


@pytest.mark.parametrize("loss", [lose_end, lose_all, lose_middle, lose_first])
@pytest.mark.parametrize("adopted", [False, True])
def test_what_is_missing_of_a_log_of_kafkas_is_an_error(
    spark: SparkSession, reader: dict[str, str], tmp_path: Path, loss: Any, adopted: bool
) -> None:
    segments = written_by_kafka(tmp_path / "t-0")
    if adopted:
        with kreplica.Log.open(tmp_path / "t-0", segment_bytes=4000):
            pass
    assert len(offsets(read(spark, tmp_path, reader))) == 60
    first, stop = loss(segments)
    with pytest.raises(PySparkException, match=f"{first} to {stop - 1}"):
        offsets(read(spark, tmp_path, reader))
    with pytest.raises(PySparkException, match=f"{first} to {stop - 1}"):
        read(spark, tmp_path, reader).count()
    skipping = read(spark, tmp_path, reader, skipDamaged="true")
    assert offsets(skipping) == [*range(first), *range(stop, 60)]


@pytest.mark.parametrize("known_by", ["checkpoint", "batches"])
def test_gaps_that_compaction_explains_are_none(
    spark: SparkSession, reader: dict[str, str], tmp_path: Path, known_by: str
) -> None:
    segments = written_by_kafka(tmp_path / "t-0")
    first, stop = lose_end(segments)
    expected = [*range(first), *range(stop, 60)]
    if known_by == "checkpoint":
        checkpoint = OffsetCheckpointFile(FileStorage(), str(tmp_path / "cleaner-offset-checkpoint"))
        checkpoint.write({TopicPartition("t", 0): 30})
    else:
        whole = segments[1].read_bytes()
        size = 12 + int.from_bytes(whole[8:12], "big")
        segments[1].write_bytes(whole[:size] + whole[2 * size :])
        expected.remove(int(segments[1].stem) + 1)
    assert offsets(read(spark, tmp_path, reader)) == expected
    assert read(spark, tmp_path, reader).count() == len(expected)


@pytest.mark.parametrize("number", [0, 2])
def test_a_segment_that_the_cleaner_left_empty(
    spark: SparkSession, reader: dict[str, str], tmp_path: Path, number: int
) -> None:
    """Its time index shows that it was emptied, or that it has lost records."""
    segments = written_by_kafka(tmp_path / "t-0")
    first, stop = int(segments[number].stem), int(segments[number + 1].stem)
    os.truncate(segments[number], 0)
    with pytest.raises(PySparkException, match=f"{first} to {stop - 1}"):
        offsets(read(spark, tmp_path, reader))
    for suffix in (".index", ".timeindex"):
        os.truncate(segments[number].with_suffix(suffix), 0)
    assert offsets(read(spark, tmp_path, reader)) == [*range(first), *range(stop, 60)]
    # It explains a gap behind other segments as well, but no other segment that lost its records.
    lose_end(segments[1:])
    assert offsets(read(spark, tmp_path, reader))
    lost, behind = lose_all(segments[1:])
    with pytest.raises(PySparkException, match=f"{lost} to {behind - 1}"):
        offsets(read(spark, tmp_path, reader))


def test_a_log_start_that_a_checkpoint_knows_of(
    spark: SparkSession, reader: dict[str, str], tmp_path: Path
) -> None:
    segments = written_by_kafka(tmp_path / "t-0")
    (tmp_path / "t-0" / "leader-epoch-checkpoint").unlink()
    _, stop = lose_first(segments)
    assert offsets(read(spark, tmp_path, reader)) == list(range(stop, 60))  # nothing shows the loss
    checkpoint = OffsetCheckpointFile(FileStorage(), str(tmp_path / "log-start-offset-checkpoint"))
    checkpoint.write({TopicPartition("t", 0): 3})
    with pytest.raises(PySparkException, match=f"3 to {stop - 1}"):
        offsets(read(spark, tmp_path, reader))
