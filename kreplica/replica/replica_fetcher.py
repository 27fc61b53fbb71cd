"""ReplicaFetcher: copies the records of partitions from the broker that leads them.

The partitions that a broker leads are shared out among its fetchers; each fetcher has an id.

`do_work` is a step that never blocks. It finds where logs diverge (`maybe_truncate`) and then fetches
(`maybe_fetch`). One request is in flight. Its answer is posted to the loop, applied there, and followed by
the next step. The cost of a step depends on what has changed since the last one: idle partitions are neither
looked at nor named.

The steps themselves are native (_core/fetch_steps). The states of the partitions and the fetch session are in
the Follower (_core/follower). It applies the answers that need no decision; `decide` handles the others, with
the same states.

Thread rule: `do_work` and answers run in the loop; any thread may add and remove partitions. `_lock` guards
the Follower. It is held while an answer is applied to a partition, so that nothing is applied after
`remove_partitions`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from kreplica._core.fetch_frames import Declined, PartitionAnswer
from kreplica._core.fetch_steps import FetchSteps
from kreplica._core.follower import PARTITIONS_DECLINED, FollowedAppend, FollowedPartition, Follower
from kreplica.common.dataclass import dataclass
from kreplica.common.errors import (
    BY_CODE,
    CorruptMessage,
    FencedLeaderEpoch,
    FetchSessionIdNotFound,
    InvalidFetchSessionEpoch,
    KafkaStorageError,
    KreplicaError,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    StorageFull,
    UnknownServerError,
)
from kreplica.common.locks import RLock
from kreplica.common.metrics import MetricRegistry
from kreplica.common.ports import Cancellable, Clock, Loop, monotonic_ms
from kreplica.common.types import NO_OFFSET, TopicPartition, Uuid
from kreplica.log.append_queue import INLINE
from kreplica.log.unified_log import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, UnifiedLog
from kreplica.replica.hosted_partitions import HostedPartitions
from kreplica.replica.partition import FetchedAppend
from kreplica.replica.remote_leader_endpoint import (
    RemoteLeaderEndPoint,
    epoch_answers,
    fetch_answers,
    leader_offset,
)
from kreplica.replica.replica_config import ReplicaConfig
from kreplica.replica.replication_quotas import ReplicationQuotaManager

if TYPE_CHECKING:
    from kreplica.common.messages.data import FetchResponse, ListOffsetsResponse, OffsetForLeaderEpochResponse
    from kreplica.common.messages.data import PartitionData as FetchMessage
    from kreplica.replica.partition import Partition

    Answers = list[tuple[bytes, int, PartitionAnswer]] | list[tuple[bytes, int, FetchMessage]]

LOGGER = logging.getLogger(__name__)


class InitialFetchState(NamedTuple):
    """Where a partition's replication starts.

    `fetch_offset`: the log end if the log knows leader epochs, else the high watermark.
    """

    topic_id: Uuid
    leader: int
    leader_epoch: int
    fetch_offset: int


class OffsetTruncationState(NamedTuple):
    """Truncate to `offset`. `completed`: the logs agree below it; if not, ask the leader again."""

    offset: int
    completed: bool


def offset_truncation_state(
    log: UnifiedLog, leader_epoch: int, leader_end_offset: int
) -> OffsetTruncationState:
    """Compute where a follower truncates (KIP-101, KIP-279, KIP-320).

    The leader has answered with its greatest epoch not above the follower's, and the offset where that epoch
    ends. An answer of (-1, -1) means that it has no epoch that old, so only committed records are kept. If
    the follower has the same epoch, the logs agree up to the lower of the two ends. Otherwise the follower
    has records of an epoch that the leader never had. Those are truncated, and the leader is asked about the
    follower's last epoch again.
    """
    end = log.log_end_offset
    if leader_end_offset < 0:
        return OffsetTruncationState(log.high_watermark, True)
    if leader_epoch < 0:
        return OffsetTruncationState(min(leader_end_offset, end), True)
    epoch, end_offset = log.epochs.end_offset_for(leader_epoch, end)
    if end_offset < 0:
        # All epochs of this log are below the leader's.
        return OffsetTruncationState(min(leader_end_offset, end), True)
    if epoch != leader_epoch:
        return OffsetTruncationState(min(end_offset, end), False)
    return OffsetTruncationState(min(end_offset, leader_end_offset, end), True)


# This many failures in a row at one offset are not a coincidence.
IN_A_ROW = 3
LOG_EVERY_MS = 60_000


@dataclass(slots=True)
class _Standstill:
    """A fetch from `offset` has failed, and no fetch from there or above has succeeded since."""

    offset: int
    since_ms: int
    failures: int = 0
    logged_ms: int | None = None


class FruitlessFetches:
    """Counts and logs fetches that fail although the leader, broker `leader_id`, answers.

    Repeated failures at one offset are logged, once a minute. A partition's standstill is in its state, which
    the fetcher's lock guards. `patience_ms`: how long a failure that may be temporary, such as an unknown
    leader, lasts before it is logged.
    """

    def __init__(self, leader_id: int, patience_ms: int, now_ms: Callable[[], int]) -> None:
        self._leader_id = leader_id
        self._patience_ms = patience_ms
        self._now_ms = now_ms

    def failed(self, state: FollowedPartition, reason: str, *, may_pass: bool = False) -> int:
        """Record a failed fetch. Returns how many have failed in a row at its offset."""
        offset, now_ms = state.fetch_offset, self._now_ms()
        known: _Standstill | None = state.standstill
        if known is None or offset != known.offset:
            known = state.standstill = _Standstill(offset, now_ms)
        known.failures += 1
        lasts_ms = now_ms - known.since_ms
        is_serious = lasts_ms >= self._patience_ms if may_pass else known.failures >= IN_A_ROW
        if is_serious and (known.logged_ms is None or now_ms - known.logged_ms >= LOG_EVERY_MS):
            known.logged_ms = now_ms
            LOGGER.warning(
                "%s: replication from broker %d makes no progress at offset %d (%d attempts in %d ms): %s",
                *(state.topic_partition, self._leader_id, offset, known.failures, lasts_ms, reason),
            )
        return known.failures

    def succeeded(self, state: FollowedPartition) -> None:
        """Record a successful fetch."""
        known: _Standstill | None = state.standstill
        if known is not None and state.fetch_offset >= known.offset:
            state.standstill = None


STATS = "FetcherStats"
LAGS = "FetcherLagMetrics"


class FetcherMetrics:
    """The metrics of the fetcher `fetcher_id` from broker `leader_id`, which listens at `address`.

    Rates are in bytes and requests, times in ms. `close` removes them.
    """

    def __init__(
        self, metrics: MetricRegistry, fetcher_id: int, leader_id: int, address: tuple[str, int] | None
    ) -> None:
        self._metrics = metrics
        host, port = address or ("", -1)
        self._client = {"clientId": f"ReplicaFetcherThread-{fetcher_id}-{leader_id}"}
        self._tags = tags = {**self._client, "brokerHost": host, "brokerPort": str(port)}
        self.byte_rate = metrics.meter(STATS, "BytesPerSec", tags)
        self.request_rate = metrics.meter(STATS, "RequestsPerSec", tags)
        self.total_time = metrics.duration(STATS, "totalTime", tags)
        self.request_time = metrics.duration(STATS, "requestTime", tags)

    def watch_lag(self, topic_partition: TopicPartition, lag: Callable[[], int]) -> None:
        """Add a gauge for `lag()`, in messages."""
        self._metrics.gauge(LAGS, "ConsumerLag", lag, self._tags_of(topic_partition))

    def watch_declined(self, answers: Mapping[Declined, int], partitions: Callable[[int], int]) -> None:
        """Add gauges for the reasons why an answer is read as a message, and a partition's left to Python."""
        for reason in Declined:
            count = partial(answers.__getitem__, reason)
            self._metrics.gauge(STATS, "DeclinedAnswers", count, self._tags_of_reason(reason.name.lower()))
        for number, name in enumerate(PARTITIONS_DECLINED):
            count = partial(partitions, number)
            self._metrics.gauge(STATS, "DeclinedPartitions", count, self._tags_of_reason(name))

    def forget_lag(self, topic_partition: TopicPartition) -> None:
        """Remove the gauge of the partition's lag."""
        self._metrics.remove(LAGS, "ConsumerLag", self._tags_of(topic_partition))

    def close(self) -> None:
        """Remove the fetcher's rates: it has stopped."""
        for name in ("BytesPerSec", "RequestsPerSec", "totalTime", "requestTime"):
            self._metrics.remove(STATS, name, self._tags)
        for reason in Declined:
            self._metrics.remove(STATS, "DeclinedAnswers", self._tags_of_reason(reason.name.lower()))
        for name in PARTITIONS_DECLINED:
            self._metrics.remove(STATS, "DeclinedPartitions", self._tags_of_reason(name))

    def _tags_of_reason(self, reason: str) -> dict[str, str]:
        return {**self._tags, "reason": reason}

    def _tags_of(self, topic_partition: TopicPartition) -> dict[str, str]:
        topic, number = topic_partition
        return {**self._client, "topic": topic, "partition": str(number)}


