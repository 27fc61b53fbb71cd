"""The Spark session of a command: the active one, else a new one. Thread rule: one command at a time."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

import spark_connector

DEFAULT_MASTER = "local[*]"


@contextmanager
def session(master: str = DEFAULT_MASTER) -> Iterator[SparkSession]:
    """Yield a session on `master`, a Spark URL, and stop it at the end; an active session stays.

    Raises NoJavaRuntime.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        spark_connector.register(running)
        yield running
        return
    made = _make(master)
    try:
        spark_connector.register(made)
        yield made
    finally:
        made.stop()


def _make(master: str) -> SparkSession:
    spark_connector.use_java()
    builder = (
        SparkSession.builder.master(master)
        .appName("kreplica")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.python.unix.domain.socket.enabled", "true")
    )
    if master.startswith("local"):
        # This Python has the packages; the first python3 on the PATH may not. And this machine's own host
        # name may not resolve.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = builder.config("spark.driver.host", "127.0.0.1")
    return builder.getOrCreate()
