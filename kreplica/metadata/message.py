"""Declared messages, and the one codec that reads and writes them.

A message is a frozen dataclass. Its annotations give each field's wire type, the version that introduced it,
and its tag if it has one:

    isr: Annotated[tuple[int, ...] | None, Array(INT32, nullable=True), Tag(0)] = None
    directories: Annotated[tuple[Uuid, ...], Array(UUID), Since(1)] = ()

Fields without a tag are encoded in the order of their declaration. Then come the number of tagged fields and
the tagged fields by ascending tag, each with its size. A tagged field with its default value is omitted.
Tagged fields that the version does not know are kept as they are, and written back. Versions below a class's
FLEXIBLE_SINCE have no tagged fields, and use the encodings of `classic_types`.

Messages are immutable. A Layout is created once per class and version, and any thread may use it.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, ClassVar, Generic, TypeVar, get_type_hints

from kreplica._core.varint import encode_unsigned_varint
from kreplica.common.errors import InvalidRecord, UnsupportedVersion
from kreplica.metadata.classic_types import ClassicArray, classic
from kreplica.metadata.wire_types import Array, ByteReader, WireType


@dataclass(frozen=True, slots=True)
class Since:
    """The first version that has the field, and the last if there is one.

    In other versions the field must have its default value.
    """

    version: int
    last: int | None = None


@dataclass(frozen=True, slots=True)
class Tag:
    """The tag of a field that is written only if it differs from its default."""

    number: int


@dataclass(frozen=True, slots=True)
class TaggedField:
    """A field of a later version: its tag and bytes."""

    tag: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Base of all messages; holds the tagged fields that the version does not know, by ascending tag."""

    FLEXIBLE_SINCE: ClassVar[int] = 0

    unknown_tagged_fields: tuple[TaggedField, ...] = dataclasses.field(default=(), repr=False)


M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class Field:
    """A declared field; `default` is dataclasses.MISSING if a value is required."""

    name: str
    type: WireType
    since: int
    last: int | None
    tag: int | None
    default: Any

    def is_in(self, version: int) -> bool:
        """Whether this version has the field."""
        return self.since <= version and (self.last is None or version <= self.last)

    @property
    def json_name(self) -> str:
        """The field's name in Kafka's JSON, in camel case."""
        head, *rest = self.name.split("_")
        return head + "".join(part.capitalize() for part in rest)


def declared_fields(kind: type[Message]) -> Iterator[Field]:
    """Iterate over a message's fields in order, without the unknown tagged ones."""
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        if field.name == "unknown_tagged_fields":
            continue
        wire_type, *marks = hints[field.name].__metadata__
        since = next((mark for mark in marks if isinstance(mark, Since)), Since(0))
        tag = next((mark.number for mark in marks if isinstance(mark, Tag)), None)
        if field.default is MISSING and (since != Since(0) or tag is not None):
            raise TypeError(f"{kind.__name__}.{field.name} is missing in some versions: give it a default")
        yield Field(field.name, wire_type, since.version, since.last, tag, field.default)


