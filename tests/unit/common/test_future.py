"""The light Future behaves as concurrent.futures' own, and stays light."""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
import threading

import pytest

from kreplica.common.future import Future, _Waiters, all_of, fail_all, failed, finish_all, resolved, then


def test_it_is_resolved_once() -> None:
    future: Future[int] = Future()
    assert not future.done()
    future.set_result(7)
    assert future.done()
    assert future.result() == 7
    assert future.exception() is None
    with pytest.raises(concurrent.futures.InvalidStateError):
        future.set_result(8)
    with pytest.raises(concurrent.futures.InvalidStateError):
        future.set_exception(ValueError())
    assert future.result() == 7


def test_a_prepared_result_is_there_once_it_is_finished() -> None:
    future = Future(5)
    with pytest.raises(concurrent.futures.TimeoutError, match="not done within"):
        future.result(timeout=0)
    assert future.finish()
    assert future.result() == 5
    assert not future.finish()


def test_it_knows_whether_its_outcome_was_asked_for() -> None:
    for ask in (Future.result, Future.exception):
        future = resolved(7)
        assert not future.is_read
        ask(future)
        assert future.is_read


def test_many_are_resolved_at_once_with_what_each_was_given() -> None:
    futures = [Future(number) for number in range(5)]
    futures[1].cancel()
    seen: list[int] = []
    futures[2].add_done_callback(lambda done: seen.append(done.result()))
    waiting = threading.Thread(target=lambda: seen.append(futures[4].result(30)))
    waiting.start()
    while futures[4]._changed is None:
        pass
    finish_all(futures)
    waiting.join()
    assert sorted(seen) == [2, 4]
    assert [futures[number].result() for number in (0, 2, 3, 4)] == [0, 2, 3, 4]
    assert futures[1].cancelled()


def test_many_fail_at_once_each_with_an_error_of_its_own() -> None:
    error, cause = KeyError("x"), ValueError("y")
    error.__cause__ = cause
    futures: list[Future[int]] = [Future(), Future()]
    fail_all(futures, error)
    one, other = (future.exception() for future in futures)
    assert isinstance(one, KeyError)
    assert isinstance(other, KeyError)
    assert one is not other
    assert one.args == other.args == ("x",)
    assert one.__cause__ is other.__cause__ is cause


def test_a_failure_is_raised_and_returned() -> None:
    future = failed(KeyError("x"))
    with pytest.raises(KeyError):
        future.result()
    assert isinstance(future.exception(), KeyError)


def test_callbacks_come_once_each_in_their_order_and_late_ones_at_once() -> None:
    seen: list[str] = []
    future: Future[int] = Future()
    future.add_done_callback(lambda _: seen.append("first"))
    future.add_done_callback(lambda f: seen.append(f"second {f.result()}"))
    future.set_result(1)
    future.add_done_callback(lambda _: seen.append("late"))
    assert seen == ["first", "second 1", "late"]


@pytest.mark.callbacks_may_fail
def test_a_callback_that_fails_is_logged_and_the_others_still_run(caplog: pytest.LogCaptureFixture) -> None:
    notified: list[object] = []
    future: Future[int] = Future()
    future.add_done_callback(lambda _: 1 / 0)
    future.add_done_callback(notified.append)
    future.set_result(1)
    assert notified == [future]
    future.add_done_callback(lambda _: 1 / 0)
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError] * 2


def test_a_cancelled_future_takes_no_result() -> None:
    future: Future[int] = Future()
    assert future.cancel()
    assert future.cancelled()
    assert future.done()
    future.set_result(1)
    with pytest.raises(concurrent.futures.CancelledError):
        future.result()
    assert not resolved(1).cancel()


def test_threads_that_wait_are_woken() -> None:
    future: Future[int] = Future()
    got: list[int] = []
    threads = [threading.Thread(target=lambda: got.append(future.result())) for _ in range(4)]
    for thread in threads:
        thread.start()
    future.set_result(3)
    for thread in threads:
        thread.join()
    assert got == [3] * 4


def test_a_waiter_that_timed_out_is_no_longer_counted() -> None:
    future: Future[int] = Future()
    with pytest.raises(concurrent.futures.TimeoutError):
        future.result(timeout=0.001)
    assert future._condition.waiting == 0
    future.set_result(1)
    assert future.result() == 1


