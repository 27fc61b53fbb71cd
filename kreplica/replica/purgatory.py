"""DelayedOperationPurgatory: operations of one kind that wait for an offset, or for their deadline.

Around the native purgatory (`_core.purgatory`), which holds what waits and knows all that an offset
completes, this adds the alarm: one timer, for the next deadline, in the owner's loop. It calls nothing when
an operation is done: whoever moves a mark asks `complete_to` what that has completed. Only expiry, which
nobody moves, is told to `on_expired`. Thread rule: any thread; the native part works under the GIL, `_lock`
guards the alarm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kreplica._core.purgatory import Purgatory, Watermark
from kreplica.common.locks import Lock
from kreplica.common.ports import Cancellable, Clock, Loop, monotonic_ms

NEVER = 1 << 62
# Longer waits are bounded by NEVER.
SANE_MS = 1 << 40


class DelayedOperationPurgatory:
    """`on_expired(tokens)` gets the operations whose deadline has passed, in the loop."""

    def __init__(self, name: str, clock: Clock, loop: Loop, on_expired: Callable[[list[Any]], None]) -> None:
        self.name = name
        self._clock = clock
        self._loop = loop
        self._on_expired = on_expired
        self._native = Purgatory(start_ms=self.now_ms())
        self._lock = Lock()
        # Guarded by _lock: when the alarm goes off, and the alarm.
        self._armed_ms = NEVER
        self._alarm: Cancellable | None = None
        self._closed = False
        # As they are called for every batch, without a step in between.
        self.complete_to = self._native.complete_to
        self.fail = self._native.fail
        self.cancel = self._native.cancel

    def now_ms(self) -> int:
        """The time that deadlines are told in."""
        return monotonic_ms(self._clock)

    def watch(
        self, key: int, required_offset: int, timeout_ms: int, token: Any, mark: Watermark | None = None
    ) -> int:
        """Wait until `key` is at `required_offset`: a handle for `cancel`; 0 where `mark` is, or is closed.

        `token` comes back from the call that completes the operation.
        """
        # As _deadline_ms, for times that can only be sane: a fetch waits, and lingers, for each record.
        deadline_ms = monotonic_ms(self._clock) + timeout_ms
        if not 0 <= timeout_ms <= SANE_MS:
            deadline_ms = self._deadline_ms(timeout_ms)
        handle = self._native.watch(key, required_offset, deadline_ms, token, 0, mark)
        if handle and deadline_ms < self._armed_ms:
            self._arm(deadline_ms)
        return handle

    @property
    def is_closed(self) -> bool:
        """Whether it was shut down. What waits nevertheless, since it came meanwhile, is for `drain`."""
        return self._closed

    def watch_all(self, parts: list[tuple[int, int, Watermark | None]], timeout_ms: int, token: Any) -> bool:
        """One operation for several (key, required offset, mark); False where nothing is to be waited for."""
        deadline_ms = self._deadline_ms(timeout_ms)
        if not self._native.watch_all(parts, deadline_ms, token):
            return False
        if deadline_ms < self._armed_ms:
            self._arm(deadline_ms)
        return True

    @property
    def delayed(self) -> int:
        """Operations that wait: Kafka's NumDelayedOperations."""
        return self._native.delayed

    @property
    def watched(self) -> int:
        """Partitions they wait for, each counted as often as it is waited for: Kafka's PurgatorySize."""
        return self._native.watched

    def shutdown(self) -> list[Any]:
        """No alarm goes off any more; what still waited."""
        with self._lock:
            self._closed = True
            if self._alarm is not None:
                self._alarm.cancel()
        return self.drain()

    def drain(self) -> list[Any]:
        """Whatever waits, which does so no longer."""
        return self._native.drain()

    def _deadline_ms(self, timeout_ms: int) -> int:
        # Callers may mean "for ever" by a number that no clock will ever tell.
        return min(self.now_ms() + max(timeout_ms, 0), NEVER)

    # ---- the alarm ----------------------------------------------------------------------------------------

    def _arm(self, deadline_ms: int) -> None:
        with self._lock:
            if deadline_ms >= self._armed_ms or self._closed:
                return
            if self._alarm is not None:
                self._alarm.cancel()
            self._armed_ms = deadline_ms
            self._alarm = self._loop.post_later(self._expire, max(0, deadline_ms - self.now_ms()))

    def _expire(self) -> None:
        with self._lock:
            self._armed_ms, self._alarm = NEVER, None
        expired = self._native.expire(self.now_ms())
        following = self._native.next_deadline()
        if following is not None:
            self._arm(following)
        if expired:
            self._on_expired(expired)
