"""GroupStore: the groups in the partitions of __consumer_offsets that this broker leads, loaded from the log.

When the broker becomes leader of a partition, the store loads it in steps, from the log start to the log end.
All the leader's records count: they are committed, or followers get them before anything later. Until then,
its groups are unavailable (CoordinatorLoadInProgress). Each leadership has its own Shard, which is dropped as
a whole. An append that completes after its shard was dropped fails with NotCoordinator; the log refuses an
append with the leader epoch of another shard.

Transactional offsets, which Kafka's producers may have left in the log, count once their transaction is
committed. Thread rule: everything runs in the coordinator's loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kreplica._core.batch_builder import BatchBuilder
from kreplica._core.records import RecordBatch, batches
from kreplica.common.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    FencedLeaderEpoch,
    InvalidRecord,
    KafkaStorageError,
    KreplicaError,
    NotCoordinator,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    UnknownServerError,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from kreplica.common.future import Future
from kreplica.common.ports import Clock, Loop
from kreplica.common.types import TopicPartition
from kreplica.coordinator.classic_group import ClassicGroup, GroupState, OffsetAndMetadata
from kreplica.coordinator.group_config import GroupConfig
from kreplica.coordinator.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_key,
    decode_value,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

LOGGER = logging.getLogger(__name__)

# The store and the replicas are notified of leadership on different ways, so one may be earlier.
ROLE_RETRY_MS = 10
LOAD_RETRY_MS = 1_000
# Groups activated in one step.
GROUPS_A_STEP = 500
COMMIT_MARKER = 1

Record = tuple[bytes, bytes | None]
# The callback of an append: its error, and the offset of its first record.
Appended = Callable[[KreplicaError | None, int], None]


class LogChunk(NamedTuple):
    """Whole batches of a partition's log; `records` is None without any. Offsets of the log."""

    records: Buffer | None
    log_start_offset: int
    log_end_offset: int


class OffsetsLog(Protocol):
    """The logs of __consumer_offsets on this broker.

    Both methods raise, or their futures fail with, FencedLeaderEpoch or NotLeaderOrFollower if this broker
    does not lead the partition in that leader epoch.
    """

    def append(self, partition: int, leader_epoch: int, batch: bytes) -> Future[int]:
        """Append with acks=all; the future gets the base offset once all in-sync replicas have it."""
        ...

    def read(self, partition: int, leader_epoch: int, offset: int | None, max_bytes: int) -> LogChunk:
        """Read from `offset` (None: the log start), at least one batch, committed or not."""
        ...


class Shard:
    """The groups of one partition during one leadership. `is_current` until the shard is dropped."""

    def __init__(self, partition: int, leader_epoch: int) -> None:
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.is_active = False
        self.is_current = True
        self.groups: dict[str, ClassicGroup] = {}
        # Producer id -> records written by its open transaction.
        self._open: dict[int, list[tuple[Record, int]]] = {}

    def replay(self, batch: RecordBatch, now_ms: int) -> None:
        """Apply the records of a batch. Records of other types, and unreadable ones, are skipped."""
        if batch.is_control:
            written = self._open.pop(batch.producer_id, [])
            if batch.control_type == COMMIT_MARKER:
                for record, offset in written:
                    self._replay(record, offset, now_ms)
            return
        open_transaction = self._open.setdefault(batch.producer_id, []) if batch.is_transactional else None
        for each in batch:
            if each.key is None or each.offset is None:
                continue
            record = (each.key, each.value)
            if open_transaction is None:
                self._replay(record, each.offset, now_ms)
            else:
                open_transaction.append((record, each.offset))

    def _replay(self, record: Record, offset: int, now_ms: int) -> None:
        key_data, data = record
        try:
            key = decode_key(key_data)
            value = None if key is None or data is None else decode_value(key, data)
        except (InvalidRecord, UnsupportedVersion) as error:
            LOGGER.error(
                "__consumer_offsets-%d: skipped the record at offset %d: %s", self.partition, offset, error
            )
            return
        if isinstance(key, OffsetCommitKey):
            at = TopicPartition(key.topic, key.partition)
            if isinstance(value, OffsetCommitValue):
                self.group(key.group, now_ms).offsets[at] = OffsetAndMetadata(value, offset)
            elif key.group in self.groups:
                self.groups[key.group].offsets.pop(at, None)
        elif isinstance(key, GroupMetadataKey):
            old = self.groups.pop(key.group, None)
            offsets = {} if old is None else old.offsets
            if isinstance(value, GroupMetadataValue):
                self.groups[key.group] = ClassicGroup.of_record(key.group, value, now_ms)
                self.groups[key.group].offsets = offsets
            elif offsets:
                self.group(key.group, now_ms).offsets = offsets

    def group(self, group_id: str, now_ms: int) -> ClassicGroup:
        """Return the group; create it if it does not exist."""
        found = self.groups.get(group_id)
        if found is None:
            found = self.groups[group_id] = ClassicGroup(group_id, now_ms)
        return found

    def drop_empty(self) -> None:
        """Drop groups without offsets and generation."""
        gone = [name for name, group in self.groups.items() if not group.offsets and not group.generation_id]
        for name in gone:
            del self.groups[name]


