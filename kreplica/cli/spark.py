"""`--engine spark`: the same commands on Spark, for archives larger than one machine.

Only this file of the commands uses kreplica.spark. It is imported when a command runs, so other commands do
not need pyspark.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from kreplica.cli import diff as diff_command
from kreplica.cli import offsets as offsets_command
from kreplica.cli import verify as verify_command
from kreplica.cli.output import print_json, refuse, say
from kreplica.log.verify import Problem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kreplica.common.isolation import Isolation

# The last line of a Python stack: the class with its modules, and the message.
_ERROR = re.compile(r"(?P<package>[a-z]\w*)(?:\.\w+)*\.[A-Z]\w*: (?P<said>.+)")


def verify(paths: Sequence[str], master: str, as_json: bool) -> int:
    """Run `verify` on Spark, with the output of kreplica.cli.verify.run in another order."""

    def run(spark: SparkSession) -> int:
        from kreplica.spark import jobs

        rows = jobs.verify(spark, paths).toLocalIterator()
        problems = (Problem(row.path, row.kind, row.text, row.offset, row.position) for row in rows)
        return verify_command.report(problems, verify_command.total_size(paths), as_json)

    return _with_spark(master, run)


def diff(left: str, right: str, by_record: bool, isolation: Isolation, master: str, as_json: bool) -> int:
    """Run `diff` on Spark, with the output of kreplica.cli.diff.run."""

    def run(spark: SparkSession) -> int:
        from kreplica.spark import jobs

        compared = jobs.compare(spark, left, right, by_record=by_record, isolation=isolation)
        rows = compared.orderBy("topic", "partition")
        facts = (json.loads(row.report) for row in rows.toLocalIterator())
        return diff_command.report(facts, as_json)

    return _with_spark(master, run)


def offsets(
    paths: Sequence[str],
    topics: Sequence[str],
    isolation: str,
    group: str | None,
    master: str,
    as_json: bool,
) -> int:
    """Run `offsets` on Spark, with the output of kreplica.cli.offsets.run."""

    def run(spark: SparkSession) -> int:
        from kreplica.spark.jobs import offsets_table

        rows = offsets_table.rows(spark, paths, topics=topics, level=isolation, group=group)
        offsets_command.report(rows, as_json)
        return 0

    return _with_spark(master, run)


def export(
    directories: Sequence[str],
    out: str,
    *,
    columns: Sequence[str],
    committed: bool,
    skip_damaged: bool,
    file_rows: int | None,
    latest: bool,
    master: str,
    as_json: bool,
) -> int:
    """Write new records into the Parquet files in `out`, or with `latest` the last values into new ones;
    returns the exit code.

    `committed`: without the records of open and aborted transactions.
    """
    options = {
        "paths": json.dumps(list(directories)),
        "kafka.isolation.level": "read_committed" if committed else "read_uncommitted",
        "skipDamaged": "true" if skip_damaged else "false",
    }

    def run(spark: SparkSession) -> int:
        from kreplica.spark import jobs

        try:
            write = jobs.export_latest if latest else jobs.export
            done = write(spark, options, out, columns=columns, file_rows=file_rows)
        except jobs.JobError as error:
            return refuse(str(error))
        if as_json:
            print_json(asdict(done))
        else:
            rate = done.rows / max(done.seconds, 1e-9)
            say(f"{done.rows:,} rows to {out} ({rate:,.0f} rows/s)")
        return 0

    return _with_spark(master, run)


def _with_spark(master: str, command: Callable[[SparkSession], int]) -> int:
    """Run `command` and return its exit code; 1 if Spark is not installed or fails."""
    try:
        from pyspark.errors import PySparkException

        from kreplica.spark.java_runtime import NoJavaRuntime
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("pyspark", "py4j", "pyarrow"):
            raise
        return refuse(
            f"--engine spark needs {package}, which is not installed: pip install 'kreplica[spark]'"
        )
    # Spark logs the stack of a failed batch, and raises it too.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    try:
        with _session(master) as spark:
            return command(spark)
    except NoJavaRuntime as error:
        return refuse(f"--engine spark: {error}")
    except PySparkException as error:
        return refuse(f"Spark: {_told(str(error))}")


@contextmanager
def _session(master: str) -> Iterator[SparkSession]:
    """Yield the active session; else a new one on `master`, a Spark URL, which is stopped at the end.

    Raises NoJavaRuntime.
    """
    from pyspark.sql import SparkSession

    import kreplica.spark

    running = SparkSession.getActiveSession()
    session = _new_session(master) if running is None else running
    try:
        kreplica.spark.register(session)
        yield session
    finally:
        if running is None:
            session.stop()


def _new_session(master: str) -> SparkSession:
    from pyspark.sql import SparkSession

    import kreplica.spark

    kreplica.spark.use_java()
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


def _told(text: str) -> str:
    """Return the essential line of one of Spark's messages, which contain whole stacks: kreplica's error if
    there is one, else the last of Python's, else the first line."""
    found = [match for line in text.splitlines() if (match := _ERROR.fullmatch(line.strip()))]
    own = [match["said"] for match in found if match["package"] == "kreplica"]
    others = [match["said"] for match in found if match["package"] == "pyspark"]
    return (own or others or [text.strip().partition("\n")[0]])[-1]
