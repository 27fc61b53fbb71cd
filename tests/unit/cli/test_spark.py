"""What the commands make of Spark's messages."""

from __future__ import annotations

import pytest

from kreplica.cli import spark

STACK = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: An error has occurred
=== Streaming Query ===
Identifier: [id = 1, runId = 2]
Traceback (most recent call last):
  File "x.py", line 1, in write
    writer.parquet(out)
pyspark.errors.exceptions.captured.IllegalArgumentException: t-0: damaged records, offsets 9 to 11 (a.log)
org.apache.spark.SparkException: Job aborted: due to stage failure
\tat py4j.Protocol.getReturnValue(Protocol.java:476)
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (STACK, "t-0: damaged records, offsets 9 to 11 (a.log)"),
        (f"{STACK}kreplica.common.errors.DamagedLog: t-0: lost\n{STACK}", "t-0: lost"),
        (
            "[PATH_ALREADY_EXISTS] Path file:/x already exists.\nJVM stacktrace:\n",
            "[PATH_ALREADY_EXISTS] Path",
        ),
        ("", ""),
    ],
)
def test_the_line_that_says_what_went_wrong(text: str, said: str) -> None:
    assert spark._told(text).startswith(said)
    assert "\n" not in spark._told(text)
