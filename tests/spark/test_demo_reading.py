"""What the demo has Spark count is what the table says; a flight that is lost, twice or misplaced is seen."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import kreplica
from bench.demo import reading
from bench.demo.flights import messages, route_sums
from bench.demo.sums import worst_routes
from tests.support.made_flights import made_flights

TOTAL = 600


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The flights in two partitions."""
    made = tmp_path_factory.mktemp("flights")
    records = list(messages(made_flights(TOTAL)))
    for partition in (0, 1):
        with kreplica.Log.open(made / f"flights-{partition}") as log:
            log.append(records[partition::2])
    return made


def test_batch(spark: SparkSession, directory: Path) -> None:
    table = made_flights(TOTAL)
    found = reading.read(reading.batch(spark, path=str(directory), subscribe="flights"))
    assert found.is_each_once(TOTAL)
    assert found.tasks == 2
    assert found.sums == route_sums(table)
    assert found.worst == worst_routes(table_sums := route_sums(table))
    assert len(found.worst) == len({route[:2] for route in table_sums})


def test_what_is_lost_or_twice(spark: SparkSession, directory: Path) -> None:
    whole = {"path": str(directory), "subscribe": "flights"}
    ends = reading.offsets_json("flights", (TOTAL // 2 - 1, TOTAL // 2))
    assert not reading.read(reading.batch(spark, **whole, endingOffsets=ends)).is_each_once(TOTAL)
    once = reading.batch(spark, **whole)
    twice = once.unionByName(once.where("number = 5"))
    assert not reading.read(twice).is_each_once(TOTAL)
    strange = once.selectExpr(
        "case when number = 5 then 'N0' else key end as key",
        "task",
        "number",
        "carrier",
        "month",
        "origin",
        "dest",
        "dep_delay",
        "tailnum",
    )
    found = reading.read(strange)
    assert (found.misplaced, found.is_each_once(TOTAL)) == (1, False)


def test_stream(spark: SparkSession, directory: Path, tmp_path: Path) -> None:
    whole = {"path": str(directory), "subscribe": "flights"}
    middle = reading.offsets_json("flights", (100, 150))
    stream = reading.FlightStream(spark, reading.stream(spark, **whole, startingOffsets=middle), tmp_path)
    stream.finish()
    assert stream.progress == (1, TOTAL - 250)
    before = reading.batch(spark, **whole, endingOffsets=middle)
    found = reading.read(before.unionByName(stream.read()))
    assert found.is_each_once(TOTAL)
    assert found.sums == route_sums(made_flights(TOTAL))
