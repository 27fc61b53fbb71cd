"""ShareCoordinator: the states of share partitions in the care of one broker (KIP-932).

    share_group_apis ──post──▶ ShareCoordinator ──▶ ShardWriter ──▶ __share_group_state
                                                       └──▶ ShareShard: ShareGroupOffset by share partition

The hash of a share partition's name determines its partition of __share_group_state; the leader of that
partition is its coordinator. A state is a snapshot, and updates that name its epoch; after many updates it is
stored as the next snapshot. Records before the oldest snapshot in use are deleted (`_prune`), and states that
have not changed for long are stored again, so that this oldest snapshot moves.

Thread rule: any thread may call; the work is done in the coordinator's one loop, which owns all state and
resolves the futures. They fail with a KreplicaError.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Protocol, TypeAlias, TypeVar

from kreplica._core.records import RecordBatch
from kreplica.common.dataclass import replace
from kreplica.common.errors import (
    CoordinatorNotAvailable,
    FencedLeaderEpoch,
    FencedStateEpoch,
    InvalidRecord,
    InvalidRequest,
    KreplicaError,
    NotCoordinator,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from kreplica.common.future import Future
from kreplica.common.ports import Clock, Loop, monotonic_ms
from kreplica.common.share_state import (
    ANY_EPOCH,
    NO_START_OFFSET,
    UNKNOWN_COUNT,
    SharePartitionKey,
    ShareState,
)
from kreplica.common.types import Uuid
from kreplica.coordinator.shard_store import CoordinatorLog, Record, Shard, ShardStore, in_loop, partition_for
from kreplica.coordinator.shard_writer import ShardWriter, UndoLog
from kreplica.coordinator.share_coordinator_config import ShareCoordinatorConfig
from kreplica.coordinator.share_group_offset import ShareGroupOffset, stored
from kreplica.coordinator.share_records import (
    Key,
    ShareSnapshotKey,
    ShareUpdateKey,
    ShareUpdateValue,
    Value,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)

LOGGER = logging.getLogger(__name__)

SHARE_GROUP_STATE = "__share_group_state"
# The epochs of a state before the first leader writes.
FIRST_EPOCH = 0

T = TypeVar("T")
Change: TypeAlias = tuple[Key, Value | None]


class PrunedLog(CoordinatorLog, Protocol):
    """The logs of __share_group_state on this broker."""

    def delete_records(self, partition: int, leader_epoch: int, before_offset: int) -> None:
        """Begin to delete the committed records before that offset on all replicas.

        Raises FencedLeaderEpoch or NotLeaderOrFollower as `append` does.
        """
        ...


class ShareShard(Shard):
    """The share partitions of one partition of __share_group_state during one leadership, by `states`.

    `needed_offsets`: for each, an offset up to which the log may be cut without losing its state; also for
    some that are forgotten. `changed_ms`: the monotonic times of the last changes in this leadership;
    `loaded_ms`: when it began.
    """

    def __init__(
        self,
        partition: int,
        leader_epoch: int,
        *,
        store: Callable[[], ShardStore[ShareShard]],
        clock: Clock,
        loop: Loop,
    ) -> None:
        super().__init__(partition, leader_epoch)
        self.states: dict[SharePartitionKey, ShareGroupOffset] = {}
        self.needed_offsets: dict[SharePartitionKey, int] = {}
        self.changed_ms: dict[SharePartitionKey, int] = {}
        self.loaded_ms = monotonic_ms(clock)
        self.pruned_offset = 0
        # The offset of the last record that is known to be in the log.
        self._last_offset = -1
        self._undo_log = UndoLog()
        self.writer: ShardWriter[Key, Value] = ShardWriter(
            store(),
            self,
            encode=_encoded,
            apply=self._apply,
            undo_log=self._undo_log,
            undone=lambda: None,
            loop=loop,
        )

    @property
    def last_offset(self) -> int:
        """An offset at or below that of the last committed record."""
        return max(self._last_offset, self.writer.appended_offset)

    def replay(self, batch: RecordBatch, now_ms: int) -> None:  # noqa: ARG002
        """Apply the records of a batch. Records of other types, and unreadable ones, are skipped."""
        if self._last_offset < 0:
            self.pruned_offset = batch.base_offset
        for each in () if batch.is_control else batch:
            if each.key is None:
                continue
            try:
                key = decode_key(each.key)
                if key is None:
                    continue
                value = None if each.value is None else decode_value(key, each.value)
            except (InvalidRecord, UnsupportedVersion) as error:
                LOGGER.error(
                    "%s-%d: skipped the record at offset %s: %s",
                    *(SHARE_GROUP_STATE, self.partition, each.offset, error),
                )
                continue
            self._apply(key, value)
            if isinstance(key, ShareSnapshotKey):
                self.needed_offsets[_name_of(key)] = batch.base_offset
        self._last_offset = batch.last_offset

    def _apply(self, key: Key, value: Value | None) -> None:
        name = _name_of(key)
        if isinstance(value, ShareUpdateValue):
            state = self.states.get(name)
            # An update of an earlier snapshot may be in the log twice.
            if state is not None and state.snapshot_epoch == value.snapshot_epoch:
                self._undo_log.set_item(self.states, name, state.updated(value))
        elif value is not None:
            self._undo_log.set_item(self.states, name, ShareGroupOffset.of_snapshot(value))
        elif isinstance(key, ShareSnapshotKey):
            self._undo_log.pop_item(self.states, name)

    def first_needed_offset(self) -> int:
        """Return the offset before which no state needs a record."""
        if self.writer.is_idle:
            for name in [each for each in self.needed_offsets if each not in self.states]:
                del self.needed_offsets[name]
                self.changed_ms.pop(name, None)
        return min(self.needed_offsets.values(), default=self.last_offset)

    def drop(self) -> None:
        """Fail the requests that are not appended yet: another broker leads the partition now."""
        self.writer.drop(NotCoordinator(f"{SHARE_GROUP_STATE}-{self.partition} is led by another broker"))


class ShareCoordinator:
    """Keeps the states of share partitions on one broker.

    `partition_count()`: the partitions of __share_group_state, or None while the topic does not exist.
    `exists(topic_id, partition)`: whether the cluster has the partition.
    """

    def __init__(
        self,
        config: ShareCoordinatorConfig,
        log: PrunedLog,
        *,
        partition_count: Callable[[], int | None],
        exists: Callable[[Uuid, int], bool],
        clock: Clock,
        loop: Loop,
    ) -> None:
        self._config = config
        self._log = log
        self._partition_count = partition_count
        self._exists = exists
        self._clock = clock
        self._loop = loop
        self._store: ShardStore[ShareShard] = ShardStore(
            SHARE_GROUP_STATE,
            log,
            partial(ShareShard, store=lambda: self._store, clock=clock, loop=loop),
            load_buffer_size=config.share_coordinator_load_buffer_size,
            clock=clock,
            loop=loop,
        )

    # ---- life cycle ---------------------------------------------------------------------------------------

    def startup(self) -> None:
        """Start the periodic work."""
        self._loop.post_later(self._tidy, self._config.share_coordinator_state_topic_prune_interval_ms)

    def elect(self, partition: int, leader_epoch: int) -> None:
        """Load that partition of __share_group_state: this broker leads it from `leader_epoch` on."""
        self._loop.post(partial(self._store.elect, partition, leader_epoch))

    def resign(self, partition: int) -> None:
        """Unload that partition: this broker does not lead it."""
        self._loop.post(partial(self._store.resign, partition))

    def delete_topics(self, topic_ids: Collection[Uuid]) -> None:
        """Forget the states of deleted topics."""
        self._loop.post(partial(self._delete_topics, frozenset(topic_ids)))

    @property
    def shards(self) -> list[ShareShard]:
        """The loaded partitions. Only for the coordinator's loop, and simulators."""
        return self._store.active_shards()

    # ---- requests -----------------------------------------------------------------------------------------

    @in_loop
    def initialize(
        self, future: Future[None], key: SharePartitionKey, state_epoch: int, start_offset: int
    ) -> None:
        """Handle InitializeShareGroupState: begin a state without batches.

        A repetition with the same epoch changes nothing: leaders may have written since. Fails with
        InvalidRequest, FencedStateEpoch, UnknownTopicOrPartition.
        """
        shard = self._shard(key)
        state = shard.states.get(key)
        if state is not None and ANY_EPOCH != state_epoch < state.state_epoch:
            raise FencedStateEpoch(f"{key}: its state epoch is {state.state_epoch}, not {state_epoch}")
        self._check_exists(key)
        if state is not None and state_epoch == state.state_epoch:
            self._write(shard, key, [], partial(_resolve, future, None))
            return
        now_ms = self._clock.time_ms()
        made = ShareGroupOffset(
            snapshot_epoch=FIRST_EPOCH if state is None else state.snapshot_epoch + 1,
            state_epoch=max(state_epoch, FIRST_EPOCH if state is None else state.state_epoch),
            leader_epoch=FIRST_EPOCH if state is None else state.leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=UNKNOWN_COUNT if start_offset == NO_START_OFFSET else 0,
            create_timestamp=now_ms,
            write_timestamp=now_ms,
            batches=(),
        )
        self._write(shard, key, [_snapshot(key, made)], partial(_resolve, future, None))

    @in_loop
    def read(self, future: Future[ShareState], key: SharePartitionKey, leader_epoch: int) -> None:
        """Handle ReadShareGroupState: return the state, and refuse leaders of earlier epochs from then on.

        Fails with InvalidRequest, FencedLeaderEpoch, UnknownTopicOrPartition.
        """
        shard, state = self._initialized(key)
        _check_leader_epoch(key, state, leader_epoch)
        self._check_exists(key)
        count = state.delivery_complete_count
        found = ShareState(state.state_epoch, leader_epoch, state.start_offset, state.batches, count)
        changes: list[Change] = []
        if leader_epoch > state.leader_epoch:
            fence = ShareState(ANY_EPOCH, leader_epoch, NO_START_OFFSET, (), count)
            changes = [_update(key, state, fence)]
        self._write(shard, key, changes, partial(_resolve, future, found))

    @in_loop
    def write(self, future: Future[None], key: SharePartitionKey, change: ShareState) -> None:
        """Handle WriteShareGroupState: lay the batches over the state.

        An epoch of ANY_EPOCH is not checked. Fails with InvalidRequest, FencedLeaderEpoch, FencedStateEpoch,
        UnknownTopicOrPartition.
        """
        shard, state = self._initialized(key)
        if change.leader_epoch != ANY_EPOCH:
            _check_leader_epoch(key, state, change.leader_epoch)
        if ANY_EPOCH != change.state_epoch < state.state_epoch:
            raise FencedStateEpoch(f"{key}: its state epoch is {state.state_epoch}, not {change.state_epoch}")
        self._check_exists(key)
        for batch in change.batches:
            if not 0 <= batch.first_offset <= batch.last_offset:
                text = f"{key}: offsets {batch.first_offset} to {batch.last_offset} are no batch"
                raise InvalidRequest(text)
        written = _update(key, state, change)
        limit = self._config.share_coordinator_snapshot_update_records_per_snapshot
        if state.update_count + 1 >= limit or change.state_epoch > state.state_epoch:
            assert isinstance(written[1], ShareUpdateValue)
            following = state.updated(written[1])
            epoch = max(change.state_epoch, state.state_epoch)
            written = _snapshot(key, self._next_snapshot(replace(following, state_epoch=epoch)))
        self._write(shard, key, [written], partial(_resolve, future, None))

    @in_loop
    def summary(self, future: Future[ShareState], key: SharePartitionKey) -> None:
        """Handle ReadShareGroupStateSummary: return the state without its batches.

        Fails with InvalidRequest, UnknownTopicOrPartition. An unknown state has no start offset.
        """
        shard = self._shard(key)
        self._check_exists(key)
        state = shard.states.get(key)
        found = (
            ShareState(FIRST_EPOCH, FIRST_EPOCH, NO_START_OFFSET)
            if state is None
            else ShareState(
                state.state_epoch,
                state.leader_epoch,
                state.start_offset,
                delivery_complete_count=state.delivery_complete_count,
            )
        )
        self._write(shard, key, [], partial(_resolve, future, found))

    @in_loop
    def delete(self, future: Future[None], key: SharePartitionKey) -> None:
        """Handle DeleteShareGroupState: forget the state. An unknown one is no error."""
        shard = self._shard(key)
        changes = [_tombstone(key)] if key in shard.states else []
        self._write(shard, key, changes, partial(_resolve, future, None))

    # ---- checks -------------------------------------------------------------------------------------------

    def _shard(self, key: SharePartitionKey) -> ShareShard:
        if not key.group_id or key.partition < 0:
            raise InvalidRequest(f"{key}: the group id is empty or the partition negative")
        count = self._partition_count()
        if count is None:
            raise CoordinatorNotAvailable(f"the topic {SHARE_GROUP_STATE} does not exist yet: retry")
        return self._store.shard(partition_for(str(key), count))

    def _initialized(self, key: SharePartitionKey) -> tuple[ShareShard, ShareGroupOffset]:
        shard = self._shard(key)
        state = shard.states.get(key)
        if state is None:
            raise InvalidRequest(f"{key}: its state is not initialized")
        return shard, state

    def _check_exists(self, key: SharePartitionKey) -> None:
        if not self._exists(key.topic_id, key.partition):
            raise UnknownTopicOrPartition(f"{key}: the topic or its partition does not exist")

    # ---- writes -------------------------------------------------------------------------------------------

    def _write(
        self,
        shard: ShareShard,
        key: SharePartitionKey,
        changes: Sequence[Change],
        then: Callable[[KreplicaError | None], None],
    ) -> None:
        """Apply and append the changes of a share partition; without any, wait for those before."""

        def written(error: KreplicaError | None) -> None:
            if error is None and any(isinstance(each, ShareSnapshotKey) for each, _ in changes):
                # Of a tombstone, too: the state may begin anew behind it.
                shard.needed_offsets[key] = shard.writer.appended_offset
            then(error)

        if changes:
            # The record comes behind this one. It may be in the log after an error, too.
            shard.needed_offsets.setdefault(key, shard.last_offset)
            shard.changed_ms[key] = monotonic_ms(self._clock)
        shard.writer.write(changes, written)

    def _write_unasked(self, shard: ShareShard, key: SharePartitionKey, change: Change) -> None:
        """Write a change that no request asks for. What fails is done again by the next `_tidy`."""
        try:
            self._write(shard, key, [change], _ignore)
        except KreplicaError as error:
            LOGGER.info("%s: %s", key, error)

    def _next_snapshot(self, state: ShareGroupOffset) -> ShareGroupOffset:
        epoch = state.snapshot_epoch + 1
        return replace(state, snapshot_epoch=epoch, write_timestamp=self._clock.time_ms())

    def _delete_topics(self, topic_ids: frozenset[Uuid]) -> None:
        for shard in self._store.active_shards():
            for key in [each for each in shard.states if each.topic_id in topic_ids]:
                self._write_unasked(shard, key, _tombstone(key))

    # ---- periodic work ------------------------------------------------------------------------------------

    def _tidy(self) -> None:
        try:
            for shard in self._store.active_shards():
                self._delete_missing(shard)
                self._store_cold(shard)
                shard.writer.when_committed(partial(self._prune, shard))
        finally:
            self._loop.post_later(self._tidy, self._config.share_coordinator_state_topic_prune_interval_ms)

    def _delete_missing(self, shard: ShareShard) -> None:
        """Forget the states of topics that were deleted while another broker led the partition."""
        for key in [each for each in shard.states if not self._exists(each.topic_id, each.partition)]:
            self._write_unasked(shard, key, _tombstone(key))

    def _store_cold(self, shard: ShareShard) -> None:
        """Store the states again that have not changed for long, if the log has become long meanwhile."""
        # Without the limit, states at rest would be stored again and again.
        if shard.last_offset - shard.pruned_offset < 2 * len(shard.states):
            return
        old_ms = (
            monotonic_ms(self._clock) - self._config.share_coordinator_cold_partition_snapshot_interval_ms
        )
        for key, state in list(shard.states.items()):
            if shard.changed_ms.get(key, shard.loaded_ms) <= old_ms:
                self._write_unasked(shard, key, _snapshot(key, self._next_snapshot(state)))

    def _prune(self, shard: ShareShard, error: KreplicaError | None) -> None:
        """Delete the records that no state needs."""
        if error is not None:
            return
        before_offset = shard.first_needed_offset()
        if before_offset <= shard.pruned_offset:
            return
        try:
            self._log.delete_records(shard.partition, shard.leader_epoch, before_offset)
            shard.pruned_offset = before_offset
        except KreplicaError as failure:
            LOGGER.info("%s-%d: nothing was deleted: %s", SHARE_GROUP_STATE, shard.partition, failure)


