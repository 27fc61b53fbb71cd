"""Topic partitions, topic names, Kafka's ids."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica.common.errors import InvalidRequest, InvalidTopic
from kreplica.common.types import TopicPartition, Uuid, check_topic_name


def test_topic_partition_is_a_value_with_the_directory_as_text() -> None:
    assert str(TopicPartition("orders", 3)) == "orders-3"
    assert TopicPartition("orders", 3) == ("orders", 3)


@pytest.mark.parametrize("name", ["a", "orders.v1_X-9", "...", "x" * 249])
def test_topic_name_allowed(name: str) -> None:
    assert check_topic_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a/b", "a\n", "ä", "a\0"])
def test_topic_name_refused(name: str) -> None:
    with pytest.raises(InvalidTopic):
        check_topic_name(name)


@given(st.binary(min_size=16, max_size=16))
def test_uuid_text_round_trip(raw: bytes) -> None:
    uuid = Uuid(raw)
    assert len(str(uuid)) == 22
    assert Uuid.parse(str(uuid)) == uuid


@pytest.mark.parametrize(
    "text",
    [
        "",
        "A" * 21,
        "A" * 23,
        "A" * 22 + "==",
        "A" * 21 + "B",  # bits set that belong to no byte
        "A" * 21 + "+",
        "A" * 21 + "/",
        "A" * 21 + "=",
        "A" * 21 + "\n",
        "é" * 22,
    ],
)
def test_uuid_text_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        Uuid.parse(text)


def test_uuid_of_other_size_refused() -> None:
    with pytest.raises(InvalidRequest):
        Uuid(b"short")


def test_uuid_known_texts() -> None:
    assert str(Uuid.ZERO) == "AAAAAAAAAAAAAAAAAAAAAA"
    assert str(Uuid.METADATA_TOPIC) == "AAAAAAAAAAAAAAAAAAAAAQ"


def test_generated_uuids_are_version_4_and_no_option_for_a_shell() -> None:
    source = random.Random(1)
    uuids = [Uuid.generate(source) for _ in range(500)]
    assert len(set(uuids)) == 500
    assert all(uuid.raw[6] >> 4 == 4 and uuid.raw[8] >> 6 == 2 for uuid in uuids)
    assert not any(str(uuid).startswith("-") for uuid in uuids)
    assert uuids[0] == Uuid.generate(random.Random(1))
