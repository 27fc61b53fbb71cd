"""Fetch sessions on the leader's side (KIP-227): what a fetcher asked for last, so that it need not say it
again.

A session holds the partitions a fetcher wants, and which of them are *ready*: named by a request since they
were last answered, or moved since. An incremental fetch looks at those alone, so one over a thousand idle
partitions costs what the busy ones cost. A partition tells its sessions that it moved through
`CachedPartition.notify`.

Thread rule: a session's `lock` guards its partitions and its ready set; a cache's `_lock` guards the table of
sessions. A partition's lock is never taken under either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from kreplica.common.errors import FetchSessionIdNotFound, InvalidFetchSessionEpoch
from kreplica.common.locks import Lock
from kreplica.common.metrics import Meter
from kreplica.common.ports import Random
from kreplica.common.types import INT32_MAX, NO_OFFSET, TopicPartition, Uuid
from kreplica.replica.replica import FetchClock

if TYPE_CHECKING:
    from kreplica.replica.partition import Partition

# Session id 0: no session. Epoch 0 asks for a new one, -1 ends one.
NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1


SessionKey = TopicPartition | tuple[Uuid, int]
ZERO_ID = Uuid.ZERO.raw


class CachedPartition:
    """One partition of a session, as its fetcher last asked for it, and what it was last told of it.

    `partition` is where the session listens: None where this broker has not the partition, or had not when
    it was looked up last. `is_unanswered`: named by a request since the last answer that had it.
    `is_being_noted`: what its fetch has moved is being acted on; the marks are looked at again after that.
    """

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "high_watermark_sent",
        "is_being_noted",
        "is_unanswered",
        "last_fetched_epoch",
        "log_start_offset",
        "log_start_sent",
        "max_bytes",
        "partition",
        "session",
        "topic_id",
        "topic_partition",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: Uuid,
        *,
        fetch_offset: int,
        max_bytes: int,
        current_leader_epoch: int = -1,
        last_fetched_epoch: int = -1,
        log_start_offset: int = NO_OFFSET,
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.fetch_offset = fetch_offset
        self.max_bytes = max_bytes
        self.current_leader_epoch = current_leader_epoch
        self.last_fetched_epoch = last_fetched_epoch
        self.log_start_offset = log_start_offset
        self.high_watermark_sent = NO_OFFSET
        self.log_start_sent = NO_OFFSET
        self.is_unanswered = True
        self.is_being_noted = False
        self.partition: Partition | None = None
        self.session: FetchSession | None = None

    @property
    def key(self) -> SessionKey:
        """What the partition goes by in its session: by its topic's id, where the fetcher tells that."""
        if self.topic_id.raw == ZERO_ID:
            return self.topic_partition
        return self.topic_id, self.topic_partition.partition

    def update(self, newer: CachedPartition) -> None:
        """The fetcher asks for the partition anew."""
        self.topic_partition = newer.topic_partition
        self.topic_id = newer.topic_id
        self.fetch_offset = newer.fetch_offset
        self.max_bytes = newer.max_bytes
        if newer.current_leader_epoch != self.current_leader_epoch:
            self.begin_epoch(newer.current_leader_epoch)
        self.last_fetched_epoch = newer.last_fetched_epoch
        self.log_start_offset = newer.log_start_offset
        self.is_unanswered = True

    def begin_epoch(self, leader_epoch: int) -> None:
        """The fetcher takes this for the leader epoch from now on. What it was told before is sent again: the
        answer may have come while its role changed, when the fetcher did not have the partition."""
        self.current_leader_epoch = leader_epoch
        self.high_watermark_sent = NO_OFFSET
        self.log_start_sent = NO_OFFSET

    def listen(self, partition: Partition | None) -> None:
        """Hear of the moves of `partition` from now on, and of no other's."""
        if partition is self.partition:
            return
        if self.partition is not None:
            self.partition.fetch_waiters.pop(self, None)
        self.partition = partition
        if partition is not None:
            partition.fetch_waiters[self] = None
            if self.session is None:
                partition.fetch_waiters.pop(self, None)

    def notify(self) -> Any:
        """The partition moved; returns the fetch that waits for that, which its caller is to try."""
        session = self.session
        if session is None:
            return None
        with session.lock:
            session.ready[self] = None
            return session.parked

    def __repr__(self) -> str:
        return f"CachedPartition({self.topic_partition}, {self.fetch_offset})"


