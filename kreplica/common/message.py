"""Declares messages, and compiles their declarations to the schemas of the native reader and writer.

A message is a class whose annotations give each field's type, the versions that have it, and its tag:

    class OffsetCommitValue(Record):
        FLEXIBLE_SINCE = 4

        offset: Int64
        leader_epoch: Annotated[Int32, Since(3)] = -1
        topic_id: Annotated[Uuid, Since(4), Tag(0)] = KafkaUuid.ZERO

`tuple[T, ...]` is an array, `T | None` is nullable, and a message class is a structure. One class serves all
versions of a message: a field that a version lacks has its default. Fields without a tag are encoded in the
order of their declaration, then the tagged fields by ascending tag; a tagged field with its default value is
omitted. Versions below FLEXIBLE_SINCE have no tagged fields, and lengths of fixed size.

Messages are immutable. A schema is compiled once per class and version, on first use; any thread may use it.
"""

from __future__ import annotations

import base64
import math
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from operator import attrgetter
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    NamedTuple,
    ParamSpec,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from kreplica._core.message_maker import MadeByMaker, MessageMaker
from kreplica._core.message_reader import MessageReader, read_exactly
from kreplica._core.message_schema import MessageSchema
from kreplica._core.message_writer import MessageWriter
from kreplica.common.dataclass import MISSING, dataclass
from kreplica.common.dataclass import replace as replace_fields
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import InvalidRecord, InvalidRequest, UnsupportedVersion
from kreplica.common.locks import process_lock
from kreplica.common.types import Uuid as KafkaUuid

if TYPE_CHECKING:
    from typing_extensions import Buffer

# FLEXIBLE_SINCE of a message without any flexible version (KIP-482).
NEVER = 1 << 15
NO_TIME = -1
NO_ID = bytes(16)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Cached topic ids; with more topics in use, conversion is only slower.
KEPT_IDS = 16_384
AS_DEFAULT: Any = object()


@dataclass(frozen=True, slots=True)
class Since:
    """The first version that has the field, and the last if there is one."""

    version: int
    last: int | None = None


@dataclass(frozen=True, slots=True)
class Tag:
    """The tag of a field that is written only if it differs from its default, or from `absent`.

    `absent`: the value of an absent field, if it is another one than the default of messages made here.
    """

    number: int
    absent: Any = AS_DEFAULT


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """A type of values: its native name, and the converters from the message's value and back, if any."""

    name: str
    decode: Callable[[Any], Any] | None = None
    encode: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True)
class NullableSince:
    """The first version in which the field may be null. Before, null is written as the default."""

    version: int


class TaggedField(NamedTuple):
    """A field of a later version: its tag and bytes."""

    tag: int
    data: bytes


# ---- types of fields ---------------------------------------------------------------------------------------


class _ErrorCodes(dict[int, ErrorCode]):
    def __missing__(self, code: int) -> ErrorCode:
        return ErrorCode.unknown_server_error


def _id(raw: bytes) -> uuid.UUID | None:
    return None if raw == NO_ID else uuid_of_bytes(raw)


def _bytes_of(held: uuid.UUID | None) -> bytes:
    return NO_ID if held is None else held.bytes


def _moment(milliseconds: int) -> datetime | None:
    return None if milliseconds == NO_TIME else moment_of(milliseconds)


def _milliseconds(moment: datetime | None) -> int:
    return NO_TIME if moment is None else round(moment.timestamp() * 1000)


def moment_of(milliseconds: int) -> datetime:
    """Return the time that many milliseconds after 1970 began."""
    return EPOCH + timedelta(milliseconds=milliseconds)


@lru_cache(KEPT_IDS)
def uuid_of_bytes(raw: bytes) -> uuid.UUID:
    """Return the UUID of these 16 bytes."""
    return uuid.UUID(bytes=raw)


