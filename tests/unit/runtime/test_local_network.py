"""The network of one process: which thread runs the tasks, in what order, and what failed calls return."""

from __future__ import annotations

import gc
import itertools
import signal
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from kreplica.common.encoded_request import SIZE_BYTES, EncodedRequest
from kreplica.common.errors import InvalidRequest, NetworkException
from kreplica.common.future import Future, resolved
from kreplica.runtime.local_network import (
    TASKS_OF_A_TURN,
    TURNS_OF_A_CALLER,
    LocalEndpoint,
    LocalLoop,
    LocalNetwork,
    LocalTimer,
    Task,
)

# For waits that end as soon as their condition holds; only a broken network waits this long.
PATIENCE = 30


@pytest.fixture
def network():
    """A network with its thread running; the test fails if a task did."""
    failures = []
    network = LocalNetwork(on_error=lambda name, error: failures.append((name, error)))
    network.failures = failures
    network.start()
    yield network
    network.shutdown()
    assert failures == []


def add_node(network, node_id, handle=resolved):
    endpoint = network.join(node_id)
    network.register(endpoint, handle)
    return endpoint


def fails(future, match):
    with pytest.raises(NetworkException, match=match):
        future.result(PATIENCE)


def test_the_networks_thread_runs_tasks_that_no_other_thread_runs(network):
    first, _ = add_node(network, 1), add_node(network, 2, lambda n: resolved((n, threading.get_ident())))
    number, thread = first.send(2, 7, timeout_ms=PATIENCE * 1000).result(PATIENCE)
    assert number == 7
    assert thread != threading.get_ident()


def test_a_caller_that_drains_needs_no_other_thread():
    network = LocalNetwork()  # never started
    threads = []

    def handle(number):
        threads.append(threading.get_ident())
        return resolved(number + 1)

    first, _ = add_node(network, 1), add_node(network, 2, handle)
    with network.draining():
        with network.draining():
            future = first.send(2, 1, timeout_ms=1000)
        assert not future.done()
    assert future.result(0) == 2
    assert threads == [threading.get_ident()]


def test_an_interrupt_at_any_call_within_a_post_leaves_the_loop_usable(request):
    def interrupt_at(call):
        calls = itertools.count(1)

        def trace(_frame, _event, _argument):
            if next(calls) == call:
                signal.raise_signal(signal.SIGINT)

        return trace

    interrupted = 0
    # A shell ignores SIGINT in what it starts in the background.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(partial(signal.signal, signal.SIGINT, handler))
    for call in range(1, 20):
        network, ran = LocalNetwork(), []  # never started
        loop = network.join(1).loop("a")
        before = sys.gettrace()
        task = partial(ran.append, "interrupted")
        sys.settrace(interrupt_at(call))
        try:
            loop.post(task)
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.settrace(before)
        loop.post(partial(ran.append, "next"))
        network.run_due()
        assert ran[-1] == "next"
    assert interrupted > 1


def test_a_thread_that_is_about_to_wait_runs_what_others_have_posted():
    network = LocalNetwork()  # never started
    threads = []
    loop = network.join(1).loop("a")
    loop.post(lambda: threads.append(threading.get_ident()))
    assert threads == []
    network.run_due()
    assert threads == [threading.get_ident()]


def test_a_caller_that_is_held_up_delays_no_other_task(network):
    loop = network.join(1).loop("a")
    other = network.join(2).loop("b")
    began, ran = threading.Event(), threading.Event()

    def hold():
        began.set()
        assert ran.wait(PATIENCE)

    def call():
        with network.draining():
            loop.post(hold)

    caller = threading.Thread(target=call)
    caller.start()
    assert began.wait(PATIENCE)
    other.post(ran.set)
    caller.join()


def test_what_a_task_posts_to_its_own_loop_comes_after_what_it_posts_to_others():
    network = LocalNetwork()  # never started
    endpoint = add_node(network, 1)
    one, other, order = endpoint.loop("one"), endpoint.loop("other"), []

    def begin():
        one.post(partial(order.append, "own"))
        other.post(partial(order.append, "other's"))

    with network.draining():
        one.post(begin)
    assert order == ["other's", "own"]


