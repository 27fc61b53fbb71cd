"""Values of protobuf decoded by value.format: types and values as of Spark's from_protobuf, and bad bytes."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import EDITION_2023
from google.protobuf.message import DecodeError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

import kreplica
from tests.support.protobuf_files import (
    Kind,
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


def everything(name: str, *more: Any) -> Any:
    """A message with a field of each kind, and with more."""
    owner = f".shop.{name}"
    of = {"oneof_index": 0}
    single = [field(number, kind, kind) for number, kind in enumerate(NUMBERS, 1)]
    repeated = [field(number, kind, f"{kind}s", "repeated") for number, kind in enumerate(NUMBERS, 21)]
    wrapped = [
        field(number, f".google.protobuf.{kind}Value", f"a{kind}") for number, kind in enumerate(WRAPPERS, 41)
    ]
    return message(
        name,
        *single,
        *repeated,
        *wrapped,
        *more,
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
GROUP = field(80, ".shop.Money", "group", "repeated", type=Kind.TYPE_GROUP)
OLD = file_of("old.proto", [everything("Old", GROUP)], syntax="proto2", dependency=["money.proto", *KNOWN])
NEXT = file_of(
    "next.proto",
    [everything("Next")],
    syntax="editions",
    edition=EDITION_2023,
    dependency=["money.proto", *KNOWN],
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
    rows = sorted(frame.select("offset", "value", "undecoded").collect(), key=lambda row: row.offset)
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
        "uint32": "int",
        "uint64": "bigint",
        "fixed32": "int",
        "float": "float",
        "bool": "boolean",
        "string": "string",
        "bytes": "binary",
        "color": "string",
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


@pytest.mark.parametrize("name", ["New", "Old", "Next"])
def test_random_messages(spark: SparkSession, tmp_path: Path, name: str) -> None:
    file = {"New": EVERYTHING, "Old": OLD, "Next": NEXT}[name]
    kind, choice = class_of(f"shop.{name}", MONEY, file), random.Random(name)
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
    """The last value counts, messages are merged, a map has a key once, and numbers may be packed or not."""
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
    """Those that Python's library refuses are undecoded, and no others."""
    kind, choice = class_of("shop.New", MONEY, EVERYTHING), random.Random(0)
    values = []
    for _ in range(400):
        value = bytearray(fill(kind(), choice).SerializeToString()[: choice.choice([40, 400, 4000])])
        for _ in range(choice.choice([0, 1, 3])):
            value[choice.randrange(len(value))] = choice.randrange(256)
        values.append(bytes(value))
    refused = []
    for value in values:
        try:
            kind.FromString(value)
        except DecodeError:
            refused.append(value)
    rows = found(read(spark, logs(tmp_path, *values), set_of(MONEY, EVERYTHING)))
    assert [row for row in rows if not isinstance(row, dict)] == refused
    assert 100 < len(refused) < 350


# ---- registries ------------------------------------------------------------------------------------------


def named(schema_id: int, place: bytes, value: bytes) -> bytes:
    """A value as Confluent's serializer writes it; `place` says which message of the schema it is."""
    return b"\x00" + schema_id.to_bytes(4) + place + value


def text_of(file: Any) -> str:
    return base64.b64encode(file.SerializeToString()).decode()


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    """The order of this page as 5, one with other fields as 6, and one behind other messages as 7."""
    money = {"name": "money.proto", "subject": "the money/proto", "version": 2}
    order = {"schemaType": "PROTOBUF", "schema": text_of(ORDER), "references": [money]}
    newer = file_of("default", [message("Order", field(2, "string", "name"), field(9, "bytes", "more"))])
    moved = file_of("default", [message("Payment"), message("Order", nested_type=[message("Line")])])
    answers = {
        "/schemas/ids/5": order,
        "/schemas/ids/6": {"schema": text_of(newer)},
        "/schemas/ids/7": {"schema": text_of(moved)},
        "/schemas/ids/8": {"schema": '{"type": "string"}'},
        "/subjects/t-value/versions/latest": {"id": 5, "version": 1, **order},
        "/subjects/the%20money%2Fproto/versions/2": {"schema": text_of(MONEY)},
    }
    with SchemaRegistry({f"{path}?format=serialized": each for path, each in answers.items()}) as made:
        yield made


