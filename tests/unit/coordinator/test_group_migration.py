"""A group with members changes its protocol: programs are replaced one by one, and nothing is lost."""

from __future__ import annotations

from typing import Any

import pytest

from kreplica.common import errors
from kreplica.common.consumer_protocol import (
    AssignedPartitions,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    decode_assignment,
    encode_assignment,
    partitions_in,
)
from kreplica.common.message import encode
from kreplica.common.types import TopicPartition
from kreplica.coordinator.classic_group import ClassicGroup, GroupState, Protocol
from kreplica.coordinator.consumer_group import ConsumerGroup, MemberState
from kreplica.coordinator.group_records import (
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    GroupMetadataKey,
)
from tests.support.consumer_stage import ConsumerStage, owned, with_config

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
BOTH = (T0, T1)


def protocols(*has: TopicPartition, topics: Any = ("t",), names: Any = ("range",)) -> tuple[Protocol, ...]:
    """The protocols of a consumer that owns some partitions while it joins."""
    owned_topics: dict[str, list[int]] = {}
    for topic, number in has:
        owned_topics.setdefault(topic, []).append(number)
    subscription = ConsumerProtocolSubscription(
        topics=tuple(topics),
        owned_partitions=tuple(
            AssignedPartitions(topic=topic, partitions=tuple(numbers))
            for topic, numbers in owned_topics.items()
        ),
    )
    return tuple(Protocol(name, encode(subscription, 1, b"\0\1")) for name in names)


RANGE = protocols()


@pytest.fixture
def stage() -> Any:
    return ConsumerStage()


def group_of(stage: Any) -> Any:
    return stage.coordinator.shards[0].groups["g"]


def classic_member(stage: Any, *has: TopicPartition, **options: Any) -> Any:
    """A classic group of one member, which has these partitions."""
    member_id = "" if options.get("instance") else stage.new_id(protocols=RANGE)
    joined = stage.begin_join(member_id, protocols=RANGE, **options).result(0)
    assignments = {joined.member_id: encode_assignment(has or BOTH)}
    stage.begin_sync(joined, assignments, instance=options.get("instance")).result(0)
    return joined


def sync(stage: Any, joined: Any, instance: Any = None) -> Any:
    """The partitions of a member."""
    found = stage.begin_sync(joined, instance=instance).result(0)
    return partitions_in(decode_assignment(found.assignment).assigned_partitions)


def error_of_sync(stage: Any, joined: Any) -> Any:
    return type(stage.begin_sync(joined).exception(0))


def rejoin(stage: Any, joined: Any, *has: TopicPartition, **options: Any) -> Any:
    options = {"protocols": protocols(*has)} | options
    return stage.begin_join(joined.member_id, **options).result(0)


def mixed(stage: Any) -> Any:
    """A stable group of a classic member with t-0 and the consumer member b with t-1, in epoch 2."""
    old = classic_member(stage)
    stage.beat("b")
    assert isinstance(stage.heartbeat(old), errors.RebalanceInProgress)
    joined = rejoin(stage, old, T0, T1)
    kept = sync(stage, joined)
    joined = rejoin(stage, joined, *kept)
    assert sync(stage, joined) == kept
    stage.beat("b", 2)
    assert stage.state[0] == "Stable"
    return joined


def changes_of_protocol(stage: Any) -> list[str]:
    """Which records of groups were written, values only."""
    kinds = {GroupMetadataKey: "classic", ConsumerGroupMetadataKey: "consumer"}
    found = [kinds[type(key)] for key, value in stage.log.records() if type(key) in kinds and value]
    return [each for number, each in enumerate(found) if number == 0 or found[number - 1] != each]


# ---- to the consumer protocol --------------------------------------------------------------------------


def test_a_consumer_joins_a_classic_group_and_gets_its_share_when_it_is_given_up(stage: Any) -> None:
    old = classic_member(stage)
    assert stage.beat("b") == ("b", 2, 100, {})
    assert stage.state == (
        *("Reconciling", 2, 2),
        {old.member_id: (1, {"t": {0, 1}}), "b": (2, {})},
    )
    assert isinstance(stage.heartbeat(old), errors.RebalanceInProgress)
    assert error_of_sync(stage, old) is errors.RebalanceInProgress
    # It keeps t-0 while it joins, and gives t-1 up with the assignment that it gets.
    joined = rejoin(stage, old, T0, T1)
    assert (joined.generation_id, joined.protocol_name, joined.leader_id, joined.members) == (
        *(1, "range", ""),
        (),
    )
    kept = sync(stage, joined)
    assert len(kept) == 1
    assert isinstance(stage.heartbeat(joined), errors.RebalanceInProgress)
    assert stage.beat("b", 2).assignment is None
    joined = rejoin(stage, joined, *kept)
    assert joined.generation_id == 2
    assert sync(stage, joined) == kept
    assert stage.heartbeat(joined) is None
    (freed,) = set(BOTH) - set(kept)
    assert stage.beat("b", 2).assignment == owned(t=[freed.partition])
    assert stage.state[0] == "Stable"
    assert [each.is_classic for each in stage.group().members] == [True, False]