def test_loops_run_while_others_wait_for_the_disk(network):
    """Three tasks wait for each other: they end only if each has its own thread."""
    together = threading.Barrier(3)
    passed = [Future() for _ in range(3)]
    endpoint = add_node(network, 1)
    loops = [endpoint.loop(f"disk {number}") for number in range(3)]

    def wait_for_the_disk(number):
        loops[number].about_to_wait()
        together.wait(PATIENCE)
        passed[number].set_result(None)

    for _ in range(3):
        passed[:] = [Future() for _ in range(3)]
        with network.draining():
            for number, loop in enumerate(loops):
                loop.post(partial(wait_for_the_disk, number))
        for each in passed:
            each.result(PATIENCE)


def test_without_a_ready_task_no_thread_is_called(network):
    ran = Future()
    loop = add_node(network, 1).loop("disk")

    def task():
        loop.about_to_wait()
        ran.set_result(network._calls_for_help)

    with network.draining():
        loop.post(task)
    assert ran.result(PATIENCE) == 0


def test_post_runs_nothing_itself():
    network = LocalNetwork()
    seen = []
    loop = network.join(1).loop("loop")

    def first():
        loop.post(lambda: seen.append("third"))
        seen.append("first")

    with network.draining():
        loop.post(first)
        loop.post(lambda: seen.append("second"))
        assert seen == []
    assert seen == ["first", "second", "third"]


def test_tasks_of_a_loop_come_in_order_and_never_at_once(network):
    loop = add_node(network, 1).loop("loop")
    seen, inside, overlaps = [], [], []
    done = threading.Event()
    posters, each = 8, 500

    def task(poster, number):
        inside.append(1)
        overlaps.append(len(inside) > 1)
        seen.append((poster, number))
        inside.pop()
        if len(seen) == posters * each:
            done.set()

    def post_all(poster):
        for number in range(each):
            with network.draining():
                loop.post(partial(task, poster, number))

    with ThreadPoolExecutor(posters) as pool:
        list(pool.map(lambda poster: post_all(poster), range(posters)))
    assert done.wait(PATIENCE)
    assert not any(overlaps)
    for poster in range(posters):
        assert [number for whose, number in seen if whose == poster] == sorted(
            number for whose, number in seen if whose == poster
        )


def test_requests_of_one_sender_arrive_in_order(network):
    got = []
    done = threading.Event()

    def handle(number):
        got.append(number)
        if number == 999:
            done.set()
        return resolved(None)

    first, _ = add_node(network, 1), add_node(network, 2, handle)
    for number in range(1000):
        first.send(2, number, timeout_ms=PATIENCE * 1000)
    assert done.wait(PATIENCE)
    assert got == list(range(1000))


def test_the_thread_goes_on_where_a_caller_has_done_its_share(network):
    loops = [network.join(node).loop("loop") for node in range(4)]
    threads = {}
    done = threading.Event()
    rounds = TURNS_OF_A_CALLER * TASKS_OF_A_TURN

    def task(node, left):
        threads[threading.get_ident()] = True
        if left:
            loops[node].post(lambda: task(node, left - 1))
        elif node == 3:
            done.set()

    with network.draining():
        for node in range(4):
            loops[node].post(lambda node=node: task(node, rounds))
    assert done.wait(PATIENCE)
    assert len(threads) == 2


def test_timers_run_in_their_loop_when_they_are_due(network):
    loop = add_node(network, 1).loop("loop")
    seen = []
    done = threading.Event()
    loop.post_later(lambda: (seen.append(3), done.set()), 30)
    cancelled = loop.post_later(lambda: seen.append("cancelled"), 10)
    loop.post_later(lambda: seen.append(2), 20)
    loop.post_later(lambda: seen.append(1), 0)
    cancelled.cancel()
    assert done.wait(PATIENCE)
    assert seen == [1, 2, 3]


def test_a_timer_never_runs_early():
    class Clock:
        now_ns = 999_999

        def monotonic_ns(self):
            return self.now_ns

        def time_ms(self):
            return 0

    clock, seen = Clock(), []
    network = LocalNetwork(clock)
    network.join(1).loop("loop").post_later(lambda: seen.append(1), 1)
    clock.now_ns += 999_999
    assert network._take_due() == []
    clock.now_ns += 1_000_000
    assert len(network._take_due()) == 1


def test_a_periodic_task_goes_on_until_it_is_cancelled(network):
    done = threading.Event()
    count = []

    def tick():
        count.append(1)
        if len(count) == 3:
            timer.cancel()
            done.set()

    endpoint = add_node(network, 1)
    with network.draining():
        timer = endpoint.schedule("tick", tick, 1, 1)
    assert done.wait(PATIENCE)
    # A later task of the same clock: had the timer gone on, it would have come first.
    later = threading.Event()
    endpoint.loop("loop").post_later(later.set, 10)
    assert later.wait(PATIENCE)
    assert len(count) == 3


