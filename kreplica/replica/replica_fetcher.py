"""ReplicaFetcher: copies the records of partitions from the broker that leads them.

The partitions that a broker leads are shared out among its fetchers; each fetcher has an id.

`do_work` is a step that never blocks. It finds where logs diverge (`maybe_truncate`) and then fetches
(`maybe_fetch`). One request is in flight. Its answer is posted to the loop, applied there, and followed by
the next step. The cost of a step depends on what has changed since the last one: idle partitions are neither
looked at nor named.

Thread rule: `do_work` and answers run in the loop; any thread may add and remove partitions. `_lock` guards
the states. It is held while an answer is applied to a partition, so that nothing is applied after
`remove_partitions`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from kreplica._core.fetch_frames import Declined, FetchAnswer, PartitionAnswer
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
from kreplica.common.future import Future
from kreplica.common.locks import RLock
from kreplica.common.metrics import MetricRegistry
from kreplica.common.ports import NANOSECONDS_PER_MS, Cancellable, Clock, Loop, monotonic_ms
from kreplica.common.types import NO_OFFSET, TopicPartition
from kreplica.log.unified_log import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, UnifiedLog
from kreplica.replica.hosted_partitions import HostedPartitions
from kreplica.replica.partition import FetchedAppend
from kreplica.replica.partition_fetch_state import (
    InitialFetchState,
    PartitionFetchState,
    PartitionStates,
    ReplicaState,
    States,
)
from kreplica.replica.remote_leader_endpoint import (
    FetchSessionHandler,
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

    Answers = Iterator[tuple[bytes, int, PartitionAnswer | FetchMessage]]

LOGGER = logging.getLogger(__name__)

# The most partitions of an answer that one step applies. Heartbeats wait for the step, and an answer may have
# thousands.
ANSWERS_A_STEP = 64
FETCHING, TRUNCATING = ReplicaState.FETCHING, ReplicaState.TRUNCATING


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

    Repeated failures at one offset are logged, once a minute. The fetcher's lock guards it.
    `patience_ms`: how long a failure that may be temporary, such as an unknown leader, lasts before it is
    logged.
    """

    def __init__(self, leader_id: int, patience_ms: int, now_ms: Callable[[], int]) -> None:
        self._leader_id = leader_id
        self._patience_ms = patience_ms
        self._now_ms = now_ms
        self._standstills: dict[TopicPartition, _Standstill] = {}

    def failed(self, state: PartitionFetchState, reason: str, *, may_pass: bool = False) -> int:
        """Record a failed fetch. Returns how many have failed in a row at its offset."""
        topic_partition, offset, now_ms = state.topic_partition, state.fetch_offset, self._now_ms()
        known = self._standstills.get(topic_partition)
        if known is None or offset != known.offset:
            known = self._standstills[topic_partition] = _Standstill(offset, now_ms)
        known.failures += 1
        lasts_ms = now_ms - known.since_ms
        is_serious = lasts_ms >= self._patience_ms if may_pass else known.failures >= IN_A_ROW
        if is_serious and (known.logged_ms is None or now_ms - known.logged_ms >= LOG_EVERY_MS):
            known.logged_ms = now_ms
            LOGGER.warning(
                "%s: replication from broker %d makes no progress at offset %d (%d attempts in %d ms): %s",
                *(topic_partition, self._leader_id, offset, known.failures, lasts_ms, reason),
            )
        return known.failures

    def succeeded(self, state: PartitionFetchState) -> None:
        """Record a successful fetch."""
        if self._standstills:
            known = self._standstills.get(state.topic_partition)
            if known is not None and state.fetch_offset >= known.offset:
                del self._standstills[state.topic_partition]

    def forget(self, topic_partition: TopicPartition) -> None:
        """Forget the partition: it is no longer fetched, or in another leader epoch."""
        self._standstills.pop(topic_partition, None)


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

    def watch_declined(self, declined: Mapping[Declined, int]) -> None:
        """Add a gauge for each reason why an answer is read as a message."""
        for reason in Declined:
            self._metrics.gauge(
                STATS, "DeclinedAnswers", partial(declined.__getitem__, reason), self._tags_of_reason(reason)
            )

    def forget_lag(self, topic_partition: TopicPartition) -> None:
        """Remove the gauge of the partition's lag."""
        self._metrics.remove(LAGS, "ConsumerLag", self._tags_of(topic_partition))

    def close(self) -> None:
        """Remove the fetcher's rates: it has stopped."""
        for name in ("BytesPerSec", "RequestsPerSec", "totalTime", "requestTime"):
            self._metrics.remove(STATS, name, self._tags)
        for reason in Declined:
            self._metrics.remove(STATS, "DeclinedAnswers", self._tags_of_reason(reason))

    def _tags_of_reason(self, reason: Declined) -> dict[str, str]:
        return {**self._tags, "reason": reason.name.lower()}

    def _tags_of(self, topic_partition: TopicPartition) -> dict[str, str]:
        topic, number = topic_partition
        return {**self._client, "topic": topic, "partition": str(number)}


