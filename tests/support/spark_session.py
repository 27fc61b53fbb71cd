"""One Spark session for all tests of a process, with an installed Java runtime or the one of a package.

Spark's workers are new processes, which find the packages through PYTHONPATH.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kreplica.spark
import pyarrow
from kreplica.spark.option_table import OptionError
from kreplica.spark.schema import SchemaError
from kreplica.spark.source import KreplicaDataSource
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from kreplica.common.errors import KreplicaError

ROOT = Path(__file__).resolve().parents[2]

# The readers of format("kreplica") by name, with the options that select each; reading is tested
# with all of them.
READERS = {"python": {"reader": "python"}, "jvm": {"reader": "jvm"}}
# A JVM of a few minutes spends more on compiling well, and on threads that collect garbage, than it gains.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=256m"
READER_SETTING = "spark.datasource.kreplica.reader"


def frame_of(spark: SparkSession, path: Path | str, schema: str | None = None, **options: str) -> DataFrame:
    """Return what format("kreplica") reads of the directory, by the reader of the options or of the session.

    The Python reader reads in this process: a worker of Spark's takes a second to start. Its errors are
    PySparkExceptions, too.
    """
    given = {"path": str(path), **options}
    if given.pop("reader", spark.conf.get(READER_SETTING, "")) != "python":
        reader = spark.read.format("kreplica").options(**{**given, **options})
        return (reader if schema is None else reader.schema(schema)).load()
    try:
        source = KreplicaDataSource(given)
        columns = source.schema() if schema is None else StructType.fromDDL(schema)
        made = source.reader(columns)
        batches: Any = [batch for task in made.partitions() for batch in made.read(task)]
    except (KreplicaError, OptionError, SchemaError) as error:
        raise PySparkException(str(error)) from error
    rows = pyarrow.Table.from_batches(batches, to_arrow_schema(columns, timezone="UTC"))
    return spark.createDataFrame(rows, columns)


@contextmanager
def reading_by(session: SparkSession, reader: Mapping[str, str]) -> Iterator[SparkSession]:
    """Set these options for all reads of the session."""
    for name, value in reader.items():
        session.conf.set(f"spark.datasource.kreplica.{name}", value)
    try:
        yield session
    finally:
        for name in reader:
            session.conf.unset(f"spark.datasource.kreplica.{name}")


@contextmanager
def spark_session(
    scratch: Path, jars: Sequence[str] = (), master: str = "local[2]"
) -> Iterator[SparkSession]:
    """Yield a session with `jars` besides Spark's own; `scratch` is for its files."""
    kreplica.spark.use_java()
    # At the end of the process it says goodbye to streams that are closed by then.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    builder = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", str(scratch))
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.extraJavaOptions", JAVA_OPTIONS)
    )
    if jars:
        builder = builder.config("spark.jars", ",".join(jars))
    session = builder.getOrCreate()
    kreplica.spark.register(session)
    try:
        yield session
    finally:
        session.stop()
