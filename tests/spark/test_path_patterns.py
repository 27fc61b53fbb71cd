"""Patterns in paths name directories, as with Spark's file sources."""

from __future__ import annotations

from pathlib import Path

import pytest
from kreplica.spark.option_table import OptionError
from kreplica.spark.path_patterns import matching
from pyspark.sql import SparkSession

import kreplica
from tests.support.spark_session import frame_of


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive")
    for number, name in enumerate(("node-1", "node-2", "other", "x[1]")):
        with kreplica.Log.open(path / name / f"t-{number}") as log:
            log.append([b"%d" % number])
    (path / "other.spark").mkdir()  # as of a sink that has written into `other`
    return path


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("node-*", ["node-1", "node-2"]),
        ("node-[^1]", ["node-2"]),
        ("{node-1,oth{er,ers}}", ["node-1", "other"]),
        ("x[1]", ["x[1]"]),
        ("none", ["none"]),
        ("oth*", ["other"]),
    ],
)
def test_what_a_pattern_matches(archive: Path, pattern: str, names: list[str]) -> None:
    assert matching([str(archive / pattern)]) == [str(archive / name) for name in names]


def test_a_pattern_that_matches_nothing(archive: Path) -> None:
    with pytest.raises(OptionError, match="n\\*ne: no directory matches this pattern"):
        matching([str(archive / "n*ne")])


def test_both_readers(spark: SparkSession, archive: Path, reader: dict[str, str]) -> None:
    frame = frame_of(spark, archive / "{node-[12],oth*}", **reader)
    assert {row.partition for row in frame.select("partition").collect()} == {0, 1, 2}
