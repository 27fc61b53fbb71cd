"""The hash of a group's topics; the expected values are those of Kafka's class."""

from __future__ import annotations

import pytest

from kreplica.common.types import Uuid
from kreplica.coordinator.metadata_hash import group_hash, topic_hash

ID = Uuid(bytes(7) + b"\x01" + bytes(7) + b"\x02")
NEGATIVE = Uuid(b"\xff" * 8 + b"\x80" + bytes(6) + b"\x03")


@pytest.mark.parametrize(
    ("name", "topic_id", "racks", "expected"),
    [
        ("a", ID, [[]], -4984864069450367815),
        ("a", ID, [[], []], -2042447274042250391),
        ("a", ID, [["r"]], 5914573409636026719),
        ("a", ID, [["r1", "r22"], ["r3"], []], -8638515038027303908),
        ("a", ID, [["r22", "r1", "r1"]], 2761407634011507357),
        ("täst-\u20ac", NEGATIVE, [["ä"]], -2411944332653841286),
    ],
)
def test_a_topic_has_kafkas_hash(name: str, topic_id: Uuid, racks: list[list[str]], expected: int) -> None:
    assert topic_hash(name, topic_id, racks) == expected


@pytest.mark.parametrize(
    ("hashes", "expected"),
    [
        ({}, 0),
        ({"a": 5}, -8213464378072455284),
        ({"a": 5, "b": -7}, -4646943608980624969),
        ({"b": 5, "a": -7}, -8589419398681722680),
        ({"b": 0}, -4072596861322023719),
    ],
)
def test_a_group_has_kafkas_hash(hashes: dict[str, int], expected: int) -> None:
    assert group_hash(hashes) == expected


def test_the_order_of_topics_and_racks_makes_no_difference() -> None:
    assert group_hash({"a": 5, "b": -7}) == group_hash({"b": -7, "a": 5})
    assert topic_hash("a", ID, [["x", "y"]]) == topic_hash("a", ID, [["y", "x"]])


def test_each_change_of_a_topic_changes_its_hash() -> None:
    topics = [
        ("a", ID, [[]]),
        ("b", ID, [[]]),
        ("a", NEGATIVE, [[]]),
        ("a", ID, [[], []]),
        ("a", ID, [["r"]]),
    ]
    assert len({topic_hash(*each) for each in topics}) == len(topics)