def test_an_unanswered_request_times_out(network):
    first, _ = add_node(network, 1), add_node(network, 2, lambda _: Future())
    fails(first.send(2, 1, timeout_ms=5), "no answer from node 2 within 5 ms")


def test_calls_time_out_at_their_own_deadlines(network):
    first = add_node(network, 1)
    add_node(network, 2, lambda _: Future())
    late, last = first.send(2, 1, timeout_ms=60_000), first.send(2, 1, timeout_ms=30)
    early = first.send(2, 1, timeout_ms=5)
    fails(early, "no answer from node 2 within 5 ms")
    fails(last, "no answer from node 2 within 30 ms")
    assert not late.done()
    assert len(network._wheel) == 1


class Doubled(EncodedRequest):
    """A number as bytes. Its answer is twice the number."""

    kind = int

    def __init__(self, number):
        self.number = number

    def message(self):
        return self.number

    def frame(self, *_):
        return bytes(SIZE_BYTES) + bytes([self.number])

    def read(self, frame):
        return ("read", frame[0])


def test_an_encoded_request_is_a_frame_for_a_node_that_takes_frames(network):
    first, second = add_node(network, 1), network.join(2)
    connections = []

    def serve(frame, _, answered, connection):
        connections.append(connection)
        number = frame[0]
        if number == 9:
            answered(None, InvalidRequest("no nines"))
        elif number == 8:
            answered(None, None)
        else:
            answered([bytes(SIZE_BYTES), bytes([2 * number])], None)

    network.register(second, lambda number: resolved(-number), serve)
    assert first.send(2, Doubled(7), timeout_ms=PATIENCE * 1000).result(PATIENCE) == ("read", 14)
    assert first.send(2, Doubled(8), timeout_ms=PATIENCE * 1000).result(PATIENCE) is None
    fails(first.send(2, Doubled(9), timeout_ms=PATIENCE * 1000), "node 2 failed.*no nines")
    assert connections == [first, first, first]
    network.register(second, lambda number: resolved(-number))
    assert first.send(2, Doubled(7), timeout_ms=PATIENCE * 1000).result(PATIENCE) == -7


def test_a_gate_sees_the_message_of_an_encoded_request(network):
    first, second = add_node(network, 1), network.join(2)
    network.register(second, lambda number: resolved(-number), lambda *_: pytest.fail("a frame"))
    seen = []
    network.gate = lambda _, __, body, **____: seen.append(body)
    assert first.send(2, Doubled(7), timeout_ms=PATIENCE * 1000).result(PATIENCE) == -7
    assert seen == [7, -7]


def test_a_frame_that_cannot_be_handled_is_reported(network):
    first, second = add_node(network, 1), network.join(2)
    network.register(second, resolved, lambda _, __, answered, ___: answered(None, ValueError("what")))
    fails(first.send(2, Doubled(1), timeout_ms=PATIENCE * 1000), "node 2 failed.*what")
    [(name, error)] = network.failures
    assert (name, str(error)) == ("requests of node 1", "what")
    network.failures.clear()


def test_a_request_to_an_absent_node_fails_at_once(network):
    first = add_node(network, 1)
    fails(first.send(2, 1, timeout_ms=PATIENCE * 1000), "is not running")


def test_a_handler_that_fails_closes_the_connection(network):
    answer = Future()
    answer.set_exception(ValueError("no idea"))
    first, _ = add_node(network, 1), add_node(network, 2, lambda _: answer)
    fails(first.send(2, 1, timeout_ms=PATIENCE * 1000), "node 2 failed")


def test_a_handler_that_raises_is_reported_and_answered(network):
    def broken(request):
        raise ValueError(request)

    first, _ = add_node(network, 1), add_node(network, 2, broken)
    fails(first.send(2, 1, timeout_ms=PATIENCE * 1000), "node 2 failed")
    # The error is reported by the thread that ran it, maybe a moment later: leaving waits for it.
    network.shutdown()
    assert [str(error) for _, error in network.failures] == ["1"]
    network.failures.clear()


