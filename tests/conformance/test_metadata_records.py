"""Our metadata records and Kafka's: the schemas in its jars, and what its own decoder reads of our log."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

import pytest

import kreplica
from kreplica.common.dataclass import MISSING
from kreplica.common.message import Message, fields_of
from kreplica.common.types import Uuid
from kreplica.metadata.control_records import (
    CONTROL_MESSAGES,
    ControlMessage,
    LeaderChangeMessage,
    control_to_json,
    encode_control,
)
from kreplica.metadata.records import RECORDS, MetadataRecord
from kreplica.metadata.serde import decode, encode, to_json
from kreplica.record import batches
from kreplica.record.control import control_key
from tests.conformance.expectation import FIXTURES
from tests.conformance.kafka_peer import dump_segments, jars
from tests.support.batches import build
from tests.support.metadata_records import control_examples, examples

pytestmark = pytest.mark.conformance

# The value of a field that a schema gives no default.
PLAIN_DEFAULTS = {"string": "", "bool": False, "uuid": Uuid.ZERO}


def schemas(jar_name: str, names: str) -> dict[str, dict]:
    """The schemas in one of Kafka's jars, by name; `names` is a pattern of their files."""
    (jar,) = jars().glob(f"{jar_name}-[0-9]*.jar")
    with zipfile.ZipFile(jar) as archive:
        texts = [archive.read(name).decode() for name in archive.namelist() if re.fullmatch(names, name)]
    found = [json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE)) for text in texts]
    return {schema["name"]: schema for schema in found}


def written_fields(fields: list[dict], structures: dict[str, list[dict]]) -> list[tuple]:
    """Name, type, nullability, first version, tag, default, and the fields within."""
    rows = []
    for field in fields:
        since = int(field["versions"].removesuffix("+"))
        within = field.get("fields") or structures.get(field["type"].removeprefix("[]"))
        inner = within and written_fields(within, structures)
        kind = re.sub(r"[A-Z]\w*", "structure", field["type"])
        rows.append(
            (field["name"], kind, "nullableVersions" in field, since, field.get("tag"), default(field), inner)
        )
    return rows


def default(field: dict) -> object:
    """The value that kreplica gives a field which is not set."""
    written = field.get("default")
    if written is None:
        return () if field["type"].startswith("[]") else PLAIN_DEFAULTS.get(field["type"], 0)
    return json.loads(written) if isinstance(written, str) else written


def declared(kind: type[Message]) -> list[tuple]:
    """The same of what is declared here."""
    rows = []
    for field in fields_of(kind):
        name = "structure" if field.kind is None else field.kind.name
        inner = None if field.structure is None else declared(field.structure)
        rows.append(
            (
                field.json_name[0].upper() + field.json_name[1:],
                f"[]{name}" if field.is_array else name,
                field.is_nullable,
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


def check_schema(kind: type[MetadataRecord | ControlMessage], schema: dict) -> None:
    """The class declares what the schema says."""
    assert kind.__name__ == schema["name"]
    assert schema["flexibleVersions"] == "0+"
    highest = kind.HIGHEST_VERSION
    assert schema["validVersions"] == (f"0-{highest}" if highest else "0")
    structures = {each["name"]: each["fields"] for each in schema.get("commonStructs", ())}
    ours = declared(kind)
    theirs = written_fields(schema["fields"], structures)
    assert ours == without_optional_defaults(theirs, ours), kind.__name__


def test_the_schemas_are_kafkas() -> None:
    published = schemas("kafka-metadata", r"common/metadata/.*\.json")
    assert {schema["apiKey"] for schema in published.values()} == RECORDS.keys()
    for schema in published.values():
        check_schema(RECORDS[schema["apiKey"]], schema)


def test_the_schemas_of_control_records_are_kafkas() -> None:
    names = "|".join(kind.__name__ for kind in CONTROL_MESSAGES.values())
    published = schemas("kafka-clients", rf"common/message/({names})\.json")
    for kind in CONTROL_MESSAGES.values():
        check_schema(kind, published[kind.__name__])


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


def test_kafka_reads_each_control_record_of_ours(tmp_path: Path) -> None:
    # Kafka 4.3's tool takes any LeaderChangeMessage for one of version 0, and ends at a voter of version 1.
    messages = [m for m in control_examples() if not (isinstance(m, LeaderChangeMessage) and m.version)]
    log = tmp_path / "__cluster_metadata-0" / f"{0:020d}.log"
    log.parent.mkdir()
    log.write_bytes(
        b"".join(
            build(
                [(control_key(message.TYPE), encode_control(message))],
                control=True,
                base_offset=offset,
                leader_epoch=1,
                now_ms=1_700_000_000_000,
            )
            for offset, message in enumerate(messages)
        )
    )
    said = dump_segments(log, options=["--cluster-metadata-decoder"])
    read = re.findall(
        r" headerKeys: \[\] (LeaderChange|Snapshot\w+|KRaft\w+):? (\{.*\})$", said, re.MULTILINE
    )
    assert [json.loads(text) for _, text in read] == [control_to_json(message) for message in messages]


def test_both_read_the_same_of_a_log_of_kafkas() -> None:
    log = FIXTURES / "clean" / "logs" / "__cluster_metadata-0" / f"{0:020d}.log"
    ours = [
        to_json(decode(record.value))
        for batch in batches(log.read_bytes())
        if not batch.is_control
        for record in batch
    ]
    assert payloads(log) == ours
