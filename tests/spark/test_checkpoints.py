"""Local checkpoints, written without Hadoop's processes, are Hadoop's: names, modes, checksums and all."""

from __future__ import annotations

import errno
import gc
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kreplica.spark
import pytest
from kreplica.spark.jvm_reader import CHECKPOINTS, CHECKPOINTS_SETTING
from kreplica.spark.worker import settle
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

import kreplica
from tests.support.spark_session import READERS

HADOOPS = "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"

MORE_LINKS_THAN_EXT4_HAS = 65_100


@contextmanager
def written_by(spark: SparkSession, manager: str) -> Iterator[None]:
    before = spark.conf.get(CHECKPOINTS_SETTING)
    spark.conf.set(CHECKPOINTS_SETTING, manager)
    try:
        yield
    finally:
        spark.conf.set(CHECKPOINTS_SETTING, before)


def run_once(spark: SparkSession, work: Path) -> None:
    """A stream with a state, to the end of what there is."""
    with kreplica.Log.open(work / "node" / "t-0") as log:
        log.append([b"%d" % n for n in range(5)])
    frame = spark.readStream.format("kreplica").options(**READERS["jvm"], startingOffsets="earliest")
    query = (
        frame.option("maxOffsetsPerTrigger", "3")
        .load(str(work / "node"))
        .dropDuplicates(["offset"])
        .writeStream.format("parquet")
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(work / "out"))
    )
    query.awaitTermination()


def manager(spark: SparkSession, path: str) -> Any:
    configuration = spark._jsparkSession.sessionState().newHadoopConf()
    return spark._jvm.org.kreplica.spark.LocalCheckpoints(hadoop_path(spark, path), configuration)


def hadoop_path(spark: SparkSession, path: str | Path) -> Any:
    return spark._jvm.org.apache.hadoop.fs.Path(str(path))


def write(stream: Any, content: bytes) -> None:
    stream.write(content)
    stream.close()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_each_goes_on_where_the_other_stopped(spark: SparkSession, tmp_path: Path) -> None:
    for which in (CHECKPOINTS, HADOOPS, CHECKPOINTS):
        with written_by(spark, which):
            run_once(spark, tmp_path)
    rows = spark.read.parquet(str(tmp_path / "out")).select("offset").collect()
    assert sorted(row.offset for row in rows) == list(range(15))
    files = [path for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    plain = [path for path in files if not path.name.startswith(".")]
    assert sorted(files) == sorted([*plain, *(path.with_name(f".{path.name}.crc") for path in plain)])
    assert {path.stat().st_mode & 0o777 for path in files} == {0o644}


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 5000])
def test_the_checksums_are_those_of_hadoop(spark: SparkSession, tmp_path: Path, size: int) -> None:
    content = bytes(n % 251 for n in range(size))
    ours = manager(spark, f"file:{tmp_path}")
    write(ours.createAtomic(hadoop_path(spark, tmp_path / "ours"), False), content)
    theirs = spark._jvm.org.apache.hadoop.fs.FileSystem.getLocal(spark._jsc.hadoopConfiguration())
    write(theirs.create(hadoop_path(spark, tmp_path / "theirs")), content)
    assert (tmp_path / "ours").read_bytes() == content
    assert (tmp_path / ".ours.crc").read_bytes() == (tmp_path / ".theirs.crc").read_bytes()


def test_a_file_is_there_when_it_is_closed(spark: SparkSession, tmp_path: Path) -> None:
    ours, path = manager(spark, f"file:{tmp_path}"), hadoop_path(spark, tmp_path / "0")
    stream = ours.createAtomic(path, False)
    stream.write(b"first")
    assert not (tmp_path / "0").exists()
    second = ours.createAtomic(path, False)
    second.write(b"second")
    stream.close()
    with pytest.raises(Py4JJavaError, match=r"FileAlreadyExistsException.*0: already exists"):
        second.close()
    second.close()
    assert (tmp_path / "0").read_bytes() == b"first"
    write(ours.createAtomic(path, True), b"third")
    assert (tmp_path / "0").read_bytes() == b"third"
    given_up = ours.createAtomic(path, True)
    given_up.write(b"fourth")
    given_up.cancel()
    given_up.close()
    assert (tmp_path / "0").read_bytes() == b"third"
    assert names(tmp_path) == [".0.crc", "0"]
    with pytest.raises(Py4JJavaError, match="FileNotFoundException"):
        ours.createAtomic(hadoop_path(spark, tmp_path / "none" / "0"), False)


