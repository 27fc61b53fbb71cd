"""Metadata records for tests: random ones from the schema, and a fixed one of each kind and version."""

from collections.abc import Iterator
from dataclasses import MISSING, replace

from hypothesis import strategies as st

from kreplica.common.types import Uuid
from kreplica.metadata import wire_types as types
from kreplica.metadata.control_records import CONTROL_MESSAGES, ControlMessage
from kreplica.metadata.message import Field, Message, Structure, TaggedField, declared_fields
from kreplica.metadata.records import RECORDS, MetadataRecord
from kreplica.metadata.serde import ApiMessageAndVersion

VERSIONS = [(kind, version) for kind in RECORDS.values() for version in range(kind.HIGHEST_VERSION + 1)]

_NUMBERS = {
    types.INT8: st.integers(-(2**7), 2**7 - 1),
    types.INT16: st.integers(-(2**15), 2**15 - 1),
    types.UINT16: st.integers(0, 2**16 - 1),
    types.INT32: st.integers(-(2**31), 2**31 - 1),
    types.INT64: st.integers(-(2**63), 2**63 - 1),
    types.FLOAT64: st.floats(allow_nan=False),
}
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
_SCALARS = {
    **_NUMBERS,
    types.BOOLEAN: st.booleans(),
    types.UUID: st.binary(min_size=16, max_size=16).map(Uuid),
    types.STRING: _TEXT,
    types.NULLABLE_STRING: st.none() | _TEXT,
    types.BYTES: st.binary(max_size=200),
}
_UNKNOWN = st.dictionaries(st.integers(20, 2**31), st.binary(max_size=9), max_size=2).map(
    lambda tags: tuple(TaggedField(tag, tags[tag]) for tag in sorted(tags))
)


def messages(kind: type[Message], number: int, **fixed: st.SearchStrategy) -> st.SearchStrategy[Message]:
    """Draw a message of the class in this version; `fixed` replaces the strategies of some fields."""
    declared = [field for field in declared_fields(kind) if field.since <= number]
    fields = {field.name: _values(field.type, number) for field in declared}
    return st.builds(kind, unknown_tagged_fields=_UNKNOWN, **fields | fixed)


def _values(type: types.WireType, version: int) -> st.SearchStrategy:
    if isinstance(type, Structure):
        return messages(type.kind, version)
    if isinstance(type, types.Array):
        values = st.lists(_values(type.element, version), max_size=4).map(tuple)
        return st.none() | values if type.nullable else values
    return _SCALARS[type]


def records() -> st.SearchStrategy[ApiMessageAndVersion[MetadataRecord]]:
    """Draw a record of any kind and version."""
    return st.sampled_from(VERSIONS).flatmap(
        lambda chosen: st.builds(ApiMessageAndVersion, messages(*chosen), st.just(chosen[1]))
    )


def examples() -> Iterator[ApiMessageAndVersion[MetadataRecord]]:
    """Yield each kind in each version twice: with a minimum of fields, and with all of them."""
    for kind, version in VERSIONS:
        for whole in (False, True):
            yield ApiMessageAndVersion(_example(kind, version, whole), version)


def control_examples() -> Iterator[ControlMessage]:
    """As `examples`, for control records."""
    for kind in CONTROL_MESSAGES.values():
        for version in range(kind.HIGHEST_VERSION + 1):
            for whole in (False, True):
                yield replace(_example(kind, version, whole), version=version)


def _example(kind: type[Message], version: int, whole: bool) -> Message:
    fields = [field for field in declared_fields(kind) if field.since <= version]
    values = {field.name: _example_value(field, field.type, version, whole) for field in fields}
    return kind(**{name: value for name, value in values.items() if value is not MISSING})


def _example_value(field: Field, type: types.WireType, version: int, whole: bool) -> object:
    """Return a value that no other field has, or one that needs few bytes."""
    number = sum(map(ord, field.name))
    if not whole and field.default is not MISSING:
        return MISSING
    if isinstance(type, Structure):
        return _example(type.kind, version, whole)
    if isinstance(type, types.Array):
        count = 2 if whole else 0
        return tuple(_example_value(field, type.element, version, whole) for _ in range(count))
    if type in _NUMBERS:
        return (number % 100 + 1) * (1 if type is types.INT8 else 201) if whole else 0
    chosen = {
        types.BOOLEAN: field.default is not True,
        types.UUID: Uuid(bytes(range(number % 100, number % 100 + 16))),
        types.STRING: f"größe {field.name} " * 12,
        types.NULLABLE_STRING: f"größe {field.name}",
        types.BYTES: bytes(range(256)),
    }
    least = {types.BOOLEAN: False, types.UUID: Uuid.ZERO, types.STRING: "", types.BYTES: b""}
    return chosen[type] if whole else least.get(type)
