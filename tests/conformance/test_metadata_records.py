"""Our metadata records and Kafka's: the schemas in its jars, and what its own decoder reads of our log."""

from __future__ import annotations

import json
import re
import zipfile
from dataclasses import MISSING
from pathlib import Path

import pytest

import kreplica
from kreplica.common.types import Uuid
from kreplica.metadata import wire_types as types
from kreplica.metadata.message import Message, Structure, declared_fields
from kreplica.metadata.records import RECORDS
from kreplica.metadata.serde import decode, encode, to_json
from kreplica.record import batches
from tests.conformance.expectation import FIXTURES
from tests.conformance.kafka_peer import dump_segments, jars
from tests.support.metadata_records import examples

pytestmark = pytest.mark.conformance

# What a schema says of a field, and what stands for it here.
NAMES = {
    **{
        getattr(types, name.upper()): name
        for name in ("int8", "int16", "uint16", "int32", "int64", "float64")
    },
    types.BOOLEAN: "bool",
    types.UUID: "uuid",
    types.STRING: "string",
    types.NULLABLE_STRING: "string",
    types.BYTES: "bytes",
}
# The value of a field that a schema gives no default.
PLAIN_DEFAULTS = {"string": "", "bool": False, "uuid": Uuid.ZERO}


def schemas() -> dict[int, dict]:
    """Each schema of Kafka's metadata records by its api key."""
    (jar,) = jars().glob("kafka-metadata-*.jar")
    with zipfile.ZipFile(jar) as archive:
        texts = [
            archive.read(name).decode()
            for name in archive.namelist()
            if re.match(r"common/metadata/.*json", name)
        ]
    found = [json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE)) for text in texts]
    return {schema["apiKey"]: schema for schema in found}


def written_fields(fields: list[dict]) -> list[tuple]:
    """Name, type, nullability, first version, tag, default, and the fields within."""
    rows = []
    for field in fields:
        since = int(field["versions"].removesuffix("+"))
        inner = written_fields(field["fields"]) if "fields" in field else None
        kind = re.sub(r"\[\][A-Z]\w*", "[]structure", field["type"])
        rows.append(
            (field["name"], kind, "nullableVersions" in field, since, field.get("tag"), default(field), inner)
        )
    return rows


def default(field: dict) -> object:
    """The field's value where nobody gives one, as it is here."""
    written = field.get("default")
    if written is None:
        return () if field["type"].startswith("[]") else PLAIN_DEFAULTS.get(field["type"], 0)
    return json.loads(written) if isinstance(written, str) else written


def declared(kind: type[Message]) -> list[tuple]:
    """The same of what is declared here."""
    rows = []
    for field in declared_fields(kind):
        element = field.type.element if isinstance(field.type, types.Array) else field.type
        nullable = field.type is types.NULLABLE_STRING or getattr(field.type, "nullable", False)
        name = "structure" if isinstance(element, Structure) else NAMES[element]
        inner = declared(element.kind) if isinstance(element, Structure) else None
        rows.append(
            (
                field.json_name[0].upper() + field.json_name[1:],
                f"[]{name}" if element is not field.type else name,
                nullable,
                field.since,
                field.tag,
                field.default,
                inner,
            )
        )
    return rows


def without_optional_defaults(theirs: list[tuple], ours: list[tuple]) -> list[tuple]:
    """Kafka's rows, without the defaults of fields that have to be given here."""
    given = {row[0] for row in ours if row[5] is MISSING}
    return [
        (
            *row[:5],
            MISSING if row[0] in given else row[5],
            row[6] and without_optional_defaults(row[6], next(mine[6] for mine in ours if mine[0] == row[0])),
        )
        for row in theirs
    ]


def test_the_schemas_are_kafkas() -> None:
    published = schemas()
    assert published.keys() == RECORDS.keys()
    for api_key, schema in published.items():
        kind = RECORDS[api_key]
        assert kind.__name__ == schema["name"]
        assert schema["flexibleVersions"] == "0+"
        highest = kind.HIGHEST_VERSION
        assert schema["validVersions"] == (f"0-{highest}" if highest else "0")
        ours = declared(kind)
        assert ours == without_optional_defaults(written_fields(schema["fields"]), ours), kind.__name__


def payloads(log: Path) -> list[dict]:
    """What Kafka's tool reads of the records of a metadata log."""
    said = dump_segments(log, options=["--cluster-metadata-decoder"])
    assert "Could not decode" not in said
    return [json.loads(line.split(" payload: ", 1)[1]) for line in said.splitlines() if " payload: " in line]


def test_kafka_reads_each_record_of_ours(tmp_path: Path) -> None:
    records = list(examples())
    with kreplica.Log.open(tmp_path / "__cluster_metadata-0") as log:
        for start in range(0, len(records), 7):
            log.append([encode(*record) for record in records[start : start + 7]])
    read = payloads(tmp_path / "__cluster_metadata-0" / f"{0:020d}.log")
    assert read == [json.loads(json.dumps(to_json(record))) for record in records]


def test_both_read_the_same_of_a_log_of_kafkas() -> None:
    log = FIXTURES / "clean" / "logs" / "__cluster_metadata-0" / f"{0:020d}.log"
    ours = [
        to_json(decode(record.value))
        for batch in batches(log.read_bytes())
        if not batch.is_control
        for record in batch
    ]
    assert payloads(log) == ours