def test_an_eager_member_gives_everything_up_before_it_joins(stage: Any) -> None:
    old = classic_member(stage)
    stage.beat("b")
    joined = rejoin(stage, old)
    assert joined.generation_id == 2
    (kept,) = sync(stage, joined)
    assert stage.beat("b", 2).assignment == owned(t=[1 - kept.partition])


def test_a_classic_member_joins_a_consumer_group(stage: Any) -> None:
    stage.beat("b")
    member_id = stage.new_id(protocols=RANGE)
    joined = stage.begin_join(member_id, protocols=RANGE).result(0)
    assert (joined.generation_id, joined.member_id) == (3, member_id)
    assert sync(stage, joined) == []
    assert stage.heartbeat(joined) is None
    stage.beat("b", 2, owned=owned(t=[0, 1]))
    stage.beat("b", 2, owned=owned(t=[0]))
    # Now its partition is free.
    assert isinstance(stage.heartbeat(joined), errors.RebalanceInProgress)
    joined = rejoin(stage, joined)
    assert sync(stage, joined) == [T1]
    assert stage.state[0] == "Stable"


def test_requests_that_wait_in_a_classic_group_are_answered_when_it_changes(stage: Any) -> None:
    old = classic_member(stage)
    waiting = stage.begin_join(stage.new_id(protocols=RANGE), protocols=RANGE)
    assert not waiting.done()
    stage.beat("b")
    assert isinstance(waiting.exception(0), errors.RebalanceInProgress)
    assert set(stage.state[3]) == {old.member_id, "b", *group_of(stage).classic_members}
    assert len(stage.state[3]) == 3


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
def test_an_upgrade_needs_the_policy(policy: str) -> None:
    stage: Any = ConsumerStage(with_config(group_consumer_migration_policy=policy))
    old = classic_member(stage)
    assert stage.refusal("b") is errors.GroupIdNotFound
    assert stage.heartbeat(old) is None


def test_an_upgrade_needs_room_and_consumers() -> None:
    stage: Any = ConsumerStage(with_config(group_consumer_max_size=1))
    old = classic_member(stage)
    assert stage.refusal("b") is errors.GroupMaxSizeReached
    assert stage.heartbeat(old) is None
    assert isinstance(group_of(stage), ClassicGroup)
    # It has its session still.
    stage.pass_time(700)
    assert isinstance(stage.heartbeat(old), errors.UnknownMemberId)

    stage = ConsumerStage()
    stage.one_member()  # of a protocol whose data is not a subscription
    assert stage.refusal("b") is errors.GroupIdNotFound


def test_an_upgrade_does_not_lose_the_data_of_an_assignor(stage: Any) -> None:
    joined = stage.begin_join(stage.new_id(protocols=RANGE), protocols=RANGE).result(0)
    assigned = ConsumerProtocolAssignment(assigned_partitions=(), user_data=b"data")
    stage.begin_sync(joined, {joined.member_id: encode(assigned, 0, b"\0\0")}).result(0)
    assert stage.refusal("b") is errors.GroupIdNotFound
    assert stage.heartbeat(joined) is None


# ---- requests of classic members -----------------------------------------------------------------------


def test_classic_requests_to_a_consumer_group_are_refused(stage: Any) -> None:
    stage.beat("s", instance_id="i")
    joined = stage.begin_join("", protocols=RANGE, instance="k").result(0)
    stranger = joined._replace(member_id="stranger")
    modern = joined._replace(member_id="s")
    late = joined._replace(generation_id=joined.generation_id - 1)
    for bad, error in (
        (stranger, errors.UnknownMemberId),
        (modern, errors.UnknownMemberId),
        (late, errors.IllegalGeneration),
    ):
        assert type(stage.heartbeat(bad)) is error
        assert error_of_sync(stage, bad) is error
    assert type(stage.heartbeat(stranger, instance="k")) is errors.FencedInstanceId
    assert type(stage.heartbeat(joined, instance="unknown")) is errors.UnknownMemberId
    assert error_of_sync(stage, joined._replace(protocol_name="other")) is errors.InconsistentGroupProtocol
    assert type(stage.leave("stranger")) is errors.UnknownMemberId
    assert type(stage.leave("s")) is errors.UnknownMemberId
    assert type(stage.leave("stranger", "k")) is errors.FencedInstanceId

    def refused(member_id: str = "", **options: Any) -> Any:
        return type(stage.begin_join(member_id, **({"protocols": RANGE} | options)).exception(0))

    assert refused() is errors.MemberIdRequired
    assert refused(protocols=protocols(names=["other"])) is errors.InconsistentGroupProtocol
    assert refused(protocols=[Protocol("range", b"\0")]) is errors.InconsistentGroupProtocol
    assert refused("stranger", instance="k") is errors.FencedInstanceId
    assert refused("stranger", instance="unknown") is errors.UnknownMemberId


