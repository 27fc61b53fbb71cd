"""Fields: a slot is read in place, and every other attribute as Python reads it."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from kreplica._core.fields import Field


class Log:
    __slots__ = ("durable", "state")

    def __init__(self, state: Any) -> None:
        self.state = state


class SharedLog(Log):
    __slots__ = ("queue",)


class Loose:
    def __init__(self, state: Any) -> None:
        self.state = state


class Computed:
    @property
    def state(self) -> str:
        return "computed"


def test_a_slot_is_read_wherever_its_class_keeps_it() -> None:
    state = Field("state")
    assert state.name == "state"
    found = [state(each) for each in (Log(1), Log(2), SharedLog(3), Log(4), Loose(5), Computed(), Log(6))]
    assert found == [1, 2, 3, 4, 5, "computed", 6]


def test_a_slot_is_read_anew_each_time() -> None:
    state, log = Field("state"), Log("first")
    assert state(log) == "first"
    log.state = "second"
    assert state(log) == "second"


def test_what_is_missing_is_an_error() -> None:
    durable, log = Field("durable"), Log(1)
    for _ in range(2):
        with pytest.raises(AttributeError, match="durable"):
            durable(log)
    log.durable = True
    assert durable(log) is True
    del log.durable
    with pytest.raises(AttributeError, match="durable"):
        durable(log)
    with pytest.raises(AttributeError, match="state"):
        Field("state")(object())


def test_a_class_that_takes_the_place_of_another_is_told_apart() -> None:
    state = Field("state")
    for number in range(50):
        slots = [f"before_{each}" for each in range(number % 7)]
        made = type(f"Log{number}", (), {"__slots__": (*slots, "state")})
        log = made()
        log.state = number
        assert state(log) == number
        del log, made
        gc.collect()