def test_leaving_breaks_calls_and_ends_tasks(network):
    first, second = add_node(network, 1), add_node(network, 2, lambda _: Future())
    future = first.send(2, 1, timeout_ms=PATIENCE * 1000)
    seen = []
    entered, may_go = threading.Event(), threading.Event()
    loop = second.loop("loop")

    def step():
        entered.set()
        may_go.wait(PATIENCE)
        seen.append("step")

    loop.post(step)
    loop.post(lambda: seen.append("next"))
    loop.post_later(lambda: seen.append("timer"), 0)
    assert entered.wait(PATIENCE)
    leaving = threading.Thread(target=network.leave, args=(second,))
    leaving.start()
    may_go.set()
    leaving.join(PATIENCE)
    # The step that had begun is through, and nothing else of that life ran or will.
    assert seen == ["step"]
    fails(future, "broke")
    loop.post(lambda: seen.append("late"))
    done = threading.Event()
    first.loop("loop").post_later(done.set, 5)
    assert done.wait(PATIENCE)
    assert seen == ["step"]


def test_a_life_that_ended_leaves_nothing_behind(network):
    first, second = add_node(network, 1), add_node(network, 2)
    network.cut(2, 1)
    second.schedule("weekly", lambda: None, 7 * 24 * 3_600_000, 7 * 24 * 3_600_000)
    second.send(1, 7, timeout_ms=PATIENCE * 1000)
    gone = weakref.ref(second)
    network.leave(second)
    assert network.wait_until_idle(PATIENCE)
    assert (network.calls, network._timers) == ({}, {})
    del second
    gc.collect()
    assert gone() is None
    network.leave(first)


def test_a_node_comes_back_with_a_new_life(network):
    first, second = add_node(network, 1), add_node(network, 2)
    network.leave(second)
    add_node(network, 2, lambda n: resolved(-n))
    assert first.send(2, 5, timeout_ms=PATIENCE * 1000).result(PATIENCE) == -5
    network.leave(first)
    assert not first.send(2, 5, timeout_ms=1).done()


def test_a_gate_may_keep_a_message(network):
    kept = []

    def gate(sender, receiver, body, *, is_request, deliver):
        kept.append((sender, receiver, body, is_request, deliver))
        return True

    first, _ = add_node(network, 1), add_node(network, 2, lambda n: resolved(n + 1))
    network.gate = gate
    future = first.send(2, 5, timeout_ms=PATIENCE * 1000)
    assert [message[:4] for message in kept] == [(1, 2, 5, True)]
    with network.draining():
        kept[0][4]()
    assert kept[1][:4] == (2, 1, 6, False)
    assert not future.done()
    kept[1][4]()
    assert future.result(PATIENCE) == 6


def test_many_callers_get_their_own_answers(network):
    endpoints = [add_node(network, node, lambda n: resolved(n * 2)) for node in range(3)]

    def call_all(caller):
        answers = []
        for number in range(300):
            with network.draining():
                future = endpoints[caller].send((caller + 1) % 3, number, timeout_ms=PATIENCE * 1000)
            answers.append(future.result(PATIENCE))
        return answers

    with ThreadPoolExecutor(3) as pool:
        for answers in pool.map(call_all, range(3)):
            assert answers == [number * 2 for number in range(300)]
    assert network.calls == {}
    assert len(network._wheel) <= 1  # one timer serves all calls


def test_watchers_are_notified_of_closed_connections(network):
    notified, posted = [], threading.Event()
    first, second = add_node(network, 1), add_node(network, 2)
    add_node(network, 3).watch_connections(notified.append)
    first.watch_connections(lambda node_id: (notified.append(node_id), posted.set()))
    network.cut(3, 2)
    network.leave(second)
    assert posted.wait(PATIENCE)
    # Node 3 is cut off, and node 2 itself is gone.
    assert network.wait_until_idle(PATIENCE)
    assert notified == [2]


def test_a_paused_node_does_nothing_and_loses_nothing(network):
    first, second = add_node(network, 1), add_node(network, 2)
    ran = []
    network.pause(second)
    futures = [first.send(2, number, timeout_ms=PATIENCE * 1000) for number in range(5)]
    second.loop("own").post(lambda: ran.append("task"))
    second.schedule("timer", lambda: ran.append("timer"), 0)
    first.loop("clock").post_later(lambda: ran.append("later"), 20)
    while "later" not in ran:
        assert network.wait_until_idle(PATIENCE)
    assert ran == ["later"]
    assert not any(future.done() for future in futures)
    network.resume(second)
    assert [future.result(PATIENCE) for future in futures] == list(range(5))
    assert network.wait_until_idle(PATIENCE)
    assert sorted(ran) == ["later", "task", "timer"]