def test_a_consumer_group_of_its_size_takes_no_classic_member() -> None:
    stage: Any = ConsumerStage(with_config(group_consumer_max_size=1))
    stage.beat("b")
    assert isinstance(
        stage.begin_join("", protocols=RANGE, instance="k").exception(0), errors.GroupMaxSizeReached
    )


def test_a_classic_member_that_does_not_join_again_or_does_not_sync_is_removed(stage: Any) -> None:
    joined = mixed(stage)
    stage.beat("c", rebalance_timeout_ms=5_000)
    assert isinstance(stage.heartbeat(joined), errors.RebalanceInProgress)
    epoch = 2
    for _ in range(4):
        stage.pass_time(300)
        stage.heartbeat(joined)
        epoch = stage.beat("b", epoch).member_epoch
        stage.beat("c", 3)
    assert isinstance(stage.heartbeat(joined), errors.UnknownMemberId)

    member_id = stage.new_id(protocols=RANGE)
    joined = stage.begin_join(member_id, protocols=RANGE, session_timeout_ms=5_000).result(0)
    stage.pass_time(900)
    assert stage.heartbeat(joined) is None
    stage.pass_time(300)
    assert isinstance(stage.heartbeat(joined), errors.UnknownMemberId)


def test_a_classic_member_has_the_session_that_it_asked_for(stage: Any) -> None:
    joined = mixed(stage)
    stage.pass_time(400)
    assert stage.heartbeat(joined) is None
    stage.beat("b", 2)
    stage.pass_time(600)
    assert isinstance(stage.heartbeat(joined), errors.UnknownMemberId)
    assert stage.beat("b", 2).assignment == owned(t=[0, 1])


def test_a_classic_member_leaves_and_commits_with_its_generation(stage: Any) -> None:
    joined = mixed(stage)
    assert stage.commit(7, joined) is None
    late = joined._replace(generation_id=9)
    assert isinstance(stage.commit(8, late), errors.IllegalGeneration)
    assert stage.leave(joined.member_id) is None
    assert stage.beat("b", 2) == ("b", 3, 100, owned(t=[0, 1]))


# ---- back to the classic protocol ----------------------------------------------------------------------


def test_the_last_consumer_leaves_and_the_group_is_classic_again(stage: Any) -> None:
    joined = mixed(stage)
    stage.commit(7, joined)
    stage.beat("b", -1)
    group = group_of(stage)
    assert isinstance(group, ClassicGroup)
    assert (group.state, group.generation_id) == (GroupState.PREPARING_REBALANCE, 2)
    assert isinstance(stage.heartbeat(joined), errors.RebalanceInProgress)
    again = rejoin(stage, joined, T0)
    assert (again.generation_id, again.leader_id, len(again.members)) == (3, joined.member_id, 1)
    stage.begin_sync(again, {again.member_id: encode_assignment(BOTH)}).result(0)
    assert stage.heartbeat(again) is None
    assert stage.committed() == {T0: 7}
    assert changes_of_protocol(stage) == ["classic", "consumer", "classic"]
    # Nothing of the consumer group is left.
    left = {key for key, value in stage.log.records() if value is None}
    written = {key for key, value in stage.log.records() if not isinstance(key, GroupMetadataKey) and value}
    assert {key for key in written - left if type(key).__name__.startswith("Consumer")} == set()


