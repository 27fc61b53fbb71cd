"""Replicas of one partition, each a Partition over a real log in a simulated storage, driven by the test.

Without a network and a controller: a test assigns roles, lets a follower fetch once, and answers proposals.
"""

from __future__ import annotations

from collections.abc import Sequence

from kreplica._core.log_segment import LogAppendInfo
from kreplica.common.config import LogConfig
from kreplica.common.leader_and_isr import NO_LEADER, LeaderAndIsr
from kreplica.common.types import AppendOrigin, TopicPartition, Uuid
from kreplica.log import log_loader
from kreplica.log.damage import Damage
from kreplica.log.log_loader import OpenOptions
from kreplica.log.unified_log import UnifiedLog
from kreplica.replica.isr_policy import IsrPolicy, LagByTime
from kreplica.replica.partition import FetchedAppend, Partition, ProducerAppend
from kreplica.replica.partition_state import (
    INCREASED,
    SAME,
    BecameLeader,
    IsrChangeProposed,
    LeaderHwChange,
    LogReadInfo,
    PartitionEffects,
)
from kreplica.sim.storage import SimStorage
from tests.support.batches import build
from tests.support.clock import ManualClock
from tests.support.logs import values

LAG_MS = 30_000
TOPIC_PARTITION = TopicPartition("t", 0)
TOPIC_ID = Uuid(bytes(range(16)))
DIRECTORY = "/logs/t-0"
FETCH_BYTES = 1 << 20


def append_as_leader(
    partition: Partition,
    records: bytes,
    origin: AppendOrigin = AppendOrigin.CLIENT,
    required_acks: int = 0,
    leader_epoch: int | None = None,
) -> tuple[LogAppendInfo, LeaderHwChange]:
    """Append a producer's batch in the caller's turn; raise the error."""
    append = ProducerAppend(partition, records, required_acks, origin, leader_epoch=leader_epoch)
    assert partition.append(append)
    if append.error is not None:
        raise append.error
    assert append.info is not None
    return append.info, append.change


def append_as_follower(
    partition: Partition, records: bytes, leader_epoch: int, leader_log_start: int = 0
) -> LogAppendInfo | None:
    """Append what was fetched in the caller's turn; raise the error."""
    append = FetchedAppend(partition, records, leader_epoch, leader_log_start)
    assert partition.append(append)
    if append.error is not None:
        raise append.error
    return append.info


class Brokers:
    """BrokerMetadata shared by all brokers, updated immediately."""

    def __init__(self, broker_ids: Sequence[int]) -> None:
        self.epochs = {broker_id: 100 + broker_id for broker_id in broker_ids}
        self.fenced: set[int] = set()
        self.shutting_down: set[int] = set()

    def is_broker_fenced(self, broker_id: int) -> bool:
        return broker_id in self.fenced

    def is_broker_shutting_down(self, broker_id: int) -> bool:
        return broker_id in self.shutting_down

    def get_alive_broker_epoch(self, broker_id: int) -> int | None:
        return None if broker_id in self.fenced else self.epochs.get(broker_id)


class Node:
    """A broker: its storage, its log and its Partition."""

    def __init__(
        self, broker_id: int, brokers: Brokers, clock: ManualClock, policy: IsrPolicy, config: LogConfig
    ):
        self.broker_id = broker_id
        self.brokers = brokers
        self.clock = clock
        self.policy = policy
        self.config = config
        self.storage = SimStorage()
        self.storage.make_directory(DIRECTORY)
        self.storage.sync_directory("/")
        self.storage.sync_directory("/logs")
        self.damages: list[Damage] = []
        self.open(high_watermark=0)

    def open(self, high_watermark: int) -> None:
        options = OpenOptions(high_watermark=high_watermark)
        self.log: UnifiedLog = log_loader.load(
            DIRECTORY, TOPIC_PARTITION, self.config, self.storage, self.clock, options
        )
        self.partition = Partition(
            TOPIC_PARTITION,
            key=1,
            broker_id=self.broker_id,
            clock=self.clock,
            brokers=self.brokers,
            broker_epoch=lambda: self.brokers.epochs[self.broker_id],
            isr_policy=self.policy,
            on_damage=lambda _, damage: self.damages.append(damage),
        )

    def restart(self, *, power_cut: bool = False, high_watermark: int = 0) -> None:
        """Restart under a new broker epoch with what a kill leaves, or with only what was flushed."""
        if power_cut:
            self.storage = self.storage.after_power_cut()
        else:
            self.storage = self.storage.after_kill()
        self.brokers.epochs[self.broker_id] += 100
        self.open(high_watermark)

    def records(self) -> list[tuple[int, bytes | None]]:
        return values(self.log)


