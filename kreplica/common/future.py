"""Future: the result of an operation under way, light enough for a million of them.

It is a `concurrent.futures.Future` (asyncio.wrap_future and concurrent.futures.wait accept it), but creates a
condition variable only when a thread waits, so a pending one costs some hundred bytes. Thread rule: any
thread may query, wait and add callbacks; one owner resolves. `_LOCK` guards the transition of every future
from pending to done; nothing is called under it.

A failing callback is logged, as concurrent.futures does: the resolving thread may have other futures to
resolve, and is not responsible for what their callbacks do.

A thread waiting in `result` runs before the thread that resolved the future continues. Otherwise Python would
let the resolver run on for its switch interval (5 ms), which delays the waiting thread.
"""

from __future__ import annotations

import concurrent.futures
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, InvalidStateError
from copy import copy
from functools import partial
from typing import Any, Generic, TypeVar

from kreplica.common.locks import Condition, Lock, process_lock

T = TypeVar("T")

# The states have concurrent.futures' names, because its `wait` compares them.
PENDING = "PENDING"
CANCELLED = "CANCELLED_AND_NOTIFIED"
FINISHED = "FINISHED"

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


class Future(concurrent.futures.Future[T], Generic[T]):
    """The result of an operation that may still be under way.

    The owner calls `set_result` or `set_exception` once. Where the result is known before the operation
    ends, the owner passes it to the constructor and calls `finish`. `is_read`: whether a thread has asked for
    the outcome.
    """

    __slots__ = ("_callbacks", "_changed", "_exception", "_result", "_seen_by", "_state", "is_read")

    def __init__(self, prepared: T | None = None) -> None:
        # The base class's constructor would create a condition and three lists.
        self._state = PENDING
        self._result = prepared
        self._exception = None
        self._callbacks: list[Callable[[Any], object]] | None = None
        self._changed: _Waiters | None = None
        self._seen_by: list[Any] | None = None
        self.is_read = False

    # ---- the owner ----------------------------------------------------------------------------------------

    def prepare(self, result: T) -> None:
        """Set the result with which `finish` resolves."""
        self._result = result

    def finish(self) -> bool:
        """Resolve with the prepared result. Returns False if the future was cancelled."""
        return self._resolve(FINISHED)

    def set_result(self, result: T) -> None:
        """Resolve with `result`. Raises InvalidStateError if already resolved; does nothing if cancelled."""
        if self._state == FINISHED:
            raise InvalidStateError(f"{self._state}: {self!r}")
        self._result = result
        self._resolve(FINISHED)

    def set_exception(self, exception: BaseException | None) -> None:
        """Resolve with an error. Raises InvalidStateError if already resolved; does nothing if cancelled."""
        if self._state == FINISHED:
            raise InvalidStateError(f"{self._state}: {self!r}")
        self._exception = exception
        self._resolve(FINISHED)

    def abandon(self, exception: BaseException) -> None:
        """Fail a pending future in a forked child, whose parent alone resolves it.

        Callbacks are not called: they belong to the parent, and may wait for its locks.
        """
        if self._state == PENDING:
            self._exception, self._callbacks, self._changed = exception, None, None
            self._state = FINISHED

    def set_running_or_notify_cancel(self) -> bool:
        return self._state == PENDING

    def _resolve(self, state: str) -> bool:
        """Resolve to `state`, notify waiting threads and run the callbacks; return False if not pending."""
        with _LOCK:
            if self._state != PENDING:
                return False
            self._state = state
            callbacks, self._callbacks = self._callbacks, None
        if callbacks is not None or self._changed is not None:
            self._notify(callbacks)
        return True

    def _notify(self, callbacks: list[Callable[[Any], object]] | None) -> None:
        """Notify waiting threads and run the callbacks of a future that was just resolved."""
        waiting = 0
        changed = self._changed
        if changed is not None:
            with changed:
                # A thread in concurrent.futures.wait may have added its waiter just before.
                self._notify_waiters(self._seen_by or ())
                changed.notify_all()
                waiting = changed.waiting
        if callbacks is not None:
            # An inlined `_call`: each record passes through several futures.
            for callback in callbacks:
                try:
                    callback(self)
                except Exception:
                    LOGGER.exception("a callback of %r failed", self)
        if waiting and changed is not None:
            changed.stand_back()

    def _call(self, callback: Callable[[Any], object]) -> None:
        try:
            callback(self)
        except Exception:
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

    # ---- the waiting side ---------------------------------------------------------------------------------

    def cancel(self) -> bool:
        """Stop waiting for the result; the operation itself continues. Returns False if already resolved."""
        return self._resolve(CANCELLED) or self._state == CANCELLED

    def cancelled(self) -> bool:
        return self._state == CANCELLED

    def running(self) -> bool:
        return False

    def done(self) -> bool:
        return self._state != PENDING

    def result(self, timeout: float | None = None) -> T:
        """Return the result or raise the error; TimeoutError after `timeout` seconds, CancelledError."""
        self.is_read = True
        if self._state == PENDING:
            self._wait(timeout)
        if self._state == CANCELLED:
            raise CancelledError
        if self._exception is not None:
            try:
                raise self._exception
            finally:
                # The traceback would refer to this frame, and the frame to the future: a reference cycle.
                self = None  # type: ignore[assignment]
        return self._result  # type: ignore[return-value]

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error, or None. Raises TimeoutError after `timeout` seconds, CancelledError."""
        self.is_read = True
        if self._state == PENDING:
            self._wait(timeout)
        if self._state == CANCELLED:
            raise CancelledError
        return self._exception

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Call `fn(self)` in the thread that resolves the future; at once if it is resolved."""
        with _LOCK:
            if self._state == PENDING:
                if self._callbacks is None:
                    self._callbacks = []
                self._callbacks.append(fn)
                return
        self._call(fn)

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
            raise concurrent.futures.TimeoutError

    @property
    def _condition(self) -> _Waiters:  # type: ignore[override]
        with _LOCK:
            if self._changed is None:
                # Reentrant, like the base class's.
                self._changed = _Waiters()
            return self._changed

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
    heard: list[tuple[Future[Any], list[Callable[[Any], object]] | None]] = []
    with _LOCK:
        for future in futures:
            if future._state == PENDING:
                future._state = FINISHED
                if future._callbacks is not None or future._changed is not None:
                    heard.append((future, future._callbacks))
                    future._callbacks = None
    for_each(iter(heard), lambda each: each[0]._notify(each[1]))


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


