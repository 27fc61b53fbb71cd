"""Members of both protocols in one group, under random requests, lost answers, failed appends, fail-overs."""

from __future__ import annotations

from functools import partial
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from kreplica._core.records import batches
from kreplica.common import errors
from kreplica.common.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    partitions_in,
)
from kreplica.common.types import TopicPartition
from kreplica.coordinator.classic_group import ClassicGroup, GroupState
from kreplica.coordinator.consumer_group import ConsumerGroup
from kreplica.coordinator.group_records import GroupMetadataKey
from tests.support.consumer_stage import ConsumerStage, MadeTopics, topic_id, with_config
from tests.support.group_conversions import check_14_conversions
from tests.support.group_stage import LeavingMember
from tests.unit.coordinator.test_consumer_groups_machine import REBALANCE_MS, SESSION_MS, Machine
from tests.unit.coordinator.test_group_migration import protocols

TOPIC, COUNT = "t", 3
ALL = {TopicPartition(TOPIC, number) for number in range(COUNT)}
CLASSIC = st.sampled_from("xyz")


class ClassicClient:
    """A consumer of the classic protocol. An eager one gives all up before it joins."""

    def __init__(self, stage: Any, *, is_eager: bool = False, instance: str | None = None) -> None:
        self.stage = stage
        self.is_eager = is_eager
        self.instance = instance
        self.drop()

    def drop(self) -> None:
        self.member_id, self.generation_id, self.must_join = "", -1, True
        self.owned: set[TopicPartition] = set()
        self.joining: Any = None
        self.syncing: Any = None
        self.joined: Any = None

    def work(self, *, is_lost: bool = False) -> None:
        """Do what comes next."""
        if self.joining is not None:
            self.finish_join()
        elif self.syncing is not None:
            self.finish_sync()
        elif self.must_join:
            self.join(is_lost=is_lost)
        else:
            future = self.stage.coordinator.heartbeat("g", self.generation_id, self.member_id, self.instance)
            self.stage.settle()
            if future.done() and not is_lost and future.exception(0) is not None:
                self.fail(future.exception(0))

    def join(self, *, is_lost: bool) -> None:
        if self.is_eager:
            self.owned = set()
        found = self.stage.begin_join(
            self.member_id,
            instance=self.instance,
            protocols=protocols(*sorted(self.owned)),
            rebalance_timeout_ms=REBALANCE_MS,
            session_timeout_ms=SESSION_MS,
        )
        if not is_lost:
            self.joining = found
            self.finish_join()

    def finish_join(self) -> None:
        if not self.joining.done():
            return
        future, self.joining = self.joining, None
        error = future.exception(0)
        if error is not None:
            self.fail(error)
            return
        self.joined = joined = future.result(0)
        self.member_id = joined.member_id
        assignments = self.assignments(joined) if joined.members and not joined.skip_assignment else None
        self.syncing = self.stage.begin_sync(joined, assignments, instance=self.instance)
        self.syncing.add_done_callback(partial(self.check_synced, joined))
        self.finish_sync()

    def check_synced(self, joined: Any, done: Any) -> None:
        """No assignment of a generation is given once the next one has begun, or before it is stored."""
        shards = self.stage.coordinator.shards
        group = shards[0].groups.get("g") if shards else None
        if done.exception() is None and isinstance(group, ClassicGroup):
            assert (group.state, group.generation_id) == (GroupState.STABLE, joined.generation_id)
            stored = [
                value.generation
                for key, value in self.stage.log.records()
                if isinstance(key, GroupMetadataKey) and value is not None
            ]
            assert stored[-1] == joined.generation_id

    def assignments(self, joined: Any) -> dict[str, bytes]:
        """Each member keeps what it has, and what is left is dealt."""
        shares: dict[str, set[TopicPartition]] = {}
        free = set(ALL)
        for each in joined.members:
            owned = set(partitions_in(decode_subscription(each.metadata).owned_partitions))
            shares[each.member_id] = owned & free
            free -= owned
        names = sorted(shares)
        for number, at in enumerate(sorted(free)):
            shares[names[number % len(names)]].add(at)
        return {member_id: encode_assignment(sorted(share)) for member_id, share in shares.items()}

    def finish_sync(self) -> None:
        if not self.syncing.done():
            return
        future, self.syncing = self.syncing, None
        error = future.exception(0)
        if error is not None:
            self.fail(error)
            return
        assigned = set(partitions_in(decode_assignment(future.result(0).assignment).assigned_partitions))
        self.generation_id = self.joined.generation_id
        self.must_join = bool(self.owned - assigned)
        self.owned = assigned

    def fail(self, error: Any) -> None:
        self.must_join = True
        if isinstance(error, errors.MemberIdRequired):
            self.member_id = error.member_id  # type: ignore[attr-defined]
        elif isinstance(error, (errors.UnknownMemberId, errors.FencedInstanceId)):
            self.drop()
        elif isinstance(error, errors.IllegalGeneration):
            self.owned = set()
        else:
            known = (errors.RebalanceInProgress, errors.CoordinatorNotAvailable, errors.NotCoordinator)
            assert isinstance(error, known), error


