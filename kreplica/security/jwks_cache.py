"""JwksCache: the keys of an identity provider, which sign the tokens of clients.

    a login ──parse, find──▶ JwksCache ──fetch──▶ JwksSource (off the loop)
                                 ◀───────bytes──────┘

The keys are fetched again every `refresh_ms`. If that fails, the ones in use go on, and it is tried again
after a pause that doubles up to `retry_max_ms`. A token whose key is unknown fails, and starts a fetch of its
own: the provider may have a new key, and the client's next login finds it. Only one fetch is under way at a
time, and a fetch that a stranger's token starts comes at most every EARLY_PAUSE_MS. The ids of unknown keys
that a fetch has not brought are remembered for a while, and start no other.

Ownership: that of a listener. Thread rule: one loop, but `open` before it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

from kreplica.common.dataclass import dataclass
from kreplica.common.errors import KreplicaError
from kreplica.common.future import Future
from kreplica.common.ports import Cancellable, Clock, Loop, monotonic_ms
from kreplica.security.jwt import (
    OAuthBearerToken,
    TokenRules,
    VerifyingKeys,
    checked_token,
    parse_token,
)

LOGGER = logging.getLogger(__name__)

EARLY_PAUSE_MS = 1_000
MOST_MISSING, MISSING_MS = 16, 60_000
LONGEST_KID = 1_000


class JwksSource(Protocol):
    """Where the keys come from."""

    def fetch(self) -> Future[bytes]:
        """Fetch the set of keys off the loop. The future is resolved in any thread; it fails with a
        KreplicaError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class JwksTimes:
    """When keys are fetched again: regularly, and after a failure."""

    refresh_ms: int = 3_600_000
    retry_ms: int = 100
    retry_max_ms: int = 10_000


class JwksCache:
    """The keys from one source, and the tokens that they have signed. `name`: of the source, in messages."""

    def __init__(
        self,
        name: str,
        source: JwksSource,
        rules: TokenRules,
        times: JwksTimes,
        *,
        loop: Loop,
        clock: Clock,
    ) -> None:
        self._name = name
        self._source = source
        self._rules = rules
        self._times = times
        self._loop = loop
        self._clock = clock
        self._keys = VerifyingKeys()
        self._is_fetching = False
        self._failures = 0
        self._timer: Cancellable | None = None
        self._early_at_ms = monotonic_ms(clock)
        # The ids that a fetch has not brought, with the time until which they start no other.
        self._missing: dict[str, int] = {}

    def open(self, data: bytes) -> None:
        """Take the first keys, and begin to refresh them. Raises InvalidFile."""
        self._keys = VerifyingKeys.parse(data)
        self._loop.post(self._wait)

    def validate(self, text: str) -> OAuthBearerToken:
        """Return what a token says. Raises SaslAuthenticationFailed."""
        parsed = parse_token(text)
        key = self._keys.fitting(parsed.kid, parsed.algorithm)
        if key is None and parsed.kid is not None:
            self._note_missing(parsed.kid)
        return checked_token(parsed, key, self._rules, self._clock.time_ms())

    def _note_missing(self, kid: str) -> None:
        now_ms = monotonic_ms(self._clock)
        self._missing = {each: until_ms for each, until_ms in self._missing.items() if until_ms > now_ms}
        is_pointless = kid in self._missing or len(kid) > LONGEST_KID or self._keys.has(kid)
        if is_pointless or self._is_fetching or self._failures or now_ms < self._early_at_ms:
            return
        self._early_at_ms = now_ms + EARLY_PAUSE_MS
        if len(self._missing) >= MOST_MISSING:
            del self._missing[next(iter(self._missing))]
        self._missing[kid] = now_ms + MISSING_MS
        self._fetch()

    # ---- fetching -----------------------------------------------------------------------------------------

    def _wait(self) -> None:
        delay_ms = self._times.refresh_ms
        if self._failures:
            delay_ms = min(self._times.retry_ms << min(self._failures - 1, 20), self._times.retry_max_ms)
        self._timer = self._loop.post_later(self._fetch, delay_ms)

    def _fetch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._is_fetching = True
        self._source.fetch().add_done_callback(
            lambda fetched: self._loop.post(partial(self._fetched, fetched))
        )

    def _fetched(self, fetched: Future[bytes]) -> None:
        self._is_fetching = False
        try:
            self._keys = VerifyingKeys.parse(fetched.result())
        except KreplicaError as error:
            self._failures += 1
            LOGGER.warning("%s: the keys of tokens stay as they were: %s", self._name, error)
        else:
            self._failures = 0
        self._wait()


def unsecured(rules: TokenRules, clock: Clock) -> Callable[[str], OAuthBearerToken]:
    """Return what takes tokens that nothing has signed. Only for tests."""
    return lambda text: checked_token(parse_token(text), None, rules, clock.time_ms())
