"""The partitions that a command names."""

from __future__ import annotations

import pytest

from kreplica.cli.scope import in_scope, parse_scope
from kreplica.common.errors import UnknownTopicOrPartition
from kreplica.common.types import TopicPartition

EXISTING = [TopicPartition(topic, number) for topic in ("orders", "others") for number in range(3)]


def test_a_topic_is_all_of_its_partitions() -> None:
    assert in_scope(EXISTING, parse_scope(["others"])) == EXISTING[3:]
    assert in_scope(EXISTING, parse_scope(["others:2", "orders:0, 1"])) == [*EXISTING[:2], EXISTING[5]]


@pytest.mark.parametrize("text", ["", ":1", "orders:", "orders:a", "orders:-1"])
def test_what_names_no_partition_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is neither a topic"):
        parse_scope([text])


@pytest.mark.parametrize(("text", "message"), [("none", "no topic 'none'"), ("orders:3", "no partition 3")])
def test_what_does_not_exist_is_refused(text: str, message: str) -> None:
    with pytest.raises(UnknownTopicOrPartition, match=message):
        in_scope(EXISTING, parse_scope([text]))
