"""ThresholdPurgatory: futures that wait until a value passes a threshold, or for their deadline.

A fetch waits for the log end or the high watermark, an append for the high watermark. Deadlines are on the
native purgatory's timing wheel. Nothing runs on its own: the loop passes in the value and the time, and asks
when to call again. Owned by the loop that resolves the futures.
"""

from __future__ import annotations

from kreplica._core.purgatory import Purgatory
from kreplica.common.errors import RequestTimedOut
from kreplica.common.future import Future
from kreplica.common.ports import Clock, monotonic_ms

_KEY = 0


class ThresholdPurgatory:
    """Futures that wait for a threshold, and their deadlines.

    `name` appears in the error of a wait that timed out.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._native = Purgatory(start_ms=self._now_ms())

    def _now_ms(self) -> int:
        return monotonic_ms(self._clock)

    def __len__(self) -> int:
        """Return how many futures wait."""
        return self._native.delayed

    def await_threshold(self, threshold: int, max_wait_ms: int) -> Future[int]:
        """Return a future that gets the value once it is above `threshold`.

        After `max_wait_ms` milliseconds it fails with RequestTimedOut, when `expire` is called.
        """
        future: Future[int] = Future()
        self._native.watch(_KEY, threshold + 1, self._now_ms() + max_wait_ms, future)
        return future

    def maybe_complete(self, value: int) -> int:
        """Resolve the futures whose threshold is below `value`. Returns how many they were."""
        return _resolve(self._native.complete_to(_KEY, value), value)

    def complete_all(self, value: int) -> int:
        """Resolve all futures with `value`. Returns how many they were."""
        return _resolve(self._native.drain(), value)

    def complete_all_exceptionally(self, error: BaseException) -> int:
        """Fail all futures. Returns how many they were."""
        return _fail(self._native.drain(), error)

    def expire(self) -> int | None:
        """Fail the futures whose deadline has passed. Returns in how many ms to call again; None if none
        waits.

        That may be before the next deadline, but never after it.
        """
        now_ms = self._now_ms()
        expired = self._native.expire(now_ms)
        if expired:
            _fail(expired, RequestTimedOut(f"{self._name} timed out"))
        following = self._native.next_deadline()
        return None if following is None else max(0, following - now_ms)


def _resolve(waiting: list[Future[int]], value: int) -> int:
    for future in waiting:
        future.set_result(value)
    return len(waiting)


def _fail(waiting: list[Future[int]], error: BaseException) -> int:
    for future in waiting:
        future.set_exception(error)
    return len(waiting)
