"""Future: what a waiting operation gives its caller, light enough for a million of them.

It has the interface of `concurrent.futures.Future` and is one (asyncio.wrap_future and
concurrent.futures.wait take it), but a condition variable is made only where somebody waits, so one that
waits costs some hundred bytes. Thread rule: any thread may ask, wait and add callbacks; one owner resolves.
`_LOCK` guards the passage of every future from pending to done; nothing is called under it.

A callback that fails is logged, as concurrent.futures does it: whoever resolves a future has others to
resolve after it, and no part in what its callbacks do.

A thread that waits in `result` goes on before the one that resolved the future: Python would let that one
run on for up to its switch interval, 5 ms, and the more it has to do, the later the answer.
"""

from __future__ import annotations

import concurrent.futures
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, InvalidStateError
from typing import Any, Generic, TypeVar

from kreplica.common.locks import Condition, Lock

T = TypeVar("T")

# The states have the names that concurrent.futures gives them, since its `wait` looks at them.
PENDING = "PENDING"
CANCELLED = "CANCELLED_AND_NOTIFIED"
FINISHED = "FINISHED"

LOGGER = logging.getLogger(__name__)

_LOCK = Lock()

# For how long at most whoever resolves a future stands back for a thread that waits for it.
HAND_OVER_SECONDS = 0.001


class _Waiters(Condition):
    """What threads wait at for a future; `waiting` of them do so in `result`. Guarded by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = 0
        # Free as soon as one of them goes on.
        self._taken = Lock()
        self._taken.acquire()

    def stand_back(self) -> None:
        """Give up the interpreter until one of those that waited goes on, or a while has passed."""
        self._taken.acquire(timeout=HAND_OVER_SECONDS)

    def go_on(self) -> None:
        """One that waited has its result."""
        with self:
            if self._taken.locked():
                self._taken.release()


class Future(concurrent.futures.Future[T], Generic[T]):
    """The result of an operation that may still be under way.

    The owner calls `set_result` or `set_exception` once; or, where the result is known before the operation
    is through, gives it to the constructor and calls `finish`.
    """

    __slots__ = ("_callbacks", "_changed", "_exception", "_result", "_seen_by", "_state")

    def __init__(self, prepared: T | None = None) -> None:
        # The base class would make a condition and three lists.
        self._state = PENDING
        self._result = prepared
        self._exception = None
        self._callbacks: list[Callable[[Any], object]] | None = None
        self._changed: _Waiters | None = None
        self._seen_by: list[Any] | None = None

    # ---- the owner ----------------------------------------------------------------------------------------

    def finish(self) -> bool:
        """Done, with the result that was prepared; False if it was cancelled."""
        return self._pass_to(FINISHED)

    def set_result(self, result: T) -> None:
        """Done. Raises InvalidStateError if it was done before; nothing happens if it was cancelled."""
        if self._state == FINISHED:
            raise InvalidStateError(f"{self._state}: {self!r}")
        self._result = result
        self._pass_to(FINISHED)

    def set_exception(self, exception: BaseException | None) -> None:
        """Failed. Raises InvalidStateError if it was done before; nothing happens if it was cancelled."""
        if self._state == FINISHED:
            raise InvalidStateError(f"{self._state}: {self!r}")
        self._exception = exception
        self._pass_to(FINISHED)

    def set_running_or_notify_cancel(self) -> bool:
        return self._state == PENDING

    def _pass_to(self, state: str) -> bool:
        with _LOCK:
            if self._state != PENDING:
                return False
            self._state = state
            callbacks, changed, seen_by = self._callbacks, self._changed, self._seen_by
            self._callbacks = None
        waiting = 0
        if changed is not None:
            with changed:
                self._tell(seen_by or ())
                changed.notify_all()
                waiting = changed.waiting
        if callbacks is not None:
            # A loop of its own and not `_call`: each record passes through some futures.
            for callback in callbacks:
                try:
                    callback(self)
                except Exception:
                    LOGGER.exception("a callback of %r failed", self)
        if waiting and changed is not None:
            changed.stand_back()
        return True

    def _call(self, callback: Callable[[Any], object]) -> None:
        try:
            callback(self)
        except Exception:
            LOGGER.exception("a callback of %r failed", self)

    def _tell(self, waiters: Iterable[Any]) -> None:
        # The waiters of concurrent.futures.wait and as_completed.
        for waiter in waiters:
            if self._state == CANCELLED:
                waiter.add_cancelled(self)
            elif self._exception is not None:
                waiter.add_exception(self)
            else:
                waiter.add_result(self)

    # ---- whoever waits ------------------------------------------------------------------------------------

    def cancel(self) -> bool:
        """Give up waiting for it; the operation itself goes on. False if it is done."""
        return self._pass_to(CANCELLED) or self._state == CANCELLED

    def cancelled(self) -> bool:
        return self._state == CANCELLED

    def running(self) -> bool:
        return False

    def done(self) -> bool:
        return self._state != PENDING

    def result(self, timeout: float | None = None) -> T:
        """The result, or the exception raised. TimeoutError after `timeout` seconds, CancelledError."""
        if self._state == PENDING:
            self._wait(timeout)
        if self._state == CANCELLED:
            raise CancelledError
        if self._exception is not None:
            try:
                raise self._exception
            finally:
                # The traceback would hold this frame, and it the future: a cycle.
                self = None  # type: ignore[assignment]
        return self._result  # type: ignore[return-value]

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The exception it failed with, or None. TimeoutError after `timeout` seconds, CancelledError."""
        if self._state == PENDING:
            self._wait(timeout)
        if self._state == CANCELLED:
            raise CancelledError
        return self._exception

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Call `fn(self)` once it is done, in the thread that resolves it; at once if it is done."""
        with _LOCK:
            if self._state == PENDING:
                if self._callbacks is None:
                    self._callbacks = []
                self._callbacks.append(fn)
                return
        self._call(fn)

    def _wait(self, timeout: float | None) -> None:
        condition = self._condition
        with condition:
            condition.waiting += 1
            is_done = condition.wait_for(self.done, timeout)
            condition.waiting -= 1
        if not is_done:
            raise concurrent.futures.TimeoutError
        condition.go_on()

    @property
    def _condition(self) -> _Waiters:  # type: ignore[override]
        with _LOCK:
            if self._changed is None:
                # Reentrant, as the base class's is.
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
    """A future whose owner gives it something else: its result is what `make` makes of that.

    One future instead of two and a callback between them. It fails as `make` does.
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
        self._pass_to(FINISHED)


def pass_on(answer: Future[Any], done: Future[Any]) -> None:
    """Resolve `answer` as `done` was."""
    error = done.exception()
    if error is None:
        answer.set_result(done.result())
    else:
        answer.set_exception(error)


def resolved(result: T) -> Future[T]:
    """A future that is done."""
    future: Future[T] = Future(result)
    future.finish()
    return future


def failed(exception: BaseException) -> Future[Any]:
    """A future that has failed."""
    future: Future[Any] = Future()
    future.set_exception(exception)
    return future
