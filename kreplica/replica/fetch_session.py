"""Fetch sessions on the leader's side (KIP-227): what a fetcher asked for before, so that it need not repeat
it.

A session holds the partitions that a fetcher wants, and which of them are *ready*: named by a request since
they were last answered, moved since, or, for a consumer, last answered with records. An incremental fetch
reads only the ready ones, so a session with a thousand idle partitions costs as much as its busy ones. A
partition notifies its sessions through `CachedPartition.notify`.

Thread rule: a session's `lock` guards its partitions and its ready set; a cache's `_lock` guards the table of
sessions. A partition's lock is never taken under either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from kreplica._core.fetch_lane import wire_id
from kreplica._core.leader_state import FetchClock
from kreplica.common.errors import FetchSessionIdNotFound, InvalidFetchSessionEpoch
from kreplica.common.locks import Lock
from kreplica.common.metrics import Meter
from kreplica.common.ports import Random
from kreplica.common.types import INT32_MAX, NO_OFFSET, TopicPartition, Uuid

if TYPE_CHECKING:
    from kreplica.replica.partition import Partition

# Session id 0: no session. Epoch 0 asks for a new session, -1 ends one.
NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1


SessionKey = TopicPartition | tuple[Uuid, int]
ZERO_ID = Uuid.ZERO.raw


class CachedPartition:
    """One partition of a session: what its fetcher last asked for and what was last sent.

    `partition`: the partition that the session listens to; None if this broker did not have it when it was
    last looked up. `is_unanswered`: named by a request since its last answer. `is_being_noted`: the effects
    of its fetch are being acted on; the offsets are read again after that.
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
        "wire_id",
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
        self.wire_id = wire_id(topic_id.raw, topic_partition.partition)
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
        """The partition's key in its session: by topic id if the fetcher sends one."""
        if self.topic_id.raw == ZERO_ID:
            return self.topic_partition
        return self.topic_id, self.topic_partition.partition

    def update(self, newer: CachedPartition) -> None:
        """Take over a newer request for the partition."""
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
        """Set the leader epoch that the fetcher uses from now on, and send the offsets again.

        An earlier answer may have come while the fetcher's role changed, when it did not have the partition.
        """
        self.current_leader_epoch = leader_epoch
        self.forget_sent()

    def forget_sent(self) -> None:
        """Send the offsets again, even if they are unchanged."""
        self.high_watermark_sent = NO_OFFSET
        self.log_start_sent = NO_OFFSET

    def listen(self, partition: Partition | None) -> None:
        """Listen to moves of `partition`, and of no other."""
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
        """Mark the partition as ready. Returns the fetch that waits for it, which the caller must try."""
        session = self.session
        if session is None:
            return None
        with session.lock:
            session.ready[self] = None
            return session.parked

    def __repr__(self) -> str:
        return f"CachedPartition({self.topic_partition}, {self.fetch_offset})"


class FetchSession:
    """A fetcher's partitions, in the order in which they are read.

    `is_privileged`: a follower's session, which is not evicted for a consumer's. A session without an id
    lasts for one fetch.
    """

    __slots__ = (
        "by_wire_id",
        "clock",
        "created_ms",
        "epoch",
        "holder",
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
        # Who may use it, where clients need rights.
        self.holder: object = None
        # Guarded by lock:
        self.epoch = INITIAL_EPOCH + 1
        self.partitions: dict[SessionKey, CachedPartition] = {}
        # The same, by their bytes in a request that names topics by id.
        self.by_wire_id: dict[bytes, CachedPartition] = {}
        # An ordered set. Partitions that were read and have more go to the end.
        self.ready: dict[CachedPartition, None] = {}
        self.to_name_again: dict[CachedPartition, None] = {}
        # The DelayedFetch that waits, or None. Typed as Any, since that class imports this one.
        self.parked: Any = None

    @property
    def is_lasting(self) -> bool:
        """Whether the session outlives its first fetch."""
        return self.id != NO_SESSION

    def ask(self, wanted: Iterable[CachedPartition], forgotten: Iterable[SessionKey] = ()) -> None:
        """Take over the partitions that a request names or forgets."""
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
                    self.by_wire_id.pop(gone.wire_id, None)
                    self.ready.pop(gone, None)
                    left.append(gone)
            for asked in wanted:
                known = self.partitions.get(asked.key)
                if known is None:
                    known = self.partitions[asked.key] = self.by_wire_id[asked.wire_id] = asked
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
        """Take over a request that names only one partition and forgets none, as after each new record.

        Returns False if the session does not have the partition or there is more to take over.
        """
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
        """Treat the next fetch as if it named the partition, at its last offset."""
        with self.lock:
            if cached.session is self:
                self.to_name_again[cached] = None

    def take_ready(self) -> list[CachedPartition]:
        """Return the ready partitions in their order, and clear the set."""
        with self.lock:
            ready = list(self.ready)
            self.ready.clear()
            return ready

    def put_back(self, partitions: Iterable[CachedPartition]) -> None:
        """Make the partitions ready again, before those that became ready meanwhile, so that none starves."""
        with self.lock:
            mine = [cached for cached in partitions if cached.session is self]
            if mine:
                self.ready = dict.fromkeys([*mine, *self.ready])

    def keep_ready(self, partitions: Iterable[CachedPartition]) -> None:
        """Make the partitions ready again, behind the others."""
        with self.lock:
            for cached in partitions:
                if cached.session is self:
                    self.ready[cached] = None

    def end(self) -> None:
        """Stop listening to partitions, and answer a fetch that waits."""
        with self.lock:
            partitions = list(self.partitions.values())
            self.partitions.clear()
            self.by_wire_id.clear()
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
        # In this order, since `listen` in another thread checks after it has registered whether it has a
        # session.
        cached.session = None
        cached.listen(None)

    def __len__(self) -> int:
        return len(self.partitions)


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