def pass_on(answer: Future[Any], done: Future[Any]) -> None:
    """Resolve `answer` with the result or error of `done`."""
    error = done.exception()
    if error is None:
        answer.set_result(done.result())
    else:
        answer.set_exception(error)


def then(
    future: Future[Any],
    make: Callable[[Any], T],
    refuse: Callable[[BaseException], T] | None = None,
) -> Future[T]:
    """Return a future of `make(result)`; if `future` fails, of `refuse(error)`, or it fails with the error.

    It fails too if `make` or `refuse` raises.
    """
    answer: Future[T] = Future()

    def finish(done: Future[Any]) -> None:
        try:
            if refuse is None:
                made = make(done.result())
            else:
                error = CancelledError() if done.cancelled() else done.exception()
                made = make(done.result()) if error is None else refuse(error)
        except Exception as failure:
            answer.set_exception(failure)
        else:
            answer.set_result(made)

    future.add_done_callback(finish)
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
    left = [len(parts)]
    lock = Lock()

    def one_is_done(_: Future[T]) -> None:
        with lock:
            left[0] -= 1
            if left[0]:
                return
        error = next((e for part in parts if (e := part.exception()) is not None), None)
        if error is None:
            whole.set_result([part.result() for part in parts])
        else:
            whole.set_exception(error)

    for part in parts:
        part.add_done_callback(one_is_done)
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