# ---- records -----------------------------------------------------------------------------------------------


def _encoded(key: Key, value: Value | None) -> Record:
    return encode_key(key), None if value is None else encode_value(value)


def _name_of(key: Key) -> SharePartitionKey:
    return SharePartitionKey(key.group_id, key.topic_id, key.partition)


def _snapshot(key: SharePartitionKey, state: ShareGroupOffset) -> Change:
    return ShareSnapshotKey(**key._asdict()), state.snapshot()


def _tombstone(key: SharePartitionKey) -> Change:
    return ShareSnapshotKey(**key._asdict()), None


def _update(key: SharePartitionKey, state: ShareGroupOffset, change: ShareState) -> Change:
    update = ShareUpdateValue(
        snapshot_epoch=state.snapshot_epoch,
        leader_epoch=max(change.leader_epoch, state.leader_epoch),
        start_offset=change.start_offset,
        state_batches=tuple(map(stored, change.batches)),
        delivery_complete_count=change.delivery_complete_count,
    )
    return ShareUpdateKey(**key._asdict()), update


def _check_leader_epoch(key: SharePartitionKey, state: ShareGroupOffset, leader_epoch: int) -> None:
    if leader_epoch < state.leader_epoch:
        text = f"{key}: a leader of epoch {state.leader_epoch} has taken over from {leader_epoch}"
        raise FencedLeaderEpoch(text)


def _resolve(future: Future[T], answer: T, error: KreplicaError | None) -> None:
    if error is None:
        future.set_result(answer)
    else:
        future.set_exception(error)


def _ignore(error: KreplicaError | None) -> None:
    """Ignore the error: the records are only saved space."""
