"""One Spark session for all tests of a process, with an installed Java runtime or the one of a package.

Spark's workers are new processes, which find the packages through PYTHONPATH.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import kreplica.spark
from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]

# The readers of format("kreplica") by name, with the options that select each; reading is tested
# with all of them.
READERS = {"python": {"reader": "python"}, "jvm": {"reader": "jvm"}}


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
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
    )
    if jars:
        builder = builder.config("spark.jars", ",".join(jars))
    session = builder.getOrCreate()
    kreplica.spark.register(session)
    try:
        yield session
    finally:
        session.stop()