class FetchSession:
    """A fetcher's partitions, in the order in which they are to be looked at.

    `is_privileged`: a follower's, which is not evicted for a consumer's. Without an id it lives for one
    fetch.
    """

    __slots__ = (
        "clock",
        "created_ms",
        "epoch",
        "id",
        "is_privileged",
        "last_used_ms",
        "lock",
        "parked",
        "partitions",
        "ready",
        "to_name_again",
    )

    def __init__(self, session_id: int = NO_SESSION, *, now_ms: int, is_privileged: bool = False) -> None:
        self.id = session_id
        self.created_ms = self.last_used_ms = now_ms
        self.is_privileged = is_privileged
        self.clock = FetchClock()
        self.lock = Lock()
        # Guarded by lock:
        self.epoch = INITIAL_EPOCH + 1
        self.partitions: dict[SessionKey, CachedPartition] = {}
        # As an ordered set: what was looked at and has more to give goes to the end.
        self.ready: dict[CachedPartition, None] = {}
        self.to_name_again: dict[CachedPartition, None] = {}
        # The DelayedFetch that waits, or None. That class knows this one.
        self.parked: Any = None

    @property
    def is_lasting(self) -> bool:
        """Whether it outlives its first fetch."""
        return self.id != NO_SESSION

    def ask(self, wanted: Iterable[CachedPartition], forgotten: Iterable[SessionKey] = ()) -> None:
        """Take in what a request names."""
        left = []
        with self.lock:
            for again in self.to_name_again:
                if again.session is self:
                    again.is_unanswered = True
                    self.ready[again] = None
            self.to_name_again.clear()
            for key in forgotten:
                gone = self.partitions.pop(key, None)
                if gone is not None:
                    self.ready.pop(gone, None)
                    left.append(gone)
            for asked in wanted:
                known = self.partitions.get(asked.key)
                if known is None:
                    known = self.partitions[asked.key] = asked
                    known.session = self
                else:
                    known.update(asked)
                self.ready[known] = None
        for gone in left:
            self._leave(gone)

    def ask_again(
        self,
        key: SessionKey,
        *,
        fetch_offset: int,
        max_bytes: int,
        current_leader_epoch: int,
        last_fetched_epoch: int,
        log_start_offset: int,
    ) -> bool:
        """Take in a request that names but one partition, and forgets none; False where the session has not
        that partition, or has more to take in. A follower's fetch after each record is one."""
        with self.lock:
            known = self.partitions.get(key)
            if known is None or self.to_name_again:
                return False
            known.fetch_offset = fetch_offset
            known.max_bytes = max_bytes
            if current_leader_epoch != known.current_leader_epoch:
                known.begin_epoch(current_leader_epoch)
            known.last_fetched_epoch = last_fetched_epoch
            known.log_start_offset = log_start_offset
            known.is_unanswered = True
            self.ready[known] = None
            return True

    def name_again(self, cached: CachedPartition) -> None:
        """Let the next fetch count as if it named the partition, at the offset that was told last."""
        with self.lock:
            if cached.session is self:
                self.to_name_again[cached] = None

    def take_ready(self) -> list[CachedPartition]:
        """What is to be looked at, in its order; none of it is ready afterwards."""
        with self.lock:
            ready = list(self.ready)
            self.ready.clear()
            return ready

    def put_back(self, partitions: Iterable[CachedPartition]) -> None:
        """These are ready still, in this order, before what became ready meanwhile: none is to starve."""
        with self.lock:
            mine = [cached for cached in partitions if cached.session is self]
            if mine:
                self.ready = dict.fromkeys([*mine, *self.ready])

    def end(self) -> None:
        """Hear of nothing any more; a fetch that waits is answered."""
        with self.lock:
            partitions = list(self.partitions.values())
            self.partitions.clear()
            self.ready.clear()
            self.to_name_again.clear()
            parked, self.parked = self.parked, None
        for cached in partitions:
            self._leave(cached)
        if parked is not None:
            parked.abandon()

    def _leave(self, cached: CachedPartition) -> None:
        if cached.partition is not None and self.is_lasting:
            cached.partition.detach_fetch_clock(self.clock)
        # In this order: `listen` in another thread looks whether it still has a session once it listens.
        cached.session = None
        cached.listen(None)

    def __len__(self) -> int:
        return len(self.partitions)


