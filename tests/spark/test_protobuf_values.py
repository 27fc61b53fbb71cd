"""Values of protobuf decoded by value.format: the types and values of Spark's from_protobuf, and bad bytes."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

import kreplica
from tests.support.protobuf_files import (
    class_of,
    enum,
    field,
    file_of,
    fill,
    map_field,
    message,
    row_of,
    set_of,
)
from tests.support.schema_registry import SchemaRegistry

MONEY = file_of("money.proto", [message("Money", field(1, "int64", "units"), field(2, "string", "currency"))])
ORDER = file_of(
    "order.proto",
    [
        message(
            "Order",
            field(1, "int64", "id"),
            field(2, "string", "name"),
            field(3, ".shop.Money", "price"),
            field(4, ".google.protobuf.Timestamp", "at"),
        )
    ],
    dependency=["money.proto", "google/protobuf/timestamp.proto"],
)
FILES = set_of(MONEY, ORDER)
Order = class_of("shop.Order", MONEY, ORDER)
A = Order(id=7, name="a", price={"units": 3, "currency": "EUR"}).SerializeToString()
ROW_OF_A = {"id": 7, "name": "a", "price": {"units": 3, "currency": "EUR"}, "at": None}

NUMBERS = (
    *("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64"),
    *("fixed32", "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes"),
)
WRAPPERS = ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")


def everything(name: str, **syntax: Any) -> Any:
    """A message with a field of each kind."""
    owner = f".shop.{name}"
    of = {"oneof_index": 0}
    single = [field(number, kind, kind, **syntax) for number, kind in enumerate(NUMBERS, 1)]
    repeated = [field(number, kind, f"{kind}s", "repeated") for number, kind in enumerate(NUMBERS, 21)]
    wrapped = [
        field(number, f".google.protobuf.{kind}Value", f"a{kind}") for number, kind in enumerate(WRAPPERS, 41)
    ]
    return message(
        name,
        *single,
        *repeated,
        *wrapped,
        field(51, f"enum {owner}.Color", "color"),
        field(52, f"enum {owner}.Color", "colors", "repeated"),
        field(53, ".shop.Money", "price"),
        field(54, ".shop.Money", "prices", "repeated"),
        field(55, ".google.protobuf.Timestamp", "at"),
        field(56, ".google.protobuf.Duration", "lasts", "repeated"),
        field(57, ".google.protobuf.Any", "anything"),
        field(58, ".google.protobuf.Empty", "nothing"),
        field(61, "string", "mail", **of),
        field(62, ".shop.Money", "fee", **of),
        field(63, "int32", "code", **of),
        map_field(71, "string", "string", "texts", owner),
        map_field(72, "int32", ".shop.Money", "by_number", owner),
        map_field(73, "bool", f"enum {owner}.Color", "by_flag", owner),
        map_field(74, "sint64", "bytes", "raw", owner),
        map_field(75, "uint32", ".google.protobuf.Timestamp", "times", owner),
        enum_type=[enum("Color", NONE=0, RED=1, BLUE=-5)],
        oneof_decl=[{"name": "one"}],
    )


KNOWN = [f"google/protobuf/{name}.proto" for name in ("any", "duration", "empty", "timestamp", "wrappers")]
EVERYTHING = file_of("everything.proto", [everything("New")], dependency=["money.proto", *KNOWN])
OLD = file_of(
    "old.proto", [everything("Old")], syntax="proto2", dependency=["money.proto", *KNOWN], package="shop"
)


def logs(path: Path, *values: bytes | None) -> Path:
    with kreplica.Log.open(path / "t-0") as log:
        log.append([kreplica.Record(value, key=b"k") for value in values])
    return path


def read(spark: SparkSession, path: Path, schema: Any, **options: str) -> DataFrame:
    text = base64.b64encode(schema).decode() if isinstance(schema, bytes) else str(schema)
    given = {"value.format": "protobuf", "value.schema": text}
    given.update({name.replace("_", "."): value for name, value in options.items()})
    return spark.read.format("kreplica").options(**given).load(str(path))


def found(frame: DataFrame) -> list[Any]:
    """The decoded values as dicts, and the bytes that were not decoded, by offset."""
    rows = frame.select("value", "undecoded").orderBy("offset").collect()
    return [row.undecoded if row.value is None else row.value.asDict(recursive=True) for row in rows]


def comparable(value: Any) -> str:
    """The same text for equal values, NaN and -0.0 among them; a map has no order."""
    if isinstance(value, Row | dict):
        items = value.asDict() if isinstance(value, Row) else value
        return str(sorted(f"{key!r}: {comparable(each)}" for key, each in items.items()))
    if isinstance(value, list):
        return str([comparable(each) for each in value])
    return repr(bytes(value) if isinstance(value, bytearray) else value)


# ---- messages --------------------------------------------------------------------------------------------


def test_messages(spark: SparkSession, reader: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "orders.desc").write_bytes(FILES)
    path = logs(tmp_path / "logs", A, b"\xff", None, b"")
    frame = read(spark, path, tmp_path / "orders.desc", **reader)
    assert found(frame) == [ROW_OF_A, b"\xff", None, dict.fromkeys(ROW_OF_A)]
    assert [row.offset for row in frame.where("value.id = 7").collect()] == [0]
    assert [row[0] for row in frame.select("value.price.units").where("offset = 0").collect()] == [3]
    assert frame.where("undecoded is not null").count() == 1
    assert frame.count() == 4


def test_types(spark: SparkSession, tmp_path: Path) -> None:
    """Those of Spark's from_protobuf: signed numbers, names of enums, wrappers as messages, nothing empty."""
    frame = read(spark, logs(tmp_path, b""), set_of(MONEY, EVERYTHING))
    types = {each.name: each.dataType.simpleString() for each in frame.schema["value"].dataType.fields}
    names = {
        **{"uint32": "int", "uint64": "bigint", "int64": "bigint", "fixed32": "int", "bytes": "binary"},
        **{"string": "string", "bool": "boolean", "float": "float", "color": "string"},
        "uint64s": "array<bigint>",
        "aUInt32": "struct<value:int>",
        "price": "struct<units:bigint,currency:string>",
        "lasts": "array<interval day to second>",
        "anything": "struct<type_url:string,value:binary>",
        "by_number": "map<int,struct<units:bigint,currency:string>>",
        "by_flag": "map<boolean,string>",
        "times": "map<int,timestamp>",
    }
    assert {name: types[name] for name in names} == names
    assert "nothing" not in types


