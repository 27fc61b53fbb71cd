"""A group coordinator under a virtual clock, over logs in memory, and its members' requests."""

from __future__ import annotations

import random

from kreplica._core.record_batch import stamp_offsets
from kreplica._core.records import batches
from kreplica.common.errors import FencedLeaderEpoch, KreplicaError, MessageTooLarge
from kreplica.common.future import Future, failed
from kreplica.common.types import TopicPartition
from kreplica.coordinator.classic_group import Protocol
from kreplica.coordinator.classic_members import LeavingMember
from kreplica.coordinator.consumer_groups import ConsumerGroupPorts
from kreplica.coordinator.group_config import GroupConfig
from kreplica.coordinator.group_coordinator import GroupCoordinator
from kreplica.coordinator.group_offsets import CommitRequest, CommittedOffset
from kreplica.coordinator.group_rebalances import JoinRequest, SyncRequest
from kreplica.coordinator.group_records import decode_key, decode_value
from kreplica.coordinator.shard_store import LogChunk
from kreplica.coordinator.share_groups import ShareGroupPorts
from kreplica.coordinator.streams_groups import StreamsGroupPorts
from tests.support.virtual import VirtualMachine

AT = TopicPartition("t", 0)
CONFIG = GroupConfig(group_min_session_timeout_ms=100, group_initial_rebalance_delay_ms=0)
RANGE = (Protocol("range", b"all"),)


class MemoryLog:
    """Partition 0 of a coordinator's topic, led in `leader_epoch`.

    Appends wait while `held` is a list, and fail with `error`. Batches above `max_bytes` are too large.
    """

    def __init__(self):
        self.leader_epoch = 0
        self.batches: list[bytes] = []
        self.end = 0
        self.held: list[tuple[Future[int], int]] | None = None
        self.error: KreplicaError | None = None
        self.max_bytes: int | None = None
        self.reads = 0
        # None: everything is committed.
        self.committed_end: int | None = None

    def append(self, partition, leader_epoch, batch, answered, _verification=None):
        def answer(done):
            error = done.exception()
            answered(-1 if error is not None else done.result(), error)

        assert partition == 0
        self.take(leader_epoch, batch).add_done_callback(answer)

    def take(self, leader_epoch, batch):
        if self.max_bytes is not None and len(batch) > self.max_bytes:
            return failed(MessageTooLarge())
        if self.error is not None:
            return failed(self.error)
        if leader_epoch != self.leader_epoch:
            return failed(FencedLeaderEpoch())
        base = self.add(batch)
        future: Future[int] = Future()
        if self.held is None:
            future.set_result(base)
        else:
            self.held.append((future, base))
        return future

    def add(self, batch):
        stamped, base = bytearray(batch), self.end
        stamp_offsets(stamped, base, self.leader_epoch)
        self.batches.append(bytes(stamped))
        self.end = next(iter(batches(stamped))).next_offset
        return base

    def release(self):
        held, self.held = self.held, None
        for future, base in held or ():
            future.set_result(base)

    def read(self, partition, leader_epoch, offset, max_bytes):
        """Return one batch at a time, as a log with large batches would."""
        assert partition == 0
        assert max_bytes > 0
        if leader_epoch != self.leader_epoch:
            raise FencedLeaderEpoch
        self.reads += 1
        wanted = 0 if offset is None else offset
        found = next((each for each in self.batches if next(iter(batches(each))).last_offset >= wanted), None)
        return LogChunk(found, 0, self.end)

    def high_watermark(self, partition, leader_epoch):
        assert partition == 0
        if leader_epoch != self.leader_epoch:
            raise FencedLeaderEpoch
        return self.end if self.committed_end is None else self.committed_end

    def raw_records(self):
        return [record for data in self.batches for record in next(iter(batches(data)))]

    def records(self):
        """Key and value of every record there is, decoded."""
        found = []
        for record in self.raw_records():
            key = decode_key(record.key)
            found.append((key, None if record.value is None else decode_value(key, record.value)))
        return found