class FetchSessionCache:
    """The sessions of one broker, at most `slots` of them.

    When they are all taken, a new one takes the place of one that was not used for `eviction_ms`, or of a
    consumer's if it is a follower's, or of a smaller one; else the fetcher has to do without (KIP-227).
    """

    def __init__(self, slots: int, eviction_ms: int, random: Random) -> None:
        self._slots = slots
        self._eviction_ms = eviction_ms
        self._random = random
        self._lock = Lock()
        # Guarded by _lock:
        self._sessions: dict[int, FetchSession] = {}
        self.evictions = Meter()

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[FetchSession]:
        return iter(list(self._sessions.values()))

    @property
    def partition_count(self) -> int:
        """Partitions in all sessions: Kafka's NumIncrementalFetchPartitionsCached."""
        return sum(len(session) for session in self)

    def create(self, size: int, *, is_privileged: bool, now_ms: int) -> FetchSession:
        """A session for `size` partitions; one without an id where there is no room."""
        with self._lock:
            evicted = None
            if len(self._sessions) >= self._slots:
                evicted = self._least_worthy(size, is_privileged, now_ms)
                if evicted is None:
                    return FetchSession(now_ms=now_ms, is_privileged=is_privileged)
                del self._sessions[evicted.id]
                self.evictions.mark()
            session = FetchSession(self._new_id(), now_ms=now_ms, is_privileged=is_privileged)
            self._sessions[session.id] = session
        if evicted is not None:
            evicted.end()
        return session

    def use(self, session_id: int, epoch: int, now_ms: int) -> FetchSession:
        """The session, for its next fetch. Raises FetchSessionIdNotFound, InvalidFetchSessionEpoch."""
        with self._lock:
            session = self._sessions.get(session_id)
            if session is None:
                raise FetchSessionIdNotFound(f"no fetch session {session_id}")
            if epoch != session.epoch:
                text = f"fetch session {session_id} is at epoch {session.epoch}, not {epoch}"
                raise InvalidFetchSessionEpoch(text)
            session.epoch = 1 if epoch == INT32_MAX else epoch + 1
            session.last_used_ms = now_ms
            return session

    def remove(self, session_id: int) -> None:
        """End the session, if there is one of this id."""
        with self._lock:
            session = self._sessions.pop(session_id, None)
        if session is not None:
            session.end()

    def clear(self) -> None:
        """End all: the broker goes."""
        for session in self:
            self.remove(session.id)

    def _new_id(self) -> int:
        while True:
            session_id = 1 + self._random.randrange(INT32_MAX)
            if session_id not in self._sessions:
                return session_id

    def _least_worthy(self, size: int, is_privileged: bool, now_ms: int) -> FetchSession | None:
        if not self._sessions:
            return None
        oldest = min(self._sessions.values(), key=lambda session: session.last_used_ms)
        if now_ms - oldest.last_used_ms > self._eviction_ms:
            return oldest
        least = min(self._sessions.values(), key=_worth)
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
    """The session that a request is to be served in: the one it names, a new one, or none (id 0)."""
    if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
        if session_id != NO_SESSION:
            cache.remove(session_id)
        if epoch == INITIAL_EPOCH and size:
            return cache.create(size, is_privileged=is_privileged, now_ms=now_ms)
        return FetchSession(now_ms=now_ms, is_privileged=is_privileged)
    return cache.use(session_id, epoch, now_ms)
