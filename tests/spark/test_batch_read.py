"""A batch read over directories gives what the logs hold, with the options of Spark's own Kafka source."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from kreplica.spark.log_source import DataLossError
from kreplica.spark.option_table import OptionError
from kreplica.spark.options import parse_read
from kreplica.spark.readers import KreplicaReader
from kreplica.spark.schema import SCHEMA
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import kreplica
from tests.support.spark_session import frame_of, reading_by

T0 = 1_700_000_000_000


@pytest.fixture
def spark(spark: SparkSession, reader: dict[str, str]) -> Iterator[SparkSession]:
    with reading_by(spark, reader) as session:
        yield session


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """t-0 (20 records in batches of 5), t-1 (10), u-0 (5), a second between records."""
    path = tmp_path_factory.mktemp("node")
    for name, batches in (("t-0", 4), ("t-1", 2), ("u-0", 1)):
        with kreplica.Log.open(path / name) as log:
            for batch in range(batches):
                log.append([record(n) for n in range(5 * batch, 5 * batch + 5)])
    return path


def record(n: int) -> kreplica.Record:
    headers = [("h", b"%d" % n), ("h", None)] if n == 3 else []
    return kreplica.Record(b"%d" % n, key=b"k" if n % 2 else None, timestamp=T0 + 1000 * n, headers=headers)


def read(spark: SparkSession, path: Path | str, **options: Any) -> DataFrame:
    return frame_of(spark, path, **texts_of(options))


def read_in_spark(spark: SparkSession, path: Path | str, **options: Any) -> DataFrame:
    """Read with Spark's tasks, also by the Python reader."""
    return spark.read.format("kreplica").options(**texts_of(options)).load(str(path))


def texts_of(options: dict[str, Any]) -> dict[str, str]:
    texts = {name: json.dumps(v) if isinstance(v, dict) else str(v) for name, v in options.items()}
    return {name.replace("__", "."): text for name, text in texts.items()}


def places(frame: DataFrame) -> list[str]:
    rows = frame.select("topic", "partition", "offset").collect()
    return [f"{topic}-{partition}@{offset}" for topic, partition, offset in sorted(map(tuple, rows))]


def place(name: str, *offsets: int) -> list[str]:
    return [f"{name}@{offset}" for offset in offsets]


# ---- what is read -----------------------------------------------------------------------------------------