class GroupStage(VirtualMachine):
    """A coordinator that leads __consumer_offsets-0 in leader epoch 0, and its log."""

    def __init__(self, config=CONFIG, log=None):
        super().__init__()
        self.log = log or MemoryLog()
        self.coordinator = GroupCoordinator(
            config,
            self.log,
            partition_count=lambda: 1,
            consumers=self.consumer_ports(),
            shares=self.share_ports(),
            streams=self.streams_ports(),
            clock=self.clock,
            loop=self.loop,
            random=random.Random(1),
        )
        self.coordinator.startup()
        self.coordinator.elect(0, self.log.leader_epoch)
        self.settle()

    def consumer_ports(self):
        """Return what groups of the consumer protocol need: nothing, where none of them is used."""
        return ConsumerGroupPorts(topics=None, assignors={}, settings=None)

    def streams_ports(self):
        """Return what streams groups need: nothing, where none of them is used."""
        return StreamsGroupPorts(topics=None, settings=None, max_size=0)

    def share_ports(self):
        """Return what share groups need: nothing, where none of them is used."""
        return ShareGroupPorts(topics=None, persister=None, settings=None)

    def begin_join(self, member_id="", *, instance=None, protocols=RANGE, group="g", **options):
        options = {"rebalance_timeout_ms": 1_000, "session_timeout_ms": 500, **options}
        future = self.coordinator.join(
            JoinRequest(
                group,
                member_id,
                instance,
                "client",
                "host",
                protocol_type="consumer",
                protocols=tuple(protocols),
                **options,
            )
        )
        self.settle()
        return future

    def new_id(self, **options):
        """Return the member id with which a member without one must join again (KIP-394)."""
        return self.begin_join(**options).exception(0).member_id

    def begin_sync(self, joined, assignments=None, *, instance=None, group="g"):
        future = self.coordinator.sync(
            SyncRequest(
                group,
                joined.generation_id,
                joined.member_id,
                instance,
                "consumer",
                joined.protocol_name,
                assignments or {},
            )
        )
        self.settle()
        return future

    def one_member(self, *, instance=None, **options):
        """Create a stable group of one member; return the response to its join."""
        member_id = "" if instance else self.new_id(**options)
        joined = self.begin_join(member_id, instance=instance, **options).result(0)
        self.begin_sync(joined, {joined.member_id: b"work"}, instance=instance).result(0)
        return joined

    def heartbeat(self, joined, instance=None, group="g"):
        future = self.coordinator.heartbeat(group, joined.generation_id, joined.member_id, instance)
        self.settle()
        return future.exception(0)

    def leave(self, member_id, instance=None, group="g"):
        future = self.coordinator.leave(group, [LeavingMember(member_id, instance)])
        self.settle()
        return future.result(0)[0]

    def begin_commit(
        self, offset, joined=None, *, at=AT, group="g", metadata="", instance=None, producer=None
    ):
        generation_id, member_id = (-1, "") if joined is None else (joined.generation_id, joined.member_id)
        future = self.coordinator.commit_offsets(
            CommitRequest(
                group,
                generation_id,
                member_id,
                instance,
                {at: CommittedOffset(offset, metadata=metadata)},
                producer,
            )
        )
        self.settle()
        return future

    def commit(self, offset, joined=None, **options):
        """Return the error of a commit, None if it succeeded."""
        future = self.begin_commit(offset, joined, **options)
        return future.exception(0) or future.result(0)[options.get("at", AT)]

    def committed(self, group="g"):
        """Return the committed offset of each partition."""
        future = self.coordinator.fetch_offsets(group, None)
        self.settle()
        return {at: each.value.offset for at, each in future.result(0).items()}

    def stable_offsets(self, group="g"):
        """Return the committed offset of each partition, or its error while a transaction has one."""
        future = self.coordinator.fetch_offsets(group, None, require_stable=True)
        self.settle()
        return future.result(0)

    def describe(self, group="g"):
        future = self.coordinator.describe_group(group)
        self.settle()
        return future.result(0)

    def delete(self, group="g"):
        future = self.coordinator.delete_group(group)
        self.settle()
        return future.exception(0)

    def fail_over(self):
        """Let another broker lead, then this one again: it must load its state from the log."""
        self.coordinator.resign(0)
        self.settle()
        self.log.leader_epoch += 2
        self.coordinator.elect(0, self.log.leader_epoch)
        self.settle()
