"""dataclass: the standard library's, compiled on first use."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any, ClassVar

import pytest

from kreplica.common.dataclass import dataclass, field, fields, replace


@dataclass(frozen=True, slots=True)
class Point:
    """A place in a plane."""

    x: int
    y: int = 0

    ORIGIN: ClassVar[Point]


@dataclass(slots=True, kw_only=True)
class Basket:
    owner: str
    things: list[str] = field(default_factory=list, metadata={"unit": "things"})
    price: int = 0

    def __post_init__(self) -> None:
        if self.price < 0:
            raise ValueError("the price is negative")


@dataclass(slots=True, eq=False)
class Token:
    name: str


@dataclass(frozen=True, slots=True)
class Nothing:
    pass


STANDARD: Any = dataclasses.dataclass(frozen=True, slots=True)(
    type("Point", (), {"__annotations__": {"x": "int", "y": "int"}, "y": 0, "__doc__": "A place."})
)


def test_methods_are_compiled_when_they_are_first_used() -> None:
    @dataclass(frozen=True, slots=True)
    class Fresh:
        x: int

    made = vars(Fresh)["__init__"]
    assert not callable(made)
    assert Fresh(1) == Fresh(1)
    assert callable(vars(Fresh)["__init__"])
    assert not callable(vars(Fresh)["__repr__"])


@pytest.mark.parametrize("given", [((1,), {}), ((1, 2), {}), ((), {"x": 1, "y": 2}), ((1,), {"y": 3})])
def test_an_instance_is_like_one_of_the_standard_library(
    given: tuple[tuple[int, ...], dict[str, int]],
) -> None:
    ours, standard = Point(*given[0], **given[1]), STANDARD(*given[0], **given[1])
    assert repr(ours) == repr(standard)
    assert hash(ours) == hash(standard)
    assert dataclasses.asdict(ours) == dataclasses.asdict(standard)
    assert Point.__match_args__ == STANDARD.__match_args__


@pytest.mark.parametrize("given", [((), {}), ((1, 2, 3), {}), ((1,), {"z": 1}), ((1,), {"x": 1})])
def test_wrong_arguments_are_refused(given: tuple[tuple[int, ...], dict[str, Any]]) -> None:
    with pytest.raises(TypeError):
        Point(*given[0], **given[1])


def test_instances_are_equal_if_their_class_and_values_are() -> None:
    assert Point(1, 2) == Point(1, 2)
    assert Point(1, 2) != Point(2, 1)
    assert Point(1, 2) != STANDARD(1, 2)
    assert {Point(1): "a"}[Point(1, 0)] == "a"
    assert Nothing() == Nothing()


def test_a_mutable_class_has_no_hash_and_one_without_eq_keeps_its_identity() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(Basket(owner="me"))
    one, other = Token("a"), Token("a")
    assert one != other
    assert len({one, other}) == 2


def test_a_frozen_instance_cannot_change() -> None:
    point = Point(1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="'x'"):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError, match="'x'"):
        del point.x  # type: ignore[misc]


def test_a_default_factory_makes_a_value_for_each_instance() -> None:
    one, other = Basket(owner="me"), Basket(owner="me", things=["a"])
    one.things.append("b")
    assert (one.things, other.things, Basket(owner="me").things) == (["b"], ["a"], [])


def test_fields_that_are_keywords_only_take_no_positions() -> None:
    with pytest.raises(TypeError):
        Basket("me")  # type: ignore[misc]


def test_post_init_runs_in_the_constructor_and_in_replace() -> None:
    with pytest.raises(ValueError, match="negative"):
        Basket(owner="me", price=-1)
    with pytest.raises(ValueError, match="negative"):
        replace(Basket(owner="me"), price=-1)


def test_replace_keeps_the_other_values() -> None:
    assert replace(Point(1, 2), x=3) == Point(3, 2) == dataclasses.replace(Point(1, 2), x=3)


def test_fields_have_their_names_and_metadata_in_order() -> None:
    expected = [("owner", {}), ("things", {"unit": "things"}), ("price", {})]
    assert [(each.name, dict(each.metadata)) for each in fields(Basket)] == expected
    standard = dataclasses.fields(Basket)
    assert [(each.name, dict(each.metadata)) for each in standard] == expected
    assert all(each.kw_only for each in standard)
    assert dataclasses.is_dataclass(Point)


@pytest.mark.parametrize("made", [Point(1, 2), Basket(owner="me", things=["a"]), Nothing()])
def test_instances_are_copied_and_pickled(made: object) -> None:
    assert copy.copy(made) == copy.deepcopy(made) == pickle.loads(pickle.dumps(made)) == made


def test_a_dataclass_of_the_standard_library_may_inherit_from_one() -> None:
    @dataclasses.dataclass(frozen=True)
    class Named(Point):
        name: str = "a"

    assert repr(Named(1, 2, "a")).endswith("Named(x=1, y=2, name='a')")
    assert dataclasses.replace(Named(1), y=3) == Named(1, 3)
    with pytest.raises(TypeError, match="non-frozen"):

        @dataclasses.dataclass
        class Mutable(Point):
            pass


def test_an_instance_has_the_method_that_copy_replace_calls() -> None:
    assert Point(1, 2).__replace__(x=3) == Point(3, 2)


def test_a_dataclass_cannot_inherit_from_another_one() -> None:
    with pytest.raises(AssertionError):

        @dataclass(frozen=True, slots=True)
        class Space(Point):
            z: int
