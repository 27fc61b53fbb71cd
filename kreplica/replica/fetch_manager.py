"""FetchManager: answers the fetches of followers and consumers.

A fetch reads each of its partitions under no lock, records what a follower's fetch says about the follower,
and waits in its session if there is too little to answer. Thread rule: any thread.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

from kreplica._core.delayed_operations import DelayedOperations
from kreplica._core.fetch_lane import FETCHES_DECLINED, FetchLane, LaneFetch
from kreplica._core.fetch_session import CachedPartition, FetchSession
from kreplica._core.region import Slice
from kreplica.common.errors import InconsistentTopicId, InvalidConfig, KreplicaError
from kreplica.common.future import Future
from kreplica.common.metrics import MetricRegistry
from kreplica.common.ports import Clock, Loop, Random
from kreplica.common.types import TopicPartition, Uuid
from kreplica.replica.delayed_fetch import DelayedFetch, FetchParams, FetchPartitionData, FetchResult
from kreplica.replica.fetch_session import NO_SESSION, FetchSessionCache
from kreplica.replica.hosted_partitions import HostedPartitions
from kreplica.replica.metadata_cache import MetadataCache
from kreplica.replica.partition import Partition
from kreplica.replica.partition_state import NOTHING, LogReadInfo, PartitionEffects
from kreplica.replica.purgatory import DelayedOperationPurgatory
from kreplica.replica.replica_config import ReplicaConfig
from kreplica.replica.replication_quotas import ReplicationQuotaManager

Act = Callable[[Partition, PartitionEffects], None]
ZERO_ID = Uuid.ZERO.raw
RACK_AWARE = "RackAwareReplicaSelector"
KAFKAS_PACKAGE = "org.apache.kafka.common.replica."


class RackAwareReplicaSelector:
    """Chooses the replica that a consumer of the leader `broker_id` should read from (KIP-392).

    If a consumer names its rack and the leader is in another rack, the leader redirects it to a replica
    there. The replica must be in sync and have the consumer's next record. Thread rule: any thread.
    """

    def __init__(self, broker_id: int, metadata: MetadataCache) -> None:
        self._broker_id = broker_id
        self._metadata = metadata

    def select(self, partition: Partition, client_rack: str, fetch_offset: int) -> int | None:
        """Return the broker to read from instead of this leader, or None."""
        if self._metadata.rack(self._broker_id) == client_rack:
            return None
        near = [
            replica
            for replica in partition.remote_replicas
            if replica.broker_id in partition.isr
            and replica.log_start_offset <= fetch_offset <= replica.log_end_offset
            and self._metadata.rack(replica.broker_id) == client_rack
        ]
        best = max(near, key=lambda replica: replica.log_end_offset, default=None)
        return None if best is None else best.broker_id


def selector_of(
    config: ReplicaConfig, broker_id: int, metadata: MetadataCache
) -> RackAwareReplicaSelector | None:
    """Return the selector in replica.selector.class, or None to read from leaders. Raises InvalidConfig."""
    name = config.replica_selector_class
    if name is None:
        return None
    if name.removeprefix(KAFKAS_PACKAGE) != RACK_AWARE:
        raise InvalidConfig(
            f"replica.selector.class={name[:80]!r} is not supported: use {RACK_AWARE}, or leave it out"
        )
    return RackAwareReplicaSelector(broker_id, metadata)


class FetchManager:
    """Answers the fetches of followers and consumers.

    `act`: acts on the effects of a follower's fetch. `delayed`: completes what waits for the high watermark,
    which a native fetch may move. `quota`: limits the fetches of followers.

    `topic_name`: returns the name of a topic id, None if unknown. `selector`: redirects consumers to replicas
    near them. `sessions`: the sessions of this broker.
    """

    def __init__(
        self,
        partitions: HostedPartitions,
        config: ReplicaConfig,
        *,
        clock: Clock,
        loop: Loop,
        random: Random,
        metrics: MetricRegistry,
        act: Act,
        delayed: DelayedOperations,
        quota: ReplicationQuotaManager,
        topic_name: Callable[[Uuid], str | None] = lambda _: None,
        selector: RackAwareReplicaSelector | None = None,
    ) -> None:
        self.sessions = FetchSessionCache(
            config.max_incremental_fetch_session_cache_slots,
            config.min_incremental_fetch_session_eviction_ms,
            random,
        )
        self._partitions = partitions
        self._fetch_max_bytes = config.fetch_max_bytes
        self._act = act
        self._quota = quota
        self._topic_name = topic_name
        self._selector = selector
        self._purgatory = DelayedOperationPurgatory("Fetch", clock, loop, self._expired)
        # The clock of sessions, in ms.
        self.now_ms = self._purgatory.now_ms
        self._numbers = itertools.count(1)
        self.linger_ms = config.replica_fetch_high_watermark_linger_ms
        # Makes the buffers of a response to a follower's fetch; set by the handler of requests.
        self.answer_of: Callable[[FetchSession, int, FetchResult], list[Any]] | None = None
        self._replication_bytes_out = metrics.meter("BrokerTopicMetrics", "ReplicationBytesOutPerSec")
        self.lane = FetchLane(
            self,
            clock=clock,
            quota=quota,
            timer=self._purgatory,
            delayed=delayed,
            bytes_out=self._replication_bytes_out,
            most_bytes=self._fetch_max_bytes,
            linger_ms=self.linger_ms,
        )
        metrics.gauge("FetchLane", "TakenRequests", lambda: self.lane.taken)
        for number, reason in enumerate(FETCHES_DECLINED):
            count = partial(self.lane.declined, number)
            metrics.gauge("FetchLane", "DeclinedRequests", count, {"reason": reason})
        self._bytes_out = metrics.meter("BrokerTopicMetrics", "BytesOutPerSec")
        gauge = metrics.gauge
        gauge("FetchSessionCache", "NumIncrementalFetchSessions", lambda: len(self.sessions))
        gauge(
            "FetchSessionCache", "NumIncrementalFetchPartitionsCached", lambda: self.sessions.partition_count
        )
        metrics.add("FetchSessionCache", "IncrementalFetchSessionEvictionsPerSec", self.sessions.evictions)
        tags = {"delayedOperation": "Fetch"}
        gauge("DelayedOperationPurgatory", "NumDelayedOperations", lambda: self._purgatory.delayed, tags)
        gauge("DelayedOperationPurgatory", "PurgatorySize", self._watched, tags)

    def _watched(self) -> int:
        """Return how many partitions fetches wait at, each counted once per fetch."""
        sessions = [each.session for partition in self._partitions for each in list(partition.fetch_waiters)]
        return sum(session is not None and session.parked is not None for session in sessions)

    def fetch_messages(
        self, session: FetchSession, params: FetchParams, future: Future[Any] | None = None
    ) -> Future[Any]:
        """Answer when min.bytes are available, when a partition has other news, or after max.wait.

        Pass the requested partitions to `session.ask` first. An older fetch of the same session that still
        waits is answered first: its fetcher has given it up. The future gets a FetchResult. `future`: the
        future to resolve; None makes a new one.
        """
        parked: DelayedFetch | LaneFetch | None = session.parked
        if parked is not None:
            self._expire(parked)
        session.clock.fetched(self.now_ms())
        return self._fetch(session, params, future)

    def _fetch(
        self, session: FetchSession, params: FetchParams, future: Future[Any] | None = None
    ) -> Future[Any]:
        fetch = DelayedFetch(session, params, self._read, self._count, self._linger, future)
        if not fetch.start():
            if fetch.may_linger and self.linger_ms <= params.max_wait_ms:
                fetch.linger()
            else:
                fetch.handle = self._purgatory.watch(next(self._numbers), 1, params.max_wait_ms, fetch)
            if self._purgatory.is_closed:
                fetch.expire()
            # Called at once if the fetch is already answered.
            fetch.future.add_done_callback(partial(self._end_of, fetch))
        if session.id == NO_SESSION:
            fetch.future.add_done_callback(lambda _: session.end())
        return fetch.future

    def _end_of(self, fetch: DelayedFetch, future: Future[Any]) -> None:
        if future.cancelled():
            # Its connection is closed. Any other caller that takes it from its session ends the wait.
            fetch.withdraw()
        self.end_wait(fetch)

    # ---- notifications ------------------------------------------------------------------------------------

    def name_again(self, partition: Partition) -> None:
        """Treat the next fetch of each follower as if it named the partition."""
        for cached in list(partition.fetch_waiters):
            if cached.session is not None and cached.session.is_privileged:
                cached.session.name_again(cached)

    def _linger(self, fetch: DelayedFetch) -> None:
        fetch.linger_handle = self._purgatory.watch(next(self._numbers), 1, self.linger_ms, fetch)

    def _expire(self, fetch: DelayedFetch | LaneFetch) -> None:
        if not fetch.expire() and fetch.may_linger and not fetch.linger_handle:
            # Another thread works on it, and may let it wait again.
            fetch.linger()

    def end_wait(self, fetch: DelayedFetch) -> None:
        for handle in (fetch.handle, fetch.linger_handle):
            if handle:
                self._purgatory.cancel(handle)

    def _expired(self, fetches: list[DelayedFetch | LaneFetch]) -> None:
        for fetch in fetches:
            self._expire(fetch)

    def shutdown(self) -> None:
        """Answer the waiting fetches with what there is, and forget all sessions."""
        for fetch in self._purgatory.shutdown():
            fetch.expire()
        self.sessions.clear()

    # ---- for the native lane ------------------------------------------------------------------------------

    def resume(self, fetch: LaneFetch, max_wait_ms: int) -> Future[Any]:
        """Read and answer what a native fetch has left. Its session has taken over the request."""
        session = fetch.session
        params = FetchParams(
            fetch.replica_id,
            fetch.replica_epoch,
            max_wait_ms,
            1,
            min(fetch.max_bytes, self._fetch_max_bytes),
            "log_end",
            wants_all=False,
        )
        future = self._fetch(session, params)
        future.add_done_callback(partial(self._resumed, fetch))
        return future

    def _resumed(self, fetch: LaneFetch, done: Future[FetchResult]) -> None:
        try:
            assert self.answer_of is not None
            buffers = self.answer_of(fetch.session, fetch.correlation_id, done.result())
        except BaseException as error:
            fetch.fail(error)
        else:
            fetch.respond(buffers)

    def count_consumed(self, size: int) -> None:
        """Count the records of an answer to a consumer."""
        self._bytes_out.count += size

    def read_for_consumer(
        self,
        key: bytes,
        has_ids: bool,
        fetch_offset: int,
        leader_epoch: int,
        last_fetched_epoch: int,
        max_bytes: int,
        isolation: int,
        at_least_one: bool,
    ) -> tuple[Slice | None, int, int, int, int] | None:
        """Read one partition as Partition.fetch_records, for a consumer outside of sessions.

        `key`: the partition's `wire_id` if `has_ids`, else its `wire_name`. Returns the records, the high
        watermark, the last stable offset, the log's start and end; None if there is more to answer.
        """
        partition = self._by_wire_id(key) if has_ids else self._partitions.by_wire_name.get(key)
        if partition is None:
            return None
        try:
            read = partition.fetch_records(
                fetch_offset,
                max_bytes,
                isolation="txn_committed" if isolation else "high_watermark",
                current_leader_epoch=None if leader_epoch < 0 else leader_epoch,
                last_fetched_epoch=None if last_fetched_epoch < 0 else last_fetched_epoch,
                at_least_one=at_least_one,
            )
        except KreplicaError:
            # Python reads it again, and answers with the error.
            return None
        if read.diverging_epoch is not None or read.aborted:
            return None
        return (
            read.records,
            read.high_watermark,
            read.last_stable_offset,
            read.log_start_offset,
            read.log_end_offset,
        )

    def _by_wire_id(self, key: bytes) -> Partition | None:
        topic_id = Uuid(key[: Uuid.SIZE])
        name = self._topic_name(topic_id)
        if name is None:
            return None
        partition = self._partitions.get(TopicPartition(name, int.from_bytes(key[-4:], "big", signed=True)))
        known = None if partition is None else partition.leader_and_isr
        return partition if known is not None and known.topic_id.raw == topic_id.raw else None

    # ---- one partition ------------------------------------------------------------------------------------

    def _read(
        self, cached: CachedPartition, params: FetchParams, max_bytes: int, at_least_one: bool
    ) -> FetchPartitionData:
        try:
            if not cached.topic_partition.topic:
                # This broker did not know the topic when the session was created (KIP-516).
                name = self._topic_name(cached.topic_id) or ""
                cached.topic_partition = TopicPartition(name, cached.topic_partition.partition)
            partition = self._partitions.get(cached.topic_partition)
            if partition is None:
                partition = self._partitions.get_or_error(cached.topic_partition)
            if partition is not cached.partition:
                cached.listen(partition)
            return self._read_from(partition, cached, params, max_bytes, at_least_one)
        except KreplicaError as error:
            return FetchPartitionData(error=error)

    def _read_from(
        self,
        partition: Partition,
        cached: CachedPartition,
        params: FetchParams,
        max_bytes: int,
        at_least_one: bool,
    ) -> FetchPartitionData:
        known = partition.leader_and_isr
        # Compare the bytes: comparing ids is a call.
        if known is not None and known.topic_id.raw != cached.topic_id.raw != ZERO_ID:
            raise InconsistentTopicId(
                f"{cached.topic_partition}: its topic id is {known.topic_id}, not {cached.topic_id}"
            )
        replica_id = params.replica_id
        if params.is_for_repair:
            # Note it even if this broker cannot read the range either.
            self._note_lost_range(partition, cached, params)
        is_from_follower = replica_id >= 0
        throttled = is_from_follower and self._quota.is_active and self._is_throttled(partition, replica_id)
        epoch, last_epoch = cached.current_leader_epoch, cached.last_fetched_epoch
        read = partition.fetch_records(
            cached.fetch_offset,
            0 if throttled else max_bytes,
            isolation=params.isolation,
            replica_id=replica_id,
            current_leader_epoch=None if epoch < 0 else epoch,
            last_fetched_epoch=None if last_epoch < 0 else last_epoch,
            only_leader=params.only_leader,
            at_least_one=at_least_one and not throttled,
        )
        if params.client_rack:
            preferred = self._preferred(partition, params, cached.fetch_offset)
            if preferred is not None:
                return FetchPartitionData(
                    None,
                    read.high_watermark,
                    read.last_stable_offset,
                    read.log_start_offset,
                    preferred_read_replica=preferred,
                )
        if is_from_follower and cached.is_unanswered:
            read = self._note_follower(partition, cached, params, read)
        records = read.records
        return FetchPartitionData(
            None,
            read.high_watermark,
            read.last_stable_offset,
            read.log_start_offset,
            records,
            read.aborted if params.isolation == "txn_committed" else None,
            read.diverging_epoch,
            # Needed only if having some records is not enough.
            records is not None
            and params.min_bytes > 1
            and partition.local_log.local.segments.active.base_offset > cached.fetch_offset,
            throttled,
            read.log_end_offset if is_from_follower else _bound(read, params.isolation),
        )

    def _preferred(self, partition: Partition, params: FetchParams, fetch_offset: int) -> int | None:
        if self._selector is None or params.is_from_follower or not partition.is_leader:
            return None
        return self._selector.select(partition, params.client_rack, fetch_offset)

    def _note_follower(
        self, partition: Partition, cached: CachedPartition, params: FetchParams, read: LogReadInfo
    ) -> LogReadInfo:
        """Record a follower's fetch, once for each time that it names the partition.

        Returns the read with the current offsets. The fetch often moves the high watermark; the caller that
        moves it notifies all sessions but this one.
        """
        cached.is_unanswered = False
        session = cached.session
        if session is None:
            # The session has ended meanwhile, and its fetcher uses another one.
            return read
        effects = partition.update_follower_fetch_state(
            params.replica_id, read, cached.log_start_offset, self.now_ms(), params.replica_epoch
        )
        clock = None if session.id == NO_SESSION else session.clock
        replica = partition.replica(params.replica_id)
        if replica is not None and clock is None:
            # Without a session only the replica remembers what was sent, so that it is not sent again and
            # again.
            cached.high_watermark_sent = replica.last_sent_high_watermark
            cached.log_start_sent = cached.log_start_offset
        former = None
        if replica is not None and replica.fetch_clock is not clock:
            former = partition.attach_fetch_clock(params.replica_id, clock)
        if former is not None:
            # Either the former session was given up, or this fetch is late. In that case the next fetch there
            # must count even if it does not name the partition.
            for other in list(partition.fetch_waiters):
                if other.session is not None and other.session.clock is former:
                    other.session.name_again(other)
        if effects is NOTHING:
            return read
        cached.is_being_noted = True
        try:
            self._act(partition, effects)
        finally:
            # Cleared before the offsets are read again below, so that no change is missed.
            cached.is_being_noted = False
        log = partition.local_log
        if read.high_watermark == log.high_watermark:
            return read
        if read.records is not None or read.diverging_epoch is not None:
            # This answer is sent without waiting. The next one has the new high watermark.
            cached.notify()
            return read
        return read._replace(high_watermark=log.high_watermark, last_stable_offset=log.last_stable_offset)

    def _note_lost_range(self, partition: Partition, cached: CachedPartition, params: FetchParams) -> None:
        if cached.is_unanswered:
            cached.is_unanswered = False
            effects = partition.note_lost_range(
                params.replica_id, cached.fetch_offset, cached.current_leader_epoch, params.replica_epoch
            )
            self._act(partition, effects)

    def _is_throttled(self, partition: Partition, replica_id: int) -> bool:
        """Return whether the quota holds back a follower's fetch (KIP-73).

        It may if the partition is throttled and the follower is out of sync.
        """
        quota = self._quota
        if not quota.is_throttled(partition.topic_partition) or replica_id in partition.isr:
            return False
        return quota.is_quota_exceeded()

    def _count(self, params: FetchParams, result: FetchResult) -> None:
        """Count the content of an answer, once: a waiting fetch is read several times."""
        size = 0
        for _, data in result:
            if data.records is not None:
                size += data.records.size
        if params.replica_id < 0:
            self._bytes_out.count += size
            return
        self._replication_bytes_out.count += size
        quota = self._quota
        if quota.is_active:
            quota.record(sum(data.size for each, data in result if quota.is_throttled(each.topic_partition)))
        for cached, _ in result:
            session, partition = cached.session, cached.partition
            if session is None or session.id or params.is_for_repair:
                return
            replica = None if partition is None else partition.replica(params.replica_id)
            if replica is not None:
                replica.last_sent_high_watermark = cached.high_watermark_sent


def _bound(read: LogReadInfo, isolation: str) -> int:
    if isolation == "log_end":
        return read.log_end_offset
    return read.last_stable_offset if isolation == "txn_committed" else read.high_watermark
