"""Future: the result of an operation under way, light enough for a million of them.

It is a `concurrent.futures.Future` (asyncio.wrap_future and concurrent.futures.wait accept it), but creates a
condition variable only when a thread waits, so a pending one costs some hundred bytes. Thread rule: any
thread may query, wait and add callbacks; one owner resolves. The transition from pending to done is native
(_core/future_state). `_LOCK` guards what is made for the first waiting thread.

A failing callback is logged, as concurrent.futures does: the resolving thread may have other futures to
resolve, and is not responsible for what their callbacks do.

A thread waiting in `result` runs before the thread that resolved the future continues. Otherwise Python would
let the resolver run on for its switch interval (5 ms), which delays the waiting thread.
"""

from __future__ import annotations

import concurrent.futures
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import InvalidStateError
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kreplica._core.future_state import (
    CANCELLED,
    FINISHED,
    PENDING,
    FutureState,
    Gathering,
    Then,
    finish_states,
)
from kreplica._core.future_state import pass_on as pass_on
from kreplica.common.locks import Condition, Lock, process_lock

T = TypeVar("T")

LOGGER = logging.getLogger(__name__)

_LOCK = process_lock()

# How long a resolver gives way, at most, to a thread that waits for the future.
HAND_OVER_SECONDS = 0.001


class _Waiters(Condition):
    """The condition on which threads wait for a future.

    `waiting`: the number of threads in `result`; guarded by the condition.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waiting = 0
        # Released as soon as one of the waiting threads continues.
        self._taken = Lock()
        self._taken.acquire()

    def stand_back(self) -> None:
        """Give up the interpreter until a waiting thread continues, or HAND_OVER_SECONDS have passed."""
        self._taken.acquire(timeout=HAND_OVER_SECONDS)

    def go_on(self) -> None:
        """Signal that a waiting thread has its result."""
        with self:
            if self._taken.locked():
                self._taken.release()


class Future(FutureState, concurrent.futures.Future[T], Generic[T]):
    """The result of an operation that may still be under way.

    The owner calls `set_result` or `set_exception` once. Where the result is known before the operation
    ends, the owner passes it to the constructor and calls `finish`. `is_read`: whether a thread has asked for
    the outcome.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        def add_done_callback(self, fn: Callable[[Any], object]) -> None: ...

    def abandon(self, exception: BaseException) -> None:
        """Fail a pending future in a forked child, whose parent alone resolves it.

        Callbacks are not called: they belong to the parent, and may wait for its locks.
        """
        if self._state == PENDING:
            self._exception, self._callbacks, self._changed = exception, None, None
            self._state = FINISHED

    # ---- for the native part ------------------------------------------------------------------------------

    def _wake(self, callbacks: list[Callable[[Any], object]] | None) -> None:
        """Notify the threads that wait, and run the callbacks, of a future that was just resolved."""
        changed: _Waiters = self._changed
        with changed:
            # A thread in concurrent.futures.wait may have added its waiter just before.
            self._notify_waiters(self._seen_by or ())
            changed.notify_all()
            waiting = changed.waiting
        for callback in callbacks or ():
            try:
                callback(self)
            except Exception:
                self._callback_failed()
        if waiting:
            changed.stand_back()

    def _callback_failed(self) -> None:
        LOGGER.exception("a callback of %r failed", self)

    def _notify_waiters(self, waiters: Iterable[Any]) -> None:
        # Notify the waiters of concurrent.futures.wait and as_completed.
        for waiter in waiters:
            if self._state == CANCELLED:
                waiter.add_cancelled(self)
            elif self._exception is not None:
                waiter.add_exception(self)
            else:
                waiter.add_result(self)

    # ---- threads that wait --------------------------------------------------------------------------------

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the future is done, or for `timeout` seconds; return whether it is done."""
        condition = self._condition
        with condition:
            condition.waiting += 1
            is_done = condition.wait_for(self.done, timeout)
            condition.waiting -= 1
        if is_done:
            condition.go_on()
        return is_done

    def _wait(self, timeout: float | None) -> None:
        if not self.wait(timeout):
            raise concurrent.futures.TimeoutError(f"not done within {timeout} s: it goes on")

    @property
    def _condition(self) -> _Waiters:  # type: ignore[override]
        with _LOCK:
            changed: _Waiters | None = self._changed
            if changed is None:
                # Reentrant, like the base class's.
                changed = self._changed = _Waiters()
            return changed

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        with _LOCK:
            if self._seen_by is None:
                self._seen_by = []
            return self._seen_by

    def __repr__(self) -> str:
        return f"<Future {self._state.lower()}>"


class MadeFuture(Future[T]):
    """A future whose owner resolves it with a raw value; its result is `make(value)`.

    This saves a second future and a callback between the two. If `make` raises, the future fails with that
    error.
    """

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[Any], T]) -> None:
        super().__init__()
        self._make = make

    def set_result(self, result: Any) -> None:
        if self._state == FINISHED:
            raise InvalidStateError(f"{self._state}: {self!r}")
        try:
            self._result = self._make(result)
        except Exception as error:
            self._exception = error
        self._resolve(FINISHED)


def finish_all(futures: Iterable[Future[Any]]) -> None:
    """Resolve all of the futures with the results they have been given, as `finish` does."""
    for_each(iter(finish_states(futures)), lambda each: each[0]._notify(each[1]))


def fail_all(futures: Iterable[Future[Any]], error: BaseException) -> None:
    """Fail all of the futures with the error. Each gets an object of its own, since raising changes it."""

    def fail(future: Future[Any]) -> None:
        own = copy(error)
        own.__cause__ = error.__cause__
        future.set_exception(own)

    for_each(iter(futures), fail)


def for_each(left: Iterator[T], call: Callable[[T], object]) -> None:
    """Call `call` with each, also with those behind one whose callback ends the thread (SystemExit)."""
    try:
        for each in left:
            call(each)
    except BaseException:
        for_each(left, call)
        raise


def then(
    future: Future[Any],
    make: Callable[[Any], T],
    refuse: Callable[[BaseException], T] | None = None,
) -> Future[T]:
    """Return a future of `make(result)`; if `future` fails, of `refuse(error)`, or it fails with the error.

    It fails too if `make` or `refuse` raises.
    """
    answer: Future[T] = Future()
    future.add_done_callback(Then(answer, make, refuse))
    return answer


def after(first: Future[Any], step: Callable[[Any], Future[T]]) -> Future[T]:
    """Return a future of what the future `step(result)` gets; fails if `first` fails, or `step` raises."""
    whole: Future[T] = Future()

    def go_on(done: Future[Any]) -> None:
        try:
            following = step(done.result())
        except Exception as error:
            whole.set_exception(error)
        else:
            following.add_done_callback(partial(pass_on, whole))

    first.add_done_callback(go_on)
    return whole


def all_of(parts: Sequence[Future[T]]) -> Future[list[T]]:
    """Return a future of all results, in order. Once all parts are done, it fails with the first one's error.

    The parts may be resolved in different threads.
    """
    if not parts:
        return resolved([])
    whole: Future[list[T]] = Future()
    gathering = Gathering(list(parts), whole)
    for part in parts:
        part.add_done_callback(gathering)
    return whole


def resolved(result: T) -> Future[T]:
    """Return a future that is resolved with `result`."""
    future: Future[T] = Future(result)
    future.finish()
    return future


def failed(exception: BaseException) -> Future[Any]:
    """Return a future that has failed with `exception`."""
    future: Future[Any] = Future()
    future.set_exception(exception)
    return future