@pytest.mark.parametrize("resolve_first", [True, False])
def test_the_waits_of_concurrent_futures_take_it(resolve_first: bool) -> None:
    first: Future[int] = Future()
    second: Future[int] = Future()
    resolver = threading.Thread(target=lambda: (first.set_result(1), second.set_exception(OSError())))
    resolver.start()
    if resolve_first:
        resolver.join()
    done, waiting = concurrent.futures.wait([first, second], timeout=60)
    assert done == {first, second}
    assert not waiting
    assert set(concurrent.futures.as_completed([first, second], timeout=60)) == done
    resolver.join()


def test_asyncio_takes_it() -> None:
    async def main() -> int:
        future: Future[int] = Future()
        thread = threading.Thread(target=future.set_result, args=(9,))
        wrapped = asyncio.wrap_future(future)
        thread.start()
        result = await wrapped
        thread.join()
        return result

    assert asyncio.run(main()) == 9


def test_one_that_waits_is_small() -> None:
    future: Future[int] = Future()
    assert sys.getsizeof(future) <= 256
    assert not future.__dict__


def test_a_result_is_made_into_another_one() -> None:
    given: Future[int] = Future()
    answer = then(given, str)
    assert not answer.done()
    given.set_result(7)
    assert answer.result(0) == "7"


def test_an_error_passes_through_or_is_made_into_a_result() -> None:
    refused = failed(ValueError("why"))
    with pytest.raises(ValueError, match="why"):
        then(refused, str).result(0)
    assert then(refused, str, repr).result(0) == "ValueError('why')"


def test_an_error_of_the_making_fails_the_answer() -> None:
    with pytest.raises(ZeroDivisionError):
        then(resolved(0), lambda value: 1 // value).result(0)


def test_a_cancelled_future_fails_what_is_made_of_it() -> None:
    given: Future[int] = Future()
    answer = then(given, str)
    given.cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        answer.result(0)


def test_all_results_come_in_their_order() -> None:
    parts: list[Future[int]] = [Future(), Future(), resolved(3)]
    whole = all_of(parts)
    parts[1].set_result(2)
    assert not whole.done()
    parts[0].set_result(1)
    assert whole.result(0) == [1, 2, 3]
    assert all_of([]).result(0) == []


def test_the_first_parts_error_is_raised_once_all_are_done() -> None:
    parts: list[Future[int]] = [Future(), Future(), Future()]
    whole = all_of(parts)
    parts[2].set_exception(ValueError("third"))
    parts[1].set_exception(ValueError("second"))
    assert not whole.done()
    parts[0].set_result(1)
    with pytest.raises(ValueError, match="second"):
        whole.result(0)


def test_a_callback_that_ends_its_thread_leaves_the_other_futures_resolved():
    futures = [Future("result") for _ in range(3)]
    called = []
    futures[0].add_done_callback(lambda _: sys.exit())
    for future in futures[1:]:
        future.add_done_callback(called.append)
    with pytest.raises(SystemExit):
        finish_all(futures)
    assert called == futures[1:]
    futures = [Future() for _ in range(3)]
    futures[0].add_done_callback(lambda _: sys.exit())
    with pytest.raises(SystemExit):
        fail_all(futures, ValueError("no"))
    assert all(isinstance(future.exception(0), ValueError) for future in futures)


def test_a_thread_that_begins_to_wait_for_several_while_one_is_resolved_is_notified() -> None:
    # concurrent.futures.wait looks at the states and then adds its waiter, both under the condition.
    future: Future[int] = Future()
    entered = threading.Event()

    class Announced(_Waiters):
        def __enter__(self) -> bool:
            entered.set()
            return super().__enter__()

    class Waiter:
        def __init__(self) -> None:
            self.seen: list[Future[int]] = []

        def add_result(self, future: Future[int]) -> None:
            self.seen.append(future)

    future._changed, waiter = Announced(), Waiter()
    resolver = threading.Thread(target=future.set_result, args=(1,))
    with future._condition:
        assert not future.done()
        entered.clear()
        resolver.start()
        assert entered.wait(30)
        future._waiters.append(waiter)
    resolver.join(30)
    assert waiter.seen == [future]
