"""The timing wheel against a model: the pending timers in a dict, sorted when time moves."""

import itertools
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kreplica._core.timing_wheel import TimingWheel

FOREVER = 2**63 - 1


class WheelMachine(RuleBasedStateMachine):
    @initialize(
        tick_ms=st.sampled_from([1, 1, 7, 1000]),
        buckets_per_level=st.sampled_from([20, 2, 3, 64]),
        start_ms=st.sampled_from([0, 19, 1_700_000_000_000]),
    )
    def make(self, tick_ms, buckets_per_level, start_ms):
        self.wheel = TimingWheel(tick_ms, buckets_per_level, start_ms)
        self.tick_ms = tick_ms
        self.tick = start_ms // tick_ms
        self.pending = {}  # handle -> (tick, payload); payloads count up
        self.gone = []
        self.payloads = itertools.count()

    @rule(
        after_ms=st.integers(-50, 500) | st.integers(0, 10**6) | st.integers(0, 2**62),
        count=st.sampled_from([1, 1, 1, 300]),
    )
    def add(self, after_ms, count):
        deadline_ms = min(self.wheel.now_ms + after_ms, FOREVER)
        tick = min(-(-deadline_ms // self.tick_ms), FOREVER // self.tick_ms)
        for _ in range(count):
            payload = next(self.payloads)
            handle = self.wheel.add(deadline_ms, payload)
            assert handle > 0
            assert handle not in self.pending
            self.pending[handle] = (max(tick, self.tick), payload)

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def cancel(self, data):
        handle = data.draw(st.sampled_from(sorted(self.pending)))
        del self.pending[handle]
        self.gone.append(handle)
        assert self.wheel.cancel(handle)

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def cancel_again(self, data):
        assert not self.wheel.cancel(data.draw(st.sampled_from(self.gone)))

    @rule(handle=st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 3000))
    def cancel_what_never_was(self, handle):
        assert self.wheel.cancel(handle) == (handle in self.pending)
        if self.pending.pop(handle, None):
            self.gone.append(handle)

    @rule(by_ms=st.integers(0, 3) | st.integers(0, 1000) | st.integers(0, 2**40) | st.just(2**62))
    def advance(self, by_ms):
        self.expect(min(self.wheel.now_ms + by_ms, FOREVER))

    @precondition(lambda self: self.pending)
    @rule()
    def advance_to_the_next(self):
        before = len(self.wheel), self.wheel.next_deadline()
        self.expect(before[1])
        assert (len(self.wheel), self.wheel.next_deadline()) != before

    @rule(by_ms=st.integers(1, 2**62))
    def go_back(self, by_ms):
        now_ms = self.wheel.now_ms
        assert self.wheel.advance(now_ms - by_ms) == []
        assert self.wheel.now_ms == now_ms

    def expect(self, now_ms):
        self.tick = max(self.tick, now_ms // self.tick_ms)
        expired = {h: order for h, order in self.pending.items() if order[0] <= self.tick}
        assert self.wheel.advance(now_ms) == [payload for _, payload in sorted(expired.values())]
        assert self.wheel.now_ms == self.tick * self.tick_ms
        for handle in expired:
            del self.pending[handle]
        self.gone += expired

    @invariant()
    def counts_and_bounds(self):
        assert len(self.wheel) == len(self.pending)
        if not self.pending:
            assert self.wheel.next_deadline() is None
        else:
            first = min(self.pending.values())[0] * self.tick_ms
            assert self.wheel.now_ms <= self.wheel.next_deadline() <= first


WheelMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_wheel_equals_the_model = WheelMachine.TestCase


def test_a_timer_expires_at_its_deadline_and_not_before():
    wheel = TimingWheel()
    for deadline_ms in range(10_000):
        wheel.add(deadline_ms, deadline_ms)
    for now_ms in range(10_000):
        assert wheel.next_deadline() <= now_ms
        assert wheel.advance(now_ms) == [now_ms]


def test_next_deadline_is_exact_once_the_wheel_is_near():
    wheel = TimingWheel(start_ms=1_000_000)
    wheel.add(1_000_017, 1)
    assert wheel.next_deadline() == 1_000_017


def test_next_deadline_is_exact_for_a_few_far_timers():
    wheel = TimingWheel(start_ms=7)
    for deadline_ms in (2**62 + 2, 2**62 + 1, 2**62 + 3):
        wheel.add(deadline_ms, deadline_ms)
    assert wheel.next_deadline() == 2**62 + 1
    assert wheel.advance(2**62) == []
    assert wheel.next_deadline() == 2**62 + 1


def test_next_deadline_comes_to_many_far_timers_in_few_steps():
    wheel = TimingWheel(buckets_per_level=2)
    for number in range(100):
        wheel.add(2**62 + 12345, number)
    steps = 0
    while not wheel.advance(wheel.next_deadline()):
        steps += 1
    assert wheel.now_ms == 2**62 + 12345
    assert 0 < steps < wheel.level_count


def test_levels_are_made_when_a_deadline_asks_for_them():
    wheel = TimingWheel()
    wheel.add(19, 0)
    assert wheel.level_count == 1
    wheel.add(20, 0)
    assert wheel.level_count == 2
    wheel.add(20**6, 0)
    assert wheel.level_count == 7


def test_a_late_deadline_expires_with_the_next_advance():
    wheel = TimingWheel(start_ms=100)
    wheel.add(50, 1)
    wheel.add(-(2**63), 2)
    assert wheel.next_deadline() == 100
    assert wheel.advance(99) == []
    assert wheel.advance(100) == [1, 2]


def test_the_last_moment_can_be_waited_for():
    wheel = TimingWheel(tick_ms=1000)
    wheel.add(FOREVER, 1)
    assert wheel.advance(FOREVER - 2000) == []
    assert wheel.advance(FOREVER) == [1]
    assert wheel.add(FOREVER, 2) > 0
    assert wheel.advance(FOREVER) == [2]


def test_memory_follows_the_load_up_and_down():
    wheel = TimingWheel()
    least = wheel.allocated_bytes
    handles = [wheel.add(30_000, i) for i in range(100_000)]
    random.Random(1).shuffle(handles)
    most = wheel.allocated_bytes
    assert 100_000 * 36 <= most < 100_000 * 36 * 2
    assert sum(map(wheel.cancel, handles)) == 100_000
    for _ in range(1000):
        assert wheel.cancel(wheel.add(30_000, 0))
    assert wheel.allocated_bytes <= least * 2


def test_memory_does_not_grow_while_timers_come_and_go():
    wheel = TimingWheel()
    handles = [wheel.add(30_000, i) for i in range(1000)]
    before = wheel.allocated_bytes
    for i in range(50_000):
        assert wheel.cancel(handles[i % 1000])
        handles[i % 1000] = wheel.add(30_000 + i, i)
    assert wheel.allocated_bytes == before


def test_more_expire_at_once_than_one_native_call_returns():
    wheel = TimingWheel()
    for payload in range(1024):
        wheel.add(5 + payload // 600, payload)
    assert wheel.advance(1000) == list(range(1024))


@pytest.mark.parametrize(
    "bad", [{"tick_ms": 0}, {"buckets_per_level": 1}, {"buckets_per_level": 65}, {"start_ms": -1}]
)
def test_arguments_are_checked(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        TimingWheel(**bad)


def test_numbers_beyond_64_bits_are_refused():
    wheel = TimingWheel()
    for call in (lambda: wheel.add(2**63, 0), lambda: wheel.add(0, 2**63), lambda: wheel.advance(2**63)):
        with pytest.raises(OverflowError):
            call()
    assert len(wheel) == 0
