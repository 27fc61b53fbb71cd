"""Exports by Spark hold the rows of the one-machine tool's, each once, however often a run was cut off."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest
from kreplica.spark import jobs
from kreplica.spark.jobs import parquet_export
from kreplica.spark.jobs.parquet_export import CHECKPOINT
from pyarrow import parquet
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

import kreplica
from kreplica.cli.app import app
from kreplica.runtime.storage import FileStorage
from tests.conformance.expectation import FIXTURES

KAFKA = FIXTURES / "clean" / "logs"
TOPICS = ("codec-zstd", "compacted", "log-append-time", "segments", "transactions", "trimmed")


def append(directory: Path, count: int) -> None:
    with kreplica.Log.open(directory) as log:
        first = log.log_end_offset
        log.append([b"%d" % n for n in range(first, first + count)])


def rows_of(out: Path) -> list[dict[str, Any]]:
    """What any reader of Parquet sees: all files but hidden ones, topic and partition from directories."""
    schema = pyarrow.schema([("topic", "string"), ("partition", "int32"), ("batch", "int32")])
    found = pyarrow.dataset.dataset(out, partitioning=pyarrow.dataset.partitioning(schema, flavor="hive"))
    return found.to_table().drop_columns(["batch"]).to_pylist()  # type: ignore[no-any-return]


def places(out: Path) -> Counter[str]:
    return Counter(f"{row['topic']}-{row['partition']}@{row['offset']}" for row in rows_of(out))


def plain(row: dict[str, Any]) -> str:
    return json.dumps({**row, "timestamp": row["timestamp"].timestamp()}, sort_keys=True, default=repr)


@pytest.mark.parametrize("isolation", ["high_watermark", "txn_committed"])
def test_the_rows_of_the_tool(spark: SparkSession, isolation: str, tmp_path: Path) -> None:
    assert SparkSession.getActiveSession() is spark
    command = ["export", str(KAFKA), "--to", "parquet", "--isolation", isolation, "--json", "-o"]
    command_topics = [argument for topic in TOPICS for argument in ("--topic", topic)]
    one = CliRunner().invoke(app, [*command, str(tmp_path / "one.parquet"), *command_topics])
    assert one.exit_code == 0, one.output
    many = CliRunner().invoke(app, [*command, str(tmp_path / "many"), *command_topics, "--engine", "spark"])
    assert many.exit_code == 0, many.output
    expected = parquet.read_table(tmp_path / "one.parquet").to_pylist()
    found = rows_of(tmp_path / "many")
    assert len(expected) > 100
    assert sorted(map(plain, found)) == sorted(map(plain, expected))
    said = json.loads(many.stdout)
    assert said["rows"] == len(expected) == json.loads(one.stdout)["rows"]
    assert said["offsets"]["segments"] == {"0": 120}


def test_each_run_exports_what_is_new(spark: SparkSession, tmp_path: Path) -> None:
    node, out = tmp_path / "node", tmp_path / "out"
    append(node / "t-0", 10)
    append(node / "t-1", 4)
    first = jobs.export(spark, node, out, batch_records=6, file_rows=2)
    assert (first.rows, first.batches, first.offsets) == (14, 3, {"t": {"0": 10, "1": 4}})
    files = set(out.rglob("*.parquet"))
    assert max(parquet.read_metadata(file).num_rows for file in files) == 2
    nothing = jobs.export(spark, node, out)
    assert (nothing.rows, set(out.rglob("*.parquet"))) == (0, files)
    append(node / "t-0", 3)
    append(node / "t-2", 5)
    assert jobs.export(spark, node, out).rows == 8
    assert files < set(out.rglob("*.parquet"))
    expected = {f"t-{n}@{at}" for n, count in enumerate((13, 4, 5)) for at in range(count)}
    assert places(out) == Counter(expected)
    written = sorted((out / CHECKPOINT / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    assert json.loads(written[-1].read_text().splitlines()[-1]) == {"t": {"0": 13, "1": 4, "2": 5}}


class Killed(Exception):
    """Where a process would be dead."""


@pytest.mark.parametrize("when", ["before a file", "amid the files", "before the commit"])
def test_every_record_once_after_a_run_that_was_cut_off(
    spark: SparkSession, when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, out = tmp_path / "node", tmp_path / "out"
    append(node / "t-0", 6)
    append(node / "t-1", 6)
    assert jobs.export(spark, node, out).rows == 12
    append(node / "t-0", 3)
    append(node / "t-1", 2)
    write = parquet_export._Run.write

    def cut_off(self: Any, frame: DataFrame, batch_id: int) -> None:
        if when != "before a file":
            write(self, frame, batch_id)
        if when == "amid the files":
            shutil.rmtree(out / "topic=t" / "partition=1" / f"batch={batch_id}")
            (out / ".spark-staging-1" / "topic=t").mkdir(parents=True)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(parquet_export._Run, "write", cut_off)
        with pytest.raises(Exception, match="Killed"):
            jobs.export(spark, node, out)
    # What comes meanwhile is not of the batch that is run again.
    append(node / "t-0", 1)
    again = jobs.export(spark, node, out)
    assert again.batches == 2
    assert places(out) == Counter(f"t-{n}@{at}" for n, count in ((0, 10), (1, 8)) for at in range(count))
    assert not list(out.glob(".spark-staging-*"))


def test_columns_and_what_cannot_be_meant(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path / "node" / "t-0", 2)
    jobs.export(spark, tmp_path / "node", tmp_path / "out", columns=("offset", "value"))
    (file,) = (tmp_path / "out").rglob("*.parquet")
    assert parquet.read_schema(file).names == ["offset", "value"]
    for columns, text in (
        (("offset", "size"), "unknown column 'size'"),
        (("topic",), "name a column besides"),
    ):
        with pytest.raises(jobs.JobError, match=text):
            jobs.export(spark, tmp_path / "node", tmp_path / "out", columns=columns)
    shutil.rmtree(tmp_path / "out" / CHECKPOINT)
    with pytest.raises(jobs.JobError, match=r"has topic=t but no _checkpoint"):
        jobs.export(spark, tmp_path / "node", tmp_path / "out")


def test_a_second_run_at_the_same_time_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path / "node" / "t-0", 2)
    out = tmp_path / "out"
    out.mkdir()
    lock = FileStorage().lock_directory(str(out))
    command = [
        "export",
        str(tmp_path / "node" / "t-0"),
        "--to",
        "parquet",
        "-o",
        str(out),
        "--engine",
        "spark",
    ]
    refused = CliRunner().invoke(app, command)
    assert (refused.exit_code, refused.stderr) == (
        1,
        f"kreplica: {out}: another run is writing to it; wait for it to end\n",
    )
    lock.release()
    done = CliRunner().invoke(app, command)
    assert done.stdout.startswith(f"2 rows to {out} (")
    assert SparkSession.getActiveSession() is spark


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A partition of Kafka's whose offsets 9 to 11 rotted."""
    directory = shutil.copytree(KAFKA / "segments-0", tmp_path / "segments-0")
    data = bytearray((directory / f"{0:020d}.log").read_bytes())
    data[-1] ^= 1
    (directory / f"{0:020d}.log").write_bytes(data)
    return directory