def test_all_columns(spark: SparkSession, node: Path) -> None:
    frame = read_in_spark(spark, node / "t-0", includeHeaders=True)
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    rows = frame.orderBy("offset").collect()
    assert len(rows) == 20
    time = datetime.fromtimestamp(T0 // 1000 + 3, UTC).replace(tzinfo=None)
    assert rows[3].timestamp.astimezone(UTC).replace(tzinfo=None) == time
    assert [tuple(header) for header in rows[3].headers] == [("h", b"3"), ("h", None)]
    assert tuple(rows[3])[:5] == (b"k", b"3", "t", 0, 3)
    assert tuple(rows[2])[:5] == (None, b"2", "t", 0, 2)
    assert rows[2].headers is None
    assert rows[2].timestampType == 0


def test_subscriptions(spark: SparkSession, node: Path) -> None:
    everything = 35
    assert read(spark, node).count() == everything
    assert read(spark, node, subscribe="t, u").count() == everything
    assert read(spark, node, subscribe="u").count() == 5
    assert read(spark, node, subscribePattern="[a-t]").count() == 30
    # Spark's own source looks for it anywhere in a name.
    assert read(spark, node, subscribePattern="t?").count() == everything
    assert read(spark, node, assign={"t": [1], "u": [0]}).count() == 15
    assert read(spark, f"file://{node}/t-1").count() == 10
    several = spark.read.format("kreplica").load([str(node / "t-0"), str(node / "u-0")])  # type: ignore[arg-type]
    assert several.count() == 25


def test_a_range_of_offsets(spark: SparkSession, node: Path) -> None:
    frame = read(
        spark,
        node,
        subscribe="t",
        startingOffsets={"t": {"0": 17, "1": -2}},
        endingOffsets={"t": {"0": -1, "1": 2}},
    )
    assert places(frame) == place("t-0", 17, 18, 19) + place("t-1", 0, 1)


def test_a_range_of_times(spark: SparkSession, node: Path) -> None:
    one = {"startingTimestamp": T0 + 3000, "endingTimestamp": T0 + 4000, "startingOffsets": "earliest"}
    assert places(read(spark, node, **one)) == place("t-0", 3) + place("t-1", 3) + place("u-0", 3)
    by_partition = {
        "startingOffsetsByTimestamp": {"t": {"0": T0 + 18_500, "1": T0 + 9000}},
        "endingOffsetsByTimestamp": {"t": {"0": T0 + 99_000, "1": T0 + 99_000}},
    }
    assert places(read(spark, node, subscribe="t", **by_partition)) == place("t-0", 19) + place("t-1", 9)
    with pytest.raises(PySparkException, match="t-1 has no record at or after"):
        read(spark, node, subscribe="t", startingTimestamp=T0 + 15_000).count()
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    frame = read(spark, node, subscribe="t", startingTimestamp=T0 + 15_000, **latest)
    assert places(frame) == place("t-0", *range(15, 20))


def test_tasks_are_parted_at_batch_boundaries(spark: SparkSession, node: Path) -> None:
    def tasks(**options: Any) -> list[tuple[str, int, int, int]]:
        frame = read_in_spark(spark, node, **options)
        rows = frame.selectExpr("spark_partition_id() as task", "topic", "partition", "offset")
        ranges = rows.groupBy("task", "topic", "partition").agg({"offset": "min", "*": "count"}).collect()
        return sorted((each[1], each[2], each["min(offset)"], each["count(1)"]) for each in ranges)

    whole = [("t", 0, 0, 20), ("t", 1, 0, 10), ("u", 0, 0, 5)]
    assert tasks() == whole
    assert tasks(minPartitions=3) == whole
    assert tasks(maxRecordsPerPartition=12) == [("t", 0, 0, 10), ("t", 0, 10, 10), *whole[1:]]
    assert tasks(maxRecordsPerPartition=1) == [
        *(("t", 0, n, 5) for n in (0, 5, 10, 15)),
        *(("t", 1, n, 5) for n in (0, 5)),
        ("u", 0, 0, 5),
    ]
    assert len(tasks(minPartitions=6)) >= 6
    assert sum(each[3] for each in tasks(minPartitions=6)) == 35


def test_a_schema_chooses_columns(spark: SparkSession, node: Path) -> None:
    frame = frame_of(spark, node / "u-0", "value binary, partition int")
    assert [tuple(row) for row in frame.collect()] == [(b"%d" % n, 0) for n in range(5)]


def test_filters_reach_the_index(spark: SparkSession, node: Path) -> None:
    frame = read_in_spark(spark, node, minPartitions=7)
    assert places(frame.where("offset >= 18 and partition = 0")) == place("t-0", 18, 19)
    assert places(frame.where("offset in (4, 7) and topic = 't'")) == place("t-0", 4, 7) + place("t-1", 4, 7)
    assert places(frame.where("partition in (1, 5) and offset < 2")) == place("t-1", 0, 1)
    late = "timestamp > timestamp_millis({}) and timestamp <= timestamp_millis({})"
    assert places(frame.where(late.format(T0 + 17_000, T0 + 18_000))) == place("t-0", 18)
    assert places(frame.where("offset = 3 and offset = 4")) == []
    # Only the task that holds the offset is run.
    assert frame.where("offset > 18").rdd.getNumPartitions() == 1


def test_filters_need_no_setting(spark: SparkSession, node: Path) -> None:
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, "false")
    try:
        assert read_in_spark(spark, node).where("offset > 18").count() == 1
    finally:
        spark.conf.set(name, "true")


def test_a_partition_without_records(spark: SparkSession, tmp_path: Path) -> None:
    kreplica.Log.open(tmp_path / "t-0").close()
    assert read(spark, tmp_path).count() == 0


def test_beside_a_writer(spark: SparkSession, tmp_path: Path) -> None:
    with kreplica.Log.open(tmp_path / "t-0") as log:
        log.append([b"a", b"b"])
        frame = read(spark, tmp_path)
        assert frame.count() == 2
        log.append([b"c"])
        assert read(spark, tmp_path).count() == 3


# ---- what is lost -----------------------------------------------------------------------------------------


def test_offsets_that_are_gone(spark: SparkSession, tmp_path: Path) -> None:
    with kreplica.Log.open(tmp_path / "t-0") as log:
        log.append([b"%d" % n for n in range(10)])
        log.delete_records(4)
    for start, end, text in (
        (1, -1, "t-0 has offsets 4 to 10, not 1"),
        (5, 12, "t-0 has offsets 4 to 10, not 12"),
    ):
        options = {"startingOffsets": {"t": {"0": start}}, "endingOffsets": {"t": {"0": end}}}
        with pytest.raises(PySparkException, match=text):
            read(spark, tmp_path, **options).count()
        frame = read(spark, tmp_path, failOnDataLoss=False, **options)
        assert places(frame) == place("t-0", *range(max(start, 4), 10))