@pytest.mark.parametrize(("name", "file"), [("shop.New", EVERYTHING), ("shop.Old", OLD)])
def test_random_messages(spark: SparkSession, tmp_path: Path, name: str, file: Any) -> None:
    kind, choice = class_of(name, MONEY, file), random.Random(name)
    made = [fill(kind(), choice) for _ in range(60)]
    path = logs(tmp_path, *(each.SerializeToString() for each in made))
    rows = found(read(spark, path, set_of(MONEY, file)))
    assert [comparable(row) for row in rows] == [comparable(row_of(each)) for each in made]


def test_presence_defaults_and_required_fields(spark: SparkSession, tmp_path: Path) -> None:
    file = file_of(
        "old.proto",
        [
            message(
                "Old",
                field(1, "int32", "needed", "required"),
                field(2, "string", "word", default_value="tea"),
                field(3, "int32", "plain"),
                field(4, "enum .shop.Size", "size", default_value="LARGE"),
            )
        ],
        syntax="proto2",
        enum_type=[enum("Size", SMALL=0, LARGE=1)],
    )
    defaults = {"needed": 0, "word": "tea", "plain": None, "size": "LARGE"}
    optional = file_of(
        "new.proto",
        [
            message(
                "New",
                field(1, "int32", "plain"),
                field(2, "int32", "known", proto3_optional=True, oneof_index=0),
                oneof_decl=[{"name": "_known"}],
            )
        ],
    )
    # An unknown number of an enum of proto2 is left out, as if the field were missing.
    path = logs(tmp_path / "old", b"\x08\x00", b"\x10\x00", b"\x08\x01\x18\x05\x20\x09")
    assert found(read(spark, path, set_of(file))) == [
        defaults,
        b"\x10\x00",
        {**defaults, "needed": 1, "plain": 5},
    ]
    path = logs(tmp_path / "new", b"", b"\x08\x00\x10\x00")
    assert found(read(spark, path, set_of(optional))) == [
        {"plain": None, "known": None},
        {"plain": None, "known": 0},
    ]


