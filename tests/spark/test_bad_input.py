"""Wrong options, and data that no longer exists, are named in the error; with each reader.

The Python reader is asked without Spark, which shows an error of Python's with all of its text.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from kreplica.spark.option_table import OptionError
from kreplica.spark.schema import SchemaError
from kreplica.spark.source import KreplicaDataSource
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

import kreplica
from kreplica.common.errors import KreplicaError
from tests.support.spark_session import READERS, reading_by


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """t-0 with offsets 3 to 11, u-0 with a batch that rotted, offsets 4 and 5."""
    path = tmp_path_factory.mktemp("node")
    with kreplica.Log.open(path / "t-0") as log:
        log.append([b"%d" % n for n in range(12)])
        log.delete_records(3)
    with kreplica.Log.open(path / "u-0") as log:
        for n in range(6):
            log.append([b"%d" % n, b"x"])
    file = path / "u-0" / f"{0:020}.log"
    data = bytearray(file.read_bytes())
    data[len(data) // 6 * 3 - 1] ^= 1
    file.write_bytes(data)
    return path


def read(spark: SparkSession, reader: dict[str, str], schema: str | None, **options: Any) -> list[int]:
    """The offsets that are read."""
    given = {name.replace("__", "."): as_text(value) for name, value in options.items()}
    if reader == READERS["python"]:
        source = KreplicaDataSource(given)
        made = source.reader(source.schema() if schema is None else StructType.fromDDL(schema))
        batches = [batch for task in made.partitions() for batch in made.read(task)]
        return [n for batch in batches for n in batch.column("offset").to_pylist()]  # type: ignore[union-attr]
    with reading_by(spark, reader) as session:
        frame = session.read.format("kreplica").options(**given)
        rows = (frame if schema is None else frame.schema(schema)).load().select("offset").collect()
        return [row.offset for row in rows]


def as_text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict) else str(value)


ERRORS = (PySparkException, OptionError, SchemaError, KreplicaError)
T = {"subscribe": "t"}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no such path": ({"path": "{node}/none"}, "{node}/none: there is no such directory"),
    "a path of something else": ({"path": "{node}/t-0/x"}, "{node}/t-0/x: there is no such directory"),
    "no such topic": (
        {"subscribe": "colours"},
        "subscribe: topic 'colours' does not exist in {node}; there are t, u",
    ),
    "no such partition": ({"assign": {"t": [7]}}, "assign: partition t-7 does not exist in {node}"),
    "no pattern": ({"subscribePattern": "("}, "subscribePattern: "),
    "broken JSON": ({**T, "startingOffsets": "{t: 1"}, "startingOffsets: '{t: 1' is not JSON such as"),
    "JSON of something else": ({**T, "startingOffsets": "[1]"}, "startingOffsets: "),
    "a partition that is named twice": (
        {**T, "startingOffsets": '{"t": {"0": 4, "0": 5}}'},
        """startingOffsets: '{"t": {"0": 4, "0": 5}}' names '0' twice""",
    ),
    "a topic that is named twice": (
        {**T, "endingOffsets": '{"t": {"0": 4}, "t": {"0": 5}}'},
        """endingOffsets: '{"t": {"0": 4}, "t": {"0": 5}}' names 't' twice""",
    ),
    "one partition by two names": (
        {**T, "startingOffsetsByTimestamp": '{"t": {"0": 4, "00": 5}}'},
        "startingOffsetsByTimestamp: t-0 is named twice",
    ),
    "both path and servers": (
        {"kafka__bootstrap__servers": "localhost:9092"},
        "path and kafka.bootstrap.servers: either directories or a running cluster, not both",
    ),
    "neither path nor servers": (
        {"path": None},
        "name path, a directory of logs, or kafka.bootstrap.servers",
    ),
    "a start that is gone": (
        {**T, "startingOffsets": {"t": {"0": 1}}},
        "startingOffsets: t-0 has offsets 3 to 12, not 1",
    ),
    "an end that is not there yet": (
        {**T, "endingOffsets": {"t": {"0": 40}}},
        "endingOffsets: t-0 has offsets 3 to 12, not 40",
    ),
    "a start behind the end": (
        {**T, "startingOffsets": {"t": {"0": 9}}, "endingOffsets": {"t": {"0": 5}}},
        "endingOffsets: t-0 would begin at 9 and end at 5",
    ),
    "rot": ({"subscribe": "u"}, "u-0: damaged records, offsets 4 to 5"),
    "an unknown option": (
        {"startingOfsets": "earliest"},
        "startingofsets: format kreplica has no such option",
    ),
    "a malformed number": ({"minPartitions": "many"}, "minPartitions: 'many' is not a positive integer"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(spark: SparkSession, reader: dict[str, str], node: Path, case: str) -> None:
    given, text = WRONG[case]
    options = {"path": "{node}", **given}
    filled_in = {
        name: value.replace("{node}", str(node)) if isinstance(value, str) else value
        for name, value in options.items()
        if value is not None
    }
    with pytest.raises(ERRORS) as raised:
        read(spark, reader, None, **filled_in)
    assert text.replace("{node}", str(node)) in str(raised.value)


SERVERS: dict[str, Any] = {"path": None, "kafka__bootstrap__servers": "127.0.0.1:9", "subscribe": "t"}
OF_PYTHON: dict[str, tuple[dict[str, Any], str]] = {
    **{
        case: WRONG[case]
        for case in ("no such path", "broken JSON", "an unknown option", "a malformed number")
    },
    "of a cluster": ({**SERVERS, "failOnDataLoss": "maybe"}, "failOnDataLoss: 'maybe' is neither"),
    "where a cluster's read begins": ({**SERVERS, "startingOffsets": "soon"}, "startingOffsets: 'soon' is"),
}


@pytest.mark.parametrize("case", OF_PYTHON)
def test_what_is_wrong_comes_before_a_traceback(spark: SparkSession, node: Path, case: str) -> None:
    """Though Python reads: what the driver can see it looks at before."""
    given, text = OF_PYTHON[case]
    options = {**READERS["python"], "path": "{node}", **given}
    filled_in = {
        name.replace("__", "."): as_text(value).replace("{node}", str(node))
        for name, value in options.items()
        if value is not None
    }
    frame = spark.read.format("kreplica").options(**filled_in)
    with pytest.raises(PySparkException) as raised:
        frame.load().collect()
    assert str(raised.value).startswith(text.replace("{node}", str(node)))


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("offset long, colour string", "unknown column 'colour'; there are key, value, topic"),
        ("offset long, value int", "column value is binary, not int"),
    ],
)
def test_a_schema_that_there_is_not(
    spark: SparkSession, reader: dict[str, str], node: Path, schema: str, text: str
) -> None:
    with pytest.raises(ERRORS, match=text):
        read(spark, reader, schema, path=node, subscribe="t")


def test_a_directory_whose_broker_is_gone(
    spark: SparkSession, reader: dict[str, str], tmp_path: Path
) -> None:
    """What it had published is read, as if it still ran; of a batch that it did not end to write, nothing."""
    with kreplica.Log.open(tmp_path / "running" / "t-0") as log:
        log.append([b"%d" % n for n in range(5)])
        # As its files are when it is killed.
        shutil.copytree(tmp_path / "running", tmp_path / "gone")
    segment = tmp_path / "gone" / "t-0" / f"{0:020}.log"
    whole = segment.read_bytes()
    batch = whole[: 12 + int.from_bytes(whole[8:12], "big")]
    segment.write_bytes(batch + (5).to_bytes(8, "big") + batch[8:40])
    assert sorted(read(spark, reader, None, path=tmp_path / "gone")) == list(range(5))