def test_a_registry_by_its_url(spark: SparkSession, registry: SchemaRegistry, tmp_path: Path) -> None:
    """The reader's schema with a file it refers to, and the message that each value is."""
    other = Order(name="b").SerializeToString()
    undecoded = [
        named(7, b"\x00", A),  # a Payment
        named(7, b"\x04\x02\x00", A),  # a Line
        named(7, b"\x02\x06", A),  # a message that there is not
        named(7, b"\x01", A),
        named(8, b"\x00", A),  # a schema of another kind
        named(9, b"\x00", A),  # a schema that there is not
        named(9, b"\x00", A),
        named(5, b"\x00", A)[:4],
        named(5, b"", b""),
    ]
    decoded = [
        named(5, b"\x00", A),
        A,
        named(5, b"\x02\x00", A),
        named(6, b"\x00", other + b"\x4a\x01x"),
        named(7, b"\x02\x02", A),
    ]
    url = f"{registry.url}/subjects/t-value/versions/latest"
    frame = read(spark, logs(tmp_path, *decoded, *undecoded), url, value_registry=f"{registry.url}/")
    b = {**dict.fromkeys(ROW_OF_A), "name": "b"}
    assert found(frame) == [ROW_OF_A, ROW_OF_A, ROW_OF_A, b, ROW_OF_A, *undecoded]
    asked = [path.partition("?")[0] for path in registry.asked if path.startswith("/schemas/ids/")]
    assert sorted(asked) == [f"/schemas/ids/{number}" for number in (5, 6, 7, 8, 9)]


def test_a_registry_that_answers_with_something_else(
    spark: SparkSession, registry: SchemaRegistry, tmp_path: Path
) -> None:
    frame = read(spark, logs(tmp_path, named(5, b"\x00", A)), FILES, value_registry=registry.url)
    for answer, text in (
        (500, "value.registry: .*/schemas/ids/5.* could not be read"),
        ({"schema": "syntax = proto3;"}, "value.registry: the schema 5 in .* is not in the serialized form"),
    ):
        registry.answers["/schemas/ids/5?format=serialized"] = answer
        with pytest.raises(PySparkException, match=rf"\A{text}"):
            frame.collect()


def test_a_registry_in_a_file(spark: SparkSession, tmp_path: Path) -> None:
    registry, answer = tmp_path / "registry.json", tmp_path / "answer.json"
    registry.write_text(json.dumps({"5": text_of(ORDER)}))
    alone = file_of("default", [message("Order", field(1, "int64", "id"))])
    answer.write_text(json.dumps({"id": 6, "schema": text_of(alone)}))
    path = logs(tmp_path / "logs", named(5, b"\x00", A), named(6, b"\x00", A))
    frame = read(spark, path, answer, value_registry=str(registry))
    assert found(frame) == [{"id": 7}, named(6, b"\x00", A)]


def test_named_values_without_a_registry(spark: SparkSession, tmp_path: Path) -> None:
    """The reader's file says which message a value is."""
    line = message("Line", field(1, "int64", "number"))
    file = file_of("two.proto", [message("Order", field(1, "int64", "id"), nested_type=[line]), line])
    values = [named(1, place, b"\x08\x07") for place in (b"\x00", b"\x02\x02", b"\x04\x00\x00")]
    path = logs(tmp_path, *values)
    for chosen, at, row in (
        ("shop.Order", 0, {"id": 7}),
        ("shop.Line", 1, {"number": 7}),
        ("shop.Order.Line", 2, {"number": 7}),
    ):
        rows = found(read(spark, path, set_of(file), value_message=chosen))
        assert rows == [*values[:at], row, *values[at + 1 :]]


