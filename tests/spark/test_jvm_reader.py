"""The JVM reader: how its jar is made and found, which reader reads what, and what it spares Spark."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import kreplica.spark
import pytest
from kreplica.spark import jvm_reader
from kreplica.spark.option_table import OptionError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

import kreplica
from tests.conformance.expectation import FIXTURES
from tests.support.polling import wait_until
from tests.support.spark_session import frame_of

LOGS = FIXTURES / "clean" / "logs"
T0 = 1_700_000_000_000


def read(spark: SparkSession, path: Path | str, **options: Any) -> DataFrame:
    given = {name.replace("__", "."): str(value) for name, value in options.items()}
    return spark.read.format("kreplica").options(**given).load(str(path))


def plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def fill(directory: Path, batches: int, size: int = 5, **options: Any) -> None:
    with kreplica.Log.open(directory, **options) as log:
        for n in range(batches):
            first = n * size
            log.append(
                [
                    kreplica.Record(b"%d" % k, key=b"k%d" % k, timestamp=T0 + 1000 * k)
                    for k in range(first, first + size)
                ]
            )


# ---- the jar ----------------------------------------------------------------------------------------------


def test_the_jar_is_made_once_and_of_the_same_bytes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Path(kreplica.spark.jar())
    assert made.exists()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    again = Path(kreplica.spark.jar())
    assert again.name == made.name
    assert again.read_bytes() == made.read_bytes()
    assert [path.name for path in again.parent.iterdir()] == [made.name]
    # Janino may write what the JVM then refuses, so each class is loaded.
    names = [name for name in zipfile.ZipFile(made).namelist() if name.endswith(".class")]
    loader = spark._jvm.java.lang.Thread.currentThread().getContextClassLoader()
    for name in names:
        spark._jvm.java.lang.Class.forName(name[: -len(".class")].replace("/", "."), True, loader)


def test_sources_that_cannot_be_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jvm").mkdir()
    (tmp_path / "jvm" / "Broken.java").write_text("class Broken {")
    monkeypatch.setattr(jvm_reader, "SOURCES", tmp_path / "jvm")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(jvm_reader.NoJvmReader, match="compiling its sources failed"):
        jvm_reader.jar()
    assert list((tmp_path / "cache" / "kreplica").iterdir()) == []


def test_no_place_for_the_jar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(jvm_reader.NoJvmReader, match="the jar could not be written"):
        jvm_reader.jar()


# ---- the choice of a reader -------------------------------------------------------------------------------


def test_the_jvm_reads_directories_without_python(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path / "t-0", 2)
    assert "(Python)" not in plan(read(spark, tmp_path))
    assert "(Python)" in plan(read(spark, tmp_path, reader="python"))
    assert read(spark, tmp_path).count() == read(spark, tmp_path, reader="python").count() == 10


def test_python_reads_what_the_jvm_does_not(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path / "t-0", 2)
    (tmp_path / "t-0" / "kreplica.damage.json").write_text('{"version": 1, "damages": []}')
    assert "(Python)" in plan(read(spark, tmp_path))
    with pytest.raises(PySparkException, match=r"reader=jvm: .*t-0: has known damage"):
        read(spark, tmp_path, reader="jvm").count()
    cluster = {
        "kafka.bootstrap.servers": "127.0.0.1:9",
        "subscribe": "t",
        "kafka.security.protocol": "SASL_SSL",
    }
    with pytest.raises(PySparkException, match="reader=jvm: only the Python reader reads a cluster by SASL"):
        spark.read.format("kreplica").options(reader="jvm", **cluster).load().count()
    with pytest.raises(PySparkException, match="reader: 'scala' is not one of auto, jvm, python"):
        read(spark, tmp_path, reader="scala").count()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"path": "data", "x": "data"}, {"path": os.path.abspath("data"), "x": "data"}),
        ({"PATH": " ../data "}, {"PATH": os.path.abspath(".") + "/../data"}),
        ({"path": "/data/a:b"}, {"path": "/data/a:b"}),
        ({"path": "s3a://bucket/data"}, {"path": "s3a://bucket/data"}),
        ({"path": ""}, {"path": ""}),
        ({}, {}),
    ],
)
def test_python_gets_the_whole_path_of_a_relative_one(
    spark: SparkSession, given: dict[str, str], expected: dict[str, str]
) -> None:
    # Python's workers may have other directories than the JVM, and Spark deletes those. Here they have the
    # same one, so only what the JVM hands to them shows the difference.
    jvm: Any = spark._jvm
    gateway: Any = SparkContext._gateway
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    types = gateway.new_array(jvm.java.lang.Class, 1)
    types[0] = jvm.java.lang.Class.forName("java.util.Map")
    half = jvm.java.lang.Class.forName("org.kreplica.spark.PythonHalf", True, loader)
    method = half.getDeclaredMethod("withWholePath", types)
    method.setAccessible(True)
    arguments = gateway.new_array(jvm.java.lang.Object, 1)
    arguments[0] = jvm.java.util.HashMap()
    for name, value in given.items():
        arguments[0].put(name, value)
    assert dict(method.invoke(None, arguments)) == expected


def test_a_view_in_sql(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path / "t-0", 2)
    given = f"path '{tmp_path}', reader 'jvm'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW records USING kreplica OPTIONS ({given})")
    assert spark.sql("SELECT max(offset) AS last FROM records WHERE partition = 0").head() == (9,)


def test_a_session_without_a_jvm_has_the_python_reader(caplog: pytest.LogCaptureFixture) -> None:
    class Connect:
        """What `register` uses of a session of Spark Connect."""

        def __init__(self) -> None:
            self.registered: list[Any] = []
            self.conf = self
            self.dataSource = self

        def set(self, name: str, value: str) -> None:
            pass

        def register(self, source: Any) -> None:
            self.registered.append(source)

    session: Any = Connect()
    with caplog.at_level("INFO"):
        kreplica.spark.register(session)
    [source] = session.registered
    assert source.name() == "kreplica"
    with pytest.raises(OptionError, match=r"path: 'data' is relative: name a whole path"):
        source({"path": "data", "topic": "t"})
    source({"path": "/data", "topic": "t"})
    assert "the JVM reader is not available: a Spark Connect session" in caplog.text


# ---- directories that cannot be listed --------------------------------------------------------------------


def link_in_a_circle(path: Path) -> None:
    """What is refused to root, too; a directory without permission is refused in the same place."""
    path.symlink_to(path.name)


def test_a_partition_that_cannot_be_listed_is_not_left_out(spark: SparkSession, tmp_path: Path) -> None:
    node = tmp_path / "node"
    for name in ("t-0", "t-1", "u-0"):
        fill(node / name, 2)
    link_in_a_circle(node / "t-2")
    (node / "file-0").touch()
    refused = re.escape(f"{node / 't-2'}: ") + "Too many levels of symbolic links"
    for options in ({}, {"subscribe": "t"}, {"reader": "jvm"}):
        with pytest.raises(PySparkException, match=refused):
            read(spark, node, **options).count()
    assert read(spark, node, subscribe="u").count() == 10
    query = (
        spark.readStream.format("kreplica")
        .options(subscribe="t", startingOffsets="earliest")
        .load(str(node))
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    with pytest.raises(PySparkException, match=refused):
        query.start().awaitTermination()
    # A link to a disk that is not mounted is no empty partition either.
    (node / "t-2").unlink()
    (node / "t-2").symlink_to(tmp_path / "unmounted")
    with pytest.raises(PySparkException, match="t-2: no such file or directory"):
        read(spark, node, subscribe="t").count()


def test_a_log_directory_that_cannot_be_listed(spark: SparkSession, tmp_path: Path) -> None:
    link_in_a_circle(tmp_path / "node")
    with pytest.raises(PySparkException, match="node: Too many levels of symbolic links"):
        read(spark, tmp_path / "node").count()


# ---- files that change under a read ------------------------------------------------------------------------


def checked(gate: Path) -> Callable[[Iterable[Row]], Iterator[tuple[int, bool]]]:
    """Offsets, and whether the values are theirs; behind the first it waits until `gate` has a file "go"."""

    def found(rows: Iterable[Row]) -> Iterator[tuple[int, bool]]:
        for number, row in enumerate(rows):
            if number == 1:
                (gate / "begun").touch()
                wait_until(lambda: (gate / "go").exists(), "the files are changed")
            yield row.offset, row.value == value_of(row.offset)

    return found


def value_of(offset: int) -> bytes:
    return b"%016d" % offset * 64


def changed_under_a_read(spark: SparkSession, work: Path, change: Callable[[Path], None]) -> list[int]:
    """The offsets of a read of 32 MiB in four segments, all of whose files are changed when it has begun."""
    with kreplica.Log.open(work / "node" / "t-0", segment_bytes=8 << 20) as log:
        for first in range(0, 1 << 15, 32):
            log.append([value_of(n) for n in range(first, first + 32)])
    rows = read(spark, work / "node", reader="jvm").select("offset", "value").rdd.mapPartitions(checked(work))
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(rows.collect)
        try:
            wait_until(lambda: (work / "begun").exists() or found.done(), "the read has begun")
            for segment in (work / "node" / "t-0").glob("*.log"):
                change(segment)
        finally:
            (work / "go").touch()
        assert all(is_whole for _, is_whole in found.result())
        return sorted(offset for offset, _ in found.result())


def test_a_file_that_is_made_shorter_under_a_read(spark: SparkSession, tmp_path: Path) -> None:
    """Under a mapping the JVM's own code for checksums would meet a page that is gone, and end the JVM."""
    with pytest.raises(
        PySparkException, match=r"\d{20}\.log: ends at byte \d+ of \d+: the file was made shorter"
    ):
        changed_under_a_read(spark, tmp_path, lambda segment: os.truncate(segment, 7 << 20))


