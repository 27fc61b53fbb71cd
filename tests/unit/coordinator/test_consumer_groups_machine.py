"""Consumer groups keep their invariants under random requests, lost answers, failed appends, fail-overs."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kreplica._core.batch_builder import BatchBuilder
from kreplica._core.records import RecordBatch
from kreplica.common import errors
from kreplica.coordinator.consumer_group import ConsumerGroup, MemberState
from tests.support.consumer_stage import ConsumerStage, MadeTopics, topic_id
from tests.support.group_stage import MemoryLog

SESSION_MS, REBALANCE_MS = 3_000, 1_500
LOST = (errors.UnknownMemberId, errors.FencedMemberEpoch, errors.FencedInstanceId, errors.GroupIdNotFound)
NAMES = st.sampled_from("abcd")
TOPICS = st.sets(st.sampled_from(["t", "u", "late"]), min_size=1)
UNKNOWN = st.sampled_from([errors.RequestTimedOut(), errors.NotEnoughReplicasAfterAppend()])


class Client:
    """A consumer as KIP-848 wants it: it reports what it has, and drops everything when it is fenced."""

    def __init__(self, name: str, instance_id: str | None) -> None:
        self.name = name
        self.instance_id = instance_id
        self.epoch = 0
        self.is_member = False
        # A client declares everything again after a request whose answer it did not get.
        self.is_declared = False
        self.topics = ["t"]
        self.owned: set[Any] = set()
        self.assigned: set[Any] | None = None

    def options(self, *, full: bool) -> dict[str, Any]:
        owned: dict[Any, set[int]] = {}
        for topic, number in self.owned:
            owned.setdefault(topic, set()).add(number)
        reported = {topic: frozenset(numbers) for topic, numbers in owned.items()}
        declared = {"topics": self.topics, "rebalance_timeout_ms": REBALANCE_MS} if full else {}
        return {"instance_id": self.instance_id, "owned": reported, **declared}

    def take(self, answer: Any) -> None:
        self.epoch, self.is_member, self.is_declared = answer.member_epoch, True, True
        if answer.assignment is not None:
            self.assigned = {(topic, n) for topic, numbers in answer.assignment.items() for n in numbers}

    def revoke(self) -> None:
        """Give up what is no longer assigned, and only then begin with what is new."""
        if self.assigned is not None:
            if self.owned <= self.assigned:
                self.owned = set(self.assigned)
            else:
                self.owned &= self.assigned

    def drop(self) -> None:
        self.epoch, self.is_member, self.is_declared = 0, False, False
        self.owned, self.assigned = set(), None


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stage = ConsumerStage(
            topics=MadeTopics(t=3, u=2),
            session_timeout_ms=SESSION_MS,
            assignment_interval_ms=200,
        )
        self.clients = {name: Client(name, f"i-{name}" if name in "cd" else None) for name in "abcd"}
        self.epochs = (0, 0)

    # ---- members --------------------------------------------------------------------------------------

    def beat(self, client: Client, *, full: bool = False, is_lost: bool = False) -> None:
        full = full or not client.is_declared
        future = self.stage.begin(client.name, client.epoch, **client.options(full=full))
        client.is_declared = False
        if is_lost or not future.done():
            return
        error = future.exception(0)
        if error is None:
            client.take(future.result(0))
        elif isinstance(error, LOST):
            client.drop()
        else:
            known = (errors.CoordinatorNotAvailable, errors.NotCoordinator, errors.UnreleasedInstanceId)
            assert isinstance(error, known), error

    @rule(name=NAMES, full=st.booleans(), is_lost=st.sampled_from([False, False, False, True]))
    def heartbeat(self, name: str, full: bool, is_lost: bool) -> None:
        self.beat(self.clients[name], full=full, is_lost=is_lost)

    @rule(name=NAMES)
    def revoke(self, name: str) -> None:
        self.clients[name].revoke()

    @rule(name=NAMES, topics=TOPICS)
    def subscribe(self, name: str, topics: set[str]) -> None:
        self.clients[name].topics = sorted(topics)
        if self.clients[name].is_member:
            self.beat(self.clients[name], full=True)

    @rule(name=NAMES, is_back=st.booleans())
    def leave(self, name: str, is_back: bool) -> None:
        client = self.clients[name]
        epoch = -2 if is_back and client.instance_id is not None else -1
        self.stage.begin(name, epoch, instance_id=client.instance_id)
        client.drop()

    @rule(name=NAMES)
    def restart(self, name: str) -> None:
        self.clients[name].drop()

    # ---- the world ------------------------------------------------------------------------------------

    @rule(count=st.integers(0, 4))
    def change_topic(self, count: int) -> None:
        counts = self.stage.topics.counts
        if count:
            counts["late"] = count
        else:
            counts.pop("late", None)
        self.stage.coordinator.change_topics(["late"], has_other_names=True)
        self.stage.settle()

    @rule(duration_ms=st.sampled_from([100, 600, SESSION_MS // 2, SESSION_MS + 100]))
    def pass_time(self, duration_ms: int) -> None:
        self.stage.pass_time(duration_ms)

    @rule(how=st.sampled_from(["refuse", "hold", "heal", "heal"]))
    def change_the_log(self, how: str) -> None:
        log = self.stage.log
        log.error = errors.NotEnoughReplicas() if how == "refuse" else None
        if how == "hold":
            log.held = [] if log.held is None else log.held
        else:
            log.release()
        self.stage.settle()

    @rule(error=UNKNOWN)
    def leave_appends_open(self, error: Exception) -> None:
        held, self.stage.log.held = self.stage.log.held, None
        for future, _ in held or ():
            future.set_exception(error)
        self.stage.settle()

    @rule()
    def fail_over(self) -> None:
        self.stage.fail_over()
        self.stage.log.release()
        self.stage.settle()

    # ---- what always holds ----------------------------------------------------------------------------

    @property
    def group(self) -> ConsumerGroup | None:
        found = [shard.groups.get("g") for shard in self.stage.coordinator.shards]
        group = found[0] if found else None
        return group if isinstance(group, ConsumerGroup) else None

    @invariant()
    def a_partition_has_one_owner(self) -> None:
        group = self.group
        if group is None:
            return
        owners: dict[Any, set[str]] = {}
        for member_id, current in group.current.items():
            for owned in (current.assigned, current.revoking):
                for topic, numbers in owned.items():
                    for number in numbers:
                        owners.setdefault((topic, number), set()).add(member_id)
        assert all(len(members) == 1 for members in owners.values()), owners
        assert {at: (*members,) for at, members in owners.items()} == group.owners
        assert group.current.keys() == group.members.keys() >= group.targets.keys()

    @invariant()
    def clients_that_are_members_share_no_partition(self) -> None:
        group = self.group
        owned = [
            at
            for client in self.clients.values()
            if group is not None and client.name in group.members
            for at in client.owned
        ]
        assert len(owned) == len(set(owned))

    @invariant()
    def epochs_are_in_order(self) -> None:
        group = self.group
        if group is None:
            return
        assert 1 <= group.assignment_epoch <= group.epoch
        assert all(each.epoch <= group.assignment_epoch for each in group.current.values())

    @invariant()
    def a_stable_member_has_its_target(self) -> None:
        group = self.group
        for member_id, current in (group.current if group else {}).items():
            assert group is not None
            assert (current.state is MemberState.UNREVOKED_PARTITIONS) or not current.revoking
            if current.state is MemberState.STABLE and current.epoch == group.assignment_epoch:
                target = group.targets.get(member_id, {})
                for topic, numbers in current.assigned.items():
                    assert numbers.keys() <= target.get(topic, frozenset())

    @invariant()
    def memory_is_a_replay_of_the_log(self) -> None:
        if self.stage.log.held or not self.stage.coordinator.shards:
            return
        expected = self.stage.in_memory()
        assert self.stage.reloaded().in_memory() == expected

    def compacted(self) -> MemoryLog:
        """Return the log after a random, legal compaction."""
        chance = random.Random(len(self.stage.log.batches))
        records = [
            (record.key, record.value) for data in self.stage.log.batches for record in RecordBatch(data)
        ]
        latest = {key: number for number, (key, _) in enumerate(records)}
        clean = chance.randrange(len(records) + 1)
        log = MemoryLog()
        log.leader_epoch = self.stage.log.leader_epoch
        for number, (key, value) in enumerate(records):
            is_superseded = number < clean and latest[key] > number and latest[key] < clean
            is_gone = number < clean and latest[key] == number and value is None and chance.random() < 0.5
            if not (is_superseded or is_gone):
                log.add(BatchBuilder().build([(key, value)], now_ms=0))
        return log

    def teardown(self) -> None:
        stage = self.stage
        self.change_the_log("heal")
        stage.pass_time(1_000)
        for _ in range(40):
            for client in self.clients.values():
                self.beat(client)
                client.revoke()
            stage.pass_time(150)
        state, epoch, assignment_epoch, members = stage.state
        assert (state, epoch) == ("Stable", assignment_epoch), stage.state
        assert members.keys() == self.clients.keys()
        for client in self.clients.values():
            group = self.group
            assert group is not None
            held = {(topic_id(name), n) for name, numbers in members[client.name][1].items() for n in numbers}
            assert client.owned == held
            subscribed = {topic_id(name) for name in client.topics}
            assert {topic for topic, _ in client.owned} <= subscribed
        self.memory_is_a_replay_of_the_log()
        if stage.log.batches:
            copy = ConsumerStage(log=self.compacted(), topics=stage.topics, **stage.settings._asdict())
            assert copy.in_memory() == stage.in_memory()


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestConsumerGroups = Machine.TestCase
