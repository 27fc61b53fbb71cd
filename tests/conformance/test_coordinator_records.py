"""Our records in the topics of coordinators and Kafka's: the schemas in its jars, and the bytes it writes."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

import kreplica
from kreplica.common.message import Record, fields_of, to_json
from kreplica.common.types import Uuid
from kreplica.coordinator import group_records, share_records
from kreplica.coordinator.group_records import RECORD_KINDS
from tests.conformance.kafka_peer import HERE, dump_segments, run_java
from tests.conformance.test_metadata_records import (
    declared,
    schemas,
    without_optional_defaults,
    written_fields,
)
from tests.support.coordinator_records import WRITTEN_BY_KAFKA, Example, examples

pytestmark = pytest.mark.conformance


def check_schema(kind: type[Record], schema: dict, highest: int) -> None:
    """The class declares what the schema says."""
    assert schema["validVersions"] == (f"0-{highest}" if highest else "0"), schema["name"]
    structures = {each["name"]: capitalized(each["fields"]) for each in schema.get("commonStructs", ())}
    ours = declared(kind)
    theirs = written_fields(capitalized(schema["fields"]), structures)
    assert with_absent(ours, kind) == without_optional_defaults(theirs, ours), schema["name"]


def capitalized(fields: list[dict]) -> list[dict]:
    """The old schemas have names in lower case, and one tagged field has no other versions."""
    return [
        {"versions": field.get("taggedVersions"), **field}
        | {"name": field["name"][0].upper() + field["name"][1:]}
        | ({"fields": capitalized(field["fields"])} if "fields" in field else {})
        for field in fields
    ]


def with_absent(rows: list[tuple], kind: type[Record]) -> list[tuple]:
    """Our rows with the value of an absent field where it is another than the default.

    A tagged structure is empty if absent, where the schema has no default, or null instead of "null".
    """
    return [
        row if field.absent is field.default else (*row[:5], 0, row[6])
        for row, field in zip(rows, fields_of(kind), strict=True)
    ]


def keys_and_values(jar: str) -> dict[tuple[int, str], dict]:
    return {
        (schema["apiKey"], schema["type"].removeprefix("coordinator-")): schema
        for schema in schemas(jar, r"common/message/.*\.json").values()
    }


def test_the_schemas_of_groups_are_kafkas() -> None:
    published = keys_and_values("kafka-group-coordinator")
    assert {number for number, _ in published} == RECORD_KINDS.keys()
    for number, kind in RECORD_KINDS.items():
        assert f"{kind.name}Key" == published[number, "key"]["name"]
        check_schema(kind.key, published[number, "key"], 0)
        if number:
            check_schema(kind.value, published[number, "value"], kind.highest_version)


def test_the_schemas_of_share_state_are_kafkas() -> None:
    published = keys_and_values("kafka-share-coordinator")
    kinds = ("ShareSnapshot", "ShareUpdate")
    assert {number for number, _ in published} == {0, 1}
    for number, name in enumerate(kinds):
        for part in ("Key", "Value"):
            schema = published[number, part.lower()]
            assert schema["name"] == f"{name}{part}"
            check_schema(getattr(share_records, schema["name"]), schema, 0)


def whole_json(message: Record, version: int) -> object:
    """Kafka's reader of JSON wants every field, tagged ones with their default included."""
    shown = to_json(message, version)
    for field in fields_of(type(message)):
        value = getattr(message, field.name)
        if field.is_in(version) and field.json_name not in shown:
            shown[field.json_name] = str(value) if isinstance(value, Uuid) else value
        if isinstance(value, Record):
            shown[field.json_name] = whole_json(value, version)
        elif field.is_array and field.structure is not None and value:
            shown[field.json_name] = [whole_json(each, version) for each in value]
    return shown


def as_line(each: Example) -> str:
    kind = "group" if each.serde is group_records else "share"
    key, value = whole_json(each.key, 0), whole_json(each.value, each.version)
    return json.dumps([kind, each.number, each.version, key, value])


def test_kafka_writes_the_same_bytes() -> None:
    lines = [as_line(each) for each in examples()]
    source = HERE / "java" / "CoordinatorRecords.java"
    written = run_java("CoordinatorRecords", sources=(source,), standard_input="\n".join(lines) + "\n")
    assert written.splitlines() == [f"{each.key_bytes.hex()} {each.value_bytes.hex()}" for each in examples()]
    assert written == WRITTEN_BY_KAFKA.read_text()


@pytest.mark.parametrize(
    ("topic", "decoder", "serde"),
    [
        ("__consumer_offsets", "--offsets-decoder", group_records),
        ("__share_group_state", "--share-group-state-decoder", share_records),
    ],
)
def test_kafkas_tool_reads_each_record_of_ours(
    tmp_path: Path, topic: str, decoder: str, serde: ModuleType
) -> None:
    records = [each for each in examples() if each.serde is serde]
    directory = tmp_path / f"{topic}-0"
    with kreplica.Log.open(directory) as log:
        log.append([(each.key_bytes, each.value_bytes) for each in records])
    said = dump_segments(directory / f"{0:020d}.log", options=[decoder])
    found = [line.split(" key: ", 1)[1] for line in said.splitlines() if " key: " in line]
    assert len(found) == len(records)
    for line, each in zip(found, records, strict=True):
        key, _, value = line.partition(" payload: ")
        assert json.loads(key)["data"] == json.loads(json.dumps(to_json(each.key, 0))), line
        assert json.loads(value)["data"] == json.loads(json.dumps(to_json(each.value, each.version))), line
