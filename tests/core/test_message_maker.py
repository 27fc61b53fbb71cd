"""MessageMaker: messages from keyword arguments."""

from __future__ import annotations

from typing import Any

import pytest

from kreplica._core.message_maker import MadeByMaker, MessageMaker

MISSING: Any = object()


class Made(metaclass=MadeByMaker):
    """Has two fields in slots."""

    __slots__ = ("first", "second")
    _make: MessageMaker | None = None

    def __setattr__(self, name: str, value: object) -> None:
        raise AssertionError(f"{name} is assigned")

    @classmethod
    def _new_maker(cls) -> MessageMaker:
        made = cls._make = MessageMaker(cls, {"first": MISSING, "second": 2}, MISSING)
        return made


def test_fields_have_the_given_values_or_their_defaults() -> None:
    made = Made(first=[1])
    assert type(made) is Made
    assert (made.first, made.second) == ([1], 2)
    assert Made(second=None, first=0).second is None
    assert type(Made._make) is MessageMaker


def test_missing_and_unknown_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match=r"Made\(\) needs the argument 'first'"):
        Made(second=1)
    with pytest.raises(TypeError, match=r"Made\(\) has no argument 'third'"):
        Made(first=1, third=3)
    with pytest.raises(TypeError):
        Made(1)


def test_a_class_without_slots_is_refused() -> None:
    class Plain:
        first = 1

    with pytest.raises(TypeError, match="does not hold first in a slot"):
        MessageMaker(Plain, {"first": 1}, MISSING)
    with pytest.raises(TypeError, match="no class"):
        MessageMaker(Plain(), {}, MISSING)