def test_a_call_of_a_paused_node_waits_with_it(network):
    first, second = add_node(network, 1), add_node(network, 2)
    outcome = []
    future = first.send(2, 7, timeout_ms=1)
    network.pause(first)
    future.add_done_callback(lambda done: first.loop("own").post(lambda: outcome.append(done)))
    second.loop("clock").post_later(lambda: None, 30)
    assert network.wait_until_idle(PATIENCE)
    assert outcome == []
    network.resume(first)
    assert network.wait_until_idle(PATIENCE)
    assert len(outcome) == 1


def test_one_may_pause_and_end_a_paused_node(network):
    first, second = add_node(network, 1), add_node(network, 2)
    network.pause(second)
    future = first.send(2, 1, timeout_ms=PATIENCE * 1000)
    network.leave(second)
    fails(future, "broke")


def test_a_cut_loses_requests_and_answers(network):
    first, second = add_node(network, 1), add_node(network, 2)
    network.cut(1, 2)
    fails(first.send(2, 1, timeout_ms=20), "within 20 ms")
    fails(second.send(1, 1, timeout_ms=20), "within 20 ms")
    network.heal(1, 2)
    assert first.send(2, 1, timeout_ms=PATIENCE * 1000).result(PATIENCE) == 1
    taken = []
    network.register(second, lambda body: (taken.append(body), resolved(body))[1])
    network.cut(2, 1, both_ways=False)
    fails(first.send(2, 3, timeout_ms=20), "within 20 ms")
    assert taken == [3]
    network.heal_all()
    assert first.send(2, 4, timeout_ms=PATIENCE * 1000).result(PATIENCE) == 4


def test_waiting_for_rest_takes_no_wake_up_from_the_networks_thread():
    network = LocalNetwork()
    endpoint = network.join(1)
    entered, let_go, ran = threading.Event(), threading.Event(), threading.Event()

    def hold_up():
        entered.set()
        let_go.wait()

    def held_up():
        with network.draining():
            endpoint.loop("held up").post(hold_up)

    def is_so(condition):
        with network._lock:
            return condition()

    with ThreadPoolExecutor(2) as pool:
        try:
            pool.submit(held_up)
            assert entered.wait(PATIENCE)
            # It waits before the network's thread does, so it is the first that a wake-up would reach.
            rest = pool.submit(network.wait_until_idle, PATIENCE)
            while not is_so(lambda: network.idlers == 1):
                pass
            network.start()
            while not is_so(lambda: network._wakes_at_ms != 0):
                pass
            endpoint.loop("late").post(ran.set)
            assert ran.wait(PATIENCE)
        finally:
            let_go.set()
        assert rest.result(PATIENCE)
    network.shutdown()


def interrupt():
    signal.raise_signal(signal.SIGINT)


@pytest.fixture
def interruptible():
    """SIGINT as a terminal's programs have it; a shell's background processes ignore it."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_waits_until_the_step_is_done():
    network = LocalNetwork()
    loop, done = network.join(1).loop("own"), []

    def step():
        interrupt()
        done.append("the step")

    handler = signal.getsignal(signal.SIGINT)
    loop.post(step)
    loop.post(lambda: done.append("the next"))
    with pytest.raises(KeyboardInterrupt), network.draining():
        done.append("begun")
    assert done == ["begun", "the step", "the next"]
    assert signal.getsignal(signal.SIGINT) is handler
    # Nothing is left behind, and outside of a step it comes at once.
    with network.draining():
        loop.post(lambda: done.append("later"))
    assert done[-1] == "later"
    with pytest.raises(KeyboardInterrupt):
        interrupt()


class Ending(BaseException):
    """As pytest's own, which are no errors."""


def test_what_ends_a_test_holds_up_no_loop():
    errors = []
    network = LocalNetwork(on_error=lambda name, error: errors.append((name, error)))
    endpoint = network.join(1)
    loop, done = endpoint.loop("own"), []

    def end():
        raise Ending

    with pytest.raises(Ending), network.draining():
        loop.post(end)
    assert [(name, type(error)) for name, error in errors] == [("own", Ending)]
    with network.draining():
        loop.post(lambda: done.append(1))
    assert done == [1]
    network.start()
    try:
        posted = threading.Event()
        loop.post(end)
        loop.post(posted.set)
        assert posted.wait(PATIENCE)
        network.leave(endpoint)
    finally:
        network.shutdown()