Int8: TypeAlias = Annotated[int, Kind("int8")]
Int16: TypeAlias = Annotated[int, Kind("int16")]
Uint16: TypeAlias = Annotated[int, Kind("uint16")]
Int32: TypeAlias = Annotated[int, Kind("int32")]
Int64: TypeAlias = Annotated[int, Kind("int64")]
Uint32: TypeAlias = Annotated[int, Kind("uint32")]
Uuid: TypeAlias = Annotated[KafkaUuid, Kind("uuid", KafkaUuid, attrgetter("raw"))]
# An id in a request or response; None stands for 16 zero bytes.
Id: TypeAlias = Annotated[uuid.UUID | None, Kind("uuid", _id, _bytes_of)]
_ERROR_CODES: Any = _ErrorCodes({int(code): code for code in ErrorCode})
Error: TypeAlias = Annotated[ErrorCode, Kind("error_code", _ERROR_CODES)]
# Milliseconds in the message.
Duration32: TypeAlias = Annotated[timedelta, Kind("timedelta_i32")]
Duration64: TypeAlias = Annotated[timedelta, Kind("timedelta_i64")]
Moment: TypeAlias = Annotated[datetime | None, Kind("datetime_i64", _moment, _milliseconds)]
# Batches as they are: any buffer; a message that was read has a read-only memoryview of itself.
Records: TypeAlias = Annotated[Any, Kind("records")]
# Types that need no annotation.
_PLAIN = {bool: Kind("bool"), float: Kind("float64"), str: Kind("string"), bytes: Kind("bytes")}


# ---- classes -----------------------------------------------------------------------------------------------


# The declared requests and responses by API key.
REQUESTS: dict[int, type[Message]] = {}
RESPONSES: dict[int, type[Message]] = {}


@dataclass_transform(kw_only_default=True, frozen_default=True)
class MessageType(MadeByMaker):
    """The class of message classes. It makes a slot of each annotated field."""

    _versions: tuple[int, int]
    # Of requests and responses: the version of this class, and whether it has tagged fields.
    __api_key__: int
    __version__: int
    __flexible__: bool
    _defaults: dict[str, Any]
    _make: MessageMaker | None
    _key_of: Callable[[Any], Any] | None  # returns the values that two equal messages share
    _fields: tuple[Field, ...] | None
    _schema: MessageSchema | None

    def __new__(
        cls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        api_key: int | None = None,
        versions: tuple[int, int] = (0, 0),
        flexible: int = NEVER,
        sent: int | None = None,
    ) -> MessageType:
        own = [
            field for field, kind in namespace.get("__annotations__", {}).items() if "ClassVar" not in kind
        ]
        defaults: dict[str, Any] = {}
        for base in bases:
            defaults |= getattr(base, "_defaults", {})
        defaults |= {field: namespace.pop(field, MISSING) for field in own}
        made = super().__new__(cls, name, bases, {**namespace, "__slots__": own})
        # The names of all fields, in order, with their defaults; MISSING if a value is required.
        made._defaults = defaults
        made._make = made._key_of = None
        made._fields = made._schema = None
        if api_key is not None:
            # Requests of this program have the newest version, unless a later one has nothing that it uses.
            made.__api_key__, made._versions = api_key, versions
            made.__version__ = versions[1] if sent is None else sent
            made.__flexible__ = made.__version__ >= flexible
            made.FLEXIBLE_SINCE = flexible  # type: ignore[attr-defined]
            (REQUESTS if name.endswith("Request") else RESPONSES)[api_key] = made  # type: ignore[assignment]
        return made

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **_: Any) -> None:
        super().__init__(name, bases, namespace)

    def _new_maker(cls) -> MessageMaker:
        made = cls._make = MessageMaker(cls, cls._defaults, MISSING)
        return made


class Message(metaclass=MessageType):
    """Base of all messages: values by field name, as keyword arguments."""

    FLEXIBLE_SINCE: ClassVar[int] = 0
    __api_key__: ClassVar[int]
    __version__: ClassVar[int]
    __flexible__: ClassVar[bool]

    def __setattr__(self, name: str, value: object) -> None:
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"cannot assign to {name}: messages are immutable")

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        kind = type(self)
        if kind is not type(other):
            return False
        key_of = kind._key_of or _with_key(kind)
        return bool(key_of(self) == key_of(other))

    def __hash__(self) -> int:
        return hash(tuple(_values(self).values()))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in _values(self).items() if value != ())
        return f"{type(self).__name__}({shown})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (type(self), _values(self))


