"""Random requests to share coordinators whose appends fail, whose log is cut, and that replace each other."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kreplica.common import errors
from kreplica.common.share_state import ACKNOWLEDGED, ARCHIVED, AVAILABLE, NO_START_OFFSET, StateBatch
from kreplica.coordinator.shard_writer import REPEAT_MS
from tests.support.share_stage import KEY, OTHER, ShareStage, change

KEYS = st.sampled_from([KEY, OTHER])
EPOCHS = st.integers(0, 5)
OUTCOMES = st.sampled_from(["done", "done", "done", "refused", "unknown"])
BATCHES = st.lists(
    st.builds(
        lambda first, length, state: StateBatch(first, first + length, state, 1),
        st.integers(0, 30),
        st.integers(0, 5),
        st.sampled_from([AVAILABLE, ACKNOWLEDGED, ARCHIVED]),
    ),
    max_size=2,
)


class ShareCoordinatorMachine(RuleBasedStateMachine):
    """`accepted`: by share partition, the highest state epoch, leader epoch and start offset answered."""

    @initialize()
    def begin(self):
        self.stage = ShareStage()
        self.accepted = {}

    def send(self, outcome, name, key, *arguments):
        log = self.stage.log
        if outcome == "refused":
            log.error = errors.NotEnoughReplicas()
        elif outcome == "unknown":
            log.held = []
        future = self.stage.begin(name, key, *arguments)
        log.error = None
        if outcome == "unknown":
            held, log.held = log.held, None
            for appended, _ in held:
                appended.set_exception(errors.RequestTimedOut())
            self.stage.settle()
            self.stage.pass_time(REPEAT_MS)
        return future

    @rule(key=KEYS, state_epoch=EPOCHS, start_offset=st.integers(-1, 20), outcome=OUTCOMES)
    def initialize_state(self, key, state_epoch, start_offset, outcome):
        future = self.send(outcome, "initialize", key, state_epoch, start_offset)
        known = self.accepted.get(key)
        if future.exception(0) is None:
            assert known is None or state_epoch >= known[0]
            if known is None or state_epoch > known[0]:
                self.accepted[key] = state_epoch, 0 if known is None else known[1], NO_START_OFFSET

    @rule(key=KEYS, leader_epoch=EPOCHS, outcome=OUTCOMES)
    def read(self, key, leader_epoch, outcome):
        future = self.send(outcome, "read", key, leader_epoch)
        if future.exception(0) is None:
            found = future.result(0)
            state_epoch, known_leader, start_offset = self.accepted.get(key, (0, 0, NO_START_OFFSET))
            assert leader_epoch >= known_leader
            assert found.state_epoch >= state_epoch
            assert found.state_epoch > state_epoch or found.start_offset >= start_offset
            self.accepted[key] = found.state_epoch, leader_epoch, found.start_offset

    @rule(
        key=KEYS,
        epochs=st.tuples(EPOCHS, EPOCHS),
        start=st.integers(-1, 20),
        batches=BATCHES,
        outcome=OUTCOMES,
    )
    def write(self, key, epochs, start, batches, outcome):
        written = change(start, *batches, state_epoch=epochs[0], leader_epoch=epochs[1])
        future = self.send(outcome, "write", key, written)
        if future.exception(0) is None:
            state_epoch, leader_epoch, start_offset = self.accepted.get(key, (0, 0, NO_START_OFFSET))
            assert epochs[0] >= state_epoch
            assert epochs[1] >= leader_epoch
            kept = start_offset if epochs[0] == state_epoch else NO_START_OFFSET
            self.accepted[key] = epochs[0], epochs[1], max(kept, start)

    @rule(key=KEYS, outcome=OUTCOMES)
    def delete(self, key, outcome):
        self.send(outcome, "delete", key)
        # A refused deletion takes nothing back either, but is no promise.
        self.accepted.pop(key, None)

    @rule(duration_ms=st.sampled_from([10, 1_000, 3_000]))
    def wait(self, duration_ms):
        self.stage.pass_time(duration_ms)

    @rule()
    def fail_over(self):
        self.stage = self.stage.fail_over()

    @invariant()
    def memory_is_a_replay_of_the_log(self):
        if hasattr(self, "stage"):
            other = ShareStage(_Copy(self.stage.log))
            assert comparable(other.shard.states) == comparable(self.stage.shard.states)


class _Copy:
    """The log as it is, for another coordinator to load."""

    def __init__(self, log):
        self.leader_epoch = log.leader_epoch
        self._log = log

    def read(self, *arguments):
        return self._log.read(*arguments)

    def high_watermark(self, *arguments):
        return self._log.high_watermark(*arguments)


def comparable(states):
    """Without the number of updates: some may be in the log twice."""
    return {key: replace(state, update_count=0) for key, state in states.items()}


TestShareCoordinatorMachine = ShareCoordinatorMachine.TestCase
TestShareCoordinatorMachine.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
