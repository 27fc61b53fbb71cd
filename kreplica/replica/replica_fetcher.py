"""ReplicaFetcher: replicates the partitions that one broker leads, as far as they fall to one fetcher id.

`do_work` is a step that never blocks: it finds out where logs part (`maybe_truncate`), then fetches
(`maybe_fetch`). One request is in flight; its answer is posted to the loop, taken in there, and followed by
the next step. A step costs what has changed since the last one, not what there is: an idle partition is
neither looked at nor named.

Thread rule: `do_work` and answers run in the loop, partitions come and go from any thread; `_lock` guards
the states, and is held while an answer is applied to a partition, so that nothing is applied after
`remove_partitions`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

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
from kreplica.common.ports import NANOSECONDS_PER_MS, Cancellable, Clock, Loop, monotonic_ms
from kreplica.common.types import NO_OFFSET, TopicPartition
from kreplica.log.fetch_data import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from kreplica.replica.fetch_session_handler import FetchSessionHandler
from kreplica.replica.fetcher_metrics import FetcherMetrics
from kreplica.replica.fruitless_fetches import IN_A_ROW, FruitlessFetches
from kreplica.replica.hosted_partitions import HostedPartitions
from kreplica.replica.offset_truncation import OffsetTruncationState, offset_truncation_state
from kreplica.replica.partition_fetch_state import InitialFetchState, PartitionFetchState, ReplicaState
from kreplica.replica.partition_states import PartitionStates, States
from kreplica.replica.remote_leader_endpoint import (
    RemoteLeaderEndPoint,
    epoch_answers,
    fetch_answers,
    leader_offset,
)
from kreplica.replica.replica_config import ReplicaConfig
from kreplica.replica.replication_quota import ReplicationQuotaManager

if TYPE_CHECKING:
    from kio.schema.fetch.v17.response import FetchResponse
    from kio.schema.fetch.v17.response import PartitionData as FetchAnswer
    from kio.schema.list_offsets.v8.response import ListOffsetsResponse
    from kio.schema.offset_for_leader_epoch.v4.response import OffsetForLeaderEpochResponse

    from kreplica._core.log_append_info import LogAppendInfo
    from kreplica.common.types import Uuid
    from kreplica.replica.partition import Partition

    # How the append of what came went: nothing was new, or the error for which nothing was appended.
    Appended = LogAppendInfo | KreplicaError | None

# Of one answer, what is taken in one step, for which heartbeats wait: there may be thousands.
ANSWERS_A_STEP = 64
FETCHING, TRUNCATING = ReplicaState.FETCHING, ReplicaState.TRUNCATING


class ReplicaFetcher:
    """Fetches from `leader`. `name`: of its loop.

    `on_moved(partition)`: the partition's log or high watermark has moved.
    `on_storage_failure(topic_partition, error)`: its log has failed, or its disk is full. Neither is called
    with a lock held.
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
        self._on_moved = on_moved
        self._on_storage_failure = on_storage_failure
        self._lock = RLock()
        # Guarded by _lock:
        self._states = PartitionStates()
        self._fruitless = FruitlessFetches(leader.leader_id, config.replica_lag_time_max_ms, self._now_ms)
        self.failed: dict[TopicPartition, KreplicaError] = {}
        # What is to be told once no lock is held.
        self._moved: list[Partition] = []
        self._broken: list[tuple[TopicPartition, KreplicaError]] = []
        # The loop's own:
        self._session = FetchSessionHandler()
        self._in_flight = False
        # Of the last answer, appends that the disk thread has not made yet.
        self._appending = 0
        self._is_taking = False  # some of the answer is being taken apart
        self._has_rest = False  # of the answer, which is taken apart in later steps
        self._waits_until_ms = 0
        self._alarm: Cancellable | None = None
        self._closed = False

    # ---- partitions ---------------------------------------------------------------------------------------

    def add_partitions(self, initial: Mapping[TopicPartition, InitialFetchState]) -> None:
        """Replicate these, too; one that is replicated in the same leader epoch goes on as it is."""
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
        """Replicate these no longer; their states. No answer is applied to them afterwards."""
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
        """Messages that the partition is behind its leader's high watermark; -1 where that is not known."""
        state = self.state_of(topic_partition)
        return -1 if state is None or state.lag is None else state.lag

    def max_lag(self) -> int:
        """The largest lag of its partitions."""
        return max((state.lag or 0 for state in list(self._states.by_partition.values())), default=0)

    def shutdown(self) -> None:
        """Do nothing any more."""
        self._closed = True
        with self._lock:
            self.remove_partitions(list(self._states.by_partition))
            self.metrics.close()
            if self._alarm is not None:
                self._alarm.cancel()

    # ---- the step -----------------------------------------------------------------------------------------

    def do_work(self) -> None:
        """Send the request that is due, if none is in flight and the last answer is appended."""
        if self._in_flight or self._has_rest or self._appending or self._closed:
            return
        now_ms = self._now_ms()
        if now_ms < self._waits_until_ms:
            return
        with self._lock:
            if self._states.delayed:
                self._states.end_delays(now_ms)
            if not (self._maybe_truncate() or self._maybe_find_range() or self._maybe_fetch()):
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
        # The leader did not answer: nothing can be done for any partition.
        self._waits_until_ms = self._now_ms() + self._config.replica_fetch_backoff_ms
        self._work_after(self._config.replica_fetch_backoff_ms)

    def _send(self, reply: Future[Any], answered: Callable[[Any], None]) -> bool:
        """Let `answered(response)` come in the loop, then the next step."""
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
                self._begin_anew()
                raise
        else:
            self._session.failed(is_unknown=False)
            self._back_off()
        self.metrics.total_time.update((self._clock.monotonic_ns() - started_ns) / NANOSECONDS_PER_MS)
        self.do_work()

    def _begin_anew(self) -> None:
        # Nobody foresaw that. It is told, and the fetcher's other partitions go on after a while.
        self._session.failed(is_unknown=False)
        self._back_off()

    # ---- truncate -----------------------------------------------------------------------------------------

    def _maybe_truncate(self) -> bool:
        """Cut what can be cut, and ask the leader about the rest; whether a request was sent."""
        asked: list[PartitionFetchState] = []
        epochs: dict[TopicPartition, int] = {}
        for topic_partition in list(self._states.truncating):
            state = self._states.by_partition[topic_partition]
            partition = self._partitions.get(topic_partition)
            if state.delayed_until_ms or partition is None:
                continue
            epoch = partition.local_log.latest_epoch
            if epoch is None:
                # A log that knows no epochs: only what is committed is certain.
                at_mark = OffsetTruncationState(partition.local_log.high_watermark, True)
                self._apply(state, partial(self._truncate, state, at_mark))
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
                    self._apply(state, partial(self._truncate_to_epoch, state, end, NO_OFFSET))
        self._tell()

    def _truncate_to_epoch(
        self,
        state: PartitionFetchState,
        leader_end: tuple[int, int],
        leader_start: int,
        partition: Partition,
    ) -> bool:
        if 0 <= leader_end[1] <= leader_start:
            # The leader has deleted the records up to there and knows their epochs no more. Those here may be
            # others, which were never committed.
            partition.truncate_fully_and_start_at(leader_start)
            return self._go_on_from_end(state, partition, is_completed=True)
        return self._truncate(state, offset_truncation_state(partition.local_log, *leader_end), partition)

    def _truncate(
        self, state: PartitionFetchState, truncation: OffsetTruncationState, partition: Partition
    ) -> bool:
        partition.truncate_to(truncation.offset)
        return self._go_on_from_end(state, partition, is_completed=truncation.completed)

    def _go_on_from_end(
        self, state: PartitionFetchState, partition: Partition, *, is_completed: bool
    ) -> bool:
        log = partition.local_log
        epoch = log.latest_epoch
        # A fetch tells the leader the last epoch, so it finds by itself whether more is to be cut.
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

    def _maybe_find_range(self) -> bool:
        """Ask where the leader's log begins and ends, for one partition that is beside it; whether it was
        sent.
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
                # The leader came from an unclean election, and lacks what this log has.
                self._states.out_of_range.pop(state.topic_partition)
                self._apply(state, partial(self._truncate, state, OffsetTruncationState(answer.offset, True)))
        if ends_before:
            self._tell()
        elif not self._closed:
            reply = self.leader.list_offset(state, EARLIEST_TIMESTAMP)
            self._send(reply, partial(self._start_answered, state))

    def _start_answered(self, state: PartitionFetchState, response: ListOffsetsResponse) -> None:
        answer = leader_offset(response)
        with self._lock:
            if self._still_out_of_range(state, answer.error_code) is None:
                return
            self._states.out_of_range.pop(state.topic_partition)
            self._apply(state, partial(self._begin_at, state, answer.offset))
        self._tell()

    def _still_out_of_range(self, state: PartitionFetchState, error_code: int) -> Partition | None:
        if self.state_of(state.topic_partition) is not state:
            return None
        if error_code:
            self._refused(state, error_code)
            return None
        return self._partitions.get(state.topic_partition)

    def _begin_at(self, state: PartitionFetchState, leader_start: int, partition: Partition) -> bool:
        failures = self._fruitless.failed(state, "its offset or leader epoch is not the leader's")
        if leader_start >= partition.log_end_offset:
            # The leader has deleted all that is here, and knows its epochs no more: it could not tell whether
            # what comes next joins on to it.
            partition.truncate_fully_and_start_at(leader_start)
        elif failures >= IN_A_ROW:
            # The leader has that offset, too, so it is the leader epoch that it has never heard of.
            partition.cut_unknown_epoch()
        state = self._delay(state) if failures > 1 else state
        return self._go_on_from_end(state, partition, is_completed=True)

    # ---- fetch --------------------------------------------------------------------------------------------

    def _maybe_fetch(self) -> bool:
        """Fetch what is not being truncated, delayed or held back; False where there is nothing."""
        states = self._states
        states.hold_back(self._quota)
        out = states.left_out()
        if len(out) >= len(states):
            return False
        told = {}
        for state in states.to_name(out, every=self._session.is_new):
            partition = self._partitions.get(state.topic_partition)
            if partition is not None and partition.log is not None:
                told[state.topic_partition] = state.asks(partition.log.log_start_offset)
        fetch = self._session.build(told, [*states.gone, *out])
        states.told()
        return self._send(self.leader.fetch(fetch), self._fetched)

    def _fetched(self, response: FetchResponse) -> None:
        if response.error_code:
            error = BY_CODE.get(int(response.error_code))
            self._session.failed(is_unknown=error is FetchSessionIdNotFound)
            if error not in (FetchSessionIdNotFound, InvalidFetchSessionEpoch):
                self._back_off()
            return
        self._session.answered(response.session_id)
        self._take_answers(fetch_answers(response))

    def _take_answers(self, answers: Iterator[tuple[Uuid, int, FetchAnswer]]) -> None:
        """Take what came for some partitions, and what came for the others in further steps."""
        taken = 0
        self._is_taking = True
        try:
            for topic_id, number, answer in islice(answers, ANSWERS_A_STEP):
                taken += 1
                with self._lock:
                    topic_partition = self._states.with_id(topic_id.raw, number)
                    if topic_partition is not None:
                        self._take_answer(topic_partition, answer)
        finally:
            self._is_taking = False
        self._tell()
        if taken == ANSWERS_A_STEP:
            self._has_rest = True
            self._loop.post(partial(self._take_rest, answers))

    def _take_rest(self, answers: Iterator[tuple[Uuid, int, FetchAnswer]]) -> None:
        self._has_rest = False
        if self._closed:
            return
        try:
            self._take_answers(answers)
        except Exception:
            self._begin_anew()
            raise
        self.do_work()

    def _take_answer(self, topic_partition: TopicPartition, answer: FetchAnswer) -> None:
        states, told = self._states, self._session.sent.get(topic_partition)
        state = states.by_partition[topic_partition]
        if told is None or topic_partition in states.delayed or state.state is TRUNCATING:
            # It is not in the session any more, or will leave it with the next fetch.
            return
        if told.fetch_offset != state.fetch_offset or told.leader_epoch != state.leader_epoch:
            # The answer is to a fetch of before something changed here. The leader takes what it told as
            # known, and would not tell the high watermark or the log start again in this session.
            self._session.failed(is_unknown=False)
            return
        if answer.error_code:
            self._refused(state, answer.error_code)
        elif answer.diverging_epoch.end_offset >= 0:
            # Only the log start counts besides; the high watermark must not (KAFKA-14704).
            if self._fruitless.failed(state, f"the logs part: {answer.diverging_epoch}") > IN_A_ROW:
                # The leader finds its own rot when it is asked again.
                state = self._delay(state)
            diverging = (answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset)
            self._apply(state, partial(self._truncate_to_epoch, state, diverging, answer.log_start_offset))
        else:
            self._apply(state, partial(self._process_partition_data, state, answer))

    def _process_partition_data(
        self, state: PartitionFetchState, answer: FetchAnswer, partition: Partition
    ) -> bool:
        """Append what came, and take over the leader's marks behind it; whether anything moved by now."""
        log, epoch = partition.local_log, state.leader_epoch
        if log.state.log_end_offset != state.fetch_offset:
            # Something else has cut or filled the log: fetch again, from where it ends now.
            latest = log.latest_epoch
            epoch = -1 if latest is None else latest
            self._states.put(state._replace(fetch_offset=log.log_end_offset, last_fetched_epoch=epoch))
            return False
        records: Any = answer.records
        if records is None or not len(records):
            return self._take_marks(state, answer, None, partition)
        self.metrics.byte_rate.mark(len(records))
        if self._quota.is_throttled(state.topic_partition):
            self._quota.record(len(records))
        if log.queue is None:
            info = partition.append_records_to_follower(records, epoch, answer.log_start_offset)
            return self._take_marks(state, answer, info, partition)
        self._appending += 1
        try:
            partition.submit_to_follower(
                records, epoch, answer.log_start_offset, partial(self._appended, state, answer)
            )
        except BaseException:
            self._appending -= 1
            raise
        return False

    def _appended(self, state: PartitionFetchState, answer: FetchAnswer, result: Appended) -> None:
        """The disk thread is done with what came for one partition."""
        self._appending -= 1
        with self._lock:
            if self.state_of(state.topic_partition) is state:
                self._apply(state, partial(self._take_marks, state, answer, result))
        if not self._is_taking:
            self._tell()
            self.do_work()

    def _take_marks(
        self, state: PartitionFetchState, answer: FetchAnswer, appended: Appended, partition: Partition
    ) -> bool:
        """Take over the leader's high watermark and log start, behind what was appended."""
        if isinstance(appended, KreplicaError):
            raise appended
        if appended is None and answer.records:
            partition.require_no_later_epoch(answer.records, state.leader_epoch)
        self._fruitless.succeeded(state)
        log, epoch, moved = partition.local_log, state.leader_epoch, appended is not None
        moved |= partition.update_follower_high_watermark(answer.high_watermark, epoch)
        started = answer.log_start_offset > log.log_start_offset and (
            partition.maybe_increment_log_start_offset(answer.log_start_offset, epoch)
        )
        end = log.state.log_end_offset
        lag = max(0, answer.high_watermark - end)
        if end == state.fetch_offset and not started and lag == state.lag:
            return moved
        latest = log.latest_epoch
        self._states.put(state.gone_on(end, lag, -1 if latest is None else latest))
        return moved

    # ---- errors -------------------------------------------------------------------------------------------

    def _refused(self, state: PartitionFetchState, error_code: int) -> None:
        """The leader's error for the partition."""
        kind = BY_CODE.get(int(error_code), UnknownServerError)
        if kind is OffsetOutOfRange:
            self._states.out_of_range[state.topic_partition] = None
            self._states.gone[state.topic_partition] = None
        elif kind is FencedLeaderEpoch:
            # There is a later leader epoch, of which this broker will hear: until then there is nothing to
            # do.
            self._give_up(state.topic_partition, kind(f"leader epoch {state.leader_epoch} is over"))
        else:
            self._fruitless.failed(state, kind.__name__, may_pass=kind is not CorruptMessage)
            self._delay(state)

    def _apply(self, state: PartitionFetchState, step: Callable[[Partition], bool]) -> None:
        """Do a step on the partition, and note what it failed with."""
        topic_partition = state.topic_partition
        partition = self._partitions.get(topic_partition)
        if partition is None:
            return
        try:
            if step(partition):
                self._moved.append(partition)
        except (FencedLeaderEpoch, NotLeaderOrFollower) as error:
            # Its role has changed, and whoever changed it takes it from this fetcher.
            self._give_up(topic_partition, error)
        except KafkaStorageError as error:
            log = partition.log
            self._broken.append((topic_partition, error))
            if isinstance(error, StorageFull) and log is not None and not log.is_offline:
                # The disk may have room again by then.
                self._delay(state)
            else:
                self._give_up(topic_partition, error)
        except KreplicaError as error:
            # What came was damaged on its way, or the leader changed meanwhile: ask again.
            self._fruitless.failed(state, f"{type(error).__name__}: {error}")
            self._delay(state)

    def _give_up(self, topic_partition: TopicPartition, error: KreplicaError) -> None:
        self._forget(topic_partition)
        self._states.gone[topic_partition] = None
        self.failed[topic_partition] = error

    def _delay(self, state: PartitionFetchState) -> PartitionFetchState:
        self._session.say_again(state.topic_partition)
        until_ms = self._now_ms() + self._config.replica_fetch_backoff_ms
        delayed = state._replace(delayed_until_ms=until_ms)
        self._states.put(delayed)
        return delayed

    def _tell(self) -> None:
        """Say what has moved and what failed; no lock is held."""
        with self._lock:
            moved, self._moved = self._moved, []
            broken, self._broken = self._broken, []
        for partition in moved:
            self._on_moved(partition)
        for topic_partition, error in broken:
            self._on_storage_failure(topic_partition, error)

    def _now_ms(self) -> int:
        return monotonic_ms(self._clock)
