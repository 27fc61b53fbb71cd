"""The simulation's clock and event queue: order, lives, pauses, and the same seed giving the same events."""

from __future__ import annotations

import random

import pytest

from kreplica.sim.scheduler import START_DATE_MS, Incarnation, SimScheduler, VirtualClock, VirtualTime


def make(seed=1, *, shuffle=True):
    return SimScheduler(VirtualTime(), random.Random(seed), shuffle=shuffle)


def test_clocks_share_the_time_and_not_the_date():
    time = VirtualTime()
    first, second = VirtualClock(time), VirtualClock(time)
    time.advance_to(5_000_000)
    second.jump_date(-100)
    assert (first.time_ms(), second.time_ms()) == (START_DATE_MS + 5, START_DATE_MS - 95)
    time.advance_to(1)
    assert first.monotonic_ns() == second.monotonic_ns() == 5_000_000


def test_events_come_in_the_order_of_their_moments():
    scheduler, seen = make(), []
    for delay in (30, 10, 20):
        scheduler.schedule("t", lambda delay=delay: seen.append((delay, scheduler.time.now_ns)), delay)
    scheduler.run_for(25)
    assert seen == [(10, 10_000_000), (20, 20_000_000)]
    assert scheduler.time.now_ns == 25_000_000


def orders_of_one_moment(*, shuffle):
    orders = set()
    for seed in range(20):
        scheduler, seen = make(seed, shuffle=shuffle), []
        for number in range(4):
            scheduler.add("fault", str(number), lambda number=number, seen=seen: seen.append(number))
        scheduler.run_due()
        orders.add(tuple(seen))
    return orders


def test_events_of_one_moment_come_in_an_order_of_the_seed():
    assert len(orders_of_one_moment(shuffle=True)) > 5


def test_without_shuffling_they_come_as_they_were_added():
    assert orders_of_one_moment(shuffle=False) == {(0, 1, 2, 3)}


def test_a_loops_tasks_come_in_order_and_never_inside_post():
    scheduler, seen = make(), []
    loop = scheduler.loop(Incarnation(1), "loop")

    def first():
        loop.post(lambda: seen.append("third"))
        seen.append("first")

    loop.post(first)
    loop.post(lambda: seen.append("second"))
    assert seen == []
    scheduler.run_due()
    assert seen == ["first", "second", "third"]


def test_a_periodic_task_runs_until_it_is_cancelled():
    scheduler, seen = make(), []
    task = scheduler.of(Incarnation(1)).schedule("tick", lambda: seen.append(scheduler.time.now_ns), 10, 20)
    scheduler.run_for(60)
    task.cancel()
    scheduler.run_for(100)
    assert seen == [10_000_000, 30_000_000, 50_000_000]


def test_a_task_may_cancel_itself():
    scheduler, seen = make(), []
    task = scheduler.schedule("tick", lambda: (seen.append(1), task.cancel()), 10, 10)
    scheduler.run_for(100)
    assert seen == [1]


def test_what_a_dead_incarnation_left_never_happens():
    scheduler, seen = make(), []
    life = Incarnation(1)
    scheduler.loop(life, "loop").post(lambda: seen.append("turn"))
    scheduler.of(life).schedule("timer", lambda: seen.append("timer"), 5)
    life.is_alive = False
    scheduler.run_for(100)
    assert seen == []


def test_a_paused_one_catches_up():
    scheduler, seen = make(), []
    life = Incarnation(1)
    loop = scheduler.loop(life, "loop")
    loop.post_later(lambda: seen.append(scheduler.time.now_ns), 5)
    scheduler.pause(life)
    loop.post(lambda: seen.append("posted"))
    scheduler.run_for(50)
    assert seen == []
    scheduler.resume(life)
    scheduler.run_due()
    assert sorted(map(str, seen)) == ["50000000", "posted"]


def test_a_busy_one_goes_on_when_its_disk_lets_it():
    scheduler, seen = make(), []
    life = Incarnation(1)
    loop = scheduler.loop(life, "loop")

    def slow():
        life.busy_until_ns = scheduler.time.now_ns + 7_000_000

    loop.post(slow)
    loop.post(lambda: seen.append(scheduler.time.now_ns))
    scheduler.of(life).schedule("timer", lambda: seen.append(scheduler.time.now_ns), 3)
    scheduler.run_for(20)
    assert seen == [7_000_000, 7_000_000]


def test_run_until_stops_at_the_condition_or_the_limit():
    scheduler, seen = make(), []
    scheduler.schedule("tick", lambda: seen.append(1), 10, 10)
    assert scheduler.run_until(lambda: len(seen) == 3)
    assert scheduler.time.now_ns == 30_000_000
    assert not scheduler.run_until(lambda: len(seen) == 100, limit_ms=50)


def test_going_in_circles_is_found():
    scheduler = make()
    loop = scheduler.loop(Incarnation(1), "loop")

    def again():
        loop.post(again)

    loop.post(again)
    with pytest.raises(AssertionError, match="do not end: ran 100 of them"):
        scheduler.run_due(limit=100)


def test_an_error_names_the_event():
    scheduler = make()
    scheduler.add("fault", "disk of 1 fills up", lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError) as caught:
        scheduler.step()
    assert "event 1:" in caught.value.__notes__[0]
    assert "disk of 1 fills up" in caught.value.__notes__[0]


def hash_of(seed, summary="same"):
    scheduler = make(seed)
    for delay in range(20):
        scheduler.add("fault", summary + str(delay), lambda: None, delay_ns=delay // 5)
    scheduler.run_for(1)
    return scheduler.event_hash


def test_the_hash_is_the_seeds():
    assert hash_of(1) == hash_of(1)
    assert len({hash_of(1), hash_of(2), hash_of(1, "other")}) == 3


def test_timers_and_turns_are_not_counted_as_events():
    scheduler = make()
    scheduler.schedule("timer", lambda: None, 0)
    scheduler.loop(Incarnation(1), "loop").post(lambda: None)
    scheduler.add("fault", "", lambda: None)
    scheduler.run_due()
    assert (scheduler.steps, scheduler.events) == (3, 1)
