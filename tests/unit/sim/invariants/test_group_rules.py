"""The invariants of modern groups: each holds for a right group, and fails for a wrong one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kreplica.common.types import Uuid
from kreplica.coordinator.consumer_group import ConsumerGroup, CurrentAssignment, MemberState
from kreplica.coordinator.group_records import (
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupRegularExpressionValue,
)
from kreplica.coordinator.modern_group import target_value
from kreplica.coordinator.shard_writer import UndoLog
from kreplica.sim.invariants import group_rules as rules
from kreplica.sim.invariants.violation import InvariantViolated

TOPIC = Uuid(bytes(15) + b"t")
STABLE, UNREVOKED = MemberState.STABLE, MemberState.UNREVOKED_PARTITIONS


def current(*numbers: int, epoch: int = 2, state: MemberState = STABLE, revoking: Any = ()) -> Any:
    def owned(some: Any) -> Any:
        return {TOPIC: dict.fromkeys(some, epoch)} if some else {}

    return CurrentAssignment(epoch, epoch - 1, state, owned(numbers), owned(revoking)).record()


def put(group: ConsumerGroup, member_id: str, value: Any) -> None:
    group.put_current(member_id, CurrentAssignment.of_record(value))


@pytest.fixture
def group() -> ConsumerGroup:
    """Return a group of two stable members with a partition each."""
    group = ConsumerGroup("g", UndoLog())
    group.put_epoch(2, 0)
    group.put_assignment_epoch(2, 0)
    for number, name in enumerate("ab"):
        value = ConsumerGroupMemberMetadataValue(
            instance_id=f"i-{name}",
            rack_id=None,
            client_id="",
            client_host="",
            subscribed_topic_names=("t",),
            subscribed_topic_regex=None,
            rebalance_timeout_ms=1,
            server_assignor=None,
        )
        group.put_member(name, value)
        group.put_target(name, target_value({TOPIC: frozenset({number})}))
        put(group, name, current(number))
    return group


def all_rules(group: ConsumerGroup) -> None:
    rules.check_6_members(group)
    rules.check_1_owners(group)
    rules.check_2_epochs(group)
    rules.check_3_states(group, lambda _: "t")
    rules.check_10_instances(group)
    rules.check_12_regexes(group)
    rules.check_13_targets(group)
    assert not list(rules.awaits_16_stable(group, {"a", "b"}))


def test_a_group_of_stable_members_violates_nothing(group: ConsumerGroup) -> None:
    all_rules(group)


def unsubscribed(group: ConsumerGroup) -> None:
    member = group.members["a"]
    object.__setattr__(member, "subscribed_topic_names", ("u",))


WRONG: list[tuple[str, Callable[[ConsumerGroup], Any]]] = [
    ("1", lambda group: put(group, "a", current(0, 1))),
    ("1", lambda group: put(group, "a", current(0, state=UNREVOKED, revoking=(1,)))),
    ("2", lambda group: put(group, "a", current(0, epoch=3))),
    ("2", lambda group: group.put_epoch(1, 0)),
    ("3", lambda group: put(group, "a", current(0, 5))),
    ("3", lambda group: put(group, "a", current(0, revoking=(5,)))),
    ("3", unsubscribed),
    ("6", lambda group: group.put_member("a", None)),
    ("10", lambda group: group.put_member("c", group.members["a"])),
    (
        "12",
        lambda group: group.put_regex(
            "x", ConsumerGroupRegularExpressionValue(topics=(), version=0, timestamp=0)
        ),
    ),
    ("13", lambda group: group.put_target("a", target_value({TOPIC: frozenset({0, 1})}))),
]


@pytest.mark.parametrize(("number", "spoil"), WRONG)
def test_a_wrong_group_violates_the_rule(group: ConsumerGroup, number: str, spoil: Any) -> None:
    spoil(group)
    with pytest.raises(InvariantViolated) as caught:
        all_rules(group)
    assert caught.value.invariant == f"Groups-{number}"


def test_members_without_timers_are_noticed(group: ConsumerGroup) -> None:
    class Timers:
        sessions = frozenset({("g", "a"), ("g", "b")})
        revocations = frozenset[Any]()

    rules.check_11_timers(Timers, group, is_reconciled=True)
    put(group, "a", current(state=UNREVOKED, revoking=(0,)))
    with pytest.raises(InvariantViolated, match="take for ever"):
        rules.check_11_timers(Timers, group, is_reconciled=True)
    Timers.sessions = frozenset({("g", "a")})
    put(group, "a", current(0))
    with pytest.raises(InvariantViolated, match="b of g has no session"):
        rules.check_11_timers(Timers, group, is_reconciled=True)


def test_members_that_are_not_stable_are_waited_for(group: ConsumerGroup) -> None:
    put(group, "a", current(epoch=1))
    assert len(list(rules.awaits_16_stable(group, {"a"}))) == 2
