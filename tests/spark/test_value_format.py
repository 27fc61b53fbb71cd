"""Values decoded by value.format, with both readers; bytes of another kind are in a column."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import kreplica
from tests.support.schema_registry import SchemaRegistry

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "sizes", "type": {"type": "map", "values": "double"}},
    ],
}
# id 7, name a, at 1 ms, one tag t, no sizes
ORDER = b"\x0e" + b"\x02\x02a" + b"\x02" + b"\x02\x02t\x00" + b"\x00"


def logs(path: Path, *values: bytes | None) -> Path:
    with kreplica.Log.open(path / "t-0") as log:
        log.append([kreplica.Record(value, key=b"k") for value in values])
    return path


def read(spark: SparkSession, path: Path, **options: str) -> Any:
    given = {name.replace("_", "."): value for name, value in options.items()}
    return spark.read.format("kreplica").options(**given).load(str(path))


def test_json(spark: SparkSession, reader: dict[str, str], tmp_path: Path) -> None:
    path = logs(tmp_path, b'{"id": 1, "in": {"x": 1.5}}', b"no json", None, b'{"id": "text"}', b'{"id": 2}')
    schema = {"value_format": "json", "value_schema": "id long, in struct<x: double>"}
    frame = read(spark, path, **schema, **reader)
    rows = frame.selectExpr("offset", "value.id", "value.in.x", "undecoded").orderBy("offset").collect()
    assert [tuple(row) for row in rows] == [
        (0, 1, 1.5, None),
        (1, None, None, b"no json"),
        (2, None, None, None),
        (3, None, None, b'{"id": "text"}'),
        (4, 2, None, None),
    ]
    assert [row.offset for row in frame.where("value.id = 2 and offset > 0").collect()] == [4]
    assert frame.count() == 5
    inferred = read(spark, logs(tmp_path / "other", b'{"id": 1, "a": "b"}'), value_format="json")
    assert inferred.select("value.*").columns == ["a", "id"]


def test_avro(spark: SparkSession, tmp_path: Path) -> None:
    answer, registry = tmp_path / "answer.json", tmp_path / "registry.json"
    answer.write_text(json.dumps({"id": 5, "schema": json.dumps(AVRO)}))
    registry.write_text(json.dumps({"5": json.dumps(AVRO)}))
    path = logs(tmp_path / "logs", ORDER, b"\x00\x00\x00\x00\x05" + ORDER, b"\xff\xff")
    frame = read(
        spark, path, value_format="avro", value_schema=str(answer), value_registry=str(registry)
    ).selectExpr("value.id", "value.name", "unix_millis(value.at)", "value.tags", "value.sizes", "undecoded")
    good = (7, "a", 1, ["t"], {}, None)
    assert sorted(map(tuple, frame.collect()), key=str) == [good, good, (None,) * 5 + (b"\xff\xff",)]


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    answer = {"schema": json.dumps(AVRO)}
    answers = {
        "/schemas/ids/5": answer,
        "/subjects/t-value/versions/latest": {"id": 5, "version": 1, **answer},
    }
    with SchemaRegistry(answers) as made:
        yield made


def test_a_registry_by_its_url(spark: SparkSession, registry: SchemaRegistry, tmp_path: Path) -> None:
    """The schema of values that name none, and those of values that do, each fetched once in a task."""
    named = b"\x00\x00\x00\x00\x05" + ORDER
    path = logs(tmp_path, named, ORDER, named, b"\x00\x00\x00\x00\x06" + ORDER)
    url = f"{registry.url}/subjects/t-value/versions/latest"
    frame = read(spark, path, value_format="avro", value_schema=url, value_registry=f"{registry.url}/")
    found = frame.where("offset < 3").selectExpr("value.id", "value.name", "undecoded").collect()
    assert [tuple(row) for row in found] == [(7, "a", None)] * 3
    assert registry.asked.count("/schemas/ids/5") == 1
    unknown = frame.where("offset = 3").selectExpr("value", "undecoded").collect()
    assert [tuple(row) for row in unknown] == [(None, b"\x00\x00\x00\x00\x06" + ORDER)]
    with pytest.raises(PySparkException, match=rf"\Avalue.schema: {registry.url}/none could not be read"):
        read(spark, path, value_format="avro", value_schema=f"{registry.url}/none")


def test_text_in_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    path = logs(tmp_path, b"plain", b"\xff")
    frame = (
        spark.readStream.format("kreplica")
        .option("startingOffsets", "earliest")
        .option("value.format", "string")
        .load(str(path))
    )
    query = frame.writeStream.format("memory").queryName("texts").trigger(availableNow=True).start()
    query.awaitTermination()
    rows = spark.table("texts").select("value", "undecoded").collect()
    assert sorted(map(tuple, rows), key=str) == [("plain", None), (None, b"\xff")]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"value_format": "avro"}, "value.schema: give the schema of Avro"),
        ({"value_format": "avro", "value_schema": "{}"}, "value.schema: not a schema of Avro"),
        ({"value_format": "json", "value_schema": "id lng"}, "value.schema: not a schema such as .*lng"),
        ({"value_format": "json", "value_schema": "/no/such"}, "value.schema: /no/such could not be read"),
        ({"value_format": "xml"}, "value.format: 'xml' is not one of string, json, avro, protobuf"),
        ({"value_schema": "id long"}, "value.schema, value.message and value.registry need .* value.format"),
        (
            {"value_format": "json", "value_message": "a.B"},
            "value.message: has no effect with the format json",
        ),
    ],
)
def test_what_is_refused(spark: SparkSession, tmp_path: Path, options: dict[str, str], text: str) -> None:
    with pytest.raises(PySparkException, match=rf"\A{text}"):
        read(spark, logs(tmp_path, b"x"), **options).collect()