def test_a_start_behind_its_end(tmp_path: Path) -> None:
    with kreplica.Log.open(tmp_path / "t-0") as log:
        log.append([b"%d" % n for n in range(10)])
        log.delete_records(4)
    behind = {"startingOffsets": '{"t": {"0": 8}}', "endingOffsets": '{"t": {"0": 6}}'}
    for fail in ("true", "false"):
        with pytest.raises(OptionError, match="endingOffsets: t-0 would begin at 8 and end at 6"):
            planned(tmp_path, failOnDataLoss=fail, **behind)
    below = {"startingOffsets": '{"t": {"0": 1}}', "endingOffsets": '{"t": {"0": 3}}'}
    with pytest.raises(OptionError, match="endingOffsets: t-0 would begin at 4 and end at 3"):
        planned(tmp_path, endingOffsets=below["endingOffsets"])
    assert offsets(*planned(tmp_path, failOnDataLoss="false", **below)) == []


def test_retention_between_the_plan_and_the_read(tmp_path: Path) -> None:
    with kreplica.Log.open(tmp_path / "t-0", segment_bytes=500, retention_bytes=500) as log:
        for n in range(40):
            log.append([b"%d" % n])
        readers = {fail: planned(tmp_path, failOnDataLoss=fail) for fail in ("true", "false")}
        assert log.delete_old_segments() > 0
        first = log.log_start_offset
    with pytest.raises(DataLossError, match=f"t-0: offsets 0 to {first - 1} no longer exist"):
        offsets(*readers["true"])
    assert offsets(*readers["false"]) == list(range(first, 40))


def test_retention_takes_nothing_from_under_a_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kreplica.spark.directory_source.PIECE_ROWS", 1)
    with kreplica.Log.open(tmp_path / "t-0", segment_bytes=500, retention_bytes=500) as log:
        for n in range(40):
            log.append([b"%d" % n])
        reader, tasks = planned(tmp_path)
        batches = reader.read(tasks[0])
        seen = [next(batches)]
        assert log.delete_old_segments() > 0
        seen += batches
    assert [offset for batch in seen for offset in batch.column("offset").to_pylist()] == list(range(40))


def planned(path: Path, **options: str) -> tuple[KreplicaReader, Any]:
    reader = KreplicaReader(parse_read({"path": str(path), **options}, streaming=False), SCHEMA)
    return reader, reader.partitions()


def offsets(reader: KreplicaReader, tasks: Any) -> list[int]:
    return [n for task in tasks for batch in reader.read(task) for n in batch.column("offset").to_pylist()]


def test_rot_is_named_or_passed_over(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("t-0", "t-1"):
        with kreplica.Log.open(tmp_path / name) as log:
            for n in range(6):
                log.append([b"%d" % n, b"x"])
    spoil(tmp_path / "t-0", 4)
    with pytest.raises(PySparkException, match=r"t-0: damaged records, offsets 4 to 5"):
        read(spark, tmp_path).count()
    rest = place("t-0", *range(4), *range(6, 12)) + place("t-1", *range(12))
    assert places(read(spark, tmp_path, skipDamaged=True)) == rest


def test_rot_at_the_end_of_a_log_of_kafkas(spark: SparkSession, tmp_path: Path) -> None:
    """Its checkpoint shows that the end was flushed, so it is no torn tail."""
    with kreplica.Log.open(tmp_path / "t-0") as log:
        for n in range(6):
            log.append([b"%d" % n, b"x"])
    (tmp_path / "t-0" / "kreplica.state.deleted").unlink()
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n1\nt 0 12\n")
    spoil(tmp_path / "t-0", 10)
    with pytest.raises(PySparkException, match="t-0: damaged records, offsets 10 to"):
        read(spark, tmp_path).count()
    with pytest.raises(PySparkException, match="t-0: damaged records, offsets 10 to"):
        read(spark, tmp_path, kafka__isolation__level="read_committed").count()
    assert places(read(spark, tmp_path, skipDamaged=True)) == place("t-0", *range(10))


def spoil(directory: Path, offset: int) -> None:
    """Change a bit in the batch that holds `offset`; each of them has two records and the same size."""
    file = directory / f"{0:020}.log"
    data = bytearray(file.read_bytes())
    size = 12 + int.from_bytes(data[8:12], "big")
    data[offset // 2 * size + size - 1] ^= 1
    file.write_bytes(data)


# ---- what is asked wrongly --------------------------------------------------------------------------------


def test_an_error_reaches_the_user(spark: SparkSession, node: Path) -> None:
    with pytest.raises(
        PySparkException, match=r"subscribe: topic 'colours' does not exist in .*; there are t, u"
    ):
        read_in_spark(spark, node, subscribe="colours").count()
    with pytest.raises(PySparkException, match="schema: unknown column 'colour'; there are key, value"):
        spark.read.format("kreplica").schema("colour string").load(str(node)).count()
