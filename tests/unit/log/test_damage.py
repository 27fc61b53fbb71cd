"""Damaged ranges: which one an offset lies in, and the file that remembers them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica.common.errors import InvalidFile
from kreplica.log.damage import Damage, DamageFile, Damages
from kreplica.log.file_names import DAMAGE_FILE
from kreplica.sim.storage import SimStorage
from tests.support.damage import truncations

DIRECTORY = "/data/orders-0"
SEGMENT = f"{DIRECTORY}/{0:020}.log"
FILE = f"{DIRECTORY}/{DAMAGE_FILE}"


def damage(first: int, following: int | None, position: int = 0) -> Damage:
    return Damage(first, following, SEGMENT, position, position + 70, "BAD_CRC")


def storage() -> SimStorage:
    made = SimStorage()
    made.make_directory(DIRECTORY)
    for parent in ("/", "/data"):
        made.sync_directory(parent)
    return made


bounds = st.lists(st.integers(0, 200), unique=True, max_size=12).map(sorted)


@given(bounds, st.integers(0, 220))
def test_an_offset_lies_in_at_most_one_range(points: list[int], offset: int) -> None:
    ranges = [damage(a, b) for a, b in zip(points[::2], points[1::2], strict=False)]
    damages = Damages(reversed(ranges))
    inside = [each for each in ranges if each.first_offset <= offset < each.stop_offset]
    assert [damages.at(offset)] == (inside or [None])
    below = [each for each in ranges if each.first_offset <= offset]
    above = [each for each in ranges if each.first_offset > offset]
    assert damages.before(offset) == (below[-1] if below else None)
    assert damages.after(offset) == (above[0] if above else None)


def test_a_wider_range_takes_the_place_of_those_within() -> None:
    damages = Damages([damage(3, 5), damage(8, 9), damage(20, None)])
    assert [d.first_offset for d in damages.with_added(damage(4, 10))] == [4, 20]
    assert [d.first_offset for d in damages.with_added(damage(5, 8))] == [3, 5, 8, 20]
    assert [d.first_offset for d in damages.with_added(damage(40, 41))] == [3, 8, 40]


@given(bounds, st.booleans())
def test_the_file_gives_back_what_was_written(points: list[int], endless: bool) -> None:
    files = storage()
    ranges = [damage(a, b, 2 * a) for a, b in zip(points[::2], points[1::2], strict=False)]
    if endless:
        ranges.append(damage(500, None))
    file = DamageFile(files, DIRECTORY)
    file.write(Damages(ranges))
    assert list(file.read()) == ranges
    assert list(DamageFile(files.after_power_cut(), DIRECTORY).read()) == ranges


def test_without_damage_there_is_no_file() -> None:
    files = storage()
    file = DamageFile(files, DIRECTORY)
    file.write(Damages())
    assert list(file.read()) == []
    file.write(Damages([damage(3, 5)]))
    assert files.list_directory(DIRECTORY) == [DAMAGE_FILE]
    file.write(Damages())
    assert files.list_directory(DIRECTORY) == []


def test_a_directory_may_move() -> None:
    moved = DamageFile.parse(DamageFile.format(Damages([damage(3, 5)])), f"/other/orders-0/{DAMAGE_FILE}")
    assert moved[0].path == f"/other/orders-0/{0:020}.log"


GOOD = DamageFile.format(Damages([damage(3, 5)]))


@pytest.mark.parametrize("data", list(truncations(GOOD.strip())))
def test_a_cut_file_is_named(data: bytes) -> None:
    with pytest.raises(InvalidFile, match=DAMAGE_FILE):
        DamageFile.parse(data, FILE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"version": 1', b'"version": 2'),
        (b'"firstOffset": 3', b'"firstOffset": -3'),
        (b'"nextOffset": 5', b'"nextOffset": 3'),
        (b'"nextOffset": 5', b'"nextOffset": true'),
        (b'"endPosition": 70', b'"endPosition": -1'),
        (b"00000000000000000000.log", b"../00000000000000000000.log"),
        (b"00000000000000000000.log", b"00000000000000000000.index"),
        (b'"BAD_CRC"', b"7"),
        (b'"damages"', b'"ranges"'),
    ],
)
def test_a_wrong_field_is_named(old: bytes, new: bytes) -> None:
    assert old in GOOD
    with pytest.raises(InvalidFile, match=DAMAGE_FILE):
        DamageFile.parse(GOOD.replace(old, new), FILE)


def test_ranges_that_overlap_are_refused() -> None:
    with pytest.raises(InvalidFile, match="overlap"):
        DamageFile.parse(DamageFile.format(Damages([damage(3, 5), damage(4, 8)])), FILE)