def test_a_name_is_taken_from_no_other_file(spark: SparkSession, tmp_path: Path) -> None:
    """Of several that come at once one has the name, and its checksums fit. A link that leads nowhere is a
    name that is taken; a look whether the file is there does not see it."""
    ours = manager(spark, f"file:{tmp_path}")
    (tmp_path / "taken").symlink_to(tmp_path / "nowhere")
    with pytest.raises(Py4JJavaError, match=r"FileAlreadyExistsException.*taken: already exists"):
        write(ours.createAtomic(hadoop_path(spark, tmp_path / "taken"), False), b"0")
    assert (tmp_path / "taken").is_symlink()

    def close(stream: Any) -> str:
        try:
            stream.close()
        except Py4JJavaError as error:
            return str(error.java_exception.getClass().getSimpleName())
        return "closed"

    theirs = spark._jvm.org.apache.hadoop.fs.FileSystem.getLocal(spark._jsc.hadoopConfiguration())
    with ThreadPoolExecutor(4) as pool:
        for number in range(20):
            path = hadoop_path(spark, tmp_path / str(number))
            streams = [ours.createAtomic(path, False) for _ in range(4)]
            for which, stream in enumerate(streams):
                stream.write(b"%d" % which * 600)
            closed = list(pool.map(close, streams))
            assert sorted(closed) == ["FileAlreadyExistsException"] * 3 + ["closed"]
            # Hadoop holds the checksums against it.
            found = spark._jvm.org.apache.commons.io.IOUtils.toString(theirs.open(path), "UTF-8")
            assert found == f"{closed.index('closed')}" * 600
    assert names(tmp_path) == sorted([*map(str, range(20)), *(f".{n}.crc" for n in range(20)), "taken"])


def has_all_its_links(file: Path, links: Path) -> bool:
    """Make as many links to the file as it may have; False if the file system knows no such limit."""
    try:
        for number in range(MORE_LINKS_THAN_EXT4_HAS):
            os.link(file, links / str(number))
    except OSError as error:
        if error.errno != errno.EMLINK:
            raise
        return True
    return False


def test_a_link_that_fails_is_no_sign_of_a_file_system_without_links(
    spark: SparkSession, tmp_path: Path
) -> None:
    """There a rename could take the name from another file."""
    stream = manager(spark, f"file:{tmp_path}").createAtomic(hadoop_path(spark, tmp_path / "0"), False)
    stream.write(b"first")
    (written,) = tmp_path.glob(".0.*.tmp")
    (tmp_path / "links").mkdir()
    if not has_all_its_links(written, tmp_path / "links"):
        shutil.rmtree(tmp_path / "links")
        pytest.skip("a file of this file system may have any number of links")
    with pytest.raises(Py4JJavaError, match="Too many links"):
        stream.close()
    assert not (tmp_path / "0").exists()
    shutil.rmtree(tmp_path / "links")


def test_what_is_no_plain_local_directory_is_left_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    configuration = spark._jsparkSession.sessionState().newHadoopConf()
    configuration.set("fs.AbstractFileSystem.file.impl", "org.apache.hadoop.fs.local.RawLocalFs")
    path = hadoop_path(spark, f"file:{tmp_path}/0")
    write(spark._jvm.org.kreplica.spark.LocalCheckpoints(path, configuration).createAtomic(path, False), b"0")
    # Which has no checksums, and is to have none.
    assert names(tmp_path) == ["0"]


def test_registering_keeps_what_a_session_has_chosen(spark: SparkSession) -> None:
    assert spark.conf.get(CHECKPOINTS_SETTING) == CHECKPOINTS
    with written_by(spark, HADOOPS):
        kreplica.spark.register(spark)
        assert spark.conf.get(CHECKPOINTS_SETTING) == HADOOPS


def test_a_worker_is_settled_once_and_the_driver_never(spark: SparkSession) -> None:
    def frozen(_: int) -> list[int]:
        found = []
        for _ in range(2):
            settle()
            found.append(gc.get_freeze_count())
        return found

    [(first, second)] = spark.sparkContext.parallelize([0], 1).map(frozen).collect()
    assert first == second > 0
    assert frozen(0) == [0, 0]
