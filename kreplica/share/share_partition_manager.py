"""SharePartitionManager: the share partitions that one broker leads, and the requests of their members.

    ShareFetch, ShareAcknowledge ──▶ session ──▶ SharePartitionLeader ──▶ SharePartition
                                                   │           ▲
                                          log ◀────┘     │     └──── Persister: read once, write each change
                                                         └──▶ DeadLetters

A share partition is read from the share coordinator when the first member fetches it. It is dropped when this
broker no longer leads the partition in the same epoch, or when the coordinator says that another leader or
nothing has taken its place; the next fetch begins anew. Thread rule: `notify` may be called by any thread and
only posts; all else runs in the manager's loop.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from kreplica.common.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    FencedLeaderEpoch,
    FencedStateEpoch,
    GroupIdNotFound,
    InvalidRecordState,
    KreplicaError,
    NotCoordinator,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    OffsetOutOfRange,
    UnknownServerError,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from kreplica.common.future import Future, all_of, failed, resolved, then
from kreplica.common.metrics import MetricRegistry
from kreplica.common.ports import Cancellable, Clock, Loop
from kreplica.common.share_state import NO_START_OFFSET, Persister, SharePartitionKey, ShareState
from kreplica.common.types import TopicPartition, Uuid
from kreplica.replica.hosted_partitions import HostedPartitions
from kreplica.replica.partition import Partition
from kreplica.replica.purgatory import DelayedOperationPurgatory
from kreplica.share.dead_letters import DeadLetters, LetterConfig, LetterTopics
from kreplica.share.delayed_share_fetch import (
    DelayedShareFetch,
    FetchAnswer,
    ReadBatches,
    ShareFetchParams,
)
from kreplica.share.share_config import EARLIEST, LATEST, ShareGroupConfig
from kreplica.share.share_partition import (
    NEVER,
    AcknowledgementBatch,
    InFlightBatch,
    SharePartition,
    ShareSettings,
    StateChange,
)
from kreplica.share.share_session import INITIAL_EPOCH, ShareSession, ShareSessionCache

LOGGER = logging.getLogger(__name__)

# What ListOffsets calls the log's end and its start.
LATEST_TIMESTAMP, EARLIEST_TIMESTAMP = -1, -2

Acknowledgements = Mapping[SharePartitionKey, Sequence[AcknowledgementBatch]]
AcknowledgeAnswer = dict[SharePartitionKey, KreplicaError | None]


def client_error(error: BaseException) -> KreplicaError:
    """Return the error that a member gets for one of the share coordinator."""
    if isinstance(error, (CoordinatorNotAvailable, CoordinatorLoadInProgress, NotCoordinator)):
        return CoordinatorNotAvailable(str(error))
    if isinstance(error, (GroupIdNotFound, UnknownTopicOrPartition, NotLeaderOrFollower)):
        return error
    if isinstance(error, (FencedLeaderEpoch, FencedStateEpoch)):
        return NotLeaderOrFollower(str(error))
    return UnknownServerError(str(error))


# The type of a share partition's metrics.
METRICS = "SharePartitionMetrics"
# After these a share partition is read anew.
DROPPED_AFTER = (UnknownTopicOrPartition, NotLeaderOrFollower, GroupIdNotFound)


class SharePartitionLeader:
    """A share partition on the broker that leads `partition` in `leader_epoch`.

    It is among the partition's `fetch_waiters`, which are notified of each move; `session` marks it there as
    neither a follower's nor a consumer's.
    """

    session = None

    def __init__(
        self,
        manager: SharePartitionManager,
        key: SharePartitionKey,
        partition: Partition,
        config: Callable[[], ShareGroupConfig],
    ) -> None:
        self.key = key
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        # None until the state is read.
        self.share: SharePartition | None = None
        # An ordered set of the fetches that wait for records.
        self.waiters: dict[DelayedShareFetch, None] = {}
        self.is_dropped = False
        # Whether the group has no sessions left: only dead letters are still written.
        self.is_closing = False
        self.bytes_per_record = 1 << 10
        self._manager = manager
        self._config = config
        # The state that was read, while it cannot be known where to begin.
        self._unbegun: ShareState | None = None
        self._is_posted = False
        self._alarm: Cancellable | None = None
        self._alarm_ms = NEVER
        at = partition.topic_partition
        self._tags = {"group": key.group_id, "topic": at.topic, "partition": str(at.partition)}
        metrics = manager.metrics
        self._timeouts = metrics.meter(METRICS, "AcquisitionLockTimeoutPerSec", self._tags)
        metrics.gauge(METRICS, "InFlightMessageCount", self._in_flight, self._tags)
        metrics.gauge(METRICS, "InFlightBatchCount", self._batches_in_flight, self._tags)
        self._letters = DeadLetters(self, manager.letter_topics, clock=manager.clock, loop=manager.loop)

    # ---- life ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Read the state from the share coordinator, and listen to the partition."""
        self.partition.fetch_waiters[self] = None
        read = self._manager.persister.read(self.key, self.leader_epoch)
        read.add_done_callback(lambda done: self._manager.loop.post(partial(self._read_state, done)))

    def _read_state(self, done: Future[ShareState]) -> None:
        if self.is_dropped:
            return
        error = done.exception()
        if error is None:
            self._begin(done.result())
        else:
            self._manager.drop(self, client_error(error))

    def _begin(self, stored: ShareState) -> None:
        config, state = self._config(), stored
        if stored.start_offset == NO_START_OFFSET:
            try:
                state = stored._replace(start_offset=self._first_offset(config), batches=())
            except OffsetNotAvailable:
                # A new leader learns soon how much is committed; it is notified of that.
                self._unbegun = stored
                return
            except KreplicaError as error:
                self._manager.drop(self, error)
                return
        self._unbegun = None
        self.share = SharePartition(state, self.leader_epoch, self._settings(config))
        self.share.move_log_start(self.partition.log_start_offset)
        if stored.start_offset == NO_START_OFFSET:
            # The next leader must not choose another one, and pass over what was written meanwhile.
            self._store(
                ShareState(
                    state.state_epoch,
                    self.leader_epoch,
                    self.share.start_offset,
                    delivery_complete_count=0,
                )
            )
        self._letters.write()
        self.try_waiters()

    def _first_offset(self, config: ShareGroupConfig) -> int:
        find = partial(
            self.partition.fetch_offset_for_timestamp,
            isolation=config.isolation,
            current_leader_epoch=self.leader_epoch,
        )
        if config.reset == EARLIEST:
            return find(EARLIEST_TIMESTAMP).offset
        if config.reset != LATEST:
            assert isinstance(config.reset, int)
            found = find(max(0, self._manager.clock.time_ms() - config.reset)).offset
            if found >= 0:
                return found
        return find(LATEST_TIMESTAMP).offset

    def stop(self) -> None:
        """Stop listening: the share partition is dropped."""
        self.is_dropped = True
        self.partition.fetch_waiters.pop(self, None)
        self._letters.stop()
        for name in ("AcquisitionLockTimeoutPerSec", "InFlightMessageCount", "InFlightBatchCount"):
            self._manager.metrics.remove(METRICS, name, self._tags)
        if self._alarm is not None:
            self._alarm.cancel()

    def _in_flight(self) -> int:
        return 0 if self.share is None else self.share.in_flight

    def _batches_in_flight(self) -> int:
        return 0 if self.share is None else self.share.batch_count

    # ---- the partition ------------------------------------------------------------------------------------

    @property
    def is_current(self) -> bool:
        """Whether this broker still leads the partition in the same epoch."""
        return self.partition.is_leader and self.partition.leader_epoch == self.leader_epoch

    def notify(self) -> None:
        """Note that the partition has moved. Any thread may call."""
        if not self._is_posted:
            self._is_posted = True
            self._manager.loop.post(self._moved)

    def _moved(self) -> None:
        self._is_posted = False
        if self.is_dropped:
            return
        if not self.is_current:
            gone = f"{self.partition.topic_partition}: this broker no longer leads it"
            self._manager.drop(self, NotLeaderOrFollower(gone))
        elif self._unbegun is not None:
            self._begin(self._unbegun)
        elif self.share is not None and self.waiters:
            self.try_waiters()

    def try_waiters(self) -> None:
        """Try the fetches that wait, in the order in which they came."""
        for fetch in list(self.waiters):
            self._manager.try_fetch(fetch)

    def read(self, max_bytes: int, *, at_least_one: bool) -> ReadBatches | None:
        """Return what may be acquired next, or None. Raises KreplicaError."""
        share = self.share
        if share is None:
            return None
        config = self._config()
        share.settings = self._settings(config)
        share.move_log_start(self.partition.log_start_offset)
        self._letters.write()
        if not share.can_acquire:
            self._letters.give_way()
        if not share.can_acquire:
            return None
        offset = share.next_fetch_offset
        try:
            read = self.partition.fetch_records(
                offset,
                max_bytes,
                isolation=config.isolation,
                current_leader_epoch=self.leader_epoch,
                at_least_one=at_least_one,
            )
        except OffsetOutOfRange:
            # The log's start has moved meanwhile, or an unclean leader's log ends before the offset.
            share.move_log_start(self.partition.log_start_offset)
            return None
        return None if read.records is None else ReadBatches(read.records, offset, read.aborted)

    # ---- changes ------------------------------------------------------------------------------------------

    def acknowledge(self, member_id: str, batches: Sequence[AcknowledgementBatch]) -> Future[None]:
        """Change the state of records; the future is done when that is stored. It fails as members see it."""
        share = self.share
        if share is None:
            return failed(InvalidRecordState(f"{self.key}: its state is being read"))
        share.settings = self._settings(self._config())
        share.move_log_start(self.partition.log_start_offset)
        try:
            change = share.acknowledge(member_id, batches, self._manager.now_ms())
        except KreplicaError as error:
            return failed(error)
        self._manager.count_acknowledged(batches)
        if change.state is None:
            self.acquired()
            return resolved(None)
        answer: Future[None] = Future()
        written = self._manager.persister.write(self.key, change.state)
        written.add_done_callback(
            lambda done: self._manager.loop.post(partial(self._written, change, answer, done))
        )
        return answer

    def _written(self, change: StateChange, answer: Future[None], done: Future[None]) -> None:
        error = done.exception()
        assert self.share is not None
        freed = self.share.complete(change, self._manager.now_ms(), is_stored=error is None)
        self._store(freed)
        if error is None:
            answer.set_result(None)
        else:
            shown = client_error(error)
            if isinstance(shown, DROPPED_AFTER):
                self._manager.drop(self, shown)
            answer.set_exception(shown)
        if not self.is_dropped:
            self._letters.write()
            self.acquired()
            self.letters_moved()

    def release(self, member_id: str) -> None:
        """Free the records of a member that has gone."""
        if self.share is not None:
            self._store(self.share.release(member_id))
            self.try_waiters()

    def _store(self, state: ShareState | None) -> None:
        """Store what holds already. If that fails, a later leader delivers the records once more."""
        if state is None or self.is_dropped:
            return
        written = self._manager.persister.write(self.key, state)
        written.add_done_callback(lambda done: self._manager.loop.post(partial(self._stored, done)))

    def _stored(self, done: Future[None]) -> None:
        error = done.exception()
        if self.is_dropped:
            return
        if error is not None:
            shown = client_error(error)
            LOGGER.warning("%s: released records could not be stored: %s", self.key, error)
            if isinstance(shown, DROPPED_AFTER):
                self._manager.drop(self, shown)
        self._letters.write()

    # ---- dead letters -------------------------------------------------------------------------------------

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition of the records."""
        return self.partition.topic_partition

    def letter_config(self) -> LetterConfig:
        """Return the group's settings for dead letters; no topic if it has none.

        A group that consumes its own dead letters writes none for them: it would never come to an end.
        """
        letters = self._config().letters
        return LetterConfig() if letters.topic == self.topic_partition.topic else letters

    def _settings(self, config: ShareGroupConfig) -> ShareSettings:
        if config.letters.topic == self.topic_partition.topic:
            return config.settings._replace(has_dead_letters=False)
        return config.settings

    def read_at(self, offset: int, max_bytes: int) -> Any:
        """Return whole committed batches from the one at `offset` on, or nothing if the log has it no more.

        Raises KreplicaError.
        """
        try:
            read = self.partition.fetch_records(offset, max_bytes, current_leader_epoch=self.leader_epoch)
        except OffsetOutOfRange:
            assert self.share is not None
            self.share.move_log_start(self.partition.log_start_offset)
            return b""
        return read.records or b""

    def letters_settled(self, letters: Iterable[InFlightBatch], *, is_done: bool) -> None:
        """Archive letters that are done with, or keep them."""
        assert self.share is not None
        self._store(self.share.settle_letters(letters, is_done=is_done))

    def letters_moved(self) -> None:
        """Try the fetches that wait, or drop the share partition of a group without sessions here."""
        self.try_waiters()
        if self.is_closing and not self.has_letters:
            self.close()

    @property
    def has_letters(self) -> bool:
        """Whether dead letters are still to be written."""
        return self.share is not None and self.share.has_letters

    def close(self) -> None:
        """Drop the share partition since its group has no sessions here, after its last dead letter."""
        self.is_closing = True
        if not self.has_letters:
            self._manager.drop(self, NotLeaderOrFollower(f"{self.key}: its group has no share sessions here"))

    # ---- locks --------------------------------------------------------------------------------------------

    def acquired(self) -> None:
        """Let the alarm ring when the first lock ends."""
        assert self.share is not None
        deadline_ms = self.share.next_deadline_ms
        if deadline_ms >= self._alarm_ms:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_ms = deadline_ms
        delay_ms = max(0, deadline_ms - self._manager.now_ms())
        self._alarm = self._manager.loop.post_later(self._ring, delay_ms)

    def _ring(self) -> None:
        self._alarm, self._alarm_ms = None, NEVER
        if self.is_dropped:
            return
        assert self.share is not None
        state = self.share.expire(self._manager.now_ms())
        if state is not None:
            self._timeouts.mark(sum(each.last_offset - each.first_offset + 1 for each in state.batches))
        self._store(state)
        self.acquired()
        if state is not None:
            self.try_waiters()


class SharePartitionManager:
    """The share partitions and sessions of one broker.

    `config_of(group_id)`: a group's settings. `topic_name(topic_id)`: None if the topic is unknown.
    `letter_topics`: where dead letters go.
    """

    def __init__(
        self,
        partitions: HostedPartitions,
        persister: Persister,
        *,
        clock: Clock,
        loop: Loop,
        max_sessions: int,
        config_of: Callable[[str], ShareGroupConfig],
        topic_name: Callable[[Uuid], str | None],
        letter_topics: LetterTopics,
        metrics: MetricRegistry,
    ) -> None:
        self.metrics = metrics
        self._acknowledged = [
            metrics.meter("ShareGroupMetrics", "RecordAcknowledgementsPerSec", {"ackType": kind})
            for kind in ("Gap", "Accept", "Release", "Reject", "Renew")
        ]
        self.persister = persister
        self.letter_topics = letter_topics
        self.clock = clock
        self.loop = loop
        self.sessions = ShareSessionCache(max_sessions)
        metrics.gauge("ShareSessionCache", "ShareSessionsCount", lambda: len(self.sessions))
        self._partitions = partitions
        self._config_of = config_of
        self._topic_name = topic_name
        self._leaders: dict[SharePartitionKey, SharePartitionLeader] = {}
        self._purgatory = DelayedOperationPurgatory("ShareFetch", clock, loop, self._expired)
        self._numbers = itertools.count(1)
        # The clock of locks and deadlines, in ms.
        self.now_ms = self._purgatory.now_ms

    def lock_duration_ms(self, group_id: str) -> int:
        """Return how long members of the group may keep a record."""
        return self._config_of(group_id).settings.lock_duration_ms

    # ---- sessions -----------------------------------------------------------------------------------------

    def session_of_fetch(self, group_id: str, member_id: str, epoch: int, connection: object) -> ShareSession:
        """Return the session that a fetch opens, goes on with or closes.

        Raises ShareSessionLimitReached, ShareSessionNotFound, InvalidShareSessionEpoch.
        """
        if epoch == INITIAL_EPOCH:
            return self.sessions.open(group_id, member_id, connection)
        return self.sessions.use(group_id, member_id, epoch)

    def close_session(self, session: ShareSession) -> None:
        """Free what the member of a session that is closed has acquired here.

        With the last session the group's share partitions are dropped once their dead letters are written:
        the group's offsets may be reset, or the group deleted, before the next one.
        """
        if session.fetch is not None:
            session.fetch.give_up()
        leaders = [each for each in self._leaders.values() if each.key.group_id == session.group_id]
        for leader in leaders:
            leader.release(session.member_id)
        if not self.sessions.has_group(session.group_id):
            for leader in leaders:
                leader.close()

    def connection_closed(self, connection: object) -> None:
        """Close the sessions of a connection that is closed."""
        for session in self.sessions.take_of(connection):
            self.close_session(session)

    # ---- fetches ------------------------------------------------------------------------------------------

    def fetch(self, params: ShareFetchParams, session: ShareSession) -> DelayedShareFetch:
        """Acquire records of the session's partitions, or wait for them. Its future gets the answer.

        An earlier fetch of the session that still waits gets nothing: its client has given it up.
        """
        if session.fetch is not None:
            session.fetch.give_up()
        session.fetch = fetch = DelayedShareFetch(
            params,
            session.in_turn(),
            self.leader_of,
            lambda again: self.loop.post(partial(self.try_fetch, again)),
        )
        if params.max_wait_ms <= 0 or params.min_bytes <= 0:
            fetch.try_complete(self.now_ms(), is_last=True)
        elif not fetch.try_complete(self.now_ms()):
            fetch.handle = self._purgatory.watch(next(self._numbers), 1, params.max_wait_ms, fetch)
            fetch.future.add_done_callback(partial(self._end_wait, fetch))
            if self._purgatory.is_closed:
                fetch.try_complete(self.now_ms(), is_last=True)
        return fetch

    def try_fetch(self, fetch: DelayedShareFetch, *, is_last: bool = False) -> None:
        """Try a fetch that waits."""
        fetch.try_complete(self.now_ms(), is_last=is_last)

    def wait(self, delay_ms: int) -> Future[None]:
        """Return a future that is done after a while."""
        waited: Future[None] = Future()
        self.loop.post_later(partial(waited.set_result, None), max(0, delay_ms))
        return waited

    def _end_wait(self, fetch: DelayedShareFetch, _: Future[FetchAnswer]) -> None:
        if fetch.handle:
            self._purgatory.cancel(fetch.handle)

    def _expired(self, fetches: list[DelayedShareFetch]) -> None:
        for fetch in fetches:
            self.try_fetch(fetch, is_last=True)

    def shutdown(self) -> None:
        """Answer the fetches that wait."""
        for fetch in self._purgatory.shutdown():
            fetch.try_complete(self.now_ms(), is_last=True)

    # ---- acknowledgements ---------------------------------------------------------------------------------

    def acknowledge(self, member_id: str, acknowledgements: Acknowledgements) -> Future[AcknowledgeAnswer]:
        """Change the states of records. The future gets the error of each partition, or None."""
        done = [
            then(self._acknowledge(key, member_id, batches), lambda _: None, _refused)
            for key, batches in acknowledgements.items()
        ]
        return then(all_of(done), lambda errors: dict(zip(acknowledgements, errors, strict=True)))

    def _acknowledge(
        self, key: SharePartitionKey, member_id: str, batches: Sequence[AcknowledgementBatch]
    ) -> Future[None]:
        try:
            self._led(key)
        except KreplicaError as error:
            return failed(error)
        leader = self._leaders.get(key)
        if leader is None:
            return failed(UnknownTopicOrPartition(f"{key}: nothing of it was acquired at this broker"))
        return leader.acknowledge(member_id, batches)

    def count_acknowledged(self, batches: Iterable[AcknowledgementBatch]) -> None:
        """Count the records that a member has acknowledged, by type."""
        for first, last, types in batches:
            if len(types) == 1:
                self._acknowledged[types[0]].mark(last - first + 1)
            else:
                for kind in types:
                    self._acknowledged[kind].mark()

    # ---- share partitions ---------------------------------------------------------------------------------

    def leader_of(self, key: SharePartitionKey) -> SharePartitionLeader:
        """Return the share partition, which begins to be read if it is new.

        Raises UnknownTopicId, UnknownTopicOrPartition, NotLeaderOrFollower, KafkaStorageError.
        """
        partition = self._led(key)
        leader = self._leaders.get(key)
        if leader is not None and leader.is_closing:
            self.drop(leader, NotLeaderOrFollower(f"{key}: its group has new share sessions"))
            leader = None
        elif leader is not None and not (leader.is_current and leader.partition is partition):
            self.drop(
                leader, NotLeaderOrFollower(f"{partition.topic_partition}: its leader epoch has changed")
            )
            leader = None
        if leader is None:
            config = partial(self._config_of, key.group_id)
            leader = self._leaders[key] = SharePartitionLeader(self, key, partition, config)
            leader.start()
        return leader

    def _led(self, key: SharePartitionKey) -> Partition:
        name = self._topic_name(key.topic_id)
        if name is None:
            raise UnknownTopicId(f"unknown topic id {key.topic_id}")
        at = TopicPartition(name, key.partition)
        partition = self._partitions.get_or_error(at)
        if not partition.is_leader:
            raise NotLeaderOrFollower(f"{at}: broker {partition.broker_id} does not lead it")
        return partition

    def drop(self, leader: SharePartitionLeader, error: KreplicaError) -> None:
        """Forget a share partition. The fetches that wait for it are answered with the error."""
        if leader.is_dropped:
            return
        leader.stop()
        if self._leaders.get(leader.key) is leader:
            del self._leaders[leader.key]
        waiting, leader.waiters = list(leader.waiters), {}
        for fetch in waiting:
            fetch.errors[leader.key] = error
            self.try_fetch(fetch)


def _refused(error: BaseException) -> KreplicaError:
    return error if isinstance(error, KreplicaError) else UnknownServerError(str(error))
