"""GroupOffsets: commits, deletes and expires the offsets of groups.

An offset is committed once its record is on all in-sync replicas; of two commits the later one in the log
counts. Offsets of a group without members expire `offsets.retention.minutes` after its last member left, or
after their commit for consumers that assign partitions themselves. In a group with members, offsets of topics
that it no longer reads expire (KIP-211). Deleted offsets get a tombstone in the log. Thread rule: everything
runs in the coordinator's loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from kreplica.common.errors import (
    GroupSubscribedToTopic,
    IllegalGeneration,
    KreplicaError,
    NonEmptyGroup,
    OffsetMetadataTooLarge,
    RebalanceInProgress,
    StaleMemberEpoch,
    UnknownMemberId,
    UnsupportedVersion,
)
from kreplica.common.future import Future
from kreplica.common.message import Record as MessageRecord
from kreplica.common.ports import Clock, Loop
from kreplica.common.types import TopicPartition, Uuid
from kreplica.coordinator.classic_group import ClassicGroup, GroupState
from kreplica.coordinator.consumer_group import ConsumerGroup
from kreplica.coordinator.group_config import GroupConfig
from kreplica.coordinator.group_rebalances import GroupRebalances, known_member, require_generation
from kreplica.coordinator.group_records import (
    GroupMetadataKey,
    OffsetCommitKey,
    OffsetCommitValue,
    encode_key,
    encode_value,
)
from kreplica.coordinator.group_store import GroupShard, GroupStore, OffsetAndMetadata
from kreplica.coordinator.shard_store import Appended, Record, TransactionalProducer
from kreplica.coordinator.shard_writer import Put, Written
from kreplica.coordinator.share_group import ShareGroup
from kreplica.coordinator.streams_group import StreamsGroup

NO_GENERATION = -1
# Tombstones in one batch, and groups examined in one step.
TOMBSTONES_A_BATCH = 500
GROUPS_A_STEP = 100


class CommittedOffset(NamedTuple):
    """An offset to commit for a partition; `leader_epoch` is -1 if the reader does not know it."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class CommitRequest(NamedTuple):
    """The offsets to commit for a group. A reader that is not a member has generation -1 and no member id.

    `producer`: the producer whose transaction commits them, if they belong to one. `knows_epochs`: whether
    the request may come from a member of the consumer protocol, whose epoch is `generation_id`. `topic_ids`:
    those of its topics that exist.
    """

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None
    offsets: Mapping[TopicPartition, CommittedOffset]
    producer: TransactionalProducer | None = None
    knows_epochs: bool = False
    topic_ids: Mapping[str, Uuid] = MappingProxyType({})

    @property
    def names_no_member(self) -> bool:
        """Whether the request has neither a generation nor a member or an instance."""
        return self.generation_id < 0 and not self.member_id and self.group_instance_id is None


# A group that commits offsets. The offsets of share groups are not in __consumer_offsets.
CommittingGroup: TypeAlias = ClassicGroup | ConsumerGroup | StreamsGroup

# The error of each partition, or None if its offset was committed.
CommitResults = dict[TopicPartition, KreplicaError | None]