def test_a_task_of_a_loop_apart_holds_up_no_other(network):
    endpoint = add_node(network, 1)
    begun, may_end, ran, after = (threading.Event() for _ in range(4))
    apart = endpoint.loop_apart("long")

    def long_task():
        begun.set()
        assert may_end.wait(PATIENCE)

    apart.post(long_task)
    apart.post(after.set)
    assert begun.wait(PATIENCE)
    # What is due, which the network's own thread alone looks for, and what is posted.
    endpoint.loop("other").post_later(ran.set, 0)
    assert ran.wait(PATIENCE)
    assert not after.is_set()
    assert not network.wait_until_idle(0.01)
    may_end.set()
    assert after.wait(PATIENCE)
    assert network.wait_until_idle(PATIENCE)


def test_a_loop_apart_stalls_and_ends_with_its_node(network):
    endpoint = add_node(network, 1)
    apart, ran = endpoint.loop_apart("long"), threading.Event()
    network.pause(endpoint)
    apart.post(ran.set)
    assert not ran.wait(0.05)
    network.resume(endpoint)
    assert ran.wait(PATIENCE)
    begun, may_end, left = threading.Event(), threading.Event(), threading.Event()

    def long_task():
        begun.set()
        assert may_end.wait(PATIENCE)

    apart.post(long_task)
    assert begun.wait(PATIENCE)
    leaving = threading.Thread(target=lambda: (network.leave(endpoint), left.set()))
    leaving.start()
    # None of its tasks runs once it has left.
    assert not left.wait(0.05)
    may_end.set()
    leaving.join(PATIENCE)
    assert left.is_set()


class Asked:
    """A network that does nothing but remember."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, Task]] = []
        self.armed: list[tuple[LocalTimer, int]] = []
        self.cancelled: list[LocalTimer] = []
        self.helped = 0
        self.sent: list[tuple[int, int, Any, int]] = []

    def post(self, loop: LocalLoop, task: Task) -> None:
        self.posted.append((loop.name, task))

    def arm(self, timer: LocalTimer, delay_ms: int) -> LocalTimer:
        self.armed.append((timer, delay_ms))
        return timer

    def cancel(self, timer: LocalTimer) -> None:
        timer.is_cancelled = True
        self.cancelled.append(timer)

    def call_helpers(self) -> None:
        self.helped += 1

    def send(self, sender: LocalEndpoint, node_id: int, request: Any, timeout_ms: int) -> Future[Any]:
        self.sent.append((sender.node_id, node_id, request, timeout_ms))
        return Future()


def nothing() -> None:
    """A task."""


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
def endpoint(asked: Asked) -> LocalEndpoint:
    return LocalEndpoint(asked, 1)


def test_loops_have_their_names_and_their_own_queues(asked: Asked, endpoint: LocalEndpoint) -> None:
    one, other = endpoint.loop("one"), endpoint.loop("other")
    one.post(nothing)
    other.post(nothing)
    other.about_to_wait()
    assert asked.posted == [("one", nothing), ("other", nothing)]
    assert asked.helped == 1
    assert one.tasks is not other.tasks


def test_a_request_goes_out_in_the_nodes_name(asked: Asked, endpoint: LocalEndpoint) -> None:
    assert not endpoint.send(2, "what", timeout_ms=70).done()
    assert asked.sent == [(1, 2, "what", 70)]


def test_a_timer_runs_once_in_its_loop(asked: Asked, endpoint: LocalEndpoint) -> None:
    done: list[int] = []
    loop = endpoint.loop("loop")
    timer = loop.post_later(lambda: done.append(1), 30)
    assert (asked.armed, timer.loop) == ([(timer, 30)], loop)
    timer.run()
    assert (done, len(asked.armed)) == ([1], 1)


def test_a_periodic_task_is_armed_again_after_each_run_also_if_it_fails(
    asked: Asked, endpoint: LocalEndpoint
) -> None:
    def fail() -> None:
        raise ValueError("a task that fails")

    timer = endpoint.schedule("tick", fail, 5, 9)
    with pytest.raises(ValueError, match="a task that fails"):
        timer.run()
    assert asked.armed == [(timer, 5), (timer, 9)]


def test_what_was_cancelled_runs_no_more(asked: Asked, endpoint: LocalEndpoint) -> None:
    done: list[int] = []
    timer = endpoint.schedule("tick", lambda: done.append(1), 5, 9)
    timer.cancel()
    timer.run()
    assert (asked.cancelled, done, len(asked.armed)) == ([timer], [], 1)
