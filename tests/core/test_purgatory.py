"""The purgatory against a model: what waits in a dict, searched from end to end at every step."""

import gc
import itertools
import os
import subprocess
import sys
import threading
import weakref

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kreplica._core.purgatory import Purgatory, Watermark

COMPLETE = 0
FOREVER = 2**63 - 1
PARTITIONS = [0, 1, 2, 64, 2**31, -1, 2**63 - 1, -(2**63)]

partitions = st.sampled_from(PARTITIONS)
offsets = st.integers(0, 20) | st.integers(0, 1000)
deadlines = st.integers(0, 50) | st.integers(0, 10**6)


class Token:
    """An object that can be watched going away."""

    def __init__(self, name=None):
        self.name = name


class PurgatoryMachine(RuleBasedStateMachine):
    """Every operation has a token with a name that counts up, so names are in the order of watching."""

    def __init__(self):
        super().__init__()
        self.purgatory = Purgatory()
        self.marks = {partition: Watermark() for partition in PARTITIONS}
        self.waiting = {}  # name -> [handle, deadline, {(partition, required offset), ...} not done]
        self.tokens = weakref.WeakValueDictionary()
        self.gone = []
        self.names = itertools.count()
        self.now_ms = 0

    def token(self):
        token = Token(next(self.names))
        self.tokens[token.name] = token
        return token

    def open_parts(self, parts):
        return [
            (p, required)
            for p, required in parts
            if self.marks[p].value < required and not self.marks[p].closed
        ]

    def remember(self, handle, token, deadline_ms, parts):
        assert (handle != COMPLETE) == bool(parts)
        assert handle not in [h for h, _, _ in self.waiting.values()]
        if parts:
            self.waiting[token.name] = [handle, max(deadline_ms, self.now_ms), parts]

    @rule(partition=partitions, required=offsets, after_ms=deadlines, count=st.sampled_from([1, 1, 1, 300]))
    def watch(self, partition, required, after_ms, count):
        for _ in range(count):
            token = self.token()
            deadline_ms = self.now_ms + after_ms
            handle = self.purgatory.watch(
                partition, required, deadline_ms, token, watermark=self.marks[partition]
            )
            self.remember(handle, token, deadline_ms, self.open_parts([(partition, required)]))

    @rule(parts=st.lists(st.tuples(partitions, offsets), max_size=12), after_ms=deadlines)
    def watch_all(self, parts, after_ms):
        token = self.token()
        deadline_ms = self.now_ms + after_ms
        rows = [(p, required, self.marks[p]) for p, required in parts]
        handle = self.purgatory.watch_all(rows, deadline_ms, token)
        self.remember(handle, token, deadline_ms, self.open_parts(parts))

    @rule(partition=partitions, by=st.integers(0, 10) | st.integers(0, 2000))
    def complete_to(self, partition, by):
        watermark = self.marks[partition].value + by
        assert self.marks[partition].advance(watermark) == (by > 0 and not self.marks[partition].closed)
        self.reach(partition, watermark, self.purgatory.complete_to(partition, watermark))

    @rule(partition=partitions)
    def lose_the_leadership(self, partition):
        self.marks[partition].close()
        self.reach(partition, FOREVER, self.purgatory.fail(partition))

    @rule(partition=partitions)
    def win_it_again(self, partition):
        self.marks[partition] = Watermark(self.marks[partition].value // 2)

    def reach(self, partition, watermark, tokens):
        finished = []
        for name, (_, _, parts) in self.waiting.items():
            done = [part for part in parts if part[0] == partition and part[1] <= watermark]
            parts[:] = [part for part in parts if part not in done]
            if not parts:
                finished.append((max(required for _, required in done), name))
        self.finish([name for _, name in sorted(finished)], tokens)

    @rule(by_ms=st.integers(-100, 100) | st.integers(0, 10**6))
    def expire(self, by_ms):
        now_ms = self.now_ms + by_ms
        tokens = self.purgatory.expire(now_ms)
        if by_ms < 0:
            assert tokens == []
            return
        self.now_ms = now_ms
        expired = [(deadline, name) for name, (_, deadline, _) in self.waiting.items() if deadline <= now_ms]
        self.finish([name for _, name in sorted(expired)], tokens)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data):
        name = data.draw(st.sampled_from(sorted(self.waiting)))
        assert self.purgatory.cancel(self.waiting[name][0])
        self.gone.append(self.waiting.pop(name)[0])

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def cancel_again(self, data):
        assert not self.purgatory.cancel(data.draw(st.sampled_from(self.gone)))

    @rule()
    def drain(self):
        tokens = self.purgatory.drain()
        self.finish(sorted(self.waiting), sorted(tokens, key=lambda token: token.name))

    def finish(self, names, tokens):
        assert [token.name for token in tokens] == names
        self.gone += [self.waiting.pop(name)[0] for name in names]

    @invariant()
    def counts(self):
        parts = [part for _, _, parts in self.waiting.values() for part in parts]
        assert len(self.purgatory) == self.purgatory.delayed == len(self.purgatory.wheel) == len(self.waiting)
        assert self.purgatory.watched == len(parts)
        assert self.purgatory.partitions == len({partition for partition, _ in parts})

    @invariant()
    def holds_the_tokens_that_wait_and_no_other(self):
        assert set(self.tokens) == set(self.waiting)

    @invariant()
    def sleeps_no_longer_than_the_first_deadline(self):
        until_ms = self.purgatory.next_deadline()
        if self.waiting:
            assert until_ms <= min(deadline for _, deadline, _ in self.waiting.values())
        else:
            assert until_ms is None


PurgatoryMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_purgatory_equals_the_model = PurgatoryMachine.TestCase


def test_completes_what_the_mark_covers_in_the_order_of_offsets():
    purgatory = Purgatory()
    for required in (5, 9, 7, 7, 1):
        purgatory.watch(3, required, 1000, f"until {required}")
    assert purgatory.complete_to(3, 0) == []
    assert purgatory.complete_to(4, 9) == []
    assert purgatory.complete_to(3, 7) == ["until 1", "until 5", "until 7", "until 7"]
    assert purgatory.expire(1000) == ["until 9"]
    assert (purgatory.delayed, purgatory.watched, purgatory.partitions) == (0, 0, 0)


def test_an_operation_on_several_partitions_is_done_with_the_last():
    purgatory = Purgatory()
    handle = purgatory.watch_all([(1, 10, None), (2, 20, None), (1, 30, None)], 1000, "both")
    assert handle > 0
    assert (purgatory.delayed, purgatory.watched, purgatory.partitions) == (1, 3, 2)
    assert purgatory.complete_to(1, 25) == []
    assert purgatory.fail(2) == []
    assert purgatory.watched == 1
    assert purgatory.complete_to(1, 30) == ["both"]
    assert not purgatory.cancel(handle)


def test_an_expired_entry_is_watched_under_no_key():
    purgatory = Purgatory()
    purgatory.watch_all([(partition, 10, None) for partition in range(100)], 500, "slow")
    assert purgatory.complete_to(7, 10) == []
    assert purgatory.expire(499) == []
    assert purgatory.expire(500) == ["slow"]
    assert (purgatory.watched, purgatory.partitions) == (0, 0)


def test_nothing_waits_for_what_is_reached_or_closed():
    purgatory = Purgatory()
    mark = Watermark(10)
    assert purgatory.watch(1, 10, 1000, watermark=mark) == COMPLETE
    assert purgatory.watch(1, 11, 1000, watermark=mark) > 0
    mark.close()
    assert purgatory.watch(1, 12, 1000, watermark=mark) == COMPLETE
    assert purgatory.watch_all([], 1000) == COMPLETE
    assert purgatory.watch_all([(1, 10, mark), (2, 5, None)], 1000) > 0
    assert purgatory.watched == 2


def test_a_mark_never_goes_back_and_a_closed_one_stays():
    mark = Watermark(5)
    assert not mark.advance(5)
    assert mark.advance(6)
    assert not mark.advance(4)
    mark.close()
    assert not mark.advance(100)
    assert (mark.value, mark.closed) == (6, True)
    assert repr(mark) == "Watermark(6, closed)"


def test_the_tag_comes_back_where_there_is_no_token():
    purgatory = Purgatory()
    purgatory.watch(1, 1, 1000, tag=41)
    purgatory.watch(1, 2, 1000, "token", tag=42)
    purgatory.watch(1, 3, 1000, False)
    assert purgatory.complete_to(1, 3) == [41, "token", False]


def test_no_wake_up_is_lost_between_threads():
    """Offsets are watched on one thread while the mark passes them on another: each comes back once."""
    purgatory = Purgatory()
    mark = Watermark()
    count = 20_000
    at_once, later = [], []

    def lead():
        for offset in range(1, count + 1):
            mark.advance(offset)
            later.extend(purgatory.complete_to(1, mark.value))

    leader = threading.Thread(target=lead)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        leader.start()
        for offset in range(1, count + 1):
            if purgatory.watch(1, offset, FOREVER, offset, watermark=mark) == COMPLETE:
                at_once.append(offset)
        leader.join()
    finally:
        sys.setswitchinterval(interval)
    assert sorted(at_once + later) == list(range(1, count + 1))
    assert purgatory.delayed == 0


@pytest.mark.parametrize(
    "way", ["complete_to", "fail", "expire", "cancel", "drain", "nothing to wait for", "refused"]
)
def test_every_reference_is_given_back(way):
    purgatory = Purgatory()
    token = Token()
    before = sys.getrefcount(token)
    for _ in range(3):
        if way == "nothing to wait for":
            assert purgatory.watch(1, 5, 100, token, watermark=Watermark(5)) == COMPLETE
            continue
        if way == "refused":
            with pytest.raises(TypeError):
                purgatory.watch_all([(1, 5, None), (2, 5, "no mark")], 100, token)
            continue
        handle = purgatory.watch_all([(1, 5, None), (2, 5, None)], 100, token)
        assert sys.getrefcount(token) == before + 1
        if way == "cancel":
            assert purgatory.cancel(handle)
        elif way == "expire":
            assert purgatory.expire(100) == [token]
        elif way == "drain":
            assert purgatory.drain() == [token]
        else:
            reach = {"complete_to": lambda p: purgatory.complete_to(p, 5), "fail": purgatory.fail}[way]
            assert (reach(1), reach(2)) == ([], [token])
        assert sys.getrefcount(token) == before
    assert sys.getrefcount(token) == before


