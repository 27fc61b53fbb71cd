"""The native state of a future: transitions, callbacks, and futures that depend on others."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import CancelledError, InvalidStateError
from functools import partial
from typing import Any

import pytest

from kreplica._core.future_state import FutureState, Gathering, Then, finish_states, pass_on
from kreplica.common.future import Future, MadeFuture, all_of, failed, resolved, then


def test_a_callback_that_adds_another_one_has_it_called_at_once() -> None:
    seen: list[str] = []
    future: Future[int] = Future()

    def first(_: object) -> None:
        future.add_done_callback(lambda _: seen.append("added"))
        seen.append("first")

    future.add_done_callback(first)
    future.add_done_callback(lambda _: seen.append("second"))
    future.set_result(1)
    assert seen == ["added", "first", "second"]


def test_a_callback_may_resolve_its_own_future_again_without_effect() -> None:
    future: Future[int] = Future()
    outcomes: list[object] = []
    future.add_done_callback(lambda _: outcomes.append(future.cancel()))
    future.add_done_callback(lambda _: outcomes.append(future.finish()))
    future.set_result(1)
    assert outcomes == [False, False]
    assert future.result() == 1


def test_what_ends_the_thread_passes_through_a_callback() -> None:
    future: Future[int] = Future()

    def leave(_: object) -> None:
        raise SystemExit

    future.add_done_callback(leave)
    with pytest.raises(SystemExit):
        future.set_result(1)
    assert future.result() == 1


def test_a_resolved_future_keeps_no_callback_alive() -> None:
    class Listener:
        def heard(self, _: object) -> None:
            pass

    listener = Listener()
    gone = weakref.ref(listener)
    future: Future[int] = Future()
    future.add_done_callback(listener.heard)
    del listener
    future.set_result(1)
    assert gone() is None


def test_a_cycle_of_a_pending_future_and_its_callback_is_collected() -> None:
    class Token:
        pass

    token = Token()
    gone = weakref.ref(token)
    future: Future[Any] = Future(token)
    future.add_done_callback(partial(pass_on, future))
    del future, token
    gc.collect()
    assert gone() is None


def _called_under_a_race() -> list[int]:
    """Return which callbacks of two threads are called, while a third thread resolves the future."""
    future: Future[int] = Future()
    called: list[int] = []
    begin = threading.Barrier(3)

    def listen(first: int) -> None:
        begin.wait()
        for number in range(first, first + 20):
            future.add_done_callback(lambda _, number=number: called.append(number))

    def resolve() -> None:
        begin.wait()
        future.set_result(1)

    threads = [threading.Thread(target=listen, args=(first,)) for first in (0, 20)]
    threads.append(threading.Thread(target=resolve))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(called)


def test_threads_that_resolve_and_listen_lose_no_callback() -> None:
    for _ in range(100):
        assert _called_under_a_race() == list(range(40))


def test_then_makes_refuses_and_fails() -> None:
    assert then(resolved(1), lambda found: found + 1).result() == 2
    assert then(failed(KeyError()), lambda _: 1, lambda error: type(error)).result() is KeyError
    with pytest.raises(KeyError):
        then(failed(KeyError()), lambda found: found).result()
    with pytest.raises(ZeroDivisionError):
        then(resolved(0), lambda found: 1 // found).result()
    cancelled: Future[int] = Future()
    cancelled.cancel()
    assert isinstance(then(cancelled, lambda _: None, lambda error: error).result(), CancelledError)
    with pytest.raises(CancelledError):
        then(cancelled, lambda found: found).result()


def test_an_answer_that_was_cancelled_meanwhile_takes_nothing() -> None:
    first: Future[int] = Future()
    answer = then(first, lambda found: found)
    answer.cancel()
    first.set_result(1)
    assert answer.cancelled()


def test_results_are_gathered_in_order_and_the_first_error_of_them_counts() -> None:
    parts: list[Future[int]] = [Future(), Future(), Future()]
    whole = all_of(parts)
    for number in (2, 0, 1):
        assert not whole.done()
        parts[number].set_result(number)
    assert whole.result() == [0, 1, 2]
    with pytest.raises(KeyError):
        all_of([resolved(1), failed(KeyError()), failed(ValueError())]).result()


def test_the_overriding_methods_of_a_subclass_count() -> None:
    made: MadeFuture[int] = MadeFuture(lambda raw: raw * 10)
    pass_on(made, resolved(4))
    assert made.result() == 40

    class Doubled(Future[int]):
        def result(self, timeout: float | None = None) -> int:
            return 2 * super().result(timeout)

    doubled = Doubled()
    seen = then(doubled, lambda found: found)
    whole = all_of([doubled])
    doubled.set_result(5)
    assert (seen.result(), whole.result()) == (10, [10])


def test_only_futures_are_taken() -> None:
    with pytest.raises(TypeError):
        Then(None, len, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        Then(Future(), None, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        Gathering([1], object())  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        finish_states([Future(), object()])
    with pytest.raises(TypeError):
        pass_on(Future(), None)  # type: ignore[arg-type]


def test_a_bare_state_can_be_resolved_once() -> None:
    state = FutureState(3)
    assert state.finish()
    with pytest.raises(InvalidStateError):
        state.set_result(4)  # type: ignore[attr-defined]
    assert state._result == 3