class GroupOffsets:
    """Commits, deletes and expires offsets of the groups in a store."""

    def __init__(
        self,
        config: GroupConfig,
        store: GroupStore,
        rebalances: GroupRebalances,
        *,
        clock: Clock,
        loop: Loop,
    ) -> None:
        self._config = config
        self._store = store
        self._rebalances = rebalances
        self._clock = clock
        self._loop = loop

    # ---- committing ---------------------------------------------------------------------------------------

    def commit(
        self, shard: GroupShard, group: CommittingGroup, asked: CommitRequest, future: Future[CommitResults]
    ) -> None:
        """Commit the offsets.

        Raises UnknownMemberId, IllegalGeneration, FencedInstanceId, RebalanceInProgress, StaleMemberEpoch,
        UnsupportedVersion.
        """
        # A transactional producer before KIP-447 does not name a member.
        if asked.producer is None or not asked.names_no_member:
            if isinstance(group, ClassicGroup):
                self._check(group, asked)
            else:
                self._check_epoch(group, asked)
        now_ms = self._clock.time_ms()
        results: CommitResults = {}
        values: dict[TopicPartition, OffsetCommitValue] = {}
        for at, each in asked.offsets.items():
            if len(each.metadata.encode()) > self._config.offset_metadata_max_bytes:
                results[at] = OffsetMetadataTooLarge(
                    f"{at}: metadata of {len(each.metadata.encode())} bytes exceeds"
                    f" offset.metadata.max.bytes={self._config.offset_metadata_max_bytes}"
                )
                continue
            results[at] = None
            values[at] = OffsetCommitValue(
                offset=each.offset,
                leader_epoch=each.leader_epoch,
                metadata=each.metadata,
                commit_timestamp=now_ms,
            )
        if not values:
            future.set_result(results)
            return
        records = [(_key(group.group_id, at), encode_value(value)) for at, value in values.items()]
        shard.begin_commit(group.group_id, values)
        producer = asked.producer
        if producer is not None:
            shard.begin_append(producer.producer_id, group.group_id, values)
        committed = partial(self._committed, shard, group.group_id, values, results, future, producer)
        self._store.append(shard, records, committed, producer)

    def _check(self, group: ClassicGroup, asked: CommitRequest) -> None:
        is_transactional = asked.producer is not None
        if asked.generation_id < 0:
            if group.is_in(GroupState.EMPTY):
                return
            if asked.names_no_member:
                raise UnknownMemberId(f"group {group.group_id} has members: only they may commit its offsets")
        member = known_member(group, asked.member_id, asked.group_instance_id)
        require_generation(group, asked.generation_id)
        self._rebalances.touch(member)
        if group.is_in(GroupState.COMPLETING_REBALANCE) and not is_transactional:
            raise RebalanceInProgress(f"group {group.group_id} is rebalancing")

    def _check_epoch(self, group: ConsumerGroup | StreamsGroup, asked: CommitRequest) -> None:
        is_classic = isinstance(group, ConsumerGroup) and asked.member_id in group.classic_members
        has_epoch = asked.member_id in group.members and not is_classic
        if has_epoch and asked.producer is None and not asked.knows_epochs:
            raise UnsupportedVersion(
                f"group {group.group_id}: {asked.member_id} has a member epoch,"
                " and has to commit with OffsetCommit 9 or later"
            )
        try:
            if isinstance(group, StreamsGroup):
                group.check_commit(asked.member_id, asked.generation_id, asked.offsets)
            else:
                partitions = [(asked.topic_ids.get(at.topic), at.partition) for at in asked.offsets]
                group.check_commit(asked.member_id, asked.generation_id, partitions)
        except StaleMemberEpoch as error:
            if asked.producer is None:
                raise
            # Producers do not know the other error, and would end with it.
            raise IllegalGeneration(str(error)) from None

    def _committed(
        self,
        shard: GroupShard,
        group_id: str,
        values: Mapping[TopicPartition, OffsetCommitValue],
        results: CommitResults,
        future: Future[CommitResults],
        producer: TransactionalProducer | None,
        error: KreplicaError | None,
        log_offset: int,
    ) -> None:
        shard.end_commit(group_id, values)
        appended = {}
        for number, (at, value) in enumerate(values.items()):
            if error is not None:
                results[at] = error
            else:
                appended[at] = OffsetAndMetadata(value, log_offset + number)
        if producer is not None:
            shard.end_append(producer.producer_id, group_id, values, appended)
        else:
            for at, offset in appended.items():
                shard.keep_offset(group_id, at, offset)
        future.set_result(results)

    # ---- deletion and expiry ------------------------------------------------------------------------------

    def expire_later(self) -> None:
        """Schedule the next check for expired offsets, after offsets.retention.check.interval.ms."""
        self._loop.post_later(self._expire, self._config.offsets_retention_check_interval_ms)

    def _expire(self) -> None:
        def step(steps: Iterator[None]) -> None:
            try:
                next(steps)
            except StopIteration:
                self.expire_later()
            else:
                self._loop.post(partial(step, steps))

        step(self._expiring())

    def _expiring(self) -> Iterator[None]:
        for shard in self._store.active_shards():
            for count, group in enumerate(list(shard.groups.values()), 1):
                if shard.is_current and not isinstance(group, ShareGroup):
                    self._forget(shard, group, self._expired(shard, group))
                if count % GROUPS_A_STEP == 0:
                    yield

    def _expired(self, shard: GroupShard, group: CommittingGroup) -> list[TopicPartition]:
        now_ms = self._clock.time_ms()
        retention_ms = self._config.offsets_retention_minutes * 60_000
        left_ms = 0
        if isinstance(group, ClassicGroup) and group.is_in(GroupState.EMPTY) and group.protocol_type:
            left_ms = group.state_timestamp
        subscribed = group.subscribed_topics()
        if subscribed is None:
            return []
        expired = []
        for at, (value, _) in shard.offsets(group.group_id).items():
            begin = max(value.commit_timestamp, left_ms)
            is_over = (
                now_ms >= value.expire_timestamp
                if value.expire_timestamp >= 0
                else now_ms - begin >= retention_ms
            )
            if is_over and at.topic not in subscribed:
                expired.append(at)
        # A tombstone would drop the offset of an open transaction, too.
        open_offsets = shard.open_offsets(group.group_id) if expired else ()
        return [at for at in expired if at not in open_offsets]

    def delete_topics(self, topics: Iterable[str]) -> None:
        """Delete the offsets of deleted topics, also those of open transactions."""
        gone = frozenset(topics)
        for shard in self._store.active_shards():
            for group in list(shard.groups.values()):
                if not isinstance(group, ShareGroup):
                    found = [at for at in shard.offsets(group.group_id) if at.topic in gone]
                    self._forget(shard, group, found)
            for group_id in sorted(shard.groups_with_open_offsets()):
                found = [at for at in shard.open_offsets(group_id) if at.topic in gone]
                self._append_tombstones(shard, group_id, sorted(found), _ignore)

    def delete(
        self,
        shard: GroupShard,
        group: CommittingGroup,
        partitions: Iterable[TopicPartition],
        future: Future[CommitResults],
    ) -> None:
        """Delete offsets of topics that no member reads.

        Raises NonEmptyGroup if the group has members that are not consumers.
        """
        subscribed = group.subscribed_topics()
        if subscribed is None:
            raise NonEmptyGroup(f"group {group.group_id} has members, and it is unknown what they read")
        results: CommitResults = {}
        for at in partitions:
            is_read = at.topic in subscribed
            results[at] = GroupSubscribedToTopic(f"{group.group_id} reads {at.topic}") if is_read else None
        known = shard.offsets(group.group_id).keys() | shard.open_offsets(group.group_id)
        gone = [at for at, error in results.items() if error is None and at in known]
        taken = shard.drop_offsets(group.group_id, gone)

        def taken_back(error: KreplicaError | None, _offset: int) -> None:
            if error is not None and shard.is_current:
                shard.restore_offsets(group.group_id, taken)
            future.set_result({**results, **dict.fromkeys(gone, error)} if error else results)

        if gone:
            self._append_tombstones(shard, group.group_id, gone, taken_back)
        else:
            future.set_result(results)

    def delete_group(
        self, shard: GroupShard, group: CommittingGroup, then: Callable[[KreplicaError | None], None]
    ) -> None:
        """Delete the group with all its offsets; if that fails, restore it."""
        if not isinstance(group, ClassicGroup):
            self._delete_modern_group(shard, group, then)
            return

        def taken_back(error: KreplicaError | None, _offset: int) -> None:
            if error is not None and shard.is_current and group.group_id not in shard.groups:
                group.state = GroupState.EMPTY
                shard.groups[group.group_id] = group
                shard.restore_offsets(group.group_id, dropped)
            then(error)

        # Include pending commits: their records precede the tombstones in the log.
        dropped = dict(shard.offsets(group.group_id))
        gone = sorted(dropped.keys() | set(shard.pending_commits(group.group_id)))
        self._take_back(shard, group, gone, taken_back)

    def _delete_modern_group(
        self,
        shard: GroupShard,
        group: ConsumerGroup | StreamsGroup,
        then: Callable[[KreplicaError | None], None],
    ) -> None:
        """Delete the offsets of the group, and then the group if it is still empty."""
        group_id = group.group_id

        def step(put: Put[MessageRecord, MessageRecord]) -> Written:
            has_offsets = shard.offsets(group_id) or shard.pending_commits(group_id)
            if shard.groups.get(group_id) is not group or not group.is_empty or has_offsets:
                raise NonEmptyGroup(f"group {group_id} is in use again")
            for key in group.own_keys:
                put(key, None)
            return then

        def deleted(error: KreplicaError | None, _offset: int) -> None:
            if error is not None:
                if shard.is_current:
                    shard.restore_offsets(group_id, dropped)
                then(error)
                return
            try:
                shard.writer.run(step)
            except KreplicaError as error:
                then(error)

        gone = sorted(shard.offsets(group_id).keys() | set(shard.pending_commits(group_id)))
        dropped = shard.drop_offsets(group_id, gone)
        if gone:
            self._append_tombstones(shard, group_id, gone, deleted)
        else:
            deleted(None, -1)

    def _forget(self, shard: GroupShard, group: CommittingGroup, gone: list[TopicPartition]) -> None:
        is_left = (
            group.is_empty
            and not shard.pending_commits(group.group_id)
            and not shard.open_offsets(group.group_id)
        )
        is_over = is_left and len(gone) == len(shard.offsets(group.group_id))
        if not gone and not is_over:
            return
        if is_over and not isinstance(group, ClassicGroup):
            self._delete_modern_group(shard, group, lambda _: None)
            return
        shard.drop_offsets(group.group_id, gone)
        if is_over:
            assert isinstance(group, ClassicGroup)
            self._take_back(shard, group, gone, _ignore)
        else:
            self._append_tombstones(shard, group.group_id, gone, _ignore)

    def _take_back(
        self, shard: GroupShard, group: ClassicGroup, gone: Sequence[TopicPartition], then: Appended
    ) -> None:
        group.move_to(GroupState.DEAD, self._clock.time_ms())
        shard.groups.pop(group.group_id, None)
        shard.drop_offsets(group.group_id, gone)
        self._append_tombstones(shard, group.group_id, gone, then, with_group=True)

    def _append_tombstones(
        self,
        shard: GroupShard,
        group_id: str,
        gone: Sequence[TopicPartition],
        then: Appended,
        *,
        with_group: bool = False,
    ) -> None:
        """Append tombstones of offsets, and of the group `with_group`, in order; the group's is the last.

        `then` gets the error of the last batch.
        """
        records: list[Record] = [(_key(group_id, at), None) for at in gone]
        if with_group:
            records.append((encode_key(GroupMetadataKey(group=group_id)), None))

        def forgotten(
            some: Sequence[TopicPartition], then: Appended, error: KreplicaError | None, offset: int
        ) -> None:
            if error is None:
                for number, at in enumerate(some):
                    shard.forget(group_id, at, offset + number)
            then(error, offset)

        for start in range(0, len(records), TOMBSTONES_A_BATCH):
            end = start + TOMBSTONES_A_BATCH
            last = then if end >= len(records) else _ignore
            self._store.append(shard, records[start:end], partial(forgotten, gone[start:end], last))


def _key(group_id: str, at: TopicPartition) -> bytes:
    return encode_key(OffsetCommitKey(group=group_id, topic=at.topic, partition=at.partition))


def _ignore(error: KreplicaError | None, _offset: int) -> None:
    """Ignore the error: what was not deleted in the log is loaded again later, and expires again."""
