"""The event queue against a sorted list, its delays, and its memory."""

from __future__ import annotations

import gc
import random
import weakref
from functools import partial
from hashlib import blake2b

from kreplica._core.event_queue import EventQueue, Incarnation, SimLoop, SimTimer, VirtualTime


def make(seed: int = 1) -> EventQueue:
    return EventQueue(VirtualTime(), random.Random(seed))


def test_events_come_in_the_order_of_a_sorted_list() -> None:
    for seed in range(30):
        chance, keys = random.Random(seed), random.Random(seed)
        queue, model, seen = make(seed), [], []
        for number in range(200):
            delay_ns = chance.randrange(20)
            event = queue.add("fault", str(number), partial(seen.append, number), delay_ns=delay_ns)
            key = queue.time.now_ns + delay_ns, keys.random(), number
            if chance.randrange(4):
                model.append(key)
            else:
                event.cancel()
            if chance.randrange(3) == 0 and model:
                model.sort()
                queue.step()
                assert seen.pop() == model.pop(0)[2]
        while queue.step() is not None:
            pass
        assert seen == [number for _, _, number in sorted(model)]


def test_the_hash_is_that_of_the_lines_of_all_events() -> None:
    queue, lines = make(), []
    for number in range(3_000):
        queue.add("message", f"number {number}", lambda: None, delay_ns=number, node_id=number % 3)
        lines.append(f"{number} message {number % 3} number {number}\n")
    while queue.step() is not None:
        pass
    assert queue.event_hash == blake2b("".join(lines).encode(), digest_size=16).hexdigest()
    assert (queue.steps, queue.events) == (3_000, 3_000)


def test_a_delay_beyond_all_time_never_ends() -> None:
    queue, seen = make(), []
    SimTimer(queue, None, "never", lambda: seen.append("never"), (1 << 63) - 1)
    queue.add("fault", "never", lambda: seen.append("never"), delay_ns=(1 << 63) - 1)
    queue.add("fault", "soon", lambda: seen.append("soon"))
    assert queue.step(1 << 60) is not None
    assert queue.step(1 << 60) is None
    assert seen == ["soon"]


def test_a_cluster_that_its_events_refer_to_is_collected() -> None:
    class Cluster:
        def __init__(self) -> None:
            self.queue = make()
            life = Incarnation(1)
            self.loop = SimLoop(self.queue, life, "loop")
            self.loop.post(self.act)
            self.timer = self.loop.post_later(self.act, 1_000)
            self.queue.after_event = self.see

        def act(self) -> None:
            pass

        def see(self, _: object) -> None:
            pass

    cluster = Cluster()
    cluster.queue.step()
    gone = weakref.ref(cluster)
    del cluster
    gc.collect()
    assert gone() is None