class ReplicaFetcher(FetchSteps):
    """Fetches from `leader`. `name`: the name of its loop.

    `on_moved(partition)`: the partition's log or high watermark has moved.
    `on_storage_failure(topic_partition, error)`: its log has failed, or its disk is full. Both are called
    with no lock held.
    """

    def __init__(
        self,
        name: str,
        leader: RemoteLeaderEndPoint,
        partitions: HostedPartitions,
        config: ReplicaConfig,
        *,
        clock: Clock,
        loop: Loop,
        quota: ReplicationQuotaManager,
        metrics: FetcherMetrics,
        on_moved: Callable[[Partition], None],
        on_storage_failure: Callable[[TopicPartition, KreplicaError], None],
    ) -> None:
        super().__init__(
            leader,
            quota,
            metrics,
            follower=Follower,
            lock=RLock(),
            hosted=partitions.get,
            inline=INLINE,
            clock=clock,
            loop=loop,
        )
        self.name = name
        self._partitions = partitions
        self._config = config
        self._on_moved = on_moved
        self._on_storage_failure = on_storage_failure
        metrics.watch_declined(leader.declined, self._follower.declined)
        self._fruitless = FruitlessFetches(leader.leader_id, config.replica_lag_time_max_ms, self._now_ms)
        self.failed: dict[TopicPartition, KreplicaError] = {}  # guarded by _lock
        self._alarm: Cancellable | None = None  # owned by the loop

    # ---- partitions ---------------------------------------------------------------------------------------

    def add_partitions(self, initial: Mapping[TopicPartition, InitialFetchState]) -> None:
        """Replicate these partitions too. One that is replicated in the same leader epoch is left as it
        is.
        """
        with self._lock:
            for topic_partition, wanted in initial.items():
                known = self.state_of(topic_partition)
                if known is None or known.leader_epoch != wanted.leader_epoch:
                    self._add(topic_partition, wanted)
        self._loop.post(self.do_work)

    def _add(self, topic_partition: TopicPartition, wanted: InitialFetchState) -> None:
        partition = self._partitions.get(topic_partition)
        epoch = None if partition is None else partition.local_log.latest_epoch
        self.failed.pop(topic_partition, None)
        self.metrics.watch_lag(topic_partition, partial(self.lag_of, topic_partition))
        self._follower.add(
            FollowedPartition(
                topic_partition,
                wanted.topic_id,
                wanted.fetch_offset,
                wanted.leader_epoch,
                last_fetched_epoch=-1 if epoch is None else epoch,
                is_truncating=epoch is None or not self._config.truncation_on_fetch,
            )
        )

    def remove_partitions(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Stop replicating these partitions. No answer is applied to them afterwards."""
        with self._lock:
            for topic_partition in topic_partitions:
                self._forget(topic_partition)
                self.failed.pop(topic_partition, None)

    def _forget(self, topic_partition: TopicPartition) -> None:
        if self._follower.forget(topic_partition) is not None:
            self.metrics.forget_lag(topic_partition)

    def __len__(self) -> int:
        return len(self._follower)

    def state_of(self, topic_partition: TopicPartition) -> FollowedPartition | None:
        return self._follower.by_partition.get(topic_partition)

    def lag_of(self, topic_partition: TopicPartition) -> int:
        """Return how many messages the partition is behind its leader's high watermark; -1 if unknown."""
        state = self.state_of(topic_partition)
        return -1 if state is None or state.lag is None else state.lag

    def max_lag(self) -> int:
        """Return the largest lag of its partitions."""
        return max((state.lag or 0 for state in list(self._follower.by_partition.values())), default=0)

    def shutdown(self) -> None:
        """Stop, and drop all partitions."""
        self._closed = True
        with self._lock:
            self.remove_partitions(list(self._follower.by_partition))
            self.metrics.close()
            if self._alarm is not None:
                self._alarm.cancel()

    # ---- the step -----------------------------------------------------------------------------------------

    def _send_first(self) -> bool:
        """End delays that are over, and truncate. Return whether a request was sent for that."""
        if self._follower.delayed:
            self._follower.end_delays(self._now_ms())
        return (bool(self._follower.truncating) and self._maybe_truncate()) or (
            bool(self._follower.out_of_range) and self._maybe_find_leader_range()
        )

    def _wait(self) -> None:
        if self._follower.delayed:
            self._work_after(self._follower.first_delay_ends_ms() - self._now_ms())
        elif self._follower.held_back:
            self._work_after(self._config.replica_fetch_backoff_ms)

    def _work_after(self, delay_ms: int) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._loop.post_later(self.do_work, max(delay_ms, 1))

    def _back_off(self) -> None:
        # The leader did not answer, so no partition can make progress.
        self._waits_until_ms = self._now_ms() + self._config.replica_fetch_backoff_ms
        self._work_after(self._config.replica_fetch_backoff_ms)

    def _recover_from_error(self) -> None:
        # The caller raises the error. The fetcher's partitions continue after a back-off.
        self._follower.failed(is_unknown=False)
        self._back_off()

    # ---- truncation ---------------------------------------------------------------------------------------

    def _maybe_truncate(self) -> bool:
        """Truncate what can be truncated, and ask the leader about the rest. Returns True if a request was
        sent.
        """
        asked: list[FollowedPartition] = []
        epochs: dict[TopicPartition, int] = {}
        for state in list(self._follower.truncating):
            topic_partition = state.topic_partition
            partition = self._partitions.get(topic_partition)
            if state.delayed_until_ms or partition is None:
                continue
            epoch = partition.local_log.latest_epoch
            if epoch is None:
                # The log has no epochs, so only committed records are certain.
                at_mark = OffsetTruncationState(partition.local_log.high_watermark, True)
                self._apply(state, self._truncate, state, at_mark)
            else:
                asked.append(state)
                epochs[topic_partition] = epoch
        if not asked:
            return False
        reply = self.leader.fetch_epoch_end_offsets(asked, epochs)
        self._send(reply, partial(self._epochs_answered, asked))
        return True

    def _epochs_answered(
        self, asked: list[FollowedPartition], response: OffsetForLeaderEpochResponse
    ) -> None:
        answers = epoch_answers(response)
        for state in asked:
            answer = answers.get(state.topic_partition)
            if answer is None:
                continue
            with self._lock:
                if self.state_of(state.topic_partition) is not state:
                    continue
                if answer.error_code:
                    self._refused(state, answer.error_code)
                else:
                    end = (answer.leader_epoch, answer.end_offset)
                    self._apply(state, self._truncate_to_epoch, state, end, NO_OFFSET)
        self._notify()

    def _truncate_to_epoch(
        self,
        partition: Partition,
        state: FollowedPartition,
        leader_end: tuple[int, int],
        leader_start: int,
    ) -> bool:
        if 0 <= leader_end[1] <= leader_start:
            # The leader has deleted the records up to there and forgotten their epochs. The local records may
            # differ from them; they were never committed then.
            partition.truncate_fully_and_start_at(leader_start)
            return self._continue_at_log_end(state, partition, is_completed=True)
        return self._truncate(partition, state, offset_truncation_state(partition.local_log, *leader_end))

    def _truncate(
        self, partition: Partition, state: FollowedPartition, truncation: OffsetTruncationState
    ) -> bool:
        partition.truncate_to(truncation.offset)
        return self._continue_at_log_end(state, partition, is_completed=truncation.completed)

    def _continue_at_log_end(
        self, state: FollowedPartition, partition: Partition, *, is_completed: bool
    ) -> bool:
        log = partition.local_log
        epoch = log.latest_epoch
        # A fetch contains the last epoch, so the leader's answer shows whether more must be truncated.
        done = is_completed or (self._config.truncation_on_fetch and epoch is not None)
        state.fetch_offset = log.log_end_offset
        state.last_fetched_epoch = -1 if epoch is None else epoch
        state.is_truncating = not done
        self._follower.put(state)
        return True

    # ---- out of range -------------------------------------------------------------------------------------

    def _maybe_find_leader_range(self) -> bool:
        """Ask for the leader's log end, for one partition whose fetch offset is out of range.

        Returns True if a request was sent.
        """
        for state in list(self._follower.out_of_range):
            if not state.delayed_until_ms:
                reply = self.leader.list_offset(state, LATEST_TIMESTAMP)
                self._send(reply, partial(self._end_answered, state))
                return True
        return False

    def _end_answered(self, state: FollowedPartition, response: ListOffsetsResponse) -> None:
        answer = leader_offset(response)
        with self._lock:
            partition = self._still_out_of_range(state, answer.error_code)
            if partition is None:
                return
            ends_before = answer.offset < partition.local_log.log_end_offset
            if ends_before:
                # The leader won an unclean election and lacks records of this log.
                del self._follower.out_of_range[state]
                self._apply(state, self._truncate, state, OffsetTruncationState(answer.offset, True))
        if ends_before:
            self._notify()
        elif not self._closed:
            reply = self.leader.list_offset(state, EARLIEST_TIMESTAMP)
            self._send(reply, partial(self._start_answered, state))

    def _start_answered(self, state: FollowedPartition, response: ListOffsetsResponse) -> None:
        answer = leader_offset(response)
        with self._lock:
            if self._still_out_of_range(state, answer.error_code) is None:
                return
            del self._follower.out_of_range[state]
            self._apply(state, self._continue_in_range, state, answer.offset)
        self._notify()

    def _still_out_of_range(self, state: FollowedPartition, error_code: int) -> Partition | None:
        if self.state_of(state.topic_partition) is not state:
            return None
        if error_code:
            self._refused(state, error_code)
            return None
        return self._partitions.get(state.topic_partition)

    def _continue_in_range(self, partition: Partition, state: FollowedPartition, leader_start: int) -> bool:
        failures = self._fruitless.failed(state, "its offset or leader epoch is not the leader's")
        if leader_start >= partition.log_end_offset:
            # The leader has deleted everything that is in this log, and forgotten its epochs. It could not
            # detect whether its records continue this log.
            partition.truncate_fully_and_start_at(leader_start)
        elif failures >= IN_A_ROW:
            # The offset is inside the leader's log, so it is the leader epoch that the leader does not know.
            partition.cut_unknown_epoch()
        if failures > 1:
            self._delay(state)
        return self._continue_at_log_end(state, partition, is_completed=True)

    # ---- fetch --------------------------------------------------------------------------------------------

    def _message_fetched(self, response: FetchResponse) -> None:
        if response.error_code:
            error = BY_CODE.get(int(response.error_code))
            self._follower.failed(is_unknown=error is FetchSessionIdNotFound)
            if error not in (FetchSessionIdNotFound, InvalidFetchSessionEpoch):
                self._back_off()
            return
        self._follower.answered(response.session_id)
        self._take_answers(fetch_answers(response))

    # ---- for the Follower ---------------------------------------------------------------------------------

    def decide(self, state: FollowedPartition, answer: PartitionAnswer | FetchMessage) -> None:
        """Handle an answer for one partition that needs a decision."""
        if isinstance(answer, PartitionAnswer):
            # It has no error and no diverging epoch.
            self._apply(state, self._process_partition_data, state, answer)
        elif answer.error_code:
            self._refused(state, answer.error_code)
        elif answer.diverging_epoch.end_offset >= 0:
            # Only the diverging epoch and the log start count, not the high watermark (KAFKA-14704).
            if self._fruitless.failed(state, f"the logs diverge: {answer.diverging_epoch}") > IN_A_ROW:
                # Wait: the leader finds its own rot when it is asked again.
                self._delay(state)
            diverging = (answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset)
            self._apply(state, self._truncate_to_epoch, state, diverging, answer.log_start_offset)
        else:
            self._apply(state, self._process_partition_data, state, answer)

    def take_over(self, append: FollowedAppend) -> FetchedAppend:
        """Return an append of what a native one has not appended: the core declined it, or the disk thread
        did not begin it."""
        state, answer = append.state_of_fetch, append.answer
        rest = FetchedAppend(
            append.partition,
            append.rest,
            state.leader_epoch,
            answer.log_start_offset,
            request=self,
            token=(state, answer),
        )
        rest.info, rest.log = append.info(), append.log
        return rest

    def append_rest(self, append: FollowedAppend) -> None:
        """Append what the core has declined."""
        state, answer = append.state_of_fetch, append.answer
        self._apply(state, self._append, state, answer, self.take_over(append))

    # ---- an answer with care ------------------------------------------------------------------------------

    def _process_partition_data(
        self, partition: Partition, state: FollowedPartition, answer: PartitionAnswer | FetchMessage
    ) -> bool:
        """Append the records, then take over the leader's offsets.

        Returns True if the log or the high watermark has moved. An append that is still under way continues
        in `finished`.
        """
        log = partition.local_log
        if log.state.log_end_offset != state.fetch_offset:
            # Something else has truncated or extended the log: fetch again from its current end.
            latest = log.latest_epoch
            state.fetch_offset = log.log_end_offset
            state.last_fetched_epoch = -1 if latest is None else latest
            self._follower.put(state)
            # The leader would not send the high watermark of this answer again in the same session.
            self._follower.failed(is_unknown=False)
            return False
        records: Any = answer.records
        if records is None or not len(records):
            return self._take_leader_offsets(partition, state, answer, None)
        self.metrics.byte_rate.mark(len(records))
        if self.quota.is_throttled(state.topic_partition):
            self.quota.record(len(records))
        append = FetchedAppend(
            partition,
            records,
            state.leader_epoch,
            answer.log_start_offset,
            request=self,
            token=(state, answer),
        )
        return self._append(partition, state, answer, append)

    def _append(
        self,
        partition: Partition,
        state: FollowedPartition,
        answer: PartitionAnswer | FetchMessage,
        append: FetchedAppend,
    ) -> bool:
        if partition.append(append):
            return self._take_leader_offsets(partition, state, answer, append)
        self._follower.appending += 1
        state.is_appending = True
        return False

    def finished(self, append: FetchedAppend) -> None:
        """Continue after the disk thread has appended the records for one partition."""
        state: FollowedPartition = append.token[0]
        answer: PartitionAnswer | FetchMessage = append.token[1]
        self._follower.appending -= 1
        with self._lock:
            state.is_appending = False
            if self.state_of(state.topic_partition) is state:
                self._apply(state, self._take_leader_offsets, state, answer, append)
        self.resume()

    def _take_leader_offsets(
        self,
        partition: Partition,
        state: FollowedPartition,
        answer: PartitionAnswer | FetchMessage,
        append: FetchedAppend | None,
    ) -> bool:
        """Take over the leader's high watermark and log start after an append. Returns True if anything
        moved.
        """
        moved = False
        if append is not None:
            if append.error is not None:
                raise append.error
            moved = append.info is not None
            if not moved and answer.records is not None:
                partition.require_no_later_epoch(answer.records, state.leader_epoch)
        self._fruitless.succeeded(state)
        log, epoch = partition.local_log, state.leader_epoch
        moved |= partition.update_follower_high_watermark(answer.high_watermark, epoch)
        started = answer.log_start_offset > log.log_start_offset and (
            partition.maybe_increment_log_start_offset(answer.log_start_offset, epoch)
        )
        end = log.state.log_end_offset
        lag = max(0, answer.high_watermark - end)
        if end == state.fetch_offset and not started and lag == state.lag:
            return moved
        latest = log.latest_epoch
        state.fetch_offset, state.lag = end, lag
        state.last_fetched_epoch = -1 if latest is None else latest
        self._follower.put(state)
        return moved

    # ---- errors -------------------------------------------------------------------------------------------

    def _refused(self, state: FollowedPartition, error_code: int) -> None:
        """Handle the leader's error for the partition."""
        kind = BY_CODE.get(int(error_code), UnknownServerError)
        if kind is OffsetOutOfRange:
            self._follower.out_of_range[state] = None
        elif kind is FencedLeaderEpoch:
            # There is a later leader epoch, which this broker will learn. Nothing can be done before that.
            self._give_up(state.topic_partition, kind(f"leader epoch {state.leader_epoch} is over"))
        else:
            self._fruitless.failed(state, kind.__name__, may_pass=kind is not CorruptMessage)
            self._delay(state)

    def _apply(self, state: FollowedPartition, step: Callable[..., bool], *arguments: Any) -> None:
        """Run `step(partition, *arguments)`, and handle its errors."""
        partition = self._partitions.get(state.topic_partition)
        if partition is None:
            return
        try:
            if step(partition, *arguments):
                self._follower.moved.append(partition)
        except KreplicaError as error:
            self.handle(state, error)

    def handle(self, state: FollowedPartition, error: Exception) -> None:
        """Handle an error of applying an answer to the partition. Raises any that is not of the package."""
        topic_partition = state.topic_partition
        if isinstance(error, (FencedLeaderEpoch, NotLeaderOrFollower)):
            # The partition's role has changed. The caller that changed it removes it from this fetcher.
            self._give_up(topic_partition, error)
        elif isinstance(error, KafkaStorageError):
            partition = self._partitions.get(topic_partition)
            log = None if partition is None else partition.log
            self._broken.append((topic_partition, error))
            if isinstance(error, StorageFull) and log is not None and not log.is_offline:
                # The disk may have room again later.
                self._delay(state)
            else:
                self._give_up(topic_partition, error)
        elif isinstance(error, KreplicaError):
            # The data was damaged in transit, or the leader has changed meanwhile: fetch again.
            self._fruitless.failed(state, f"{type(error).__name__}: {error}")
            self._delay(state)
        else:
            raise error

    def _give_up(self, topic_partition: TopicPartition, error: KreplicaError) -> None:
        self._forget(topic_partition)
        self.failed[topic_partition] = error

    def _delay(self, state: FollowedPartition) -> None:
        self._follower.name_again(state)
        state.delayed_until_ms = self._now_ms() + self._config.replica_fetch_backoff_ms
        self._follower.put(state)

    def _notify(self) -> None:
        """Notify of moves and failures, with no lock held."""
        if not self._follower.moved and not self._broken:
            return
        with self._lock:
            moved = list(self._follower.moved)
            self._follower.moved.clear()
            broken = list(self._broken)
            self._broken.clear()
        for partition in moved:
            self._on_moved(partition)
        for topic_partition, error in broken:
            self._on_storage_failure(topic_partition, error)

    def _now_ms(self) -> int:
        return monotonic_ms(self._clock)
