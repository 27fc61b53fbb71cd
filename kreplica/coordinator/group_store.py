"""GroupStore: the groups in the partitions of __consumer_offsets that this broker leads.

Offsets that belong to a transaction are kept aside until its marker is in the log. Thread rule: everything
runs in the coordinator's loop.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import chain

from kreplica._core.records import RecordBatch
from kreplica.common.errors import InvalidRecord, UnsupportedVersion
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
from kreplica.coordinator.shard_store import CoordinatorLog, Shard, ShardStore

LOGGER = logging.getLogger(__name__)

CONSUMER_OFFSETS = "__consumer_offsets"
# Groups activated in one step.
GROUPS_A_STEP = 500
COMMIT_MARKER = 1

# A group and a partition.
_Key = tuple[str, TopicPartition]


class GroupShard(Shard):
    """The groups of one partition during one leadership, in `store`."""

    def __init__(self, store: GroupStore, partition: int, leader_epoch: int) -> None:
        super().__init__(partition, leader_epoch)
        self._store = store
        self.groups: dict[str, ClassicGroup] = {}
        # The offsets of open transactions, by producer id. They count once their transaction is committed.
        self._open: dict[int, dict[_Key, OffsetAndMetadata]] = {}
        # Those that are being appended, with unknown outcome, and what waits for a producer's.
        self._appending: dict[int, Counter[_Key]] = {}
        self._endings: dict[int, list[Callable[[], None]]] = {}

    def replay(self, batch: RecordBatch, now_ms: int) -> None:
        """Apply the records of a batch. Records of other types, and unreadable ones, are skipped."""
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
            key = decode_key(key_data)
            value = None if key is None or data is None else decode_value(key, data)
        except (InvalidRecord, UnsupportedVersion) as error:
            LOGGER.error(
                "__consumer_offsets-%d: skipped the record at offset %d: %s", self.partition, offset, error
            )
            return
        if isinstance(key, OffsetCommitKey):
            at = TopicPartition(key.topic, key.partition)
            if not isinstance(value, OffsetCommitValue):
                self.forget(key.group, at, offset)
            elif producer_id is None:
                self.group(key.group, now_ms).offsets[at] = OffsetAndMetadata(value, offset)
            else:
                found = OffsetAndMetadata(value, offset)
                self._open.setdefault(producer_id, {})[key.group, at] = found
        elif isinstance(key, GroupMetadataKey):
            old = self.groups.pop(key.group, None)
            offsets = {} if old is None else old.offsets
            if isinstance(value, GroupMetadataValue):
                self.groups[key.group] = ClassicGroup.of_record(key.group, value, now_ms)
                self.groups[key.group].offsets = offsets
            elif offsets:
                self.group(key.group, now_ms).offsets = offsets

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
                group = self.group(group_id, now_ms)
                known = group.offsets.get(at)
                # Of two commits the later one in the log counts (KAFKA-5247).
                if known is None or known.log_offset < offset.log_offset:
                    group.offsets[at] = offset

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
        known = self.groups[group_id].offsets if group_id in self.groups else {}
        if at in known and known[at].log_offset < tombstone:
            del known[at]
        for offsets in self._open.values():
            found = offsets.get((group_id, at))
            if found is not None and found.log_offset < tombstone:
                del offsets[group_id, at]

    # ---- groups -------------------------------------------------------------------------------------------

    def group(self, group_id: str, now_ms: int) -> ClassicGroup:
        """Return the group; create it if it does not exist."""
        found = self.groups.get(group_id)
        if found is None:
            found = self.groups[group_id] = ClassicGroup(group_id, now_ms)
        return found

    def activate(self) -> Iterator[None]:
        """Drop groups without offsets and generation, and watch the members of the others."""
        gone = [name for name, group in self.groups.items() if not group.offsets and not group.generation_id]
        for name in gone:
            del self.groups[name]
        for count, group in enumerate(list(self.groups.values()), 1):
            self._store.on_loaded(self, group)
            if count % GROUPS_A_STEP == 0:
                yield

    def drop(self) -> None:
        """End the groups here: another broker leads the partition now."""
        for group in self.groups.values():
            group.move_to(GroupState.DEAD, self._store.clock.time_ms())
            self._store.on_unloaded(group)


class GroupStore(ShardStore[GroupShard]):
    """Loads and stores groups. `on_loaded` and `on_unloaded` are called for each group of a shard."""

    def __init__(
        self,
        config: GroupConfig,
        log: CoordinatorLog,
        *,
        clock: Clock,
        loop: Loop,
        on_loaded: Callable[[GroupShard, ClassicGroup], None],
        on_unloaded: Callable[[ClassicGroup], None],
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
        self.on_loaded = on_loaded
        self.on_unloaded = on_unloaded
