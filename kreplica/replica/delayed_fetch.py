"""DelayedFetch: reads a session's partitions for a fetch, and waits if there is too little to answer.

A fetch is answered when any of its partitions has news, so it does not wait for offsets in a purgatory. The
partitions have its session among their `fetch_waiters`. The caller that moves a partition tries the fetch
that is parked at the session (`DelayedOperations`). The fetch purgatory only holds the deadline.

A fetch is complete in these cases: this broker does not lead a partition (A), no longer has it (B), does not
know it (C), its directory is offline (D), or the fetcher's leader epoch is not the current one (E); the fetch
offset is in an older segment than the log's end (F), min.bytes are available (G), or the fetcher's log
diverges (H). A follower gets a new high watermark with the next records, or after a short while.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kreplica._core.fetch_session import CachedPartition, FetchSession
from kreplica._core.region import Slice
from kreplica.common.errors import KreplicaError
from kreplica.common.future import Future
from kreplica.common.types import NO_OFFSET
from kreplica.log.transaction_index import AbortedTxn

# The replica id of a fetcher that is not a replica.
CONSUMER = -1
NO_REPLICA = -1


class FetchParams(NamedTuple):
    """The parameters of a fetch, for all its partitions. Times are in ms, sizes in bytes.

    `replica_id`: the follower's broker id, or CONSUMER; `replica_epoch`: its broker epoch. `isolation`:
    "log_end" (a follower's), "high_watermark" or "txn_committed". `wants_all`: the answer names every
    partition, not only those with news. `only_leader`: only the leader may answer. `is_for_repair`: a replica
    that lacks a range fetches outside of any session (see damage_repair). `client_rack`: the consumer's rack,
    "" if unknown.
    """

    replica_id: int
    replica_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation: str
    wants_all: bool = True
    only_leader: bool = True
    is_for_repair: bool = False
    client_rack: str = ""

    @property
    def is_from_follower(self) -> bool:
        return self.replica_id >= 0


class FetchPartitionData(NamedTuple):
    """One partition's answer. `records`: whole batches as a pinned slice of the log, or None.

    `diverging_epoch`: the largest (epoch, end offset) up to which the fetcher's log may agree; the fetcher
    must truncate what comes after. `preferred_read_replica`: the broker that a consumer should fetch from
    (KIP-392), -1 for this one.
    """

    error: KreplicaError | None = None
    high_watermark: int = NO_OFFSET
    last_stable_offset: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    records: Slice | None = None
    aborted: Sequence[AbortedTxn] | None = None
    diverging_epoch: tuple[int, int] | None = None
    # Whether the batch at the fetch offset is in a closed segment.
    is_from_older_segment: bool = False
    is_throttled: bool = False
    # Where the log ends for this fetcher.
    bound: int = NO_OFFSET
    preferred_read_replica: int = NO_REPLICA

    @property
    def size(self) -> int:
        """Size of the records in bytes."""
        return 0 if self.records is None else self.records.size


FetchResult = list[tuple[CachedPartition, FetchPartitionData]]
# Reads one partition: at most the given bytes, or more for a first batch if the last argument is True.
Read = Callable[[CachedPartition, FetchParams, int, bool], FetchPartitionData]
# Counts the content of an answer, once.
Count = Callable[[FetchParams, FetchResult], None]


class DelayedFetch:
    """One fetch. `read` reads a partition; `count` gets what is answered; `linger` ends the wait soon.

    Any thread may try it; one of them completes it.
    """

    __slots__ = (
        "_count",
        "_has_marks",
        "_held_back",
        "_linger",
        "_read",
        "_too_little",
        "future",
        "handle",
        "linger_handle",
        "params",
        "session",
    )

    def __init__(
        self,
        session: FetchSession,
        params: FetchParams,
        read: Read,
        count: Count,
        linger: Callable[[DelayedFetch], None],
        future: Future[Any] | None = None,
    ) -> None:
        self.session = session
        self.params = params
        self.future: Future[Any] = Future() if future is None else future
        # Handles in the purgatory: of the deadline, and of the end of lingering; 0 if not registered.
        self.handle = 0
        self.linger_handle = 0
        self._read = read
        self._count = count
        self._linger = linger
        # Partitions that were read and had something, but not enough, and whether that was a new offset only.
        self._too_little: list[CachedPartition] = []
        self._has_marks = False
        # Partitions that the quota held back. They stay ready for the next fetch.
        self._held_back: list[CachedPartition] = []

    @property
    def may_linger(self) -> bool:
        """Whether this is a follower's fetch with new offsets to report, which should not wait long."""
        return self._has_marks and self.params.is_from_follower

    def start(self) -> bool:
        """Read the ready partitions. Returns True if that answers the fetch, else the fetch is parked now."""
        return self._look() or self._park()

    def try_complete(self) -> bool:
        """Read again after something moved. Returns True if the fetch is answered now."""
        return self.session.unpark(self) and (self._look() or self._park())

    def linger(self) -> None:
        """Answer soon even if there is too little: more news may come until then and share the answer."""
        self._linger(self)

    def expire(self) -> bool:
        """Answer now, since the time is up. Returns False if it is already answered."""
        if not self.session.unpark(self):
            return False
        self._deliver(self._look_at_all())
        return True

    def withdraw(self) -> bool:
        """Cancel the fetch: its client is gone. Partitions that were read stay ready for the next fetch.

        Returns False if it is already answered.
        """
        if not self.session.unpark(self):
            return False
        self.session.put_back([*self._too_little, *self._held_back])
        return True

    def abandon(self) -> None:
        """Answer with nothing: the session has ended, so no caller will try the fetch again."""
        self.future.set_result([])

    def _park(self) -> bool:
        """Wait. Returns True if something became ready meanwhile and has answered the fetch."""
        session = self.session
        while not session.park(self):
            if session.parked is not None:
                # The fetcher has given up one of two fetches while this one was being read. Only one can
                # wait.
                self._deliver(self._look_at_all())
                return True
            if self._look():
                return True
        return False

    def _look(self) -> bool:
        session, params = self.session, self.params
        result, again = self._read_ready()
        if not self._is_enough(result) and params.max_wait_ms > 0 and session.partitions:
            if not result and not again:
                # Nothing is new, as in every fetch of a follower that has caught up.
                self._has_marks = False
                return False
            news = [pair for pair in result if has_news(*pair)] if params.wants_all else result
            # Partitions for which there was no room are not marked ready meanwhile: nothing in them is new.
            self._too_little = list(dict.fromkeys([*(cached for cached, _ in news), *again]))
            self._has_marks = any(data.records is None for _, data in news)
            return False
        if again:
            session.put_back(again)
        if params.wants_all and len(result) < len(session.partitions):
            result = self._look_at_all()
        self._deliver(result)
        return True

    def _look_at_all(self) -> FetchResult:
        if self.params.wants_all:
            self.session.put_back(list(self.session.partitions.values()))
        result, again = self._read_ready()
        self.session.put_back(again)
        return result

    def _read_ready(self) -> tuple[FetchResult, list[CachedPartition]]:
        """Read the ready partitions until the answer is full.

        Also returns the partitions that stay ready for the next fetch: those that did not fit, and those with
        an error, which may be resolved by then.
        """
        params = self.params
        ready = self.session.take_ready()
        if self._too_little:
            ready = list(dict.fromkeys(self._too_little + ready))
            self._too_little = []
        result: FetchResult = []
        again: list[CachedPartition] = []
        left = params.max_bytes
        for index, cached in enumerate(ready):
            # The first batch is always returned, even if it is larger than the fetcher's limit.
            is_first = left == params.max_bytes
            if left <= 0 and not is_first and not params.wants_all:
                again += ready[index:]
                break
            room = cached.max_bytes if cached.max_bytes < left else left
            data = self._read(cached, params, room if room > 0 else 0, is_first)
            if data.is_throttled:
                self._held_back.append(cached)
            elif data.error is not None or (
                # There was no room for its next batch. A first batch would have been returned whole.
                data.records is None and not is_first and cached.fetch_offset < data.bound
            ):
                again.append(cached)
            if data.records is not None:
                left -= data.records.size
                result.append((cached, data))
            elif params.wants_all or has_news(cached, data):
                result.append((cached, data))
        return result, again

    def _is_enough(self, result: FetchResult) -> bool:
        params = self.params
        size = 0
        for _, data in result:
            if data.error is not None or data.diverging_epoch is not None or data.is_from_older_segment:
                return True
            if data.preferred_read_replica != NO_REPLICA:
                return True
            if data.records is not None:
                size += data.records.size
        # More than max.bytes cannot come, even if min.bytes is larger.
        return size >= min(params.min_bytes, params.max_bytes)

    def _deliver(self, result: FetchResult) -> None:
        for cached, data in result:
            # After an error the next answer has the offsets again, even if they are unchanged. A follower
            # that is to truncate ignores the rest of the answer.
            is_sent = data.error is None and data.diverging_epoch is None
            cached.high_watermark_sent = data.high_watermark if is_sent else NO_OFFSET
            cached.log_start_sent = data.log_start_offset if is_sent else NO_OFFSET
        if self._held_back:
            self.session.put_back(self._held_back)
        if not self.params.is_from_follower and self.session.is_lasting:
            # A consumer that throws the records away asks for the same offset, and does not name it again.
            self.session.keep_ready(cached for cached, data in result if is_to_repeat(data))
        self._count(self.params, result)
        self.future.set_result(result)


def is_to_repeat(data: FetchPartitionData) -> bool:
    """Return whether a fetch at the same offset is answered in the same way."""
    return (
        data.records is not None
        or data.diverging_epoch is not None
        or data.preferred_read_replica != NO_REPLICA
    )


def has_news(cached: CachedPartition, data: FetchPartitionData) -> bool:
    """Return whether an incremental answer must name the partition (KIP-227)."""
    return (
        data.records is not None
        or data.error is not None
        or data.diverging_epoch is not None
        or data.preferred_read_replica != NO_REPLICA
        or data.high_watermark != cached.high_watermark_sent
        or data.log_start_offset != cached.log_start_sent
    )