class ReplicaFetcher:
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
        self.name = name
        self.leader = leader
        self._partitions = partitions
        self._config = config
        self._clock = clock
        self._loop = loop
        self._quota = quota
        self.metrics = metrics
        metrics.watch_declined(leader.declined)
        self._on_moved = on_moved
        self._on_storage_failure = on_storage_failure
        self._lock = RLock()
        # Guarded by _lock:
        self._states = PartitionStates()
        self._fruitless = FruitlessFetches(leader.leader_id, config.replica_lag_time_max_ms, self._now_ms)
        self.failed: dict[TopicPartition, KreplicaError] = {}
        # Notifications to send once no lock is held.
        self._moved: list[Partition] = []
        self._broken: list[tuple[TopicPartition, KreplicaError]] = []
        # Owned by the loop:
        self._session = FetchSessionHandler()
        self._in_flight = False
        # Appends of the last answer that the disk thread has not made yet.
        self._appending = 0
        self._is_taking = False  # a part of the answer is being applied
        self._has_more_answers = False  # whether later steps apply the rest of the answer
        self._waits_until_ms = 0
        self._alarm: Cancellable | None = None
        self._closed = False

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
        state = PartitionFetchState(
            topic_partition,
            wanted.topic_id,
            wanted.fetch_offset,
            wanted.leader_epoch,
            TRUNCATING if epoch is None or not self._config.truncation_on_fetch else FETCHING,
            -1 if epoch is None else epoch,
        )
        self.failed.pop(topic_partition, None)
        self._forget(topic_partition)
        self.metrics.watch_lag(topic_partition, partial(self.lag_of, topic_partition))
        self._states.add(state)

    def remove_partitions(self, topic_partitions: Iterable[TopicPartition]) -> States:
        """Stop replicating these partitions, and return their states. No answer is applied to them
        afterwards.
        """
        with self._lock:
            removed = {}
            for topic_partition in topic_partitions:
                state = self._forget(topic_partition)
                self.failed.pop(topic_partition, None)
                if state is not None:
                    removed[topic_partition] = state
                    self._states.gone[topic_partition] = None
            return removed

    def _forget(self, topic_partition: TopicPartition) -> PartitionFetchState | None:
        state = self._states.forget(topic_partition)
        self._fruitless.forget(topic_partition)
        if state is not None:
            self.metrics.forget_lag(topic_partition)
        return state

    def __len__(self) -> int:
        return len(self._states)

    def state_of(self, topic_partition: TopicPartition) -> PartitionFetchState | None:
        return self._states.by_partition.get(topic_partition)

    def lag_of(self, topic_partition: TopicPartition) -> int:
        """Return how many messages the partition is behind its leader's high watermark; -1 if unknown."""
        state = self.state_of(topic_partition)
        return -1 if state is None or state.lag is None else state.lag

    def max_lag(self) -> int:
        """Return the largest lag of its partitions."""
        return max((state.lag or 0 for state in list(self._states.by_partition.values())), default=0)

    def shutdown(self) -> None:
        """Stop, and drop all partitions."""
        self._closed = True
        with self._lock:
            self.remove_partitions(list(self._states.by_partition))
            self.metrics.close()
            if self._alarm is not None:
                self._alarm.cancel()

    # ---- the step -----------------------------------------------------------------------------------------

    def do_work(self) -> None:
        """Send the request that is due, if none is in flight and the last answer is applied."""
        if self._in_flight or self._has_more_answers or self._appending or self._closed:
            return
        now_ms = self._now_ms()
        if now_ms < self._waits_until_ms:
            return
        states = self._states
        with self._lock:
            if states.delayed:
                states.end_delays(now_ms)
            is_sent = (states.truncating and self._maybe_truncate()) or (
                states.out_of_range and self._maybe_find_leader_range()
            )
            if not is_sent and not self._maybe_fetch():
                self._wait_for_delays()

    def _wait_for_delays(self) -> None:
        if self._states.delayed:
            self._work_after(self._states.first_delay_ends_ms() - self._now_ms())
        elif self._states.held_back:
            self._work_after(self._config.replica_fetch_backoff_ms)

    def _work_after(self, delay_ms: int) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._loop.post_later(self.do_work, max(delay_ms, 1))

    def _back_off(self) -> None:
        # The leader did not answer, so no partition can make progress.
        self._waits_until_ms = self._now_ms() + self._config.replica_fetch_backoff_ms
        self._work_after(self._config.replica_fetch_backoff_ms)

    def _send(self, reply: Future[Any], answered: Callable[[Any], None]) -> bool:
        """Call `answered(response)` in the loop when the reply comes, and then take the next step. Return
        True, since a request was sent."""
        self._in_flight = True
        started_ns = self._clock.monotonic_ns()
        reply.add_done_callback(lambda done: self._loop.post(partial(self._take, done, answered, started_ns)))
        return True

    def _take(self, reply: Future[Any], answered: Callable[[Any], None], started_ns: int) -> None:
        self._in_flight = False
        if self._closed:
            return
        self.metrics.request_rate.mark()
        now_ns = self._clock.monotonic_ns()
        self.metrics.request_time.update((now_ns - started_ns) / NANOSECONDS_PER_MS)
        if reply.exception() is None:
            try:
                answered(reply.result())
            except Exception:
                self._recover_from_error()
                raise
        else:
            self._session.failed(is_unknown=False)
            self._back_off()
        self.metrics.total_time.update((self._clock.monotonic_ns() - started_ns) / NANOSECONDS_PER_MS)
        self.do_work()

    def _recover_from_error(self) -> None:
        # The caller raises the error. The fetcher's partitions continue after a back-off.
        self._session.failed(is_unknown=False)
        self._back_off()

    # ---- truncation ---------------------------------------------------------------------------------------

    def _maybe_truncate(self) -> bool:
        """Truncate what can be truncated, and ask the leader about the rest. Returns True if a request was
        sent.
        """
        asked: list[PartitionFetchState] = []
        epochs: dict[TopicPartition, int] = {}
        for topic_partition in list(self._states.truncating):
            state = self._states.by_partition[topic_partition]
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
        return self._send(reply, partial(self._epochs_answered, asked))

    def _epochs_answered(
        self, asked: list[PartitionFetchState], response: OffsetForLeaderEpochResponse
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
        state: PartitionFetchState,
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
        self, partition: Partition, state: PartitionFetchState, truncation: OffsetTruncationState
    ) -> bool:
        partition.truncate_to(truncation.offset)
        return self._continue_at_log_end(state, partition, is_completed=truncation.completed)

    def _continue_at_log_end(
        self, state: PartitionFetchState, partition: Partition, *, is_completed: bool
    ) -> bool:
        log = partition.local_log
        epoch = log.latest_epoch
        # A fetch contains the last epoch, so the leader's answer shows whether more must be truncated.
        done = is_completed or (self._config.truncation_on_fetch and epoch is not None)
        self._states.put(
            state._replace(
                fetch_offset=log.log_end_offset,
                last_fetched_epoch=-1 if epoch is None else epoch,
                state=FETCHING if done else TRUNCATING,
            )
        )
        return True

    # ---- out of range -------------------------------------------------------------------------------------

    def _maybe_find_leader_range(self) -> bool:
        """Ask for the leader's log end, for one partition whose fetch offset is out of range.

        Returns True if a request was sent.
        """
        for topic_partition in list(self._states.out_of_range):
            state = self._states.by_partition[topic_partition]
            if not state.delayed_until_ms:
                reply = self.leader.list_offset(state, LATEST_TIMESTAMP)
                return self._send(reply, partial(self._end_answered, state))
        return False

    def _end_answered(self, state: PartitionFetchState, response: ListOffsetsResponse) -> None:
        answer = leader_offset(response)
        with self._lock:
            partition = self._still_out_of_range(state, answer.error_code)
            if partition is None:
                return
            ends_before = answer.offset < partition.local_log.log_end_offset
            if ends_before:
                # The leader won an unclean election and lacks records of this log.
                self._states.out_of_range.pop(state.topic_partition)
                self._apply(state, self._truncate, state, OffsetTruncationState(answer.offset, True))
        if ends_before:
            self._notify()
        elif not self._closed:
            reply = self.leader.list_offset(state, EARLIEST_TIMESTAMP)
            self._send(reply, partial(self._start_answered, state))

    def _start_answered(self, state: PartitionFetchState, response: ListOffsetsResponse) -> None:
        answer = leader_offset(response)
        with self._lock:
            if self._still_out_of_range(state, answer.error_code) is None:
                return
            self._states.out_of_range.pop(state.topic_partition)
            self._apply(state, self._continue_in_range, state, answer.offset)
        self._notify()

    def _still_out_of_range(self, state: PartitionFetchState, error_code: int) -> Partition | None:
        if self.state_of(state.topic_partition) is not state:
            return None
        if error_code:
            self._refused(state, error_code)
            return None
        return self._partitions.get(state.topic_partition)

    def _continue_in_range(self, partition: Partition, state: PartitionFetchState, leader_start: int) -> bool:
        failures = self._fruitless.failed(state, "its offset or leader epoch is not the leader's")
        if leader_start >= partition.log_end_offset:
            # The leader has deleted everything that is in this log, and forgotten its epochs. It could not
            # detect whether its records continue this log.
            partition.truncate_fully_and_start_at(leader_start)
        elif failures >= IN_A_ROW:
            # The offset is inside the leader's log, so it is the leader epoch that the leader does not know.
            partition.cut_unknown_epoch()
        state = self._delay(state) if failures > 1 else state
        return self._continue_at_log_end(state, partition, is_completed=True)

    # ---- fetch --------------------------------------------------------------------------------------------

    def _maybe_fetch(self) -> bool:
        """Fetch the partitions that are not truncating, delayed or held back. Returns False if there are
        none.
        """
        states = self._states
        if states.held_back or self._quota.is_active:
            states.hold_back(self._quota)
        out = states.left_out()
        if len(out) >= len(states):
            return False
        to_send = {}
        for state in states.to_name(out, every=self._session.is_new):
            partition = self._partitions.get(state.topic_partition)
            if partition is not None and partition.log is not None:
                to_send[state.topic_partition] = state.asks(partition.log.log_start_offset)
        fetch = self._session.build(to_send, [*states.gone, *out])
        states.mark_sent()
        return self._send(self.leader.fetch(fetch), self._fetched)

    def _fetched(self, response: FetchAnswer | FetchResponse) -> None:
        if isinstance(response, FetchAnswer):
            self._session.answered(response.session_id)
            self._take_answers(iter(response.partitions))
            return
        if response.error_code:
            error = BY_CODE.get(int(response.error_code))
            self._session.failed(is_unknown=error is FetchSessionIdNotFound)
            if error not in (FetchSessionIdNotFound, InvalidFetchSessionEpoch):
                self._back_off()
            return
        self._session.answered(response.session_id)
        self._take_answers(fetch_answers(response))

    def _take_answers(self, answers: Answers) -> None:
        """Apply the answers for the next ANSWERS_A_STEP partitions, and leave the others to later steps."""
        taken = 0
        self._is_taking = True
        try:
            for topic_id, number, answer in islice(answers, ANSWERS_A_STEP):
                taken += 1
                with self._lock:
                    topic_partition = self._states.with_id(topic_id, number)
                    if topic_partition is not None:
                        self._take_answer(topic_partition, answer)
        finally:
            self._is_taking = False
        self._notify()
        if taken == ANSWERS_A_STEP:
            self._has_more_answers = True
            self._loop.post(partial(self._take_more_answers, answers))

    def _take_more_answers(self, answers: Answers) -> None:
        self._has_more_answers = False
        if self._closed:
            return
        try:
            self._take_answers(answers)
        except Exception:
            self._recover_from_error()
            raise
        self.do_work()

    def _take_answer(self, topic_partition: TopicPartition, answer: PartitionAnswer | FetchMessage) -> None:
        states, sent = self._states, self._session.sent.get(topic_partition)
        state = states.by_partition[topic_partition]
        if sent is None or topic_partition in states.delayed or state.state is TRUNCATING:
            # The partition is no longer in the session, or leaves it with the next fetch.
            return
        if sent.fetch_offset != state.fetch_offset or sent.leader_epoch != state.leader_epoch:
            # The partition has changed since the fetch was sent. The leader assumes that its answer was used,
            # and would not send the high watermark or the log start again in this session.
            self._session.failed(is_unknown=False)
            return
        if isinstance(answer, PartitionAnswer):
            # It has no error and no diverging epoch.
            self._apply(state, self._process_partition_data, state, answer)
        elif answer.error_code:
            self._refused(state, answer.error_code)
        elif answer.diverging_epoch.end_offset >= 0:
            # Only the diverging epoch and the log start count, not the high watermark (KAFKA-14704).
            if self._fruitless.failed(state, f"the logs diverge: {answer.diverging_epoch}") > IN_A_ROW:
                # Wait: the leader finds its own rot when it is asked again.
                state = self._delay(state)
            diverging = (answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset)
            self._apply(state, self._truncate_to_epoch, state, diverging, answer.log_start_offset)
        else:
            self._apply(state, self._process_partition_data, state, answer)

    def _process_partition_data(
        self, partition: Partition, state: PartitionFetchState, answer: PartitionAnswer | FetchMessage
    ) -> bool:
        """Append the records, then take over the leader's offsets.

        Returns True if the log or the high watermark has moved. An append that is still under way continues
        in `finished`.
        """
        log, epoch = partition.local_log, state.leader_epoch
        if log.state.log_end_offset != state.fetch_offset:
            # Something else has truncated or extended the log: fetch again from its current end.
            latest = log.latest_epoch
            epoch = -1 if latest is None else latest
            self._states.put(state._replace(fetch_offset=log.log_end_offset, last_fetched_epoch=epoch))
            # The leader would not send the high watermark of this answer again in the same session.
            self._session.failed(is_unknown=False)
            return False
        records: Any = answer.records
        if records is None or not len(records):
            return self._take_leader_offsets(partition, state, answer, None)
        self.metrics.byte_rate.mark(len(records))
        if self._quota.is_throttled(state.topic_partition):
            self._quota.record(len(records))
        append = FetchedAppend(
            partition, records, epoch, answer.log_start_offset, request=self, token=(state, answer)
        )
        if partition.append(append):
            return self._take_leader_offsets(partition, state, answer, append)
        self._appending += 1
        return False

    def finished(self, append: FetchedAppend) -> None:
        """Continue after the disk thread has appended the records for one partition."""
        state: PartitionFetchState = append.token[0]
        answer: PartitionAnswer | FetchMessage = append.token[1]
        self._appending -= 1
        with self._lock:
            if self.state_of(state.topic_partition) is state:
                self._apply(state, self._take_leader_offsets, state, answer, append)
        if not self._is_taking:
            self._notify()
            self.do_work()

    def _take_leader_offsets(
        self,
        partition: Partition,
        state: PartitionFetchState,
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
        self._states.put(state.advanced_to(end, lag, -1 if latest is None else latest))
        return moved

    # ---- errors -------------------------------------------------------------------------------------------

    def _refused(self, state: PartitionFetchState, error_code: int) -> None:
        """Handle the leader's error for the partition."""
        kind = BY_CODE.get(int(error_code), UnknownServerError)
        if kind is OffsetOutOfRange:
            self._states.out_of_range[state.topic_partition] = None
            self._states.gone[state.topic_partition] = None
        elif kind is FencedLeaderEpoch:
            # There is a later leader epoch, which this broker will learn. Nothing can be done before that.
            self._give_up(state.topic_partition, kind(f"leader epoch {state.leader_epoch} is over"))
        else:
            self._fruitless.failed(state, kind.__name__, may_pass=kind is not CorruptMessage)
            self._delay(state)

    def _apply(self, state: PartitionFetchState, step: Callable[..., bool], *arguments: Any) -> None:
        """Run `step(partition, *arguments)`, and handle its errors."""
        topic_partition = state.topic_partition
        partition = self._partitions.get(topic_partition)
        if partition is None:
            return
        try:
            if step(partition, *arguments):
                self._moved.append(partition)
        except (FencedLeaderEpoch, NotLeaderOrFollower) as error:
            # The partition's role has changed. The caller that changed it removes it from this fetcher.
            self._give_up(topic_partition, error)
        except KafkaStorageError as error:
            log = partition.log
            self._broken.append((topic_partition, error))
            if isinstance(error, StorageFull) and log is not None and not log.is_offline:
                # The disk may have room again later.
                self._delay(state)
            else:
                self._give_up(topic_partition, error)
        except KreplicaError as error:
            # The data was damaged in transit, or the leader has changed meanwhile: fetch again.
            self._fruitless.failed(state, f"{type(error).__name__}: {error}")
            self._delay(state)

    def _give_up(self, topic_partition: TopicPartition, error: KreplicaError) -> None:
        self._forget(topic_partition)
        self._states.gone[topic_partition] = None
        self.failed[topic_partition] = error

    def _delay(self, state: PartitionFetchState) -> PartitionFetchState:
        self._session.name_again(state.topic_partition)
        until_ms = self._now_ms() + self._config.replica_fetch_backoff_ms
        delayed = state._replace(delayed_until_ms=until_ms)
        self._states.put(delayed)
        return delayed

    def _notify(self) -> None:
        """Notify of moves and failures, with no lock held."""
        if not self._moved and not self._broken:
            return
        with self._lock:
            moved, self._moved = self._moved, []
            broken, self._broken = self._broken, []
        for partition in moved:
            self._on_moved(partition)
        for topic_partition, error in broken:
            self._on_storage_failure(topic_partition, error)

    def _now_ms(self) -> int:
        return monotonic_ms(self._clock)
