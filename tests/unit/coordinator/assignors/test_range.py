"""The assignor "range": ranges of partitions by the order of members, and Kafka's own answers."""

from __future__ import annotations

import pytest

from kreplica.common.types import Uuid
from kreplica.coordinator.assignors import range as range_assignor
from kreplica.coordinator.assignors.assignor import MemberSubscription, PartitionAssignorError
from tests.support.assignor_cases import Case, assigned, kafkas_cases

T0, T1 = (Uuid(bytes(15) + bytes([n])) for n in (1, 2))


def member(*topic_ids: Uuid, instance_id: str | None = None) -> MemberSubscription:
    return MemberSubscription(instance_id, None, frozenset(topic_ids), {})


@pytest.mark.parametrize("case", kafkas_cases("range"))
def test_groups_are_assigned_as_kafka_does(case: tuple[Case, object]) -> None:
    given, kafkas = case
    assert assigned(given) == kafkas


def test_static_members_come_first_by_instance_id() -> None:
    members = {"a": member(T0), "b": member(T0, instance_id="z"), "c": member(T0, instance_id="y")}
    assert range_assignor.assign(members, {T0: 5}) == {"c": {T0: {0, 1}}, "b": {T0: {2, 3}}, "a": {T0: {4}}}


def test_topics_with_equal_partitions_and_subscribers_are_co_partitioned() -> None:
    members = {name: member(T0, T1) for name in "abc"}
    for mine in range_assignor.assign(members, {T0: 4, T1: 4}).values():
        assert mine[T0] == mine[T1]


def test_more_members_than_partitions_leave_the_last_without() -> None:
    members = {name: member(T0) for name in "abc"}
    assert range_assignor.assign(members, {T0: 2}) == {"a": {T0: {0}}, "b": {T0: {1}}, "c": {}}


def test_an_unknown_topic_is_refused() -> None:
    with pytest.raises(PartitionAssignorError, match=str(T1)):
        range_assignor.assign({"a": member(T1)}, {T0: 3})