class Record(Message):
    """Base of messages that are kept: their unknown tagged fields, by ascending tag, are written back.

    A field that a version lacks must have its default when the record is written in that version.
    """

    unknown_tagged_fields: tuple[TaggedField, ...] = ()


M = TypeVar("M", bound=Message)
P = ParamSpec("P")


def maker(kind: Callable[P, M]) -> Callable[P, M]:
    """Return the function that makes a message of the class from keyword arguments, faster than the class."""
    assert isinstance(kind, MessageType)
    return cast(Callable[P, M], kind._make or kind._new_maker())


def _with_key(kind: MessageType) -> Callable[[Any], Any]:
    made: Callable[[Any], Any] = attrgetter(*kind._defaults) if kind._defaults else _no_key
    kind._key_of = made
    return made


def _no_key(_: Message) -> tuple[()]:
    return ()


def replace(message: M, **changes: Any) -> M:
    """Return the message with other values in some fields."""
    return type(message)(**_values(message) | changes)


def _values(message: Message) -> dict[str, Any]:
    return {name: getattr(message, name) for name in type(message)._defaults}


def _remade(kind: type[M], values: dict[str, Any]) -> M:
    return kind(**values)


# ---- fields ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Field:
    """A declared field. Of `kind` and `structure` one is set; `default` is MISSING if a value is required.

    `absent`: of a tagged field, the value that is not written.
    """

    name: str
    kind: Kind | None
    structure: type[Message] | None
    is_array: bool
    is_nullable: bool
    since: int
    last: int | None
    tag: int | None
    default: Any
    absent: Any
    nullable_since: int = 0

    def is_in(self, version: int) -> bool:
        """Whether this version has the field."""
        return self.since <= version and (self.last is None or version <= self.last)

    @property
    def json_name(self) -> str:
        """The field's name in Kafka's JSON, in camel case."""
        head, *rest = self.name.split("_")
        return head + "".join(part.capitalize() for part in rest)


def fields_of(kind: type[Message]) -> tuple[Field, ...]:
    """Return a message's fields in order, without the unknown tagged ones."""
    if kind._fields is None:
        kind._fields = _declared(kind)
    return kind._fields


def _declared(kind: type[Message]) -> tuple[Field, ...]:
    hints = get_type_hints(kind, include_extras=True)
    return tuple(
        _field(kind, name, hints[name], default)
        for name, default in kind._defaults.items()
        if name != "unknown_tagged_fields"
    )


def _field(kind: type[Message], name: str, hint: Any, default: Any) -> Field:
    marks: list[Any] = []
    is_nullable = is_array = False
    while True:
        origin = get_origin(hint)
        if origin is Annotated:
            hint, *more = get_args(hint)
            marks += more
        elif origin in (UnionType, Union):
            (hint,) = (each for each in get_args(hint) if each is not NoneType)
            is_nullable = is_nullable or not is_array
        elif origin is tuple:
            hint, is_array = get_args(hint)[0], True
        else:
            break
    since = next((mark for mark in marks if isinstance(mark, Since)), Since(0))
    mark = next((mark for mark in marks if isinstance(mark, Tag)), None)
    tag = None if mark is None else mark.number
    absent = default if mark is None or mark.absent is AS_DEFAULT else mark.absent
    if default is MISSING and (since != Since(0) or tag is not None):
        raise TypeError(f"{kind.__name__}.{name} is missing in some versions: give it a default")
    value = next((mark for mark in marks if isinstance(mark, Kind)), _PLAIN.get(hint))
    structure = None if value is not None else hint
    nullable = next((mark.version for mark in marks if isinstance(mark, NullableSince)), 0)
    return Field(
        name,
        value,
        structure,
        is_array,
        is_nullable,
        since.version,
        since.last,
        tag,
        default,
        absent,
        nullable,
    )


def default_of(field: Field) -> Any:
    """Return the value of an absent field: the declared default, else null, zero or empty."""
    if field.default is not MISSING:
        return field.default
    return None if field.is_nullable else _empty(field)