def test_a_file_that_is_deleted_under_a_read(spark: SparkSession, tmp_path: Path) -> None:
    found = changed_under_a_read(spark, tmp_path, Path.unlink)
    assert found == list(range(1 << 15))


def test_batches_of_all_sizes(spark: SparkSession, tmp_path: Path) -> None:
    """Around and above what is read of a file at once; some of them hold no record that is asked for."""
    source = random.Random(3)
    sizes = [source.choice((1, 100, 10_000, 200_000, 523_000, 600_000, 1_000_000)) for _ in range(40)]
    for codec in ("uncompressed", "lz4"):
        directory = tmp_path / codec / "t-0"
        with kreplica.Log.open(directory, segment_bytes=8 << 20, compression_type=codec) as log:
            written = {}
            for size in sizes:
                count = source.choice((1, 7, 300) if size <= 100 else (1, 7) if size == 10_000 else (1,))
                values = [source.randbytes(source.randint(0, size)) for _ in range(count)]
                written |= dict(enumerate(values, log.append(values).base_offset))
        found = read(spark, tmp_path / codec, reader="jvm").selectExpr("offset", "md5(value)").collect()
        expected = {offset: hashlib.md5(value).hexdigest() for offset, value in written.items()}
        assert dict(map(tuple, found)) == expected
        some = read(spark, tmp_path / codec, reader="jvm").where("offset >= 500 and offset < 1500")
        assert some.count() == len(some.select("value").collect()) == min(1000, max(0, len(written) - 500))


