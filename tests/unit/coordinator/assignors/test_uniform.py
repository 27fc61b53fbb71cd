"""The assignor "uniform": balance, stickiness, and Kafka's own answers."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from kreplica.common.types import Uuid
from kreplica.coordinator.assignors import uniform
from kreplica.coordinator.assignors.assignor import Assignment, MemberSubscription, PartitionAssignorError
from tests.support.assignor_cases import Case, assigned, cases, kafkas_cases

T0, T1, T2 = (Uuid(bytes(15) + bytes([n])) for n in (1, 2, 3))


def member(*topic_ids: Uuid, had: Mapping[Uuid, set[int]] | None = None) -> MemberSubscription:
    before = {topic_id: frozenset(numbers) for topic_id, numbers in (had or {}).items()}
    return MemberSubscription(None, None, frozenset(topic_ids), before)


@pytest.mark.parametrize("case", kafkas_cases("uniform"))
def test_groups_are_assigned_as_kafka_does(case: tuple[Case, object]) -> None:
    given, kafkas = case
    assert assigned(given) == kafkas


def test_an_empty_group_has_no_assignment() -> None:
    assert uniform.assign({}, {T0: 3}) == {}


def test_a_member_without_topics_gets_nothing() -> None:
    assert uniform.assign({"a": member()}, {T0: 3}) == {"a": {}}


def test_an_unknown_topic_is_refused() -> None:
    with pytest.raises(PartitionAssignorError, match=str(T1)):
        uniform.assign({"a": member(T0), "b": member(T0, T1)}, {T0: 3})


def test_a_member_loses_partitions_that_are_gone_and_topics_that_it_left() -> None:
    before = {T0: {0, 1, 7}, T1: {0}}
    assert uniform.assign({"a": member(T0, had=before)}, {T0: 2, T1: 1}) == {"a": {T0: {0, 1}}}


def test_a_partition_of_two_members_stays_with_the_first() -> None:
    members = {"a": member(T0, had={T0: {0}}), "b": member(T0, had={T0: {0}})}
    assert uniform.assign(members, {T0: 2}) == {"a": {T0: {0}}, "b": {T0: {1}}}


def test_a_balanced_group_keeps_everything() -> None:
    members = {"a": member(T0, had={T0: {0, 3}}), "b": member(T0, had={T0: {1, 2, 4}})}
    assert uniform.assign(members, {T0: 5}) == {"a": {T0: {0, 3}}, "b": {T0: {1, 2, 4}}}


def test_what_only_one_member_subscribes_to_counts_for_its_share() -> None:
    members = {"a": member(T0, had={T0: set(range(6))}), "b": member(T0, T1)}
    assert uniform.assign(members, {T0: 6, T1: 1}) == {"a": {T0: {0, 1, 2, 3}}, "b": {T0: {4, 5}, T1: {0}}}


def check_one_owner(members: Mapping[str, MemberSubscription], partitions: dict[Uuid, int]) -> None:
    result = uniform.assign(members, partitions)
    placed = [(t, n) for mine in result.values() for t, numbers in mine.items() for n in numbers]
    subscribed = {t for each in members.values() for t in each.topic_ids}
    assert sorted(placed) == sorted((t, n) for t in subscribed for n in range(partitions[t]))
    assert all(mine.keys() <= members[member_id].topic_ids for member_id, mine in result.items())
    check_balance(members, result)
    again = {
        member_id: MemberSubscription(None, None, each.topic_ids, result[member_id])
        for member_id, each in members.items()
    }
    assert uniform.assign(again, partitions) == result


def check_balance(members: Mapping[str, MemberSubscription], result: Mapping[str, Assignment]) -> None:
    loads = {member_id: sum(map(len, mine.values())) for member_id, mine in result.items()}
    for loser, mine in result.items():
        for topic_id in mine:
            for other, subscription in members.items():
                assert topic_id not in subscription.topic_ids or loads[loser] <= loads[other] + 1


def test_members_that_come_and_go_leave_one_owner_a_partition_and_balance() -> None:
    rng = random.Random(7)
    for _ in range(60):
        partitions = {topic_id: rng.randint(1, 9) for topic_id in (T0, T1, T2)}
        is_homogeneous = rng.random() < 0.5
        members: dict[str, MemberSubscription] = {}
        for step in range(8):
            if members and rng.random() < 0.4:
                del members[rng.choice(list(members))]
            else:
                topics = [each for each in partitions if is_homogeneous or rng.random() < 0.6]
                members[f"m{rng.random()}"] = member(*topics)
            if step % 3 == 2:
                grown = rng.choice(list(partitions))
                partitions[grown] += 2
            check_one_owner(members, partitions)
            result = uniform.assign(members, partitions)
            members = {
                member_id: MemberSubscription(None, None, each.topic_ids, result[member_id])
                for member_id, each in members.items()
            }


def test_random_groups_have_one_owner_a_partition_and_balance() -> None:
    for case in cases(random.Random(3), 20):
        if case["assignor"] == "uniform":
            result = assigned(case)
            placed = [(t, n) for mine in result.values() for t, numbers in mine.items() for n in numbers]
            assert len(placed) == len(set(placed))
