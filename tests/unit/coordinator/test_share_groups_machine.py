"""Random heartbeats, tools and faults of a share group: its memory is its log, and only what has a state is
assigned.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kreplica.common import errors
from kreplica.common.types import TopicPartition
from kreplica.coordinator import share_group
from kreplica.coordinator.shard_writer import REPEAT_MS, UndoLog
from kreplica.coordinator.share_group import ShareGroup
from kreplica.coordinator.share_groups import ShareHeartbeatAnswer
from tests.support.share_group_stage import ShareGroupStage, outcome

MEMBERS = st.sampled_from(["a", "b", "c"])
TOPICS = st.sampled_from([("t",), ("u",), ("t", "u")])
OUTCOMES = st.sampled_from(["done", "done", "done", "refused", "unknown"])
AT = TopicPartition("t", 0)


class ShareGroupMachine(RuleBasedStateMachine):
    """`epochs`: what each member knows."""

    @initialize()
    def begin(self):
        self.stage = ShareGroupStage(session_timeout_ms=5_000)
        self.epochs = {}

    def send(self, append, name, *arguments):
        log = self.stage.log
        if append == "refused":
            log.error = errors.NotEnoughReplicas()
        elif append == "unknown":
            log.held = []
        future = getattr(self.stage, name)(*arguments)
        self.stage.settle()
        log.error = None
        if append == "unknown":
            held, log.held = log.held, None
            for appended, _ in held:
                appended.set_exception(errors.RequestTimedOut())
            self.stage.settle()
            self.stage.pass_time(REPEAT_MS)
        return outcome(future)

    @rule(member=MEMBERS, topics=TOPICS, append=OUTCOMES)
    def join(self, member, topics, append):
        answer = self.send(append, "begin_share", member, 0, topics)
        if isinstance(answer, ShareHeartbeatAnswer):
            self.epochs[member] = answer.member_epoch

    @rule(member=MEMBERS, append=OUTCOMES)
    def heartbeat(self, member, append):
        if member not in self.epochs:
            return
        answer = self.send(append, "begin_share", member, self.epochs[member])
        if isinstance(answer, ShareHeartbeatAnswer):
            assert answer.member_epoch >= self.epochs[member]
            self.epochs[member] = answer.member_epoch
        elif isinstance(answer, (errors.UnknownMemberId, errors.FencedMemberEpoch, errors.GroupIdNotFound)):
            del self.epochs[member]

    @rule(member=MEMBERS, append=OUTCOMES)
    def leave(self, member, append):
        if self.send(append, "begin_share", member, -1) == ShareHeartbeatAnswer(member, -1):
            self.epochs.pop(member, None)

    @rule(append=OUTCOMES, tool=st.sampled_from(["alter", "delete offsets", "delete group"]))
    def use_tool(self, append, tool):
        coordinator = self.stage.coordinator
        self.stage.run = {
            "alter": lambda: coordinator.alter_share_offsets("g", {AT: 5}),
            "delete offsets": lambda: coordinator.delete_share_offsets("g", ["t"]),
            "delete group": lambda: coordinator.delete_group("g"),
        }[tool]
        self.send(append, "run")

    @rule(error=st.sampled_from([None, errors.CoordinatorNotAvailable()]))
    def change_share_coordinator(self, error):
        self.stage.persister.error = error

    @rule(topic=st.sampled_from(["t", "u"]), count=st.integers(0, 4))
    def change_topic(self, topic, count):
        counts = self.stage.topics.counts
        has_other_names = (topic in counts) != bool(count)
        if count:
            counts[topic] = max(count, counts.get(topic, 0))
        else:
            self.stage.topics.delete(topic)
        self.stage.coordinator.change_topics({topic}, has_other_names=has_other_names)
        self.stage.settle()

    @rule(duration_ms=st.sampled_from([100, 1_000, 6_000]))
    def wait(self, duration_ms):
        self.stage.pass_time(duration_ms)

    @rule()
    def fail_over(self):
        self.stage = self.stage.fail_over()

    @invariant()
    def memory_is_a_replay_of_the_log(self):
        if not hasattr(self, "stage"):
            return
        loaded: dict[str, ShareGroup] = {}
        for key, value in self.stage.log.records():
            share_group.replay(loaded, UndoLog(), key, value)
        group = self.stage.group()
        assert (group is None) == ("g" not in loaded)
        if group is not None:
            assert attributes(loaded["g"]) == attributes(group)

    @invariant()
    def only_initialized_partitions_are_assigned(self):
        group = self.stage.group() if hasattr(self, "stage") else None
        for target in () if group is None or not group.members else group.targets.values():
            for topic_id, numbers in target.items():
                known = group.states.initialized.get(topic_id, frozenset())
                # Those of a deleted topic stay until the next assignment.
                assert numbers <= known or group.epoch > group.assignment_epoch or group.is_stale

    @invariant()
    def epochs_are_in_order(self):
        group = self.stage.group() if hasattr(self, "stage") else None
        if group is None:
            return
        assert all(each.member_epoch <= group.assignment_epoch for each in group.current.values())
        assert group.assignment_epoch <= group.epoch


def attributes(group):
    assert isinstance(group, ShareGroup)
    names = ("epoch", "assignment_epoch", "metadata_hash", "members", "targets", "current", "states")
    return {**{name: getattr(group, name) for name in names}, "topics": dict(group.subscribers)}


TestShareGroupMachine = ShareGroupMachine.TestCase
TestShareGroupMachine.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
