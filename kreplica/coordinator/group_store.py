"""GroupStore: the groups in the partitions of __consumer_offsets that this broker leads.

Offsets that belong to a transaction are kept aside until its marker is in the log. Thread rule: everything
runs in the coordinator's loop.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias

from kreplica._core.records import RecordBatch
from kreplica.common.errors import (
    InvalidRecord,
    KreplicaError,
    MessageTooLarge,
    NotCoordinator,
    RecordListTooLarge,
    UnknownServerError,
    UnsupportedVersion,
)
from kreplica.common.message import Record
from kreplica.common.ports import Clock, Loop
from kreplica.common.types import TopicPartition
from kreplica.coordinator import consumer_group, share_group, streams_group
from kreplica.coordinator.classic_group import ClassicGroup, GroupState
from kreplica.coordinator.consumer_group import ConsumerGroup
from kreplica.coordinator.group_config import GroupConfig
from kreplica.coordinator.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitValue,
    committed_partition,
    decode_key,
    decode_offset,
    decode_value,
    encode_key,
    encode_value,
)
from kreplica.coordinator.shard_store import (
    Appended,
    CoordinatorLog,
    Shard,
    ShardStore,
    TransactionalProducer,
)
from kreplica.coordinator.shard_store import Record as KeyAndValue
from kreplica.coordinator.shard_writer import ShardWriter, UndoLog
from kreplica.coordinator.share_group import ShareGroup
from kreplica.coordinator.streams_group import StreamsGroup

LOGGER = logging.getLogger(__name__)

CONSUMER_OFFSETS = "__consumer_offsets"
# Groups activated in one step.
GROUPS_A_STEP = 500
COMMIT_MARKER = 1

# A group of any kind.
Group: TypeAlias = ClassicGroup | ConsumerGroup | ShareGroup | StreamsGroup

# A group and a partition.
_Key = tuple[str, TopicPartition]


class OffsetAndMetadata(NamedTuple):
    """A committed offset. `log_offset`: the offset of its record in __consumer_offsets."""

    value: OffsetCommitValue
    log_offset: int


class GroupShard(Shard):
    """The groups of one partition during one leadership, in `store`."""

    def __init__(self, store: GroupStore, partition: int, leader_epoch: int) -> None:
        super().__init__(partition, leader_epoch)
        self._store = store
        self.groups: dict[str, Group] = {}
        self.undo_log = UndoLog()
        self.writer: ShardWriter[Record, Record] = ShardWriter(
            store,
            self,
            encode=_encode,
            apply=self._apply,
            undo_log=self.undo_log,
            undone=lambda: store.on_undone(self),
            loop=store.loop,
        )
        # The committed offsets of each group, whatever its kind. A group with offsets is in `groups`,
        # too, unless it is being deleted.
        self._offsets: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
        # For each group and partition the number of commits that are being appended.
        self._pending_commits: dict[str, Counter[TopicPartition]] = {}
        # The offsets of open transactions, by producer id. They count once their transaction is committed.
        self._open: dict[int, dict[_Key, OffsetAndMetadata]] = {}
        # Those that are being appended, with unknown outcome, and what waits for a producer's.
        self._appending: dict[int, Counter[_Key]] = {}
        self._endings: dict[int, list[Callable[[], None]]] = {}

    def replay(self, batch: RecordBatch, now_ms: int) -> None:
        """Apply the records of a batch. Records of other types, and unreadable ones, are skipped."""
        if batch.is_control and not batch.record_count:
            # A cleaner has removed the marker, because nothing of its transaction was left.
            return
        if batch.is_control:
            self._end(batch.producer_id, batch.control_type == COMMIT_MARKER, now_ms)
            return
        producer_id = batch.producer_id if batch.is_transactional else None
        for each in batch:
            if each.key is not None and each.offset is not None:
                self._replay(each.key, each.value, each.offset, now_ms, producer_id)

    def _replay(
        self, key_data: bytes, data: bytes | None, offset: int, now_ms: int, producer_id: int | None
    ) -> None:
        try:
            found = committed_partition(key_data)
            if found is None:
                self._replay_group(key_data, data, now_ms)
                return
            value = None if data is None else decode_offset(data)
        except (InvalidRecord, UnsupportedVersion) as error:
            LOGGER.error(
                "__consumer_offsets-%d: skipped the record at offset %d: %s", self.partition, offset, error
            )
            return
        group_id, topic, partition = found
        at = TopicPartition(topic, partition)
        if value is None:
            self.forget(group_id, at, offset)
        elif producer_id is None:
            self.group(group_id, now_ms)
            self.keep_offset(group_id, at, OffsetAndMetadata(value, offset))
        else:
            self._open.setdefault(producer_id, {})[group_id, at] = OffsetAndMetadata(value, offset)

    def _replay_group(self, key_data: bytes, data: bytes | None, now_ms: int) -> None:
        key = decode_key(key_data)
        if key is None:
            return
        value = None if data is None else decode_value(key, data)
        self._apply(key, value)
        # A group of any kind that has only offsets left is a classic one without members.
        group_id = key.group if isinstance(key, GroupMetadataKey) else getattr(key, "group_id", None)
        if value is None and group_id in self._offsets:
            self.group(group_id, now_ms)

    def _apply(self, key: Record, value: Record | None) -> None:
        """Apply a record of a group, but not of an offset. A value makes the group one of its kind.

        Raises InvalidRecord, and changes nothing then.
        """
        if isinstance(key, GroupMetadataKey):
            self._apply_classic(key.group, value)
        elif type(key) in consumer_group.KEYS:
            consumer_group.replay(self.groups, self.undo_log, key, value)
        elif type(key) in share_group.KEYS:
            share_group.replay(self.groups, self.undo_log, key, value)
        elif type(key) in streams_group.KEYS:
            streams_group.replay(self.groups, self.undo_log, key, value)

    def _apply_classic(self, group_id: str, value: Record | None) -> None:
        old = self.groups.get(group_id)
        if isinstance(old, ClassicGroup):
            self.undo_log.set_attribute(old, "state", GroupState.DEAD)
            self.undo_log.pop_item(self.groups, group_id)
        if isinstance(value, GroupMetadataValue):
            group = ClassicGroup.of_record(group_id, value, self._store.clock.time_ms())
            self.undo_log.set_item(self.groups, group_id, group)

    # ---- offsets ------------------------------------------------------------------------------------------

    def offsets(self, group_id: str) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of the group."""
        return self._offsets.get(group_id, {})

    def keep_offset(self, group_id: str, at: TopicPartition, offset: OffsetAndMetadata) -> None:
        """Commit the offset, unless a later one in the log is known (KAFKA-5247)."""
        known = self._offsets.setdefault(group_id, {})
        if at not in known or known[at].log_offset < offset.log_offset:
            known[at] = offset

    def drop_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Drop committed offsets of the group; return those that there were."""
        known = self._offsets.get(group_id, {})
        dropped = {at: known.pop(at) for at in partitions if at in known}
        if not known:
            self._offsets.pop(group_id, None)
        return dropped

    def restore_offsets(self, group_id: str, dropped: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Undo `drop_offsets`. Offsets committed meanwhile take precedence."""
        if dropped:
            self._offsets[group_id] = {**dropped, **self.offsets(group_id)}

    def pending_commits(self, group_id: str) -> Collection[TopicPartition]:
        """Return the partitions for which offsets of the group are being appended."""
        return self._pending_commits.get(group_id, {}).keys()

    def begin_commit(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Note that offsets of the group are being appended."""
        self._pending_commits.setdefault(group_id, Counter()).update(list(partitions))

    def end_commit(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Note that they are appended, or will not be."""
        self._pending_commits[group_id] -= Counter(list(partitions))
        if not self._pending_commits[group_id]:
            del self._pending_commits[group_id]

    # ---- transactional offsets ----------------------------------------------------------------------------

    def begin_append(self, producer_id: int, group_id: str, partitions: Collection[TopicPartition]) -> None:
        """Note that offsets of this producer's transaction are being appended."""
        self._appending.setdefault(producer_id, Counter()).update((group_id, at) for at in partitions)

    def end_append(
        self,
        producer_id: int,
        group_id: str,
        partitions: Collection[TopicPartition],
        appended: Mapping[TopicPartition, OffsetAndMetadata],
    ) -> None:
        """Note which offsets of the producer's transaction were appended, all of these partitions or none."""
        if appended:
            open_offsets = self._open.setdefault(producer_id, {})
            for at, offset in appended.items():
                open_offsets[group_id, at] = offset
        self._appending[producer_id] -= Counter((group_id, at) for at in partitions)
        if not self._appending[producer_id]:
            del self._appending[producer_id]
            for end in self._endings.pop(producer_id, ()):
                end()

    def end_transaction(self, producer_id: int, commit: bool, now_ms: int, then: Callable[[], None]) -> None:
        """Commit or drop the producer's offsets and call `then`: the log has the marker.

        Appends before the marker whose outcome is not noted yet are waited for.
        """

        def end() -> None:
            self._end(producer_id, commit, now_ms)
            then()

        if producer_id in self._appending:
            self._endings.setdefault(producer_id, []).append(end)
        else:
            end()

    def _end(self, producer_id: int, commit: bool, now_ms: int) -> None:
        for (group_id, at), offset in self._open.pop(producer_id, {}).items():
            if commit:
                self.group(group_id, now_ms)
                self.keep_offset(group_id, at, offset)

    def open_offsets(self, group_id: str) -> set[TopicPartition]:
        """Return the partitions for which a transaction has an offset of the group, or is storing one.

        One that is being stored counts: the transaction may commit it after the group's next member has begun
        to read (KIP-447).
        """
        return {at for name, at in self._open_keys() if name == group_id}

    def groups_with_open_offsets(self) -> set[str]:
        """Return the ids of groups for which transactions have offsets; the groups need not exist."""
        return {name for name, _ in self._open_keys()}

    def _open_keys(self) -> Iterator[_Key]:
        return chain(chain.from_iterable(self._open.values()), chain.from_iterable(self._appending.values()))

    def forget(self, group_id: str, at: TopicPartition, tombstone: int) -> None:
        """Drop the group's offsets for the partition that precede their tombstone, open transactions' too."""
        known = self.offsets(group_id)
        if at in known and known[at].log_offset < tombstone:
            self.drop_offsets(group_id, (at,))
        for offsets in self._open.values():
            found = offsets.get((group_id, at))
            if found is not None and found.log_offset < tombstone:
                del offsets[group_id, at]

    # ---- groups -------------------------------------------------------------------------------------------

    def group(self, group_id: str, now_ms: int) -> Group:
        """Return the group; create a classic one if it does not exist."""
        found = self.groups.get(group_id)
        if found is None:
            found = self.groups[group_id] = ClassicGroup(group_id, now_ms)
        return found

    def activate(self) -> Iterator[None]:
        """Drop groups without offsets and generation, and watch the members of the others."""
        gone = [
            name
            for name, group in self.groups.items()
            if isinstance(group, ClassicGroup) and name not in self._offsets and not group.generation_id
        ]
        for name in gone:
            del self.groups[name]
        for count, group in enumerate(list(self.groups.values()), 1):
            self._store.on_loaded(self, group)
            if count % GROUPS_A_STEP == 0:
                yield

    def drop(self) -> None:
        """End the groups here: another broker leads the partition now."""
        self.writer.drop(NotCoordinator(f"{CONSUMER_OFFSETS}-{self.partition} is led by another broker"))
        for group in self.groups.values():
            if isinstance(group, ClassicGroup):
                group.move_to(GroupState.DEAD, self._store.clock.time_ms())
        self._store.on_unloaded(self)


class GroupStore(ShardStore[GroupShard]):
    """Loads and stores groups.

    `on_loaded` is called for each group of a shard that was loaded, `on_unloaded` for a shard that is
    dropped, and `on_undone` for one whose memory was undone.
    """

    def __init__(
        self,
        config: GroupConfig,
        log: CoordinatorLog,
        *,
        clock: Clock,
        loop: Loop,
        on_loaded: Callable[[GroupShard, Group], None],
        on_unloaded: Callable[[GroupShard], None],
        on_undone: Callable[[GroupShard], None],
    ) -> None:
        super().__init__(
            CONSUMER_OFFSETS,
            log,
            lambda partition, leader_epoch: GroupShard(self, partition, leader_epoch),
            load_buffer_size=config.offsets_load_buffer_size,
            clock=clock,
            loop=loop,
        )
        self.clock = clock
        self.loop = loop
        self.on_loaded = on_loaded
        self.on_unloaded = on_unloaded
        self.on_undone = on_undone

    def append(
        self,
        shard: GroupShard,
        records: Sequence[KeyAndValue],
        then: Appended,
        producer: TransactionalProducer | None = None,
    ) -> None:
        """Do as ShardStore.append, behind earlier writes of the shard's writer."""
        shard.writer.append(records, then, producer)

    def error_for_clients(self, shard: GroupShard, error: BaseException) -> KreplicaError:
        """Do as ShardStore.error_for_clients; records of a group that are too large are an unknown error."""
        found = super().error_for_clients(shard, error)
        if isinstance(found, (MessageTooLarge, RecordListTooLarge)):
            return UnknownServerError(
                f"{found}; max.message.bytes of {self.topic} limits the records of one request"
            )
        return found


def _encode(key: Record, value: Record | None) -> KeyAndValue:
    return encode_key(key), None if value is None else encode_value(value)