def _empty(field: Field) -> Any:
    if field.is_array:
        return ()
    if field.structure is not None:
        return field.structure(**{each.name: default_of(each) for each in fields_of(field.structure)})
    assert field.kind is not None
    return _EMPTY.get(field.kind.name, 0)


_EMPTY: dict[str, Any] = {
    "bool": False,
    "string": "",
    "bytes": b"",
    "records": b"",
    "uuid": None,
    "datetime_i64": None,
    "error_code": ErrorCode.none,
    "timedelta_i32": timedelta(0),
    "timedelta_i64": timedelta(0),
}


# ---- versions ----------------------------------------------------------------------------------------------


# (declared class, version) -> class of that version, which is complete. Written under _VERSIONS_LOCK.
_VERSIONS: dict[tuple[type[Message], int], type[Message]] = {}
_VERSIONS_LOCK = process_lock()


def at(kind: type[M], version: int) -> type[M]:
    """Return the class of a request or response in one version: it has only the fields of that version.

    Raises UnsupportedVersion for a version that is not declared.
    """
    if version == kind.__version__:
        return kind
    known = _VERSIONS.get((kind, version))
    if known is not None:
        return known  # type: ignore[return-value]
    low, high = kind._versions
    if not low <= version <= high:
        raise UnsupportedVersion(
            f"{kind.__name__} version {version} is not declared; declared are {low} to {high}"
        )
    with _VERSIONS_LOCK:
        return _narrowed(kind, version)  # type: ignore[return-value]


def _narrowed(kind: type[Message], version: int) -> type[Message]:
    known = _VERSIONS.get((kind, version))
    if known is not None:
        return known
    fields = tuple(
        replace_fields(
            field,
            structure=None if field.structure is None else _narrowed(field.structure, version),
            default=_default_in(field, field.default, version),
            absent=_default_in(field, field.absent, version),
            is_nullable=field.is_nullable and version >= field.nullable_since,
            since=0,
            last=None,
        )
        for field in fields_of(kind)
        if field.is_in(version)
    )
    namespace = {field.name: field.default for field in fields if field.default is not MISSING}
    made = MessageType(
        kind.__name__,
        (Message,),
        {**namespace, "__annotations__": {field.name: "" for field in fields}, "__module__": kind.__module__},
    )
    made._fields = fields
    if hasattr(kind, "__api_key__"):
        made.__api_key__, made.__version__ = kind.__api_key__, version
        made.__flexible__ = version >= kind.FLEXIBLE_SINCE
        made.FLEXIBLE_SINCE = kind.FLEXIBLE_SINCE  # type: ignore[attr-defined]
    _VERSIONS[kind, version] = made  # type: ignore[assignment]
    return _VERSIONS[kind, version]


def _default_in(field: Field, default: Any, version: int) -> Any:
    # The default of a structure has the class of the version.
    if field.structure is None or not isinstance(default, Message):
        return default
    narrowed = _narrowed(field.structure, version)
    return narrowed(**{each.name: getattr(default, each.name) for each in fields_of(narrowed)})


def in_version(message: M, version: int) -> M:
    """Return the request or response in another version, with those fields that it has.

    Raises InvalidRequest if the version cannot hold a value.
    """
    kind: type[Message] = type(message)
    data = MessageWriter().content(schema_of(kind, version), message)
    made: M = MessageReader(data).read(own_schema_of(at(kind, version)))
    return made


def structure_of(kind: type[Message], name: str) -> type[Message]:
    """Return the class of the structures in a field."""
    found = next(field.structure for field in fields_of(kind) if field.name == name)
    assert found is not None, (kind, name)
    return found


# ---- schemas -----------------------------------------------------------------------------------------------


