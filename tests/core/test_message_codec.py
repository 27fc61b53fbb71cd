"""Schemas of the native codec: what they take, and how a reader and a writer go by them.

That whole messages of Kafka are read and written as kio does it is in tests/unit/common/test_message_reader.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica._core.message_reader import MAX_ELEMENTS, MessageReader
from kreplica._core.message_schema import MOST_TAGS, MessageSchema
from kreplica._core.message_writer import COPIED_BYTES, MessageWriter
from kreplica.common.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Box:
    held: Any


@dataclass(frozen=True, slots=True)
class Pair:
    first: Any
    second: Any


@dataclass
class Slotless:
    held: int = 0


def declared(
    name: str,
    kind: str,
    *,
    array: bool = False,
    nullable: bool = False,
    tag: int | None = None,
    default: Any = None,
    schema: MessageSchema | None = None,
) -> Any:
    return name, kind, array, nullable, tag, default, schema, None, None


def box(kind: str, *, flexible: bool = True, **given: Any) -> MessageSchema:
    return MessageSchema(Box, flexible, [declared("held", kind, **given)])


def written(schema: MessageSchema, entity: Any) -> bytes:
    writer = MessageWriter()
    writer.write(schema, entity)
    whole = b"".join(map(bytes, writer.buffers()))
    assert int.from_bytes(whole[:4], "big") == len(whole) - 4
    return whole[4:]


def read(schema: MessageSchema, data: bytes) -> Any:
    reader = MessageReader(data)
    entity = reader.read(schema)
    assert reader.left == 0
    return entity


# ---- schemas -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entity", "field", "error"),
    [
        (Slotless, declared("held", "int8"), TypeError),
        (Box, declared("held", "int128"), ValueError),
        (Box, declared("held", "structure"), TypeError),
        (Box, declared("held", "int8", schema=box("int8")), TypeError),
        (Box, declared("other", "int8"), AttributeError),
        (Box, declared("held", "int8", tag=-1), OverflowError),
    ],
)
def test_a_schema_that_fits_no_entity_is_refused(
    entity: type[Any], field: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        MessageSchema(entity, True, [field])


def test_a_structure_has_a_bounded_number_of_tags() -> None:
    fields = [declared("held", "int8", tag=tag) for tag in range(MOST_TAGS + 1)]
    assert MessageSchema(Box, True, fields[:-1]).is_flexible
    with pytest.raises(ValueError, match="65 tagged fields"):
        MessageSchema(Box, True, fields)


def test_a_schema_keeps_what_it_names() -> None:
    schema = box("structure", schema=box("string", tag=3, default="".join(["de", "fault"])))
    gc.collect()
    assert read(schema, b"\0\0") == Box(Box("default"))


# ---- numbers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@pytest.mark.parametrize("is_signed", [True, False])
def test_a_number_has_its_bounds(bits: int, is_signed: bool) -> None:
    schema = box(f"{'' if is_signed else 'u'}int{bits}", flexible=False)
    low = -(1 << bits - 1) if is_signed else 0
    high = low + (1 << bits) - 1
    for number in (low, 0, high):
        data = written(schema, Box(number))
        assert data == number.to_bytes(bits // 8, "big", signed=is_signed)
        assert read(schema, data) == Box(number)
    for number in (low - 1, high + 1):
        with pytest.raises((InvalidRequest, OverflowError)):
            written(schema, Box(number))


@given(st.integers(-(2**31), 2**31 - 1))
def test_a_duration_is_that_of_the_message(milliseconds: int) -> None:
    schema = box("timedelta_i32", flexible=False)
    data = milliseconds.to_bytes(4, "big", signed=True)
    assert read(schema, data) == Box(timedelta(milliseconds=milliseconds))
    assert written(schema, Box(timedelta(milliseconds=milliseconds))) == data


@pytest.mark.parametrize(
    ("microseconds", "milliseconds"), [(500, 0), (501, 1), (1500, 2), (2500, 2), (-500, 0)]
)
def test_half_a_millisecond_is_rounded_to_even(microseconds: int, milliseconds: int) -> None:
    data = written(box("timedelta_i64", flexible=False), Box(timedelta(microseconds=microseconds)))
    assert int.from_bytes(data, "big", signed=True) == milliseconds


@pytest.mark.parametrize("days", [-1_000_000_000, 1_000_000_000])
def test_a_duration_beyond_the_calendar_is_refused(days: int) -> None:
    with pytest.raises(InvalidRequest, match="billion days"):
        read(box("timedelta_i64", flexible=False), (days * 86_400_000).to_bytes(8, "big", signed=True))


# ---- what has a length -------------------------------------------------------------------------------------


def test_null_is_only_where_it_may_be() -> None:
    for kind, array in (("string", False), ("bytes", False), ("records", False), ("int8", True)):
        assert written(box(kind, nullable=True, array=array), Box(None)) == b"\0\0"
        assert read(box(kind, nullable=True, array=array), b"\0\0") == Box(None)
        with pytest.raises(InvalidRequest, match="null"):
            written(box(kind, array=array), Box(None))
        with pytest.raises(InvalidRequest):
            read(box(kind, array=array), b"\0\0")


def test_a_byte_before_a_nullable_structure_says_whether_it_is_present() -> None:
    plain = box("structure", nullable=True, schema=box("int8"))
    assert (written(plain, Box(None)), written(plain, Box(Box(7)))) == (b"\xff\0", b"\1\7\0\0")
    absent = Box(0)
    tagged = box("structure", nullable=True, tag=3, default=absent, schema=box("int8"))
    # The tag and the size of the content are before it.
    assert written(tagged, Box(None)) == b"\1\3\1\0"
    assert written(tagged, Box(Box(7))) == b"\1\3\3\1\7\0"
    assert written(tagged, Box(absent)) == b"\0"
    for value in (None, Box(7), absent):
        assert read(plain, written(plain, Box(value))) == Box(value)
        assert read(tagged, written(tagged, Box(value))) == Box(value)


def test_an_old_string_has_sixteen_bits_of_length() -> None:
    schema = box("string", flexible=False)
    assert read(schema, written(schema, Box("x" * 0x7FFF))) == Box("x" * 0x7FFF)
    with pytest.raises(InvalidRequest):
        written(schema, Box("x" * 0x8000))


def test_a_tagged_field_moves_behind_its_size() -> None:
    inner = box("bytes")
    schema = MessageSchema(
        Pair, True, [declared("first", "int8"), declared("second", "structure", tag=9, schema=inner)]
    )
    for size in (0, 100, 126, 127, 128, COPIED_BYTES, 20_000):
        whole = Pair(1, Box(b"b" * size))
        assert read(schema, written(schema, whole)) == whole


def test_large_buffers_are_entries_of_their_own() -> None:
    schema = box("records", array=True)
    small, large = b"s" * (COPIED_BYTES - 1), b"l" * COPIED_BYTES
    writer = MessageWriter()
    writer.write(schema, Box((small, large, large, small)))
    buffers = writer.buffers()
    assert [each for each in buffers if each is large] == [large, large]
    assert read(schema, b"".join(buffers)[4:]) == Box((small, large, large, small))


def test_an_entity_of_another_class_is_not_written() -> None:
    with pytest.raises(TypeError, match="Pair does not fit the schema of Box"):
        MessageWriter().write(box("int8"), Pair(1, 2))
    with pytest.raises(
        InvalidRequest, match=r"Box\.held: a value of type Pair does not fit: Box is required"
    ):
        written(box("structure", schema=box("int8")), Box(Pair(1, 2)))


@pytest.mark.parametrize(
    ("kind", "array", "value", "words"),
    [
        ("string", False, 5, r"Box\.held: a value of type int does not fit: text is required"),
        ("bytes", False, "x", r"Box\.held: a value of type str does not fit: bytes are required"),
        ("bool", False, 1, r"Box\.held: a value of type int does not fit: a boolean is required"),
        ("int32", False, "x", r"Box\.held: a value of type str does not fit: "),
        ("timedelta_i64", False, 5, r"Box\.held: a value of type int does not fit: "),
        ("int8", True, 5, r"Box\.held: a value of type int does not fit: "),
        ("string", True, ["x", 5], r"Box\.held: an item of type int, str does not fit: text is required"),
        ("int8", False, 300, r"Box\.held: 300 is out of range: -128 to 127 are allowed"),
        ("string", False, None, r"Box\.held: null for a field that is not nullable"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_class_field_and_type(
    kind: str, array: bool, value: object, words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        written(box("structure", schema=box(kind, array=array)), Box(Box(value)))


def test_a_message_lies_in_one_piece() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        MessageReader(memoryview(b"message")[::2])
    with pytest.raises(ValueError, match="position 3"):
        MessageReader(b"ab", 3)
    assert MessageReader(b"").left == 0


def test_arrays_share_one_bound() -> None:
    schema = box("structure", array=True, schema=box("int8", array=True, flexible=False), flexible=False)
    half = MAX_ELEMENTS // 2
    inner = (half - 1).to_bytes(4, "big") + bytes(half - 1)
    read(schema, b"\0\0\0\2" + inner + inner)
    with pytest.raises(InvalidRequest, match="more than"):
        read(schema, b"\0\0\0\3" + inner + inner + b"\0\0\0\1\0")
