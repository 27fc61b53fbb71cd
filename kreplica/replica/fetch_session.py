"""FetchSessionCache: the fetch sessions of one broker (KIP-227), and which of them a request uses.

A session (`_core.fetch_session`) has the partitions that a fetcher wants. Thread rule: any thread; `_lock`
guards the table of sessions.
"""

from __future__ import annotations

from collections.abc import Iterator

from kreplica._core.fetch_session import FetchSession
from kreplica.common.errors import FetchSessionIdNotFound, InvalidFetchSessionEpoch
from kreplica.common.locks import Lock
from kreplica.common.metrics import Meter
from kreplica.common.ports import Random
from kreplica.common.types import INT32_MAX

# Session id 0: no session. Epoch 0 asks for a new session, -1 ends one.
NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1


class FetchSessionCache:
    """The sessions of one broker, at most `slots` of them.

    If all slots are taken, a new session replaces one that was unused for `eviction_ms`, or a consumer's if
    the new one is a follower's, or a smaller one. Otherwise the fetcher gets no session (KIP-227).
    """

    def __init__(self, slots: int, eviction_ms: int, random: Random) -> None:
        self._slots = slots
        self._eviction_ms = eviction_ms
        self._random = random
        self._lock = Lock()
        # Guarded by _lock; a look-up takes no lock.
        self.by_id: dict[int, FetchSession] = {}
        self.evictions = Meter()

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[FetchSession]:
        return iter(list(self.by_id.values()))

    @property
    def partition_count(self) -> int:
        """Number of partitions in all sessions: Kafka's NumIncrementalFetchPartitionsCached."""
        return sum(len(session) for session in self)

    def create(self, size: int, *, is_privileged: bool, now_ms: int) -> FetchSession:
        """Make a session for `size` partitions. It has no id if there is no room."""
        with self._lock:
            evicted = None
            if len(self.by_id) >= self._slots:
                evicted = self._least_worthy(size, is_privileged, now_ms)
                if evicted is None:
                    return FetchSession(now_ms=now_ms, is_privileged=is_privileged)
                del self.by_id[evicted.id]
                self.evictions.mark()
            session = FetchSession(self._new_id(), now_ms=now_ms, is_privileged=is_privileged)
            self.by_id[session.id] = session
        if evicted is not None:
            evicted.end()
        return session

    def use(self, session_id: int, epoch: int, now_ms: int) -> FetchSession:
        """Return the session for its next fetch. Raises FetchSessionIdNotFound, InvalidFetchSessionEpoch."""
        with self._lock:
            session = self.by_id.get(session_id)
            if session is None:
                raise FetchSessionIdNotFound(f"unknown fetch session {session_id}")
            if epoch != session.epoch:
                text = f"fetch session {session_id} is at epoch {session.epoch}, not {epoch}"
                raise InvalidFetchSessionEpoch(text)
            session.epoch = 1 if session.epoch == INT32_MAX else session.epoch + 1
            session.last_used_ms = now_ms
            return session

    def remove(self, session_id: int) -> None:
        """End the session with this id, if it exists."""
        with self._lock:
            session = self.by_id.pop(session_id, None)
        if session is not None:
            session.end()

    def clear(self) -> None:
        """End all sessions: the broker stops."""
        for session in self:
            self.remove(session.id)

    def _new_id(self) -> int:
        while True:
            session_id = 1 + self._random.randrange(INT32_MAX)
            if session_id not in self.by_id:
                return session_id

    def _least_worthy(self, size: int, is_privileged: bool, now_ms: int) -> FetchSession | None:
        if not self.by_id:
            return None
        oldest = min(self.by_id.values(), key=lambda session: session.last_used_ms)
        if now_ms - oldest.last_used_ms > self._eviction_ms:
            return oldest
        least = min(self.by_id.values(), key=_worth)
        if now_ms - least.created_ms <= self._eviction_ms and least.is_privileged == is_privileged:
            return None
        return least if _worth(least) < (is_privileged, size) else None


def _worth(session: FetchSession) -> tuple[bool, int]:
    return session.is_privileged, len(session)


def with_session(
    cache: FetchSessionCache,
    session_id: int,
    epoch: int,
    *,
    is_privileged: bool,
    size: int,
    now_ms: int,
) -> FetchSession:
    """Return the session for a request: the one it names, a new one, or one without an id."""
    if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
        if session_id != NO_SESSION:
            cache.remove(session_id)
        if epoch == INITIAL_EPOCH and size:
            return cache.create(size, is_privileged=is_privileged, now_ms=now_ms)
        return FetchSession(now_ms=now_ms, is_privileged=is_privileged)
    return cache.use(session_id, epoch, now_ms)
