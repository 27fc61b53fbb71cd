"""Our declarations of requests and responses and Kafka's: the schemas in its jar, version by version."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kreplica.broker import api_versions
from kreplica.common.message import REQUESTS, RESPONSES, Message, fields_of
from tests.conformance.test_metadata_records import schemas

pytestmark = pytest.mark.conformance

# Our types of fields that have the bytes of another type.
PLAIN = {
    "timedelta_i32": "int32",
    "timedelta_i64": "int64",
    "datetime_i64": "int64",
    "error_code": "int16",
}
DECLARED = {
    kind.__name__: kind
    for kinds in (REQUESTS, RESPONSES)
    for _, kind in sorted(kinds.items())
    if api_versions.API_RANGES
}


def includes(versions: str, version: int) -> bool:
    """Whether "2+", "0-3", "4" or "none" includes the version."""
    if versions == "none":
        return False
    low, _, high = versions.removesuffix("+").partition("-")
    return int(low) <= version and (versions.endswith("+") or version <= int(high or low))


def snake(name: str) -> str:
    """Our name of a field; durations and moments have no unit in theirs."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
    return words.removesuffix("_ms")


def theirs(fields: list[dict[str, Any]], common: dict[str, Any], version: int) -> list[tuple[Any, ...]]:
    """Name, type, nullability, tag and the fields within, of a version."""
    rows = []
    for field in fields:
        tagged = field.get("taggedVersions", "none")
        if not includes(field.get("versions", tagged), version):
            continue
        base = field["type"].removeprefix("[]")
        within = field.get("fields") or common.get(base)
        kind = field["type"].replace(base, "structure") if within else field["type"]
        tag = field.get("tag") if includes(tagged, version) else None
        rows.append(
            (
                snake(field["name"]),
                kind,
                includes(field.get("nullableVersions", "none"), version),
                tag,
                within and theirs(within, common, version),
            )
        )
    return rows


def ours(kind: type[Message], version: int) -> list[tuple[Any, ...]]:
    """The same of what is declared here."""
    rows = []
    for field in fields_of(kind):
        if field.is_in(version):
            name = "structure" if field.kind is None else PLAIN.get(field.kind.name, field.kind.name)
            has_number = field.kind is not None and field.kind.name in ("uuid", "datetime_i64")
            rows.append(
                (
                    field.name.removesuffix("_"),
                    f"[]{name}" if field.is_array else name,
                    # An id or a time that is None has a number that stands for it.
                    field.is_nullable and version >= field.nullable_since and not has_number,
                    field.tag,
                    None if field.structure is None else ours(field.structure, version),
                )
            )
    return rows


@pytest.fixture(scope="module")
def published() -> dict[str, dict[str, Any]]:
    """Kafka's schemas by name."""
    return schemas("kafka-clients", r"common/message/\w+(Request|Response)\.json")


@pytest.mark.parametrize("name", DECLARED)
def test_each_version_is_declared_as_kafka_does(name: str, published: dict[str, dict[str, Any]]) -> None:
    kind, schema = DECLARED[name], published[name]
    assert schema["apiKey"] == kind.__api_key__
    common = {each["name"]: each["fields"] for each in schema.get("commonStructs", ())}
    low, high = kind._versions
    for version in range(low, high + 1):
        if includes(schema["validVersions"], version):
            assert includes(schema["flexibleVersions"], version) == (version >= kind.FLEXIBLE_SINCE)
            declared = ours(kind, version)
            assert declared == theirs(schema["fields"], common, version), f"version {version}"
