"""Log directories that real Kafka wrote give Spark what a stock consumer read of them.

They hold every codec, transactions with aborted and open ones, compaction, LogAppendTime, odd headers, keys
and values, and logs of a node that was killed: see tests/data/kafka-4.3.
"""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.conformance.expectation import FIXTURES, Digest, ExpectedRecord, expectation, expectations
from tests.support.spark_session import frame_of

LEVELS = ("read_uncommitted", "read_committed")


def row(partition: str, record: ExpectedRecord) -> tuple[Any, ...]:
    topic, _, number = partition.rpartition("-")
    kind = 1 if record.timestamp_type == "log_append" else 0
    # A record without headers has none at all, as in Spark's own source.
    facts = (record.offset, record.timestamp, kind, record.key, record.value, record.headers or None)
    return (topic, int(number), *facts)


def wanted(ending: str, level: str) -> list[tuple[Any, ...]]:
    return [
        row(each.log.name, record)
        for each in expectations(FIXTURES / ending)
        for record in (each.committed if level == "read_committed" else each.records)
    ]


def plain(value: Any) -> Any:
    if isinstance(value, bytearray):
        return bytes(value)
    return [(pair[0], plain(pair[1])) for pair in value] if isinstance(value, list) else value


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("ending", ["clean", "unclean"])
def test_every_record_is_as_a_stock_consumer_read_it(
    spark: SparkSession, reader: dict[str, str], ending: str, level: str
) -> None:
    options = {"kafka.isolation.level": level, "includeHeaders": "true"}
    frame = frame_of(spark, FIXTURES / ending / "logs", **reader, **options)
    rows = frame.selectExpr(
        "topic", "partition", "offset", "unix_millis(timestamp)", "timestampType", "key", "value", "headers"
    ).collect()
    found = sorted((tuple(map(plain, each)) for each in rows), key=lambda each: each[:3])
    expected = wanted(ending, level)
    assert len(expected) > 100
    assert [each[:3] for each in found] == [each[:3] for each in expected]
    for ours, theirs in zip(found, expected, strict=True):
        # The long value is on the right: it knows what it is equal to.
        assert all(a == b for a, b in zip(ours, theirs, strict=True)), (ours, theirs)


@pytest.mark.parametrize("level", LEVELS)
def test_counts_need_no_column(spark: SparkSession, reader: dict[str, str], level: str) -> None:
    """Neither control records nor aborted ones nor those that compaction removed are counted."""
    frame = frame_of(spark, FIXTURES / "clean" / "logs", **reader, **{"kafka.isolation.level": level})
    counts = frame.groupBy("topic").count().collect()
    expected: dict[str, int] = {}
    for topic, *_ in wanted("clean", level):
        expected[topic] = expected.get(topic, 0) + 1
    assert {each["topic"]: each["count"] for each in counts} == expected


def test_a_range_of_a_compacted_log_and_of_one_that_is_trimmed(
    spark: SparkSession, reader: dict[str, str]
) -> None:
    frame = frame_of(
        spark,
        FIXTURES / "clean" / "logs",
        assign='{"compacted": [0], "trimmed": [0]}',
        startingOffsets='{"compacted": {"0": 101}, "trimmed": {"0": -2}}',
        endingOffsets='{"compacted": {"0": 301}, "trimmed": {"0": 47}}',
        maxRecordsPerPartition="40",
        **reader,
    )
    found = sorted(map(tuple, frame.select("topic", "offset").collect()))
    expected = [
        (name.removesuffix("-0"), each.offset)
        for name, first, stop in (("compacted-0", 101, 301), ("trimmed-0", 0, 47))
        for each in expectation(FIXTURES / "clean", name).records
        if first <= each.offset < stop
    ]
    assert found == expected


def test_the_data_has_what_is_hard() -> None:
    """What a reader may get wrong is there to be got wrong."""
    records = {each.log.name: each.records for each in expectations(FIXTURES / "clean")}
    every = [record for each in records.values() for record in each]
    assert any(record.timestamp_type == "log_append" for record in every)
    assert any(isinstance(record.value, Digest) for record in every)
    assert any(record.key is None for record in every)
    assert any(record.value is None for record in every)
    assert any(value is None for record in every for _, value in record.headers)
    assert not all(record.committed for record in records["transactions-0"])
    offsets = [record.offset for record in records["compacted-0"]]
    assert offsets != list(range(offsets[0], offsets[0] + len(offsets)))
    assert {name for name in records if name.startswith("codec-")} == {
        f"codec-{codec}-0" for codec in ("none", "gzip", "snappy", "lz4", "zstd")
    }