class GroupStore:
    """Loads and stores groups. `on_loaded` and `on_unloaded` are called for each group of a shard."""

    def __init__(
        self,
        config: GroupConfig,
        log: OffsetsLog,
        *,
        clock: Clock,
        loop: Loop,
        on_loaded: Callable[[Shard, ClassicGroup], None],
        on_unloaded: Callable[[ClassicGroup], None],
    ) -> None:
        self.shards: dict[int, Shard] = {}
        self._config = config
        self._log = log
        self._clock = clock
        self._loop = loop
        self._on_loaded = on_loaded
        self._on_unloaded = on_unloaded

    def shard(self, partition: int) -> Shard:
        """Return the partition's shard.

        Raises NotCoordinator if another broker leads it, CoordinatorLoadInProgress while it is loading.
        """
        shard = self.shards.get(partition)
        if shard is None:
            raise NotCoordinator(f"__consumer_offsets-{partition} is led by another broker")
        if not shard.is_active:
            raise CoordinatorLoadInProgress(f"__consumer_offsets-{partition} is being loaded")
        return shard

    def active_shards(self) -> list[Shard]:
        return [shard for shard in self.shards.values() if shard.is_active]

    @property
    def is_loading(self) -> bool:
        return any(not shard.is_active for shard in self.shards.values())

    # ---- leadership ---------------------------------------------------------------------------------------

    def elect(self, partition: int, leader_epoch: int) -> None:
        """Load the partition, because this broker leads it from that epoch on."""
        known = self.shards.get(partition)
        if known is not None and known.leader_epoch >= leader_epoch:
            return
        self.resign(partition)
        shard = self.shards[partition] = Shard(partition, leader_epoch)
        self._step(shard, self._loading(shard))

    def resign(self, partition: int) -> None:
        """Drop the partition, because this broker no longer leads it."""
        shard = self.shards.pop(partition, None)
        if shard is None:
            return
        shard.is_current = False
        for group in shard.groups.values():
            group.move_to(GroupState.DEAD, self._clock.time_ms())
            self._on_unloaded(group)

    def _step(self, shard: Shard, steps: Iterator[int]) -> None:
        if not shard.is_current:
            return
        delay_ms = next(steps, None)
        if delay_ms is not None:
            self._loop.post_later(partial(self._step, shard, steps), delay_ms)

    def _loading(self, shard: Shard) -> Iterator[int]:
        """Load the shard in steps; each yields the delay in ms before the next one."""
        offset: int | None = None
        stop: int | None = None
        while stop is None or offset is None or offset < stop:
            try:
                size = self._config.offsets_load_buffer_size
                chunk = self._log.read(shard.partition, shard.leader_epoch, offset, size)
                if stop is None:
                    offset, stop = chunk.log_start_offset, chunk.log_end_offset
                for batch in () if chunk.records is None else batches(chunk.records):
                    batch.check()
                    shard.replay(batch, self._clock.time_ms())
                    offset = batch.next_offset
                yield 0
            except (NotLeaderOrFollower, FencedLeaderEpoch, UnknownTopicOrPartition):
                yield ROLE_RETRY_MS
            except KreplicaError:
                # Damage may be repaired from another replica, or a disk may recover; the shard stays
                # unavailable until then.
                LOGGER.exception("__consumer_offsets-%d cannot be loaded; trying again", shard.partition)
                yield LOAD_RETRY_MS
        shard.drop_empty()
        for count, group in enumerate(list(shard.groups.values()), 1):
            self._on_loaded(shard, group)
            if count % GROUPS_A_STEP == 0:
                yield 0
        shard.is_active = True

    # ---- appends ------------------------------------------------------------------------------------------

    def append(self, shard: Shard, records: Sequence[Record], then: Appended) -> None:
        """Append the records as one batch, and call `then` in the loop once all in-sync replicas have it.

        `then` gets an error suitable for the group's members: CoordinatorNotAvailable, NotCoordinator,
        MessageTooLarge, or another KreplicaError.
        """
        try:
            batch = BatchBuilder().build(
                [(key, value) for key, value in records], now_ms=self._clock.time_ms()
            )
            future = self._log.append(shard.partition, shard.leader_epoch, batch)
        except KreplicaError as error:
            self._loop.post(partial(then, self._error_for_members(shard, error), -1))
            return
        future.add_done_callback(lambda done: self._loop.post(partial(self._appended, shard, then, done)))

    def _appended(self, shard: Shard, then: Appended, done: Future[int]) -> None:
        error = done.exception()
        if error is None and shard.is_current:
            then(None, done.result())
        else:
            then(self._error_for_members(shard, error), -1)

    def _error_for_members(self, shard: Shard, error: BaseException | None) -> KreplicaError:
        text = f"__consumer_offsets-{shard.partition}: {error or 'another broker leads it now'}"
        if not shard.is_current or isinstance(
            error, (NotLeaderOrFollower, FencedLeaderEpoch, KafkaStorageError)
        ):
            return NotCoordinator(text)
        if isinstance(error, (UnknownTopicOrPartition, NotEnoughReplicas, NotEnoughReplicasAfterAppend)):
            return CoordinatorNotAvailable(text)
        return error if isinstance(error, KreplicaError) else UnknownServerError(text)