def test_what_rotted_ends_a_run_with_its_place(spark: SparkSession, damaged: Path, tmp_path: Path) -> None:
    command = ["export", str(damaged), "--to", "parquet", "-o", str(tmp_path / "out"), "--engine", "spark"]
    assert SparkSession.getActiveSession() is spark
    failed = CliRunner().invoke(app, command)
    assert failed.exit_code == 1
    assert failed.stderr.startswith("kreplica: Spark: segments-0: damaged records, offsets 9 to 11")
    assert len(failed.stderr.splitlines()) == 1
    assert not list((tmp_path / "out").rglob("*.parquet"))


def test_what_rotted_can_be_passed_over(spark: SparkSession, damaged: Path, tmp_path: Path) -> None:
    source = {"path": str(damaged), "skipDamaged": "true"}
    assert jobs.export(spark, source, tmp_path / "out").rows == 117
    assert len(places(tmp_path / "out")) == 117


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--to", "jsonl"], "writes parquet only"),
        (["--to", "parquet", "--isolation", "log_end"], "--isolation"),
        (["--to", "parquet", "--from-offset", "3"], "--from-offset"),
        (["--to", "parquet", "--overwrite"], "--overwrite"),
    ],
)
def test_what_the_command_refuses_on_spark(arguments: list[str], text: str, tmp_path: Path) -> None:
    command = ["export", str(KAFKA / "segments-0"), "-o", str(tmp_path / "out"), "--engine", "spark"]
    refused = CliRunner().invoke(app, [*command, *arguments])
    assert refused.exit_code == 2
    assert text in refused.output