# ---- segments that are gone -----------------------------------------------------------------------------


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize(
    ("change", "first", "last"),
    [
        ("remove the first", 0, 9),
        ("remove the second", 10, 19),
        ("empty the second", 10, 19),
        ("cut", 15, 19),
    ],
)
def test_records_of_a_segment_that_is_gone_are_not_left_out(
    spark: SparkSession, tmp_path: Path, change: str, first: int, last: int, compacted: bool
) -> None:
    """Compaction leaves no gap between segments; what a user took away was no retention."""
    # So small that the cleaner joins no two of them.
    with kreplica.Log.open(tmp_path / "t-0", cleanup_policy="compact", segment_bytes=300) as log:
        for n in range(0, 40, 5):
            log.append([kreplica.Record(b"v", key=b"%d" % (k % 39), timestamp=T0) for k in range(n, n + 5)])
            if n % 10 == 5:
                log.roll()
        if compacted:
            log.compact()
    files = sorted((tmp_path / "t-0").glob("*.log"))
    assert [int(file.stem) for file in files[:3]] == [0, 10, 20]
    if change.startswith("remove"):
        files[0 if change.endswith("first") else 1].unlink()
    else:
        os.truncate(files[1], 0 if change.startswith("empty") else files[1].stat().st_size // 2)
    with pytest.raises(PySparkException, match=f"t-0: damaged records, offsets {first} to {last} "):
        read(spark, tmp_path).collect()
    with pytest.raises(PySparkException, match=f"t-0: damaged records, offsets {first} to {last} "):
        read(spark, tmp_path).count()
    found = [row.offset for row in read(spark, tmp_path, skipDamaged="true").select("offset").collect()]
    whole = set(range(1, 40)) if compacted else set(range(40))
    assert set(found) == whole - set(range(first, last + 1))


def test_what_retention_took_is_not_lost(spark: SparkSession, tmp_path: Path) -> None:
    with kreplica.Log.open(tmp_path / "t-0", segment_bytes=400, retention_bytes=400) as log:
        for n in range(40):
            log.append([b"%d" % n])
        assert log.delete_old_segments() > 0
        first = log.log_start_offset
    assert [row.offset for row in read(spark, tmp_path).select("offset").collect()] == list(range(first, 40))


# ---- the workers' Python --------------------------------------------------------------------------------


@pytest.fixture
def context(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkContext]:
    """The session's context, without a choice of Python in its environment."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    chosen = spark.sparkContext.pythonExec
    yield spark.sparkContext
    spark.sparkContext.pythonExec = chosen
    monkeypatch.undo()
    kreplica.spark.register(spark)


def test_workers_here_run_the_drivers_python(
    spark: SparkSession, context: SparkContext, tmp_path: Path
) -> None:
    fill(tmp_path / "t-0", 2)
    context.pythonExec = "python3-that-is-not-there"
    kreplica.spark.register(spark)
    assert read(spark, tmp_path, reader="python").count() == 10


def test_another_python_is_named_first(
    spark: SparkSession, context: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "t-0", 2)
    other = tmp_path / "python3"
    # One without the packages that are installed.
    other.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    other.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(other))
    context.pythonExec = str(other)
    kreplica.spark.register(spark)
    said = f"^Spark's workers run another Python than the driver: set PYSPARK_PYTHON to {sys.executable}\n"
    with pytest.raises(PySparkException, match=re.escape(said[1:-1])) as raised:
        read(spark, tmp_path, reader="python").count()
    assert re.match(said, str(raised.value))


# ---- what Spark is spared ---------------------------------------------------------------------------------


def test_counts_come_from_headers(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path / "t-0", 4)
    fill(tmp_path / "t-1", 2)
    frame = read(spark, tmp_path, reader="jvm", minPartitions=4)
    counted = frame.where("offset >= 3 and offset < 12").groupBy("partition").count()
    assert "[partition, count(*)]" in plan(counted)
    assert sorted(map(tuple, counted.collect())) == [(0, 9), (1, 7)]
    assert frame.where("offset > 1000").count() == 0
    assert frame.where("partition = 9").count() == 0
    # A filter that Spark has to apply itself leaves it the rows.
    assert "[count(*)]" not in plan(frame.where("value = '3'").groupBy().count())
    assert frame.where("value = '3'").count() == 2


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_counts_are_exact(spark: SparkSession, isolation: str) -> None:
    """Over gaps of compaction, control records and aborted transactions, of every codec."""
    found = {}
    for reader in ("jvm", "python"):
        frame = frame_of(spark, LOGS, reader=reader, **{"kafka.isolation.level": isolation})
        frame = frame.where("offset >= 2 and offset < 1000")
        found[reader] = sorted(map(tuple, frame.groupBy("topic", "partition").count().collect()))
    assert found["jvm"] == found["python"]
    assert len(found["jvm"]) > 5


def test_a_limit_ends_the_reading(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path / "t-0", 4)
    frame = read(spark, tmp_path, reader="jvm").where("offset >= 7").limit(3)
    assert "[limit 3]" in plan(frame)
    assert [row.offset for row in frame.collect()] == [7, 8, 9]


def test_statistics(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path / "t-0", 4)
    frame = read(spark, tmp_path, reader="jvm")
    estimated = frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()
    with kreplica.Log.open(tmp_path / "t-0", read_only=True) as log:
        assert estimated == log.size


# ---- streams ----------------------------------------------------------------------------------------------


def test_a_checkpoint_may_change_the_reader(spark: SparkSession, tmp_path: Path) -> None:
    def run(reader: str) -> Any:
        frame = spark.readStream.format("kreplica").option("startingOffsets", "earliest")
        query = (
            frame.options(reader=reader, maxOffsetsPerTrigger="4")
            .load(str(tmp_path / "node"))
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        query.awaitTermination()
        return query.lastProgress

    for turn, reader in enumerate(("python", "jvm", "python", "jvm")):
        fill(tmp_path / "node" / "t-0", 1)
        fill(tmp_path / "node" / f"t-{turn}", 1)
        progress = run(reader)
        assert progress.sources[0].metrics["maxOffsetsBehindLatest"] == "0"
        assert progress.sources[0].metrics["offsetsBehindLatest"] == "0"
    offsets = [
        row.offset for row in spark.read.parquet(str(tmp_path / "out")).where("partition = 0").collect()
    ]
    assert sorted(offsets) == list(range(25))
    assert sum(kreplica.spark.lag(progress).values()) == 0
    assert json.loads(progress.sources[0].endOffset) == {"t": {"0": 25, "1": 5, "2": 5, "3": 5}}
