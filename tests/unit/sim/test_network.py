"""The simulated network: what arrives, in what order, and which errors the sender gets for the rest."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from kreplica.common.errors import NetworkException
from kreplica.common.future import Future, resolved
from kreplica.sim.network import LinkConditions, SimNetwork
from kreplica.sim.scheduler import Incarnation, SimScheduler, VirtualTime

TIMEOUT_MS = 1_000


@dataclass
class EchoRequest:
    number: int


class World:
    """Nodes 1 and 2; node 2 notes what it gets and answers it with ten times the number."""

    def __init__(self, seed=1, **conditions):
        self.scheduler = SimScheduler(VirtualTime(), random.Random(seed))
        self.network = SimNetwork(self.scheduler, random.Random(seed), LinkConditions(**conditions))
        self.got = []
        self.lives = {node: Incarnation(node) for node in (1, 2)}
        self.endpoints = {node: self.network.join(life) for node, life in self.lives.items()}
        self.network.register(self.lives[2], self.answer)

    def answer(self, request):
        self.got.append(request.number)
        return resolved(request.number * 10)

    def send(self, number=1):
        return self.endpoints[1].send(2, EchoRequest(number), timeout_ms=TIMEOUT_MS)

    def kill(self, node, *, silently=False):
        self.lives[node].is_alive = False
        self.network.leave(self.lives[node], silently=silently)

    @property
    def now_ms(self):
        return self.scheduler.time.now_ns / 1_000_000


def fails(future, match):
    with pytest.raises(NetworkException, match=match):
        future.result(0)


def test_a_straggler_comes_after_what_was_sent_later():
    world = World(delay_us=(100, 100), straggling=0.3, straggler_us=(50_000, 50_000))
    futures = [world.send(number) for number in range(30)]
    world.scheduler.run_for(10)
    quick = list(world.got)
    assert quick == sorted(quick)
    assert 10 < len(quick) < 30
    world.scheduler.run_until(lambda: all(future.done() for future in futures))
    assert sorted(world.got) == list(range(30))


def test_a_request_is_answered():
    world = World(delay_us=(500, 500))
    future = world.send(7)
    assert not future.done()
    assert world.scheduler.run_until(future.done)
    assert (future.result(), world.now_ms) == (70, 1.0)


def test_requests_of_a_link_arrive_in_order_and_delays_lie_in_their_range():
    for seed in range(20):
        world = World(seed, delay_us=(100, 900))
        futures = [world.send(number) for number in range(10)]
        world.scheduler.run_for(2)
        assert world.got == list(range(10))
        assert all(future.done() for future in futures)


def test_without_order_they_overtake():
    world = World(delay_us=(100, 900), in_order=False)
    for number in range(10):
        world.send(number)
    world.scheduler.run_for(2)
    assert sorted(world.got) == list(range(10))
    assert world.got != list(range(10))


def test_a_lost_message_costs_the_timeout():
    world = World(loss=1.0)
    future = world.send()
    world.scheduler.run_for(TIMEOUT_MS - 1)
    assert not future.done()
    world.scheduler.run_for(1)
    fails(future, "no answer from node 2 within 1000 ms")
    assert (world.got, world.network.counts["lost"]) == ([], 1)


def test_a_request_that_comes_twice_is_answered_once():
    world = World(duplication=1.0)
    future = world.send(3)
    world.scheduler.run_for(1)
    assert (world.got, future.result(0)) == ([3, 3], 30)


def test_a_cut_link_keeps_both_directions_away():
    world = World()
    world.network.cut(1, 2)
    future = world.send()
    world.scheduler.run_for(TIMEOUT_MS)
    fails(future, "no answer")
    world.network.heal(1, 2)
    future = world.send(2)
    world.scheduler.run_for(1)
    assert (world.got, future.result(0)) == ([2], 20)


def test_a_one_way_cut_loses_only_the_answer():
    world = World()
    world.network.cut(2, 1, both_ways=False)
    future = world.send(5)
    world.scheduler.run_for(TIMEOUT_MS)
    fails(future, "no answer")
    assert world.got == [5]


def test_what_was_under_way_when_the_link_was_cut_is_lost():
    world = World(delay_us=(5_000, 5_000))
    world.send()
    world.network.cut(1, 2)
    world.scheduler.run_for(10)
    world.network.heal_all()
    world.scheduler.run_for(100)
    assert world.got == []


def test_a_broken_connection_fails_the_request_at_once():
    world = World()
    world.network.register(world.lives[2], lambda _: Future())
    future = world.send()
    world.scheduler.run_for(1)
    world.network.disconnect(2)
    fails(future, "broke")


def test_a_killed_process_answers_nothing_and_refuses():
    world = World(delay_us=(5_000, 5_000))
    under_way = world.send(1)
    world.kill(2)
    fails(under_way, "broke")
    later = world.send(2)
    world.scheduler.run_for(10)
    fails(later, "not there")
    assert world.got == []


def test_a_request_to_a_machine_without_power_times_out():
    world = World()
    world.kill(2, silently=True)
    future = world.send()
    world.scheduler.run_for(TIMEOUT_MS - 1)
    assert not future.done()
    world.scheduler.run_for(1)
    fails(future, "no answer")


def test_the_next_life_gets_nothing_that_was_sent_to_the_former():
    world = World(delay_us=(5_000, 5_000))
    world.send(1)
    world.kill(2)
    world.lives[2] = Incarnation(2, 2)
    world.network.join(world.lives[2])
    world.network.register(world.lives[2], world.answer)
    future = world.send(2)
    world.scheduler.run_for(10)
    assert (world.got, future.result(0)) == ([2], 20)


def test_an_answer_of_a_dead_life_vanishes():
    world = World()
    answer = Future()
    world.network.register(world.lives[2], lambda _: answer)
    future = world.send()
    world.scheduler.run_for(1)
    world.kill(2, silently=True)
    answer.set_result(1)
    world.scheduler.run_for(10)
    assert not future.done()


def test_a_dead_sender_gets_nothing_and_sends_nothing():
    world = World(delay_us=(5_000, 5_000))
    before = world.send(1)
    world.kill(1)
    after = world.send(2)
    world.scheduler.run_for(2 * TIMEOUT_MS)
    assert not before.done()
    assert not after.done()
    assert world.got == []


def test_a_paused_node_gets_its_messages_later_in_order():
    world = World()
    world.scheduler.pause(world.lives[2])
    futures = [world.send(number) for number in range(10)]
    world.scheduler.run_for(100)
    assert world.got == []
    world.scheduler.resume(world.lives[2])
    futures.append(world.send(10))
    world.scheduler.run_for(1)
    assert world.got == list(range(11))
    assert futures[9].result(0) == 90


def test_a_busy_node_sends_when_its_disk_lets_it():
    world = World()
    world.lives[1].busy_until_ns = 3_000_000
    future = world.send()
    assert world.scheduler.run_until(future.done)
    assert world.now_ms == 3.0


def test_a_failing_handler_closes_the_connection():
    world = World()
    answer = Future()
    answer.set_exception(ValueError("no idea"))
    world.network.register(world.lives[2], lambda _: answer)
    future = world.send()
    world.scheduler.run_for(1)
    fails(future, "node 2 failed")


def test_held_messages_are_released_in_any_order():
    world = World()
    let_go = world.network.hold(lambda message: message.is_request and message.name == "Echo")
    for number in range(3):
        world.send(number)
    world.scheduler.run_for(1)
    assert [str(message) for message in world.network.held] == ["1->2 Echo request"] * 3
    first, second, third = world.network.held
    world.network.release(third)
    world.network.release(first)
    world.network.drop(second)
    let_go()
    world.send(3)
    world.scheduler.run_for(1)
    assert sorted(world.got) == [0, 2, 3]


def run(seed):
    world = World(seed, delay_us=(10, 2_000), loss=0.1, duplication=0.1)
    for number in range(50):
        world.scheduler.add(
            "client", f"send {number}", lambda number=number: world.send(number), delay_ns=number
        )
    world.scheduler.run_for(2 * TIMEOUT_MS)
    return world.scheduler.event_hash, tuple(world.got), dict(world.network.counts)


def test_the_same_seed_gives_the_same_network():
    assert run(5) == run(5)
    assert run(5)[1] != run(6)[1]


@pytest.mark.parametrize("silently", [False, True])
def test_a_connection_that_closes_is_a_hint_unless_the_power_went(silently):
    world, notified = World(), []
    world.endpoints[1].watch_connections(notified.append)
    world.kill(2, silently=silently)
    world.scheduler.run_due()
    assert notified == ([] if silently else [2])


def test_behind_a_cut_no_node_hears_of_closed_connections():
    world, notified = World(), []
    world.endpoints[1].watch_connections(notified.append)
    world.network.cut(2, 1, both_ways=False)
    world.network.disconnect(2)
    world.kill(2)
    world.scheduler.run_due()
    assert notified == []