@lru_cache(None)
def schema_of(kind: type[Message], version: int, is_flexible: bool | None = None) -> MessageSchema:
    """Return the schema of a message in a version.

    `is_flexible`: whether tagged fields and compact lengths apply; None for the outermost message, which
    decides by its version.
    """
    if is_flexible is None:
        is_flexible = version >= kind.FLEXIBLE_SINCE
    declared = fields_of(kind)
    present = [
        (
            field.name,
            "structure" if field.kind is None else field.kind.name,
            field.is_array,
            field.is_nullable and version >= field.nullable_since,
            field.tag,
            _stand_in(field, version),
            None if field.structure is None else schema_of(field.structure, version, is_flexible),
            None if field.kind is None else field.kind.decode,
            None if field.kind is None else field.kind.encode,
        )
        for field in declared
        if field.is_in(version)
    ]
    absent = [(field.name, default_of(field)) for field in declared if not field.is_in(version)]
    if not issubclass(kind, Record):
        return MessageSchema(kind, is_flexible, present, absent)
    refuse = partial(_refused, kind, version)
    return MessageSchema(kind, is_flexible, present, absent, refuse, TaggedField)


def own_schema_of(kind: type[Message]) -> MessageSchema:
    """Return the schema of a request or response in the version of its class."""
    if kind._schema is None:
        kind._schema = schema_of(kind, kind.__version__)
    return kind._schema


def _stand_in(field: Field, version: int) -> Any:
    """Return the value of the field if it is absent (tagged), or null where it must not be; None for none."""
    if field.tag is not None:
        return field.absent
    if field.is_nullable and version < field.nullable_since:
        return _empty(field)
    return None


def _refused(kind: type[Record], version: int, name: str) -> UnsupportedVersion:
    return UnsupportedVersion(f"{kind.__name__} version {version} has no field {name}")


def encode(message: Message, version: int, prefix: bytes = b"") -> bytes:
    """Return `prefix` and the message in a version.

    Raises InvalidRecord if a value does not fit its field, UnsupportedVersion if a field is set that the
    version lacks.
    """
    schema = schema_of(type(message), version)
    into = MessageWriter()
    into.raw(prefix)
    try:
        return into.content(schema, message)
    except InvalidRequest as error:
        raise InvalidRecord(_reason(error)) from None


def decode(kind: type[M], version: int, data: Buffer, start: int = 0, *, may_have_more: bool = False) -> M:
    """Read a message from byte `start` on. It ends with the data unless it `may_have_more`.

    Raises InvalidRecord, and nothing else, for any other bytes.
    """
    try:
        reader = MessageReader(data, min(start, len(memoryview(data))))
        message: M = reader.read(schema_of(kind, version))
    except InvalidRequest as error:
        raise InvalidRecord(f"{kind.__name__}: {_reason(error)}", where=error.where) from None
    if reader.left and not may_have_more:
        raise InvalidRecord(
            f"{kind.__name__}: {reader.left} unexpected bytes after it", where=reader.position
        )
    return message


def decoder(kind: type[M], version: int, start: int) -> Callable[[Buffer], M]:
    """Return the function that does as `decode`, faster, for data of at least `start` bytes."""
    schema = schema_of(kind, version)

    def decode_exactly(data: Buffer) -> M:
        try:
            message: M = read_exactly(schema, data, start)
        except InvalidRequest as error:
            raise InvalidRecord(f"{kind.__name__}: {_reason(error)}", where=error.where) from None
        return message

    return decode_exactly


def _reason(error: InvalidRequest) -> str:
    # Without the description of InvalidRequest.
    return str(error).rpartition(": ")[0]


# ---- JSON --------------------------------------------------------------------------------------------------


def to_json(message: Record, version: int) -> dict[str, object]:
    """Return the fields of the version as Kafka's tools show them, without tagged ones that have their
    default.
    """
    shown: dict[str, object] = {}
    for field in fields_of(type(message)):
        value = getattr(message, field.name)
        if field.is_in(version) and (field.tag is None or value != field.absent):
            if field.is_array and value is not None:
                shown[field.json_name] = [_json_value(each, version) for each in value]
            else:
                shown[field.json_name] = _json_value(value, version)
    if message.unknown_tagged_fields:
        shown["unknownTaggedFields"] = [
            {"tag": each.tag, "data": base64.b64encode(each.data).decode()}
            for each in message.unknown_tagged_fields
        ]
    return shown


def _json_value(value: Any, version: int) -> object:
    if isinstance(value, Record):
        return to_json(value, version)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, KafkaUuid):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