@pytest.mark.parametrize("how", ["session", "revocation"])
def test_the_last_consumer_is_fenced_and_the_group_is_classic_again(stage: Any, how: str) -> None:
    if how == "session":
        joined = mixed(stage)
        for _ in range(4):
            stage.pass_time(300)
            stage.heartbeat(joined)
    else:
        stage.beat("b")
        joined = stage.begin_join(stage.new_id(protocols=RANGE), protocols=RANGE).result(0)
        sync(stage, joined)
        stage.beat("b", 2, owned=owned(t=[0, 1]))
        stage.pass_time(300)
        stage.beat("b", 2)
        stage.heartbeat(joined)
        stage.pass_time(300)
    assert isinstance(group_of(stage), ClassicGroup)
    assert stage.refusal("b", 2) is errors.GroupIdNotFound
    assert isinstance(stage.heartbeat(joined), errors.RebalanceInProgress)


@pytest.mark.parametrize("policy", ["disabled", "upgrade"])
def test_a_downgrade_needs_the_policy(policy: str) -> None:
    stage: Any = ConsumerStage(with_config(group_consumer_migration_policy=policy))
    stage.beat("b")
    joined = stage.begin_join(stage.new_id(protocols=RANGE), protocols=RANGE).result(0)
    stage.beat("b", -1)
    assert isinstance(group_of(stage), ConsumerGroup)
    joined = rejoin(stage, joined)
    assert sync(stage, joined) == [T0, T1]


def test_a_downgraded_group_forms_a_generation_after_a_fail_over_too(stage: Any) -> None:
    joined = mixed(stage)
    stage.beat("b", -1)
    stage.fail_over()
    assert group_of(stage).state is GroupState.PREPARING_REBALANCE
    assert isinstance(stage.heartbeat(joined), errors.RebalanceInProgress)


def test_a_downgraded_group_keeps_all_protocols_of_its_members(stage: Any) -> None:
    stage.beat("b")
    names = protocols(names=("range", "sticky"))
    joined = stage.begin_join(stage.new_id(protocols=names), protocols=names).result(0)
    stage.beat("b", -1)
    (member,) = group_of(stage).members.values()
    assert [each.name for each in member.protocols] == ["range", "sticky"]
    assert joined.member_id == member.member_id


# ---- records and failures ------------------------------------------------------------------------------


def test_each_step_survives_a_fail_over(stage: Any) -> None:
    old = classic_member(stage)
    stage.beat("b")
    before = stage.in_memory()
    stage.fail_over()
    assert stage.in_memory() == before
    assert isinstance(stage.heartbeat(old), errors.RebalanceInProgress)
    joined = rejoin(stage, old, T0, T1)
    before = stage.in_memory()
    stage.fail_over()
    assert stage.in_memory() == before
    kept = sync(stage, joined)
    joined = rejoin(stage, joined, *kept)
    stage.fail_over()
    assert sync(stage, joined) == kept
    assert stage.beat("b", 2).assignment is not None
    assert stage.state[0] == "Stable"


def test_an_upgrade_that_is_not_stored_is_undone_with_its_timers(stage: Any) -> None:
    old = classic_member(stage)
    stage.log.error = errors.NotEnoughReplicas()
    assert stage.refusal("b") is errors.CoordinatorNotAvailable
    stage.log.error = None
    assert stage.heartbeat(old) is None
    assert group_of(stage).state is GroupState.STABLE
    stage.pass_time(700)
    assert isinstance(stage.heartbeat(old), errors.UnknownMemberId)


def test_an_upgrade_of_a_rebalancing_group_that_is_not_stored_lets_it_go_on(stage: Any) -> None:
    old = classic_member(stage)
    waiting = stage.begin_join(stage.new_id(protocols=RANGE), protocols=RANGE)
    stage.log.error = errors.NotEnoughReplicas()
    stage.refusal("b")
    assert isinstance(waiting.exception(0), errors.RebalanceInProgress)
    stage.log.error = None
    assert group_of(stage).state is GroupState.PREPARING_REBALANCE
    assert isinstance(stage.heartbeat(old), errors.RebalanceInProgress)
    (new,) = set(group_of(stage).members) - {old.member_id}
    first = stage.begin_join(old.member_id, protocols=RANGE)
    second = stage.begin_join(new, protocols=RANGE).result(0)
    assert first.result(0).generation_id == second.generation_id == 2


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_consumer_takes_over_a_rebalancing_group_whose_members_have_all_left(is_stored: bool) -> None:
    # One that was given its member id, and has not come back yet, keeps the rebalance from its end.
    stage = ConsumerStage(with_config(group_initial_rebalance_delay_ms=3_000))
    first = stage.new_id(protocols=RANGE)
    stage.begin_join(first, protocols=RANGE)
    stage.new_id(protocols=RANGE)
    stage.leave(first)
    assert (group_of(stage).state, group_of(stage).members) == (GroupState.PREPARING_REBALANCE, {})
    if is_stored:
        assert stage.beat("b").member_epoch == 2
        assert stage.state[0] == "Stable"
        return
    stage.log.error = errors.NotEnoughReplicas()
    assert stage.refusal("b") is errors.CoordinatorNotAvailable
    stage.log.error = None
    # The classic group goes on.
    joining = stage.begin_join(stage.new_id(protocols=RANGE), protocols=RANGE)
    stage.pass_time(10_000)
    assert joining.result(0).generation_id == 1
    stage.leave(joining.result(0).member_id)
    assert stage.beat("b").member_epoch >= 2


