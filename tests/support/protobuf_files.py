"""Files of protobuf without a compiler: descriptors, the classes of their messages, and random messages."""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    message_factory,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import Descriptor, FieldDescriptor

File = descriptor_pb2.FileDescriptorProto
Kind = descriptor_pb2.FieldDescriptorProto
WELL_KNOWN = (any_pb2, duration_pb2, empty_pb2, timestamp_pb2, wrappers_pb2)
_LABELS = {"": Kind.LABEL_OPTIONAL, "repeated": Kind.LABEL_REPEATED, "required": Kind.LABEL_REQUIRED}


def file_of(name: str, messages: Iterable[Any], *, package: str = "shop", **more: Any) -> File:
    """Return a file of proto3, unless `more` gives another syntax."""
    return File(**{"name": name, "package": package, "syntax": "proto3", "message_type": messages, **more})


def message(name: str, *fields: Any, **more: Any) -> Any:
    """Return a message with these fields; maps among them bring their entries."""
    maps = [each[1] for each in fields if isinstance(each, tuple)]
    singles = [each[0] if isinstance(each, tuple) else each for each in fields]
    nested = [*more.pop("nested_type", ()), *maps]
    return descriptor_pb2.DescriptorProto(name=name, field=singles, nested_type=nested, **more)


def field(number: int, kind: str, name: str, label: str = "", **more: Any) -> Any:
    """Return a field. `kind`: a type's name, or a message's (.shop.Order) or an enum's (enum .shop.Color)."""
    what: dict[str, Any] = {"type": f"TYPE_{kind.upper()}"}
    if "." in kind:
        is_enum = kind.startswith("enum ")
        what = {
            "type": Kind.TYPE_ENUM if is_enum else Kind.TYPE_MESSAGE,
            "type_name": kind.removeprefix("enum "),
        }
    return Kind(**{"name": name, "number": number, "label": _LABELS[label], **what, **more})


def map_field(number: int, key: str, value: str, name: str, owner: str) -> tuple[Any, Any]:
    """Return a map of the message `owner` (.shop.Order), and the message of its entries."""
    entry = f"{name.title().replace('_', '')}Entry"
    made = message(entry, field(1, key, "key"), field(2, value, "value"))
    made.options.map_entry = True
    return field(number, f"{owner}.{entry}", name, "repeated"), made


def enum(name: str, **values: int) -> Any:
    numbers = [descriptor_pb2.EnumValueDescriptorProto(name=key, number=at) for key, at in values.items()]
    return descriptor_pb2.EnumDescriptorProto(name=name, value=numbers)


def set_of(*files: File) -> bytes:
    """Return the FileDescriptorSet."""
    made: bytes = descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()
    return made


def class_of(name: str, *files: File) -> Any:
    """Return Python's class of the message."""
    pool = descriptor_pool.DescriptorPool()
    for known in WELL_KNOWN:
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    for each in files:
        pool.AddSerializedFile(each.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


# ---- random messages, and the rows that Spark makes of them ----------------------------------------------

_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


def fill(target: Any, choice: random.Random) -> Any:
    """Set some of the message's fields, and return it."""
    kind = target.DESCRIPTOR
    if kind.full_name in ("google.protobuf.Timestamp", "google.protobuf.Duration"):
        target.seconds = choice.choice([0, 1, choice.randrange(2**31)])
        target.nanos = choice.choice([0, 1_000, 999_999_999])
        return target
    for each in kind.fields:
        if choice.random() < 0.4 and not each.is_required:
            continue
        if each.is_repeated:
            _fill_repeated(getattr(target, each.name), each, choice)
        elif each.message_type is not None:
            fill(getattr(target, each.name), choice).SetInParent()
        else:
            setattr(target, each.name, _scalar(each, choice))
    return target


def _fill_repeated(target: Any, kind: Any, choice: random.Random) -> None:
    is_map = kind.message_type is not None and kind.message_type.GetOptions().map_entry
    for _ in range(choice.choice([1, 2, 20])):
        if is_map:
            key, value = kind.message_type.fields
            at = _scalar(key, choice)
            if value.message_type is not None:
                fill(target[at], choice)
            else:
                target[at] = _scalar(value, choice)
        elif kind.message_type is not None:
            fill(target.add(), choice)
        else:
            target.append(_scalar(kind, choice))


def _scalar(kind: Any, choice: random.Random) -> Any:
    what = kind.cpp_type
    if what in _INTEGERS:
        low, high = _INTEGERS[what]
        return choice.choice([0, 1, low, high, choice.randint(low, high)])
    if what == FieldDescriptor.CPPTYPE_ENUM:
        known = list(kind.enum_type.values_by_number)
        return choice.choice(known if kind.enum_type.is_closed else [*known, 77])
    if what == FieldDescriptor.CPPTYPE_BOOL:
        return choice.random() < 0.5
    if what == FieldDescriptor.CPPTYPE_STRING:
        text = choice.choice(["", "a", "\u00fc\u4e2d\U0001f600", "x" * choice.randrange(300)])
        return text.encode() if kind.type == FieldDescriptor.TYPE_BYTES else text
    return choice.choice([0.0, -0.0, 1.5, float("inf"), float("nan"), choice.uniform(-1e6, 1e6)])


def row_of(message: Any) -> dict[str, Any]:
    """Return the fields of Spark's row of the message, as its from_protobuf makes it."""
    there = {each.name for each, _ in message.ListFields()}
    row: dict[str, Any] = {}
    for each in message.DESCRIPTOR.fields:
        if not _has_columns(each):
            continue
        value = getattr(message, each.name)
        if each.message_type is not None and each.message_type.GetOptions().map_entry:
            of = each.message_type.fields_by_name
            row[each.name] = {_cell(of["key"], key): _cell(of["value"], value[key]) for key in value}
        elif each.is_repeated:
            row[each.name] = [_cell(each, one) for one in value]
        elif each.name in there or (each.has_default_value and each.has_presence):
            row[each.name] = _cell(each, value)
        else:
            row[each.name] = None
    return row


def _has_columns(kind: Any) -> bool:
    """Return whether Spark has a column for it: not for messages without fields."""
    inner: Descriptor | None = kind.message_type
    if inner is None:
        return True
    fields = [inner.fields_by_name["value"]] if inner.GetOptions().map_entry else inner.fields
    return any(_has_columns(each) for each in fields)


def _cell(kind: Any, value: Any) -> Any:
    if kind.message_type is not None:
        name = kind.message_type.full_name
        if name == "google.protobuf.Timestamp":
            return datetime.fromtimestamp(value.seconds) + timedelta(microseconds=value.nanos // 1000)
        if name == "google.protobuf.Duration":
            return timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
        return row_of(value)
    if kind.enum_type is not None:
        known = kind.enum_type.values_by_number.get(value)
        return known.name if known else f"UNKNOWN_ENUM_VALUE_{kind.enum_type.name}_{value}"
    if kind.cpp_type in (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64):
        bits = 32 if kind.cpp_type == FieldDescriptor.CPPTYPE_UINT32 else 64
        return value - 2**bits if value >= 2 ** (bits - 1) else value
    return value
