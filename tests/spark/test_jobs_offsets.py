"""The table of offsets by Spark is the one-machine tool's."""

from __future__ import annotations

from pathlib import Path

import pytest
from kreplica.spark import jobs
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import kreplica
from kreplica.cli.app import app
from kreplica.common.errors import InvalidFile
from kreplica.log import record_counts
from tests.conformance.expectation import FIXTURES

KAFKA = FIXTURES / "clean" / "logs"


@pytest.mark.parametrize("isolation", ["high_watermark", "txn_committed"])
def test_the_command_says_the_same_on_both_engines(
    spark: SparkSession, isolation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every segment is a task's, so that counts are joined over the borders of segments."""
    assert SparkSession.getActiveSession() is spark
    monkeypatch.setattr(record_counts, "PART_BYTES", 1)
    with kreplica.Log.open(tmp_path / "codec-none-0") as log:
        log.append([b"x"] * 20)
    arguments = ["offsets", str(KAFKA), str(tmp_path), "--isolation", isolation, "--group", "group", "--json"]
    one, many = (CliRunner().invoke(app, [*arguments, *more]) for more in ([], ["--engine", "spark"]))
    assert (one.exit_code, many.exit_code) == (0, 0), many.output
    assert many.stdout == one.stdout
    assert len(one.stdout.splitlines()) == 14


def test_a_row_for_each_replica(spark: SparkSession) -> None:
    found = jobs.offsets(spark, KAFKA, topics=["trimmed", "transactions"], isolation="read_committed")
    rows = {row.topic: row for row in found.collect()}
    assert sorted(rows) == ["transactions", "trimmed"]
    assert (rows["trimmed"].records, rows["trimmed"].log_start_offset, rows["trimmed"].gaps) == (38, 42, 0)
    assert rows["transactions"].missing > 0
    assert found.where("gaps > 0").count() == 1


def test_what_cannot_be_asked(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(jobs.JobError, match="isolation 'dirty' is not one of"):
        jobs.offsets(spark, KAFKA, isolation="dirty")
    with pytest.raises(InvalidFile, match="no such directory"):
        jobs.offsets(spark, tmp_path / "missing")
    with pytest.raises(InvalidFile, match="no partition of absent"):
        jobs.offsets(spark, KAFKA, topics=["absent"])
