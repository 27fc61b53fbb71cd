"""The assignor "simple" of share groups: several members a partition, and Kafka's own answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from kreplica.common.types import Uuid
from kreplica.coordinator.assignors import simple
from kreplica.coordinator.assignors.assignor import MemberSubscription, PartitionAssignorError
from tests.support.assignor_cases import Case, assigned, kafkas_cases

T0, T1 = (Uuid(bytes(15) + bytes([n])) for n in (1, 2))


def member(*topic_ids: Uuid, had: Mapping[Uuid, set[int]] | None = None) -> MemberSubscription:
    before = {topic_id: frozenset(numbers) for topic_id, numbers in (had or {}).items()}
    return MemberSubscription(None, None, frozenset(topic_ids), before)


@pytest.mark.parametrize("case", kafkas_cases("simple"))
def test_groups_are_assigned_as_kafka_does(case: tuple[Case, object]) -> None:
    given, kafkas = case
    assert assigned(given) == kafkas


def test_each_member_has_a_partition_and_each_partition_equally_many_members() -> None:
    members = {f"m{n:03}": member(T0) for n in range(100)}
    result = simple.assign(members, {T0: range(30)})
    shared = Counter(number for mine in result.values() for number in mine[T0])
    assert set(shared.values()) == {4}
    assert {len(mine[T0]) for mine in result.values()} == {1, 2}


def test_only_partitions_that_can_be_assigned_are() -> None:
    members = {"a": member(T0, had={T0: {0, 1}}), "b": member(T0)}
    assert simple.assign(members, {T0: {1, 3}}) == {"a": {T0: {1}}, "b": {T0: {3}}}
    assert simple.assign(members, {T0: ()}) == {"a": {}, "b": {}}


def test_a_member_loses_topics_to_which_no_member_subscribes() -> None:
    members = {"a": member(T0, had={T0: {0}, T1: {0}}), "b": member()}
    assert simple.assign(members, {T0: {0}, T1: {0}}) == {"a": {T0: {0}}, "b": {}}


def test_an_empty_group_has_no_assignment() -> None:
    assert simple.assign({}, {T0: {0}}) == {}


def test_an_unknown_topic_is_refused() -> None:
    with pytest.raises(PartitionAssignorError, match=str(T1)):
        simple.assign({"a": member(T1)}, {T0: {0}})