class Layout(Generic[M]):
    """The encoding of a message in one version.

    `flexible`: whether tagged fields and compact encodings apply; None for the outermost message, which
    decides by its version.
    """

    def __init__(self, kind: type[M], version: int, flexible: bool | None = None) -> None:
        self._flexible = version >= kind.FLEXIBLE_SINCE if flexible is None else flexible
        declared = list(declared_fields(kind))
        there = [
            replace(field, type=_at_version(field.type, version, self._flexible))
            for field in declared
            if field.is_in(version)
        ]
        self._kind: type[M] = kind
        self._version = version
        self._plain = [field for field in there if field.tag is None]
        self._tagged = {field.tag: field for field in there if field.tag is not None}
        self._absent = [field for field in declared if not field.is_in(version)]
        # Precomputed for writing records fast.
        self._absent_defaults = [(field.name, field.default) for field in self._absent]
        self._plain_writers = [(field.name, field.type.write) for field in self._plain]
        self._tagged_defaults = [(field.name, field.default) for field in self._tagged.values()]
        self._there = there

    def read(self, reader: ByteReader) -> M:
        """Read the next message. Raises InvalidRecord."""
        values: dict[str, Any] = {field.name: field.type.read(reader) for field in self._plain}
        if not self._flexible:
            return self._kind(**values)
        count = reader.unsigned_varint()
        if count:
            values["unknown_tagged_fields"] = tuple(self._read_tagged(reader, count, values))
        return self._kind(**values)

    def _read_tagged(self, reader: ByteReader, count: int, values: dict[str, Any]) -> Iterator[TaggedField]:
        """Add the tagged fields to `values`; yield those that the version does not know."""
        last = -1
        for _ in range(count):
            start = reader.position
            tag = reader.unsigned_varint()
            size = reader.unsigned_varint()
            if tag <= last or size > reader.left:
                raise InvalidRecord(
                    f"tag {tag} after tag {last}, with {size} of {reader.left} bytes left, at byte {start}",
                    where=start,
                )
            last = tag
            field = self._tagged.get(tag)
            if field is None:
                yield TaggedField(tag, reader.take(size))
                continue
            end = reader.position + size
            values[field.name] = field.type.read(reader)
            if reader.position != end:
                raise InvalidRecord(
                    f"{field.name} ends at byte {reader.position}, but its size says {end}", where=start
                )

    def write(self, out: bytearray, message: M) -> None:
        """Append the message to `out`.

        Raises InvalidRecord if a value does not fit its field, UnsupportedVersion if a field is set that the
        version lacks.
        """
        for name, default in self._absent_defaults:
            if getattr(message, name) != default:
                raise UnsupportedVersion(f"{self._kind.__name__} version {self._version} has no field {name}")
        name = ""
        try:
            for name, write in self._plain_writers:
                write(out, getattr(message, name))
        except InvalidRecord as error:
            raise self._misfit(name, error) from None
        if not self._flexible:
            if message.unknown_tagged_fields:
                raise UnsupportedVersion(
                    f"{self._kind.__name__} version {self._version} has no tagged fields"
                )
            return
        if not message.unknown_tagged_fields and all(
            getattr(message, name) == default for name, default in self._tagged_defaults
        ):
            out.append(0)
            return
        self._write_tagged(out, message)

    def _write_tagged(self, out: bytearray, message: M) -> None:
        tagged = {each.tag: each.data for each in message.unknown_tagged_fields}
        if len(tagged) != len(message.unknown_tagged_fields) or not tagged.keys().isdisjoint(self._tagged):
            raise InvalidRecord(f"{self._kind.__name__}: two tagged fields have the same tag")
        for tag, field in self._tagged.items():
            if getattr(message, field.name) != field.default:
                data = bytearray()
                try:
                    field.type.write(data, getattr(message, field.name))
                except InvalidRecord as error:
                    raise self._misfit(field.name, error) from None
                tagged[tag] = bytes(data)
        out += encode_unsigned_varint(len(tagged))
        for tag in sorted(tagged):
            out += encode_unsigned_varint(tag) + encode_unsigned_varint(len(tagged[tag])) + tagged[tag]

    def _misfit(self, name: str, error: InvalidRecord) -> InvalidRecord:
        return InvalidRecord(f"{self._kind.__name__}.{name}: {error}")

    def to_json(self, message: M) -> dict[str, object]:
        """Return the fields as Kafka's tools show them, without tagged ones that have their default."""
        shown = {
            field.json_name: field.type.to_json(getattr(message, field.name))
            for field in self._there
            if field.tag is None or getattr(message, field.name) != field.default
        }
        if message.unknown_tagged_fields:
            shown["unknownTaggedFields"] = [
                {"tag": each.tag, "data": base64.b64encode(each.data).decode()}
                for each in message.unknown_tagged_fields
            ]
        return shown


_LAYOUTS: dict[tuple[type[Message], int, bool | None], Layout[Any]] = {}


def layout_of(kind: type[M], version: int, flexible: bool | None = None) -> Layout[M]:
    """Return the layout of a message class in a version."""
    key = (kind, version, flexible)
    layout = _LAYOUTS.get(key)
    return layout or _LAYOUTS.setdefault(key, Layout(kind, version, flexible))


class Structure(Generic[M]):
    """The type of a field that holds messages; a layout binds it to its own version."""

    def __init__(self, kind: type[M], version: int = 0, flexible: bool = True) -> None:
        self.kind = kind
        self._version = version
        self._flexible = flexible

    def read(self, reader: ByteReader) -> M:
        return self._layout.read(reader)

    def write(self, out: bytearray, value: Any) -> None:
        if not isinstance(value, self.kind):
            raise InvalidRecord(f"{str(value)[:60]!r} is not a {self.kind.__name__}")
        self._layout.write(out, value)

    def to_json(self, value: Any) -> object:
        return self._layout.to_json(value)

    @property
    def _layout(self) -> Layout[M]:
        return layout_of(self.kind, self._version, self._flexible)


def _at_version(type: WireType, version: int, flexible: bool) -> WireType:
    """Return the type as encoded in a version of the enclosing message."""
    if isinstance(type, Structure):
        return Structure(type.kind, version, flexible)
    if isinstance(type, Array):
        kind = Array if flexible else ClassicArray
        return kind(_at_version(type.element, version, flexible), type.nullable)
    return type if flexible else classic(type)