def test_tokens_go_with_the_purgatory():
    purgatory = Purgatory()
    token = Token()
    purgatory.watch(1, 5, 100, token)
    gone = weakref.ref(token)
    del token
    assert gone() is not None
    del purgatory
    assert gone() is None


def test_a_cycle_through_a_token_is_collected():
    purgatory = Purgatory()
    token = Token()
    token.owner = purgatory
    purgatory.watch(1, 5, 100, token)
    assert purgatory in gc.get_referrers(token)
    gone = weakref.ref(token)
    del token, purgatory
    gc.collect()
    assert gone() is None


def test_the_collector_takes_nothing_that_is_in_use():
    purgatory = Purgatory()
    token = Token()
    token.owner = purgatory
    purgatory.watch(1, 5, 100, token)
    del token
    gc.collect()
    assert [done.owner for done in purgatory.complete_to(1, 5)] == [purgatory]


def test_a_destructor_may_use_the_purgatory():
    class Meddler(Token):
        def __del__(self):
            purgatory.watch(2, 1, 100, "from a destructor")
            if handles:
                purgatory.cancel(handles.pop())

    purgatory = Purgatory()
    handles = []
    for _ in range(2):
        handles.append(purgatory.watch(1, 5, 100, Meddler()))
    assert purgatory.cancel(handles.pop())
    assert purgatory.complete_to(2, 1) == ["from a destructor"] * 2
    assert (handles, purgatory.delayed) == ([], 0)


def test_memory_follows_the_load_up_and_down():
    purgatory = Purgatory()
    least = purgatory.allocated_bytes
    for partition in range(20_000):
        purgatory.watch(partition, 5, 30_000)
        purgatory.watch(partition, 6, 30_000)
    assert purgatory.partitions == 20_000
    assert purgatory.allocated_bytes > 40_000 * 60
    assert len(purgatory.drain()) == 40_000
    for _ in range(1000):
        assert purgatory.cancel(purgatory.watch(1, 1, 1000))
    assert purgatory.allocated_bytes <= 2 * least


def test_keys_that_collide_in_the_table_are_distinguished():
    purgatory = Purgatory()
    keys = [n << shift for shift in (0, 20, 40, 57) for n in range(-64, 64)]
    unique = sorted({key for key in keys if -(2**63) <= key < 2**63})
    for key in unique:
        purgatory.watch(key, 1, 1000, key)
    for key in unique[::2]:
        assert purgatory.complete_to(key, 1) == [key]
        assert purgatory.complete_to(key, 1) == []
    for key in unique[1::2]:
        assert purgatory.complete_to(key, 1) == [key]
    assert purgatory.partitions == 0


def test_numbers_beyond_64_bits_are_refused():
    purgatory = Purgatory()
    for arguments in ((2**63, 1, 1), (1, 2**63, 1), (1, 1, 2**63), (1, 1, 1, None, 2**63)):
        with pytest.raises(OverflowError):
            purgatory.watch(*arguments)
    with pytest.raises(OverflowError):
        purgatory.watch_all([(1, 1, None), (2**63, 1, None)], 1)
    assert purgatory.watched == 0


OUT_OF_MEMORY = """
import resource, sys
from kreplica._core.purgatory import Purgatory
from kreplica.common.errors import KafkaStorageError

purgatory = Purgatory()
soft, hard = resource.getrlimit(resource.RLIMIT_AS)
room = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + (24 << 20)
resource.setrlimit(resource.RLIMIT_AS, (room, hard))
count = 0
try:
    while count < 3_000_000:
        purgatory.watch_all([(count, 1, None), (count + 1, 1, None)], count, tag=count)
        count += 1
except KafkaStorageError:
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
else:
    sys.exit("memory was not short")
assert purgatory.delayed == len(purgatory.wheel) == count, count
assert purgatory.watched == 2 * count
assert purgatory.partitions == count + 1
assert purgatory.expire(count) == list(range(count))
assert (purgatory.delayed, purgatory.watched, purgatory.partitions) == (0, 0, 0)
assert purgatory.watch(1, 1, 1) > 0
"""


@pytest.mark.skipif(
    sys.platform != "linux" or "KREPLICA_SANITIZED" in os.environ,
    reason="needs a process whose address space can be bounded",
)
def test_nothing_is_lost_without_memory():
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", OUT_OF_MEMORY], check=True, timeout=60, env=environment)