class Replicas:
    """A partition on brokers 1 to `count`; `node(n)` is broker n's. Call `lead` before anything else."""

    def __init__(self, count: int = 3, *, policy: IsrPolicy | None = None, **settings: object) -> None:
        self.clock = ManualClock()
        self.ids = tuple(range(1, count + 1))
        self.brokers = Brokers(self.ids)
        policy = policy or LagByTime(LAG_MS)
        config = LogConfig(**settings)
        self.nodes = {i: Node(i, self.brokers, self.clock, policy, config) for i in self.ids}
        self.known = LeaderAndIsr(
            topic_partition=TOPIC_PARTITION,
            topic_id=TOPIC_ID,
            leader=NO_LEADER,
            leader_epoch=-1,
            isr=self.ids,
            partition_epoch=-1,
            replicas=self.ids,
        )

    def node(self, broker_id: int) -> Node:
        return self.nodes[broker_id]

    @property
    def leader(self) -> Partition:
        return self.nodes[self.known.leader].partition

    @property
    def high_watermark(self) -> int:
        return self.leader.high_watermark

    # ---- the controller ---------------------------------------------------------------------------------

    def decide(self, **changes: object) -> LeaderAndIsr:
        """Return the controller's next state; `leader` begins a new leader epoch."""
        fields = {name: getattr(self.known, name) for name in LeaderAndIsr.__dataclass_fields__}
        fields["partition_epoch"] += 1
        if "leader" in changes:
            fields["leader_epoch"] += 1
        self.known = LeaderAndIsr(**{**fields, **changes})
        return self.known

    def notify(self, broker_id: int) -> BecameLeader | bool:
        """Apply the controller's current state on one broker."""
        node = self.nodes[broker_id]
        if self.known.leader == broker_id:
            return node.partition.make_leader(self.known, node.log)
        return node.partition.make_follower(self.known, node.log)

    def lead(self, broker_id: int, **changes: object) -> BecameLeader:
        """Make the broker lead, and apply that on all brokers."""
        self.decide(leader=broker_id, **changes)
        answers = {each: self.notify(each) for each in self.ids}
        became = answers[broker_id]
        assert isinstance(became, BecameLeader)
        return became

    def accept(self, proposed: IsrChangeProposed | None) -> PartitionEffects:
        """Let the controller accept the leader's proposal and respond."""
        assert proposed is not None
        return self.leader.handle_alter_partition_response(proposed.pending, self.commit(proposed))

    def commit(self, proposed: IsrChangeProposed) -> LeaderAndIsr:
        """Let the controller accept the leader's proposal; return its response."""
        wanted = proposed.leader_and_isr
        return self.decide(isr=wanted.isr, leader_recovery_state=wanted.leader_recovery_state)

    # ---- clients and followers --------------------------------------------------------------------------

    def append(self, *payload: bytes, required_acks: int = 1):
        return append_as_leader(
            self.leader, build(list(payload), now_ms=self.clock.now_ms), required_acks=required_acks
        )

    def read(self, follower: int, **changes: object) -> LogReadInfo:
        """Run the leader's part of the follower's fetch, without recording it."""
        node = self.nodes[follower]
        arguments = {
            "isolation": "log_end",
            "replica_id": follower,
            "current_leader_epoch": node.partition.leader_epoch,
            "last_fetched_epoch": node.log.latest_epoch,
        }
        fetch_offset = changes.pop("fetch_offset", node.log.log_end_offset)
        return self.leader.fetch_records(fetch_offset, FETCH_BYTES, **{**arguments, **changes})

    def note(self, follower: int, read: LogReadInfo) -> PartitionEffects:
        node = self.nodes[follower]
        return self.leader.update_follower_fetch_state(
            follower, read, node.log.log_start_offset, self.clock.now_ms, self.brokers.epochs[follower]
        )

    def take(self, follower: int, read: LogReadInfo) -> None:
        """Run the follower's part: truncate, or append, then set the high watermark."""
        node = self.nodes[follower]
        partition, epoch = node.partition, node.partition.leader_epoch
        if read.diverging_epoch is not None:
            partition.truncate_to(truncation_offset(node.log, *read.diverging_epoch))
            return
        if read.records is not None:
            append_as_follower(partition, read.records, epoch)
        partition.update_follower_high_watermark(read.high_watermark, epoch)

    def fetch(self, *followers: int) -> PartitionEffects:
        """Let each follower fetch once; return the effects on the leader."""
        effects = PartitionEffects()
        for follower in followers:
            read = self.read(follower)
            effects = _together(effects, self.note(follower, read))
            self.take(follower, read)
        return effects

    def catch_up(self, *followers: int) -> PartitionEffects:
        """Fetch until nothing new is left and the leader knows that; return the effects on the leader."""
        effects = PartitionEffects()
        for follower in followers:
            for _ in range(50):
                log = self.nodes[follower].log
                before = log.log_end_offset, log.latest_epoch
                effects = _together(effects, self.fetch(follower))
                if (log.log_end_offset, log.latest_epoch) == before:
                    break
        return effects


def _together(one: PartitionEffects, other: PartitionEffects) -> PartitionEffects:
    return PartitionEffects(
        INCREASED if INCREASED in (one[0], other[0]) else SAME,
        one.isr_change or other.isr_change,
        one.low_watermark_moved or other.low_watermark_moved,
    )


def truncation_offset(log: UnifiedLog, leader_epoch: int, end_offset: int) -> int:
    """Return where a follower truncates if its leader's `leader_epoch` ends at `end_offset`."""
    own_epoch, own_end = log.epochs.end_offset_for(leader_epoch, log.log_end_offset)
    if own_epoch == leader_epoch:
        return min(own_end, end_offset, log.log_end_offset)
    if own_end < 0:
        return min(end_offset, log.log_end_offset)
    return min(own_end, log.log_end_offset)
