"""Metadata records for tests: random ones from the schema, and a fixed one of each kind and version."""

from collections.abc import Iterator

from hypothesis import strategies as st

from kreplica.common.dataclass import MISSING
from kreplica.common.message import Field, Message, TaggedField, fields_of, replace
from kreplica.common.types import Uuid
from kreplica.metadata.control_records import CONTROL_MESSAGES, ControlMessage
from kreplica.metadata.records import RECORDS, MetadataRecord
from kreplica.metadata.serde import ApiMessageAndVersion

VERSIONS = [(kind, version) for kind in RECORDS.values() for version in range(kind.HIGHEST_VERSION + 1)]

_NUMBERS = {
    "int8": st.integers(-(2**7), 2**7 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "float64": st.floats(allow_nan=False),
}
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
_SCALARS = {
    **_NUMBERS,
    "bool": st.booleans(),
    "uuid": st.binary(min_size=16, max_size=16).map(Uuid),
    "string": _TEXT,
    "bytes": st.binary(max_size=200),
}
_UNKNOWN = st.dictionaries(st.integers(20, 2**31), st.binary(max_size=9), max_size=2).map(
    lambda tags: tuple(TaggedField(tag, tags[tag]) for tag in sorted(tags))
)


def messages(kind: type[Message], number: int, **fixed: st.SearchStrategy) -> st.SearchStrategy[Message]:
    """Draw a message of the class in this version; `fixed` replaces the strategies of some fields."""
    declared = [field for field in fields_of(kind) if field.since <= number]
    fields = {field.name: _values(field, number) for field in declared}
    return st.builds(kind, unknown_tagged_fields=_UNKNOWN, **fields | fixed)


def _values(field: Field, version: int) -> st.SearchStrategy:
    values = _SCALARS[field.kind.name] if field.kind else messages(field.structure, version)
    if field.is_array:
        values = st.lists(values, max_size=4).map(tuple)
    return st.none() | values if field.is_nullable else values


def records() -> st.SearchStrategy[ApiMessageAndVersion[MetadataRecord]]:
    """Draw a record of any kind and version."""
    return st.sampled_from(VERSIONS).flatmap(
        lambda chosen: st.builds(ApiMessageAndVersion, messages(*chosen), st.just(chosen[1]))
    )


def examples() -> Iterator[ApiMessageAndVersion[MetadataRecord]]:
    """Yield each kind in each version twice: with a minimum of fields, and with all of them."""
    for kind, version in VERSIONS:
        for whole in (False, True):
            yield ApiMessageAndVersion(example(kind, version, whole), version)


def control_examples() -> Iterator[ControlMessage]:
    """As `examples`, for control records."""
    for kind in CONTROL_MESSAGES.values():
        for version in range(kind.HIGHEST_VERSION + 1):
            for whole in (False, True):
                yield replace(example(kind, version, whole), version=version)


def example(kind: type[Message], version: int, whole: bool, text_repeats: int = 12) -> Message:
    """Return a message of the class with a minimum of fields, or with all of them."""
    fields = [field for field in fields_of(kind) if field.is_in(version)]
    values = {field.name: _example_value(field, version, whole, text_repeats) for field in fields}
    return kind(**{name: value for name, value in values.items() if value is not MISSING})


def _example_value(field: Field, version: int, whole: bool, text_repeats: int = 12) -> object:
    """Return a value that no other field has, or one that needs few bytes."""
    if not whole and field.default is not MISSING:
        return MISSING
    if field.is_array:
        return tuple(_example_element(field, version, whole, text_repeats) for _ in range(2 if whole else 0))
    return _example_element(field, version, whole, text_repeats) if whole or not field.is_nullable else None


def _example_element(field: Field, version: int, whole: bool, text_repeats: int = 12) -> object:
    if field.kind is None:
        return example(field.structure, version, whole, text_repeats)
    number, name = sum(map(ord, field.name)), field.kind.name
    if name in _NUMBERS:
        return (number % 100 + 1) * (1 if name == "int8" else 201) if whole else 0
    chosen = {
        "bool": field.default is not True,
        "uuid": Uuid(bytes(range(number % 100, number % 100 + 16))),
        "string": f"größe {field.name} " * text_repeats,
        "bytes": bytes(range(min(256, 22 * text_repeats))),
    }
    least = {"bool": False, "uuid": Uuid.ZERO, "string": "", "bytes": b""}
    return chosen[name] if whole else least[name]