# ---- what is refused -------------------------------------------------------------------------------------

TWO = file_of("two.proto", [message("One", field(1, "int32", "a")), message("Two", field(1, "int32", "b"))])
TREE = file_of(
    "tree.proto", [message("Tree", map_field(1, "string", ".shop.Tree", "children", ".shop.Tree"))]
)


@pytest.mark.parametrize(
    ("schema", "options", "text"),
    [
        (
            set_of(ORDER),
            {},
            "value.schema: the file that defines shop.Money, the type of shop.Order.price, is missing",
        ),
        (
            set_of(TREE),
            {},
            "value.schema: the field shop.Tree.ChildrenEntry.value holds a shop.Tree within another",
        ),
        (set_of(TWO), {}, "value.message: name the message that values are, one of shop.One, shop.Two"),
        (
            set_of(TWO),
            {"value_message": "One"},
            "value.message: the schema has no message 'One', one of shop.One",
        ),
        (
            set_of(file_of("e.proto", [message("Empty")])),
            {},
            "value.schema: the message shop.Empty has no fields",
        ),
        (set_of(file_of("a.proto", [], dependency=["a.proto"])), {}, "value.schema: a.proto imports itself"),
        (
            set_of(file_of("a.proto", [message("A", field(1, "int32", "x"), field(1, "int32", "y"))])),
            {},
            "value.schema: not a valid schema of protobuf: .*number 1",
        ),
        (
            "syntax = 'proto3';",
            {},
            "value.schema: not a FileDescriptorSet of protobuf .text that is not base64.: name",
        ),
        ("orders.desc", {}, "value.schema: not a FileDescriptorSet of protobuf"),
        (FILES[:-3], {}, "value.schema: not a FileDescriptorSet of protobuf"),
        ("/no/such", {}, "value.schema: /no/such could not be read"),
        (
            '{"schema": "syntax = proto3;"}',
            {},
            "value.schema: the answer of the registry .*ask with .format=serialized",
        ),
        (
            json.dumps({"schema": text_of(ORDER), "references": [{"name": "money.proto"}]}),
            {},
            "value.schema: imports money.proto, which a registry has: set value.registry to its URL",
        ),
    ],
    ids=lambda given: "" if not isinstance(given, str) else given[:60],
)
def test_what_is_refused(
    spark: SparkSession, tmp_path: Path, schema: Any, options: dict[str, str], text: str
) -> None:
    with pytest.raises(PySparkException, match=rf"\A{text}"):
        read(spark, logs(tmp_path, A), schema, **options)


def test_no_schema(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(
        PySparkException, match=r"\Avalue.schema: name the file that protoc --include_imports"
    ):
        spark.read.format("kreplica").option("value.format", "protobuf").load(str(logs(tmp_path, A)))


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ("value struct<id: bigint, nope: int>", "schema: value has no field nope, only id, name, price, at"),
        ("value struct<price: struct<units: int>>", "schema: value.price.units is bigint, not int"),
        ("value string", "schema: value is struct<.*>, not string"),
    ],
)
def test_a_schema_with_other_fields(spark: SparkSession, tmp_path: Path, columns: str, text: str) -> None:
    options = {"value.format": "protobuf", "value.schema": base64.b64encode(FILES).decode()}
    frame = spark.read.format("kreplica").schema(columns).options(**options).load(str(logs(tmp_path, A)))
    with pytest.raises(PySparkException, match=rf"\A{text}"):
        frame.collect()


def test_a_schema_with_fewer_fields(spark: SparkSession, tmp_path: Path) -> None:
    options = {"value.format": "protobuf", "value.schema": base64.b64encode(FILES).decode()}
    schema = "value struct<price: struct<currency: string>>"
    frame = spark.read.format("kreplica").schema(schema).options(**options).load(str(logs(tmp_path, A)))
    assert [row.value.asDict(recursive=True) for row in frame.collect()] == [{"price": {"currency": "EUR"}}]
