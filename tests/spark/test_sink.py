"""Writing into log directories: every row once, where its key or its row says, however often it is tried."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow
import pytest
from kreplica.spark import commit_log
from kreplica.spark.commit_log import CommitLog, LogDirectory
from kreplica.spark.sink_rows import (
    HEADERS,
    Rows,
    SinkError,
    StagedFile,
    Staging,
    check_schema,
    staged_batches,
)
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

import kreplica
from kreplica.common.errors import InvalidFile, MessageTooLarge


def values(directory: Path) -> list[bytes | None]:
    with kreplica.Log.open(directory, read_only=True) as log:
        return [record.value for record in log.read()]


def rows(*numbers: int, **more: Any) -> pyarrow.RecordBatch:
    return pyarrow.RecordBatch.from_pydict({"value": [b"%d" % n for n in numbers], **more})


def stage(commits: CommitLog, batch_id: int, *batches: pyarrow.RecordBatch) -> list[StagedFile]:
    staging = Staging(commits.staging(batch_id), Rows("t", {}))
    for batch in batches:
        staging.write(batch)
    return staging.close()


# ---- with Spark -----------------------------------------------------------------------------------------


def test_a_batch_write(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "logs"
    frame = spark.range(10).selectExpr(
        "'t' as topic",
        "cast(id % 2 as int) as partition",
        "cast(id as string) as key",
        "concat('v', id) as value",
    )
    frame.write.format("kreplica").mode("append").save(str(path))
    frame.where("key = '3'").drop("partition").write.format("kreplica").mode("append").save(str(path))
    read = spark.read.format("kreplica").option("subscribe", "t").load(str(path))
    found = {(row.partition, bytes(row.key), bytes(row.value)) for row in read.collect()}
    assert {(n % 2, b"%d" % n, b"v%d" % n) for n in range(10)} <= found
    assert read.count() == 11


def test_a_stream_from_logs_to_logs(spark: SparkSession, tmp_path: Path) -> None:
    def run() -> None:
        frame = spark.readStream.format("kreplica").option("startingOffsets", "earliest")
        query = (
            frame.option("maxOffsetsPerTrigger", 5)
            .load(str(tmp_path / "from"))
            .select("key", "value")
            .writeStream.format("kreplica")
            .option("topic", "t")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "to"))
        )
        query.awaitTermination()

    with kreplica.Log.open(tmp_path / "from" / "s-0") as log:
        log.append([b"%d" % n for n in range(8)])
        run()
        log.append([b"8", b"9"])
    # As if the driver had died when the last batch was written, and Spark did not know.
    (tmp_path / "checkpoint" / "commits" / "1").unlink()
    (tmp_path / "checkpoint" / "commits" / ".1.crc").unlink(missing_ok=True)
    run()
    assert values(tmp_path / "to" / "t-0") == [b"%d" % n for n in range(10)]


# ---- a commit that is cut off, and tried again ----------------------------------------------------------


def test_a_batch_is_written_once(tmp_path: Path) -> None:
    commits = LogDirectory(str(tmp_path / "logs")).commits("query")
    assert commits.commit(0, stage(commits, 0, rows(1, 2)))
    assert not commits.commit(0, stage(commits, 0, rows(1, 2)))
    assert commits.commit(1, stage(commits, 1, rows(3)))
    assert values(tmp_path / "logs" / "t-0") == [b"1", b"2", b"3"]
    assert not list((tmp_path / "logs.spark").rglob("*.arrow"))


@pytest.mark.parametrize("before", range(4))
def test_a_commit_that_was_cut_off_is_carried_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """The driver dies before its nth append, or before it notes the end; the second run's rows come in
    another order."""
    commits = LogDirectory(str(tmp_path / "logs")).commits("query")
    files = stage(commits, 7, rows(1, 2), rows(3), rows(4, 5))
    append, appends = kreplica.Log.append_arrow, []

    def dying(log: kreplica.Log, batch: Any) -> Any:
        if len(appends) == before:
            raise KeyboardInterrupt
        appends.append(batch)
        return append(log, batch)

    with monkeypatch.context() as patch:
        patch.setattr(kreplica.Log, "append_arrow", dying)
        patch.setattr(commit_log, "sync", lambda _: None)
        if before == 3:
            patch.setattr(kreplica.Log, "flush", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            commits.commit(7, files)
    assert commits.commit(7, stage(commits, 7, rows(5, 4, 3, 2, 1)))
    assert values(tmp_path / "logs" / "t-0") == [b"1", b"2", b"3", b"4", b"5"]


def test_what_somebody_else_appended_meanwhile_is_not_taken_for_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = LogDirectory(str(tmp_path / "logs")).commits("query")
    files = stage(commits, 0, rows(1, 2))
    with monkeypatch.context() as patch:
        patch.setattr(kreplica.Log, "append_arrow", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            commits.commit(0, files)
    with kreplica.Log.open(tmp_path / "logs" / "t-0") as log:
        log.append([b"other"])
    with pytest.raises(InvalidFile, match="t-0: another writer appended offset 0"):
        commits.commit(0, [])


# ---- rows -------------------------------------------------------------------------------------------------


def test_rows_go_where_their_key_belongs(tmp_path: Path) -> None:
    staging = Staging(str(tmp_path), Rows("t", {"t": 4}))
    keys = [b"a", b"b", b"c", b"a", b"b", b"c"]
    staging.write(rows(*range(6), key=keys))
    found = {}
    for at, name in staging.close():
        for batch in staged_batches(str(tmp_path / name)):
            found.update(dict.fromkeys(batch.column("key").to_pylist(), at.partition))
    # As Kafka's own producer places them.
    assert found == {b"a": 0, b"b": 0, b"c": 2}


def test_bad_rows(tmp_path: Path) -> None:
    staging = Staging(str(tmp_path), Rows(None, {}))
    with pytest.raises(SinkError, match="a row has no topic"):
        staging.write(rows(1, topic=pyarrow.array([None], pyarrow.string())))
    with pytest.raises(kreplica.KreplicaError, match="is not a topic name"):
        staging.write(rows(1, topic=["a/b"]))
    for partition in (-1, 2**31 - 1):
        with pytest.raises(SinkError, match=f"{partition} is not a valid partition number"):
            staging.write(rows(1, topic=["t"], partition=[partition]))
    with pytest.raises(MessageTooLarge, match="a value has 1000001 bytes"):
        staging.write(pyarrow.RecordBatch.from_pydict({"value": [bytes(1_000_001)], "topic": ["t"]}))
    for headers in ([[(None, b"1")]], [[None]]):
        with pytest.raises(SinkError, match="a header has no key"):
            staging.write(rows(1, topic=["t"], headers=pyarrow.array(headers, HEADERS)))
    large = pyarrow.array([[("a", bytes(600_000)), ("b", bytes(600_000))]], HEADERS)
    with pytest.raises(MessageTooLarge, match="a record has 12000"):
        staging.write(rows(1, topic=["t"], headers=large))
    assert staging.close() == []


@pytest.mark.parametrize(
    ("schema", "topic", "text"),
    [
        ({"value": "long"}, "t", "column value must be binary or string, not bigint"),
        ({"key": "binary"}, "t", "needs a column value"),
        ({"value": "binary"}, None, "set the option topic, or give each row"),
        (
            {"key": "binary", "offset": "long"},
            "t",
            "column value; the columns are key, offset",
        ),
    ],
)
def test_bad_schemas(schema: dict[str, str], topic: str | None, text: str) -> None:
    made = StructType()
    for name, kind in schema.items():
        made.add(name, kind)
    with pytest.raises(SinkError, match=text):
        check_schema(made, topic)


def test_large_batches_are_parted(tmp_path: Path) -> None:
    commits = LogDirectory(str(tmp_path / "logs")).commits("query")
    batch = pyarrow.RecordBatch.from_pydict({"value": [bytes(900_000)] * 5})
    assert commits.commit(0, stage(commits, 0, batch))
    assert values(tmp_path / "logs" / "t-0") == [bytes(900_000)] * 5


@pytest.mark.parametrize(
    "sizes", [[1] * 400 + [900_000] * 3 + [1] * 400, [1] * 40_000, [600_000, 1, 600_000]]
)
def test_each_batch_fits_whatever_the_rows_lengths_are(tmp_path: Path, sizes: list[int]) -> None:
    commits = LogDirectory(str(tmp_path / "logs")).commits("query")
    given = [bytes(size) for size in sizes]
    headers = pyarrow.array([[("h", value)] if n % 2 else None for n, value in enumerate(given)], HEADERS)
    plain = [None if n % 2 else value for n, value in enumerate(given)]
    batch = pyarrow.RecordBatch.from_pydict({"value": plain, "headers": headers})
    assert commits.commit(0, stage(commits, 0, batch.slice(0, 7), batch.slice(7)))
    with kreplica.Log.open(tmp_path / "logs" / "t-0", read_only=True) as log:
        found = [record.headers[0][1] if record.headers else record.value for record in log.read()]
    assert found == given