def test_a_downgrade_that_is_not_stored_is_undone_and_writes_nothing_later(stage: Any) -> None:
    joined = mixed(stage)
    stage.log.held = []
    leaving = stage.begin("b", -1)
    waiting = stage.begin_join(joined.member_id, protocols=RANGE)  # in the classic group of memory
    stage.log.held, held = None, stage.log.held
    stage.log.error = errors.NotEnoughReplicas()
    for future, _ in held:
        del stage.log.batches[-1]
        future.set_exception(errors.NotEnoughReplicas())
    stage.settle()
    assert isinstance(leaving.exception(0), errors.CoordinatorNotAvailable)
    assert waiting.done()
    stage.log.error = None
    assert isinstance(group_of(stage), ConsumerGroup)
    assert stage.state[0] == "Stable"
    stage.pass_time(300)
    assert stage.heartbeat(joined) is None
    stage.beat("b", 2)
    assert changes_of_protocol(stage) == ["classic", "consumer"]
    stage.pass_time(1_500)
    assert isinstance(stage.heartbeat(joined), errors.UnknownMemberId)


# ---- bug histories -------------------------------------------------------------------------------------


def test_kafka_20273_a_downgrade_before_the_next_assignment_lets_the_members_form_a_generation() -> None:
    stage: Any = ConsumerStage(assignment_interval_ms=10_000)
    stage.beat("s", instance_id="i")
    joined = stage.begin_join("", protocols=RANGE, instance="k").result(0)
    assert stage.state[:3] == ("Assigning", 3, 2)
    replacing = stage.begin_join("", protocols=RANGE, instance="i")
    # The assignment is older than the group: members must not rely on it.
    assert isinstance(group_of(stage), ClassicGroup)
    assert not replacing.done()
    again = stage.begin_join(joined.member_id, protocols=RANGE, instance="k").result(0)
    assert again.generation_id == replacing.result(0).generation_id == group_of(stage).generation_id == 4


def test_kafka_17317_a_classic_member_replaces_the_last_static_consumer(stage: Any) -> None:
    stage.beat("s", instance_id="i")
    replaced = stage.begin_join("", protocols=RANGE, instance="i").result(0)
    assert isinstance(group_of(stage), ClassicGroup)
    assert group_of(stage).state is GroupState.STABLE
    assert (replaced.generation_id, replaced.skip_assignment) == (2, True)
    assert sync(stage, replaced, "i") == [T0, T1]
    assert stage.heartbeat(replaced, "i") is None
    stage.fail_over()
    assert stage.heartbeat(replaced, "i") is None
    assert stage.refusal("s", 2, instance_id="i") is errors.GroupIdNotFound


def test_kafka_17228_a_consumer_replaces_a_static_member_of_the_classic_protocol(stage: Any) -> None:
    old = classic_member(stage, instance="i")
    answer = stage.beat("s", instance_id="i")
    assert answer.assignment == owned(t=[0, 1])
    assert set(stage.state[3]) == {"s"}
    assert stage.state[0] == "Stable"
    assert isinstance(stage.heartbeat(old, "i"), errors.FencedInstanceId)
    assert [each.is_classic for each in stage.group().members] == [False]
    deleted = ConsumerGroupMemberMetadataKey(group_id="g", member_id=old.member_id)
    assert (deleted, None) in stage.log.records()


def test_a_member_of_a_rebalancing_group_owns_what_was_stored_last(stage: Any) -> None:
    old = classic_member(stage)
    waiting = stage.begin_join(stage.new_id(protocols=RANGE), protocols=RANGE)
    stage.begin_join(old.member_id, protocols=protocols(T0, T1))
    assert waiting.result(0).generation_id == 2
    stage.begin_join(stage.new_id(protocols=RANGE), protocols=RANGE)  # and again, before a member has synced
    assert stage.beat("b").assignment == {}
    current = group_of(stage).current[old.member_id]
    assert (current.state, stage.state[3][old.member_id][1]) == (MemberState.STABLE, {"t": {0, 1}})
