"""Limits how many partitions clients may create, add and delete a second (KIP-599).

Each topic of a request is charged for its partitions, so one request may succeed for some topics and be
refused for others. A request of a version that knows the error is refused when the bucket is empty. Older
requests are done, and their client has to wait afterwards. Thread rule: any thread.
"""

from __future__ import annotations

from kreplica.common.errors import ThrottlingQuotaExceeded
from kreplica.common.locks import Lock
from kreplica.common.ports import Clock, monotonic_ms
from kreplica.common.quota_rate import TokenBucket


class MutationBucket:
    """The bucket of the clients that share one quota. `quota`: partitions a second; it may change."""

    def __init__(self, clock: Clock, burst_s: float, quota: float) -> None:
        self.quota = quota
        self._clock = clock
        self._lock = Lock()
        self._bucket = TokenBucket(burst_s, quota, monotonic_ms(clock))  # guarded by _lock

    @property
    def tokens(self) -> float:
        """The number of partitions that may be changed at once; below 0 if clients have to wait."""
        with self._lock:
            return self._bucket.refill(self.quota, monotonic_ms(self._clock))

    def charge(self, count: int, *, only_if_full_enough: bool) -> int:
        """Take tokens; return how many ms to wait until none is missing.

        `only_if_full_enough`: take nothing if tokens are missing already.
        """
        with self._lock:
            self._bucket.refill(self.quota, monotonic_ms(self._clock))
            missing_ms = self._bucket.throttle_ms(self.quota)
            if only_if_full_enough and missing_ms > 0:
                return missing_ms
            self._bucket.take(count)
            return 0 if only_if_full_enough else self._bucket.throttle_ms(self.quota)

    def give_back(self, count: int) -> None:
        """Return the tokens of an operation that was not done."""
        with self._lock:
            self._bucket.take(-count)


class ControllerMutationQuota:
    """The quota of one request. `bucket`: None if its client has none; `is_strict`: refuse, do not delay."""

    def __init__(self, bucket: MutationBucket | None = None, *, is_strict: bool = True) -> None:
        self._bucket = bucket
        self._is_strict = is_strict
        self._charged = 0
        # How long the client has to wait.
        self.throttle_ms = 0

    def begin(self) -> None:
        """Begin an attempt of the request; what an earlier one was charged is given back."""
        if self._bucket is not None and self._charged:
            self._bucket.give_back(self._charged)
        self._charged = self.throttle_ms = 0

    def charge(self, count: int) -> None:
        """Charge a number of partitions. Raises ThrottlingQuotaExceeded."""
        if self._bucket is None:
            return
        wait_ms = self._bucket.charge(count, only_if_full_enough=self._is_strict)
        self.throttle_ms = max(self.throttle_ms, wait_ms)
        if wait_ms and self._is_strict:
            raise ThrottlingQuotaExceeded(
                f"controller_mutation_rate={self._bucket.quota:g} partitions a second is exceeded: retry in"
                f" {wait_ms} ms"
            )
        self._charged += count