class BothProtocols(Machine):
    @initialize()
    def begin(self) -> None:
        self.stage = ConsumerStage(
            with_config(group_min_session_timeout_ms=100),
            topics=MadeTopics(t=COUNT, u=2),
            session_timeout_ms=SESSION_MS,
            assignment_interval_ms=200,
        )
        self.classic = {
            "x": ClassicClient(self.stage),
            "y": ClassicClient(self.stage, is_eager=True),
            "z": ClassicClient(self.stage, instance="i-d"),
        }
        self.left: set[str] = set()

    @rule(name=CLASSIC, is_lost=st.sampled_from([False, False, False, True]))
    def work(self, name: str, is_lost: bool) -> None:
        self.classic[name].work(is_lost=is_lost)

    @rule(name=CLASSIC)
    def leave_classic(self, name: str) -> None:
        client = self.classic[name]
        self.stage.coordinator.leave("g", [LeavingMember(client.member_id, client.instance)])
        self.stage.settle()
        self.left.add(client.member_id)
        client.drop()

    @rule(rounds=st.integers(0, 4))
    def roll_back(self, rounds: int) -> None:
        for name, client in self.clients.items():
            self.stage.begin(name, -1, instance_id=client.instance_id)
            client.drop()
        for _ in range(rounds):
            self.turn()

    @rule(name=st.sampled_from("abcd"))
    def roll_on(self, name: str) -> None:
        for _ in range(2):
            self.beat(self.clients[name])
            self.clients[name].revoke()

    @invariant()
    def memory_is_a_replay_of_the_log(self) -> None:
        if self.stage.log.held or not self.stage.coordinator.shards:
            return
        if self.group is not None:
            super().memory_is_a_replay_of_the_log()
        else:
            # A classic group has more in memory than in its record, but both have one kind.
            (shard,) = self.stage.reloaded().coordinator.shards
            assert not isinstance(shard.groups.get("g"), ConsumerGroup)

    @invariant()
    def clients_that_are_members_share_no_partition(self) -> None:
        group = self.group
        if group is None:
            return
        owned = [at for name, client in self.clients.items() if name in group.members for at in client.owned]
        for client in self.classic.values():
            current = group.current.get(client.member_id)
            if current is not None and client.generation_id == current.epoch:
                owned += [(topic_id(topic), number) for topic, number in client.owned]
        assert len(owned) == len(set(owned))

    def teardown(self) -> None:
        self.change_the_log("heal")
        self.stage.pass_time(1_000)
        check_14_conversions((batch for data in self.stage.log.batches for batch in batches(data)), self.left)
        # The instance id of z is d's.
        self.classic.pop("z").drop()
        for _ in range(60):
            for name, client in self.clients.items():
                if name != "d":
                    self.beat(client)
                    client.revoke()
            self.turn()
        group = self.group
        assert group is not None
        assert self.stage.state[0] == "Stable", self.stage.state
        consumers = {"a", "b", "c"}
        assert set(group.members) == consumers | {client.member_id for client in self.classic.values()}
        owned = [(topic_id(topic), n) for client in self.classic.values() for topic, n in client.owned]
        owned += [at for name in consumers for at in self.clients[name].owned if at[0] == topic_id(TOPIC)]
        assert len(owned) == len(set(owned))
        self.memory_is_a_replay_of_the_log()
        for name in consumers:
            self.stage.begin(name, -1, instance_id=self.clients[name].instance_id)
        for _ in range(40):
            self.turn()
        made = self.stage.coordinator.shards[0].groups["g"]
        assert isinstance(made, ClassicGroup)
        assert made.state is GroupState.STABLE
        assert sorted(at for client in self.classic.values() for at in client.owned) == sorted(ALL)
        copy = ConsumerStage(log=self.compacted(), topics=self.stage.topics)
        (shard,) = copy.coordinator.shards
        loaded = shard.groups["g"]
        assert isinstance(loaded, ClassicGroup)
        assert (loaded.generation_id, loaded.members.keys()) == (made.generation_id, made.members.keys())

    def turn(self) -> None:
        for client in self.classic.values():
            for _ in range(3):
                client.work()
        self.stage.pass_time(150)


BothProtocols.TestCase.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
TestBothProtocols = BothProtocols.TestCase
del Machine


def test_a_member_leaves_and_another_is_replaced_just_before_the_protocol_changes() -> None:
    made = BothProtocols()
    made.begin()
    made.roll_back(rounds=2)
    made.leave_classic(name="x")
    made.heartbeat(full=False, is_lost=False, name="d")
    made.teardown()


def test_the_sessions_of_several_members_end_just_before_the_protocol_changes() -> None:
    made = BothProtocols()
    made.begin()
    made.heartbeat(full=False, is_lost=False, name="b")
    made.heartbeat(full=False, is_lost=False, name="a")
    made.work(is_lost=False, name="z")
    made.stage.pass_time(3_100)
    made.teardown()