def test_what_a_message_repeats(spark: SparkSession, tmp_path: Path) -> None:
    """The last value counts, messages are merged, a key is in a map once, and numbers may be packed or not."""
    file = file_of(
        "all.proto",
        [
            message(
                "All",
                field(1, "int32", "number"),
                field(2, ".shop.Money", "price"),
                field(3, "int32", "numbers", "repeated"),
                map_field(4, "string", "int32", "sizes", ".shop.All"),
                field(5, "string", "left", oneof_index=0),
                field(6, "string", "right", oneof_index=0),
                oneof_decl=[{"name": "side"}],
            )
        ],
        dependency=["money.proto"],
    )
    value = (
        b"\x08\x01\x08\x02"
        + b"\x12\x02\x08\x05\x12\x03\x12\x01E"
        + b"\x18\x01\x1a\x02\x02\x03\x18\x04"
        + b"\x22\x05\x0a\x01a\x10\x01\x22\x05\x0a\x01a\x10\x02\x22\x00"
        + b"\x2a\x01l\x32\x01r"
    )
    assert found(read(spark, logs(tmp_path, value), set_of(MONEY, file))) == [
        {
            "number": 2,
            "price": {"units": 5, "currency": "E"},
            "numbers": [1, 2, 3, 4],
            "sizes": {"a": 2, "": 0},
            "left": None,
            "right": "r",
        }
    ]


def test_older_and_newer_messages(spark: SparkSession, tmp_path: Path) -> None:
    """Fields have numbers: unknown ones are skipped, and missing ones are null."""
    newer = file_of("order.proto", [message("Order", field(2, "string", "title"), field(9, "bytes", "more"))])
    written = class_of("shop.Order", newer)(title="b", more=b"x").SerializeToString()
    path = logs(tmp_path, written, A)
    assert found(read(spark, path, FILES)) == [{**dict.fromkeys(ROW_OF_A), "name": "b"}, ROW_OF_A]
    assert found(read(spark, path, set_of(newer))) == [
        {"title": "b", "more": b"x"},
        {"title": "a", "more": None},
    ]


def test_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "orders.desc").write_bytes(FILES)
    path = logs(tmp_path / "logs", A, b"\xff")
    frame = (
        spark.readStream.format("kreplica")
        .options(**{"value.format": "protobuf", "value.schema": f"file:{tmp_path}/orders.desc"})
        .option("startingOffsets", "earliest")
        .load(str(path))
    )
    query = frame.writeStream.format("memory").queryName("messages").trigger(availableNow=True).start()
    query.awaitTermination()
    assert found(spark.table("messages")) == [ROW_OF_A, b"\xff"]


# ---- bytes that are no message ---------------------------------------------------------------------------


def test_bad_bytes(spark: SparkSession, tmp_path: Path) -> None:
    bad = [
        A[:-1],
        b"\x08",  # a tag without its number
        b"\x08" + b"\xff" * 11,  # a number without an end
        b"\x12\xff\xff\xff\xff\x07a",  # a text of 2 GiB
        b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a length of -1
        b"\x12\x01\xff",  # a text of invalid UTF-8
        b"\x1a\x03\x12\x01\xc3",  # the same in a message within
        b"\x1a\x7f\x08\x01",  # a message that ends behind its value
        b"\x0b" * 100_000,  # groups in groups
        b"\x0b" * 90 + b"\x0c",  # groups without an end
        b"\x0c",  # the end of no group
        b"\x0e\x01",  # an unknown wire type
        b"\x00\x01",  # a tag of zero
        b"\x22\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f",  # a time beyond what Spark can hold
        b"\x01" * 3,
    ]
    path = logs(tmp_path, A, *bad, A)
    assert found(read(spark, path, FILES)) == [ROW_OF_A, *bad, ROW_OF_A]


def test_invalid_texts_of_proto2(spark: SparkSession, tmp_path: Path) -> None:
    file = file_of("old.proto", [message("Old", field(1, "string", "word"))], syntax="proto2")
    path = logs(tmp_path, b"\x0a\x01\xff", b"\x0a\x01x")
    assert found(read(spark, path, set_of(file))) == [b"\x0a\x01\xff", {"word": "x"}]


def test_damaged_messages(spark: SparkSession, tmp_path: Path) -> None:
    """Each is decoded as Python's library decodes it, or is undecoded where that refuses it."""
    kind, choice = class_of("shop.New", MONEY, EVERYTHING), random.Random(0)
    values = []
    for _ in range(400):
        value = bytearray(fill(kind(), choice).SerializeToString()[: choice.choice([40, 400, 4000])])
        for _ in range(choice.choice([0, 1, 3])):
            value[choice.randrange(len(value))] = choice.randrange(256)
        values.append(bytes(value))
    expected = []
    for value in values:
        try:
            expected.append(comparable(row_of(kind.FromString(value))))
        except Exception:
            expected.append(comparable(value))
    rows = found(read(spark, logs(tmp_path, *values), set_of(MONEY, EVERYTHING)))
    assert [comparable(row) for row in rows] == expected
