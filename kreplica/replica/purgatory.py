"""DelayedOperationPurgatory: operations of one kind that wait for an offset or for their deadline.

The native purgatory (`_core.purgatory`) holds the operations and finds those that an offset completes. This
class adds the alarm: one timer for the next deadline, in the owner's loop. It calls nothing when an operation
is done: the caller that moves an offset gets the completed operations from `complete_to`. Only expired
operations are passed to `on_expired`. Thread rule: any thread; the native part works under the GIL, `_lock`
guards the alarm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kreplica._core.purgatory import Purgatory, Watermark
from kreplica.common.locks import Lock
from kreplica.common.ports import NANOSECONDS_PER_MS, Cancellable, Clock, Loop

NEVER = 1 << 62
# Longer waits are limited by NEVER.
SANE_MS = 1 << 40


class DelayedOperationPurgatory:
    """Operations of one kind that wait for an offset or for their deadline.

    `on_expired(tokens)` gets the operations whose deadline has passed, in the loop.
    """

    def __init__(self, name: str, clock: Clock, loop: Loop, on_expired: Callable[[list[Any]], None]) -> None:
        self.name = name
        self.monotonic_ns = clock.monotonic_ns
        self._loop = loop
        self._on_expired = on_expired
        self.native = Purgatory(start_ms=self.now_ms())
        self._lock = Lock()
        # Guarded by _lock: the alarm, and in the native part its time, and whether this was shut down.
        self._alarm: Cancellable | None = None
        self.native.armed_ms = NEVER
        # Bound directly to the native methods, since they are called for every batch.
        self.complete_to = self.native.complete_to
        self.fail = self.native.fail
        self.cancel = self.native.cancel

    def now_ms(self) -> int:
        """Return the clock of deadlines."""
        return self.monotonic_ns() // NANOSECONDS_PER_MS

    def watch(
        self, key: int, required_offset: int, timeout_ms: int, token: Any, mark: Watermark | None = None
    ) -> int:
        """Wait until `key` reaches `required_offset`. Returns a handle for `cancel`.

        Returns 0, without waiting, if `mark` has reached it or is closed. `token` is returned by the call
        that completes the operation.
        """
        # Like _deadline_ms for usual timeouts, without the call: a fetch waits, and lingers, for each record.
        deadline_ms = self.monotonic_ns() // NANOSECONDS_PER_MS + timeout_ms
        if not 0 <= timeout_ms <= SANE_MS:
            deadline_ms = self._deadline_ms(timeout_ms)
        handle = self.native.watch(key, required_offset, deadline_ms, token, 0, mark)
        if handle and deadline_ms < self.native.armed_ms:
            self.arm(deadline_ms)
        return handle

    @property
    def is_closed(self) -> bool:
        """Whether it was shut down. Remove operations that were added at the same time with `drain`."""
        return self.native.closed

    def watch_all(self, parts: list[tuple[int, int, Watermark | None]], timeout_ms: int, token: Any) -> bool:
        """Wait for several (key, required offset, mark) as one operation. Returns False if all are
        reached.
        """
        deadline_ms = self._deadline_ms(timeout_ms)
        if not self.native.watch_all(parts, deadline_ms, token):
            return False
        if deadline_ms < self.native.armed_ms:
            self.arm(deadline_ms)
        return True

    @property
    def delayed(self) -> int:
        """How many operations wait: Kafka's NumDelayedOperations."""
        return self.native.delayed

    @property
    def watched(self) -> int:
        """How many partitions are waited for, each counted once per operation: Kafka's PurgatorySize."""
        return self.native.watched

    def shutdown(self) -> list[Any]:
        """Cancel the alarm. Returns the operations that still waited."""
        with self._lock:
            self.native.closed = True
            if self._alarm is not None:
                self._alarm.cancel()
        return self.drain()

    def drain(self) -> list[Any]:
        """Remove and return all operations that wait."""
        return self.native.drain()

    def _deadline_ms(self, timeout_ms: int) -> int:
        # Callers may pass a huge timeout to mean "forever".
        return min(self.now_ms() + max(timeout_ms, 0), NEVER)

    # ---- the alarm ----------------------------------------------------------------------------------------

    def arm(self, deadline_ms: int) -> None:
        """Set the alarm to `deadline_ms` if it would ring later."""
        with self._lock:
            if deadline_ms >= self.native.armed_ms or self.native.closed:
                return
            if self._alarm is not None:
                self._alarm.cancel()
            self.native.armed_ms = deadline_ms
            self._alarm = self._loop.post_later(self._expire, max(0, deadline_ms - self.now_ms()))

    def _expire(self) -> None:
        with self._lock:
            self.native.armed_ms, self._alarm = NEVER, None
        expired = self.native.expire(self.now_ms())
        following = self.native.next_deadline()
        if following is not None:
            self.arm(following)
        if expired:
            self._on_expired(expired)
