"""GroupStore: the groups of the partitions of __consumer_offsets that this broker leads, as their log tells.

A partition is loaded when the broker begins to lead it, step by step, from its log's start to its end: what a
leader has is committed, or its followers will have it before anything that comes later. Until then its groups
are not to be had (CoordinatorLoadInProgress). Each leadership has a Shard of its own, which is given up as a
whole: an append that comes back to a shard which was given up counts for nothing (NotCoordinator), and one
with the leader epoch of another shard is refused by the log.

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

# The broker hears of its leadership here and in its replicas by two ways.
ROLE_RETRY_MS = 10
LOAD_RETRY_MS = 1_000
# Groups that become active in one step.
GROUPS_A_STEP = 500
COMMIT_MARKER = 1

Record = tuple[bytes, bytes | None]
# What is told when an append is through: its error, and the offset of its first record.
Appended = Callable[[KreplicaError | None, int], None]


class LogChunk(NamedTuple):
    """Whole batches of a partition's log; None where there are none. Offsets of the log."""

    records: Buffer | None
    log_start_offset: int
    log_end_offset: int


class OffsetsLog(Protocol):
    """The logs of __consumer_offsets on this broker. Both raise, or fail with, FencedLeaderEpoch or
    NotLeaderOrFollower where it does not lead the partition in that leader epoch."""

    def append(self, partition: int, leader_epoch: int, batch: bytes) -> Future[int]:
        """Append with acks=all; the future gets the base offset once all in-sync replicas have it."""
        ...

    def read(self, partition: int, leader_epoch: int, offset: int | None, max_bytes: int) -> LogChunk:
        """What is at `offset`, None: at the log's start; one batch at least, committed or not."""
        ...


class Shard:
    """One leadership of a partition, with its groups. `is_current` until it is given up."""

    def __init__(self, partition: int, leader_epoch: int) -> None:
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.is_active = False
        self.is_current = True
        self.groups: dict[str, ClassicGroup] = {}
        # By producer id what an open transaction has written.
        self._open: dict[int, list[tuple[Record, int]]] = {}

    def replay(self, batch: RecordBatch, now_ms: int) -> None:
        """Take in what the batch says. Records of other kinds, or that cannot be read, are passed over."""
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
            LOGGER.error("__consumer_offsets-%d: the record at %d: %s", self.partition, offset, error)
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
        """The group, made where it is not there."""
        found = self.groups.get(group_id)
        if found is None:
            found = self.groups[group_id] = ClassicGroup(group_id, now_ms)
        return found

    def drop_empty(self) -> None:
        """Forget groups of which nothing is left."""
        gone = [name for name, group in self.groups.items() if not group.offsets and not group.generation_id]
        for name in gone:
            del self.groups[name]


class GroupStore:
    """See the module. `on_loaded(group)` and `on_unloaded(group)` are called for each group of a shard."""

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
        """The partition's shard. Raises NotCoordinator where another broker leads it,
        CoordinatorLoadInProgress while it is loaded."""
        shard = self.shards.get(partition)
        if shard is None:
            raise NotCoordinator(f"__consumer_offsets-{partition} is not led here")
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
        """This broker leads the partition from that epoch on: load it."""
        known = self.shards.get(partition)
        if known is not None and known.leader_epoch >= leader_epoch:
            return
        self.resign(partition)
        shard = self.shards[partition] = Shard(partition, leader_epoch)
        self._step(shard, self._loading(shard))

    def resign(self, partition: int) -> None:
        """This broker leads the partition no longer."""
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
        """Load the shard; each time after how many ms to go on."""
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
                # Rot may be mended from another replica, a disk may come back; nobody is answered until then.
                LOGGER.exception("__consumer_offsets-%d cannot be loaded yet", shard.partition)
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

        Its error is one for the group's members: CoordinatorNotAvailable, NotCoordinator, MessageTooLarge,
        or whatever else was wrong.
        """
        try:
            batch = BatchBuilder().build(
                [(key, value) for key, value in records], now_ms=self._clock.time_ms()
            )
            future = self._log.append(shard.partition, shard.leader_epoch, batch)
        except KreplicaError as error:
            self._loop.post(partial(then, self._told(shard, error), -1))
            return
        future.add_done_callback(lambda done: self._loop.post(partial(self._appended, shard, then, done)))

    def _appended(self, shard: Shard, then: Appended, done: Future[int]) -> None:
        error = done.exception()
        if error is None and shard.is_current:
            then(None, done.result())
        else:
            then(self._told(shard, error), -1)

    def _told(self, shard: Shard, error: BaseException | None) -> KreplicaError:
        text = f"__consumer_offsets-{shard.partition}: {error or 'led elsewhere by now'}"
        if not shard.is_current or isinstance(
            error, (NotLeaderOrFollower, FencedLeaderEpoch, KafkaStorageError)
        ):
            return NotCoordinator(text)
        if isinstance(error, (UnknownTopicOrPartition, NotEnoughReplicas, NotEnoughReplicasAfterAppend)):
            return CoordinatorNotAvailable(text)
        return error if isinstance(error, KreplicaError) else UnknownServerError(text)