# ---- the latest view --------------------------------------------------------------------------------------


class Stream:
    """Fails to start with each of these errors, then starts."""

    def __init__(self, *texts: str) -> None:
        self.errors = [PySparkException(text) for text in texts]

    def start(self) -> str:
        if self.errors:
            raise self.errors.pop(0)
        return "started"


def test_a_python_process_that_spark_connect_awaits_in_vain_is_started_again() -> None:
    late = "Python worker failed to connect back."
    start: Any = parquet_export._started
    assert start(Stream()) == start(Stream(late, late)) == "started"
    with pytest.raises(PySparkException, match="connect back"):
        start(Stream(*[late] * parquet_export.START_ATTEMPTS))
    other = Stream("no such topic", late)
    with pytest.raises(PySparkException, match="no such topic"):
        start(other)
    assert len(other.errors) == 1


def view(rows: list[Any]) -> set[tuple[Any, ...]]:
    return {(row.offset, bytes(row.key), bytes(row.value), row.timestamp_type) for row in rows}


def test_latest_is_what_the_cleaner_leaves(spark: SparkSession, tmp_path: Path) -> None:
    config = {"cleanup.policy": "compact", "delete.retention.ms": "0", "segment.bytes": "2000"}
    directory = tmp_path / "t-0"
    with kreplica.Log.open(directory, config=config) as log:
        for n in range(300):
            value = None if n % 7 == 0 else b"%d" % n
            log.append(
                [kreplica.Record(value, key=b"k%d" % (n * n % 83), headers=[("h", b"x")] if n % 2 else [])]
            )
        before = view(jobs.latest(spark, directory).collect())
        log.compact()
        log.compact()
        expected = {
            (each.offset, each.key, each.value, each.timestamp_type)
            for each in log.read()
            if each.value is not None
        }
    assert 20 < len(expected) < 83
    assert before == expected
    done = jobs.export_latest(spark, directory, tmp_path / "out", columns=("offset", "value"))
    assert done.rows == len(expected)
    written = pyarrow.dataset.dataset(tmp_path / "out").to_table().to_pylist()
    assert {(row["offset"], row["value"]) for row in written} == {(each[0], each[2]) for each in expected}


def test_records_without_a_key_have_no_latest_value(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path / "t-0", 3)
    found = jobs.latest(spark, tmp_path / "t-0")
    assert found.columns == list(parquet_export.COLUMNS)
    assert found.count() == 0


def test_latest_of_transactions_leaves_out_what_was_aborted(spark: SparkSession) -> None:
    with kreplica.Log.open(KAFKA / "transactions-0", read_only=True) as log:
        last = {each.key: each for each in log.read(isolation="txn_committed") if each.key is not None}
    expected = {(each.offset, each.key, each.value) for each in last.values() if each.value is not None}
    found = jobs.latest(spark, KAFKA / "transactions-0").collect()
    assert {(row.offset, bytes(row.key), bytes(row.value)) for row in found} == expected
    assert expected
