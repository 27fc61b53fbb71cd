"""Partition: one partition on one broker, as its leader or a follower.

It decides what is committed: the high watermark is the least log end of the leader and of every replica that
is in sync, or may be in the controller's view. Around it: appends and replication (`partition_append`), reads
(`partition_fetch`), the ISR (`partition_isr`).

Thread rule: `leader_isr_update_lock` guards the role, the ISR and the followers' states, and is held during
an append, so that no role changes under it. Readers use `term`, `state` and `leader_and_isr`, each immutable
and replaced as a whole. Nothing is resolved, sent or flushed under the lock: methods return PartitionEffects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kreplica.common.errors import (
    FencedLeaderEpoch,
    KreplicaError,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
)
from kreplica.common.leader_and_isr import NO_LEADER, LeaderAndIsr, LeaderRecoveryState
from kreplica.common.locks import RLock
from kreplica.common.ports import Clock
from kreplica.common.types import NO_LEADER_EPOCH, AppendOrigin, TopicPartition
from kreplica.replica import partition_append, partition_fetch, partition_isr, partition_role
from kreplica.replica.isr_history import IsrHistory, OutOfIsr
from kreplica.replica.isr_policy import IsrPolicy
from kreplica.replica.partition_effects import (
    HIGH_WATERMARK_MOVED,
    INCREASED,
    NOTHING,
    SAME,
    BecameLeader,
    LeaderHwChange,
    PartitionEffects,
)
from kreplica.replica.partition_fetch import EpochEndOffset, LogReadInfo
from kreplica.replica.partition_standing import PartitionStanding
from kreplica.replica.partition_state import (
    CommittedPartitionState,
    PartitionState,
    PendingPartitionChange,
)
from kreplica.replica.partition_term import BrokerMetadata, Term
from kreplica.replica.replica import FetchClock, Replica

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kreplica._core.batch_builder import _RecordList as RecordList
    from kreplica._core.log_append_info import LogAppendInfo
    from kreplica.log.damage import Damage
    from kreplica.log.log_reader import TimestampOffset
    from kreplica.log.unified_log import UnifiedLog
    from kreplica.replica.fetch_session import CachedPartition


class Partition(PartitionStanding):
    """`topic_partition` on broker `broker_id`; a replica without a role until it is made leader or follower.

    `key`: the number under which operations wait for it. `broker_epoch()`: this broker's. `on_damage`: called
    as on_damage(partition, damage) when a range of the log is found damaged, in the thread that found it,
    which may hold locks: it should only note it or post it to a loop.
    """

    __slots__ = (
        "_others",
        "_remote_replicas",
        "_replicas",
        "_watched_replicas",
        "broker_epoch",
        "broker_id",
        "brokers",
        "clock",
        "damage_listener",
        "fetch_waiters",
        "is_offline",
        "isr_history",
        "isr_policy",
        "key",
        "leader_and_isr",
        "leader_isr_update_lock",
        "log",
        "low_watermark_waiters",
        "state",
        "term",
        "topic_partition",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        *,
        key: int,
        broker_id: int,
        clock: Clock,
        brokers: BrokerMetadata,
        broker_epoch: Callable[[], int],
        isr_policy: IsrPolicy,
        on_damage: Callable[[Partition, Damage], None] | None = None,
    ) -> None:
        self.topic_partition = topic_partition
        self.key = key
        self.broker_id = broker_id
        self.clock = clock
        self.brokers = brokers
        self.broker_epoch = broker_epoch
        self.isr_policy = isr_policy
        # Whether its role ended with its disk.
        self.is_offline = False
        self.damage_listener = on_damage
        self.isr_history = IsrHistory()
        # What waits for this partition to move, kept by its owners (delayed_fetch; DelayedDeleteRecords); in
        # the order in which it came, so that a history can be had again.
        self.fetch_waiters: dict[CachedPartition, None] = {}
        self.low_watermark_waiters = 0
        self.leader_isr_update_lock = RLock()
        # Guarded by leader_isr_update_lock:
        self.log: UnifiedLog | None = None
        self.term = Term(NO_LEADER, NO_LEADER_EPOCH)
        self.leader_and_isr: LeaderAndIsr | None = None
        self.state: PartitionState = CommittedPartitionState((), LeaderRecoveryState.RECOVERED)
        self._replicas: dict[int, Replica] = {}
        # The followers by whether the high watermark must wait for them; changed with the state.
        self._remote_replicas: tuple[Replica, ...] = ()
        self._watched_replicas: tuple[Replica, ...] = ()
        self._others: tuple[Replica, ...] = ()

    # ---- followers ----------------------------------------------------------------------------------------

    def replica(self, broker_id: int) -> Replica | None:
        """The follower's state, where this broker leads."""
        return self._replicas.get(broker_id)

    @property
    def remote_replicas(self) -> tuple[Replica, ...]:
        """The followers' states."""
        return self._remote_replicas

    def assign_replicas(self, replicas: tuple[int, ...], anew: tuple[int, ...] = ()) -> None:
        """Under the lock, before `set_state`: keep the states of followers that stay, but for those
        `anew`."""
        kept = {broker_id: known for broker_id, known in self._replicas.items() if broker_id not in anew}
        self._replicas = {
            broker_id: kept.get(broker_id) or Replica(broker_id)
            for broker_id in replicas
            if broker_id != self.broker_id
        }
        self._remote_replicas = tuple(self._replicas.values())

    def set_state(self, state: PartitionState) -> None:
        """Under the lock, for partition_isr."""
        self.state = state
        maximal = state.maximal_isr
        self._watched_replicas = tuple(r for r in self._remote_replicas if r.broker_id in maximal)
        self._others = tuple(r for r in self._remote_replicas if r.broker_id not in maximal)

    # ---- roles --------------------------------------------------------------------------------------------

    def make_leader(self, leader_and_isr: LeaderAndIsr, log: UnifiedLog) -> BecameLeader:
        """This broker leads from `leader_and_isr.leader_epoch` on, which begins where its log ends now.

        The epoch is noted even if nothing is ever appended in it: followers that hold records of epochs
        between find out by it where to cut (KIP-279, KAFKA-7415). An unclean election's leader reports that
        it has taken note of it (KIP-704): `effects.isr_change`. Raises KafkaStorageError, and
        FencedLeaderEpoch where the log has records of a later epoch; nothing is changed then.
        """
        return partition_role.make_leader(self, leader_and_isr, log)

    def make_follower(self, leader_and_isr: LeaderAndIsr, log: UnifiedLog) -> bool:
        """This broker follows `leader_and_isr.leader`, which may be NO_LEADER; whether a leader epoch began.

        A fetcher must begin anew where one did, also where the leader stayed the same. False for a version of
        the partition that is out of date, which is ignored.
        """
        return partition_role.make_follower(self, leader_and_isr, log)

    def close(self, *, is_offline: bool = False) -> None:
        """End this broker's role: the replica is stopped or deleted, or its directory is offline."""
        self.is_offline = is_offline
        partition_role.close(self)

    # ---- append -------------------------------------------------------------------------------------------

    def append_records_to_leader(
        self,
        records: Buffer,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        required_acks: int = 0,
        *,
        wait: bool = True,
        leader_epoch: int | None = None,
    ) -> tuple[LogAppendInfo, LeaderHwChange]:
        """Append a producer's batch. `wait`: for the disk, where the topic's durability asks for that; else
        the caller must call `make_durable` before it acknowledges anything.

        Raises NotLeaderOrFollower; FencedLeaderEpoch where it leads in another epoch than `leader_epoch`;
        NotEnoughReplicas where `required_acks` is -1 and fewer replicas are in sync than
        min.insync.replicas; and as UnifiedLog.append_as_leader. Nothing is appended then.
        """
        with self.leader_isr_update_lock:
            log = self.require_leader(required_acks)
            self.require_epoch(leader_epoch)
            end = log.state.log_end_offset
            info = log.append_as_leader(records, self.term.leader_epoch, origin=origin, wait=False)
            change = self._appended(log, end)
        if wait and log.durable:
            change = partition_append.make_durable(self, log, info, change)
        return info, change

    def submit_to_leader(
        self,
        records: Buffer,
        origin: AppendOrigin,
        required_acks: int,
        leader_epoch: int | None,
        appended: partition_append.Appended,
        connection: object = None,
    ) -> None:
        """The same by the log's queue: `appended(info or error, change)` is called in the node's loop.
        `connection`: where it came from; see AppendQueue for what may overtake it.

        Raises what can be told at once: NotLeaderOrFollower, FencedLeaderEpoch, NotEnoughReplicas.
        """
        partition_append.submit_to_leader(
            self, records, origin, required_acks, leader_epoch, appended, connection
        )

    def require_epoch(self, leader_epoch: int | None) -> None:
        """Raise FencedLeaderEpoch where it leads in another epoch; None: any will do."""
        if leader_epoch is not None and leader_epoch != self.term.leader_epoch:
            text = f"{self.topic_partition}: led in epoch {self.term.leader_epoch}, not {leader_epoch}"
            raise FencedLeaderEpoch(text)

    def appended_aside(self, log: UnifiedLog, info: LogAppendInfo) -> LeaderHwChange:
        """An append that was submitted is in `log`, which this broker may no longer lead."""
        with self.leader_isr_update_lock:
            return self._appended(log, info.base_offset) if self.leader_log_if_local is log else SAME

    def append_values_to_leader(
        self, values: RecordList, required_acks: int = 0, *, wait: bool = True
    ) -> tuple[LogAppendInfo, LeaderHwChange]:
        """Build one batch from Python values and append it; else as `append_records_to_leader`."""
        with self.leader_isr_update_lock:
            log = self.require_leader(required_acks)
            end = log.state.log_end_offset
            info = log.append_records(values, self.term.leader_epoch, wait=False)
            change = self._appended(log, end)
        if wait and log.durable:
            change = partition_append.make_durable(self, log, info, change)
        return info, change

    def make_durable(self, info: LogAppendInfo) -> LeaderHwChange:
        """Return when an append that did not wait is as safe as the topic's durability asks; raises
        KafkaStorageError, NotLeaderOrFollower where it was cut off meanwhile."""
        log = self.local_log
        return partition_append.make_durable(self, log, info, SAME) if log.durable else SAME

    def require_leader(self, required_acks: int = 0) -> UnifiedLog:
        """The log of the leader, ready for an append with so many acks.

        Raises NotLeaderOrFollower; NotEnoughReplicas where acks are -1 and too few replicas are in sync.
        """
        term = self.term
        log = term.log
        if not term.leads or log is None:
            raise NotLeaderOrFollower(f"{self.topic_partition}: broker {self.broker_id} does not lead it")
        if (
            required_acks == partition_append.ACKS_ALL
            and len(self.state.isr) < log.config.min_insync_replicas
        ):
            partition_append.require_enough_in_sync(self, log)
        return log

    def _appended(self, log: UnifiedLog, former_end: int) -> LeaderHwChange:
        # Followers that had all of the log by now were in sync until this moment.
        for replica in self._remote_replicas:
            if replica.log_end_offset == former_end and replica.fetch_clock is not None:
                replica.leader_moved_on()
        return self._increment_high_watermark(log)

    def append_records_to_follower(
        self, records: Buffer, leader_epoch: int, leader_log_start: int = 0
    ) -> LogAppendInfo | None:
        """Append what was fetched from the leader of `leader_epoch`, as it is; None if nothing was new.

        `leader_log_start`: where the leader's log begins. A log that lies wholly below it begins anew there,
        unless it is in sync.

        Batches of a later epoch are left out (KAFKA-18723). Returns when the topic's durability is met, so
        that the next fetch tells of flushed offsets. Raises NotLeaderOrFollower and FencedLeaderEpoch where
        the role has changed, OffsetsOutOfOrder, CorruptMessage, KafkaStorageError.
        """
        return partition_append.append_records_to_follower(self, records, leader_epoch, leader_log_start)

    def submit_to_follower(
        self, records: Buffer, leader_epoch: int, leader_log_start: int, appended: partition_append.Followed
    ) -> None:
        """The same by the log's queue: `appended(info or None or error)` is called in the node's loop.

        Raises NotLeaderOrFollower and FencedLeaderEpoch at once.
        """
        partition_append.submit_to_follower(self, records, leader_epoch, leader_log_start, appended)

    def update_follower_high_watermark(self, leader_high_watermark: int, leader_epoch: int) -> bool:
        """Take over the leader's high watermark, as far as this log goes; whether it moved.

        It never goes back: a new leader may know of less, but what was committed stays so.
        """
        return partition_append.update_follower_high_watermark(self, leader_high_watermark, leader_epoch)

    def maybe_increment_log_start_offset(self, offset: int, leader_epoch: int) -> bool:
        """As a follower, drop what the leader has dropped; whether the log start moved."""
        return partition_append.maybe_increment_log_start_offset(self, offset, leader_epoch)

    def truncate_to(self, offset: int) -> bool:
        """As a follower, cut everything from `offset` on. Raises NotLeaderOrFollower for a leader: it never
        cuts."""
        return partition_append.truncate_to(self, offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """As a follower, drop everything and begin again at `offset`."""
        partition_append.truncate_fully_and_start_at(self, offset)

    def delete_records_on_leader(self, offset: int) -> tuple[int, int]:
        """Drop the records below `offset` (-1: below the high watermark): that offset, and the low watermark.

        All replicas have dropped them once `low_watermark_if_leader` has reached it. Raises
        NotLeaderOrFollower, PolicyViolation for a topic that is only compacted, OffsetOutOfRange.
        """
        return partition_append.delete_records_on_leader(self, offset)

    def low_watermark_if_leader(self) -> int:
        """The least log start of the leader and its live followers. Raises NotLeaderOrFollower."""
        return partition_append.low_watermark_if_leader(self)

    # ---- high watermark -----------------------------------------------------------------------------------

    def maybe_increment_leader_hw(self, now_ms: int | None = None) -> LeaderHwChange:
        """Move the high watermark to what everybody who counts has; SAME where this broker does not lead."""
        with self.leader_isr_update_lock:
            log = self.leader_log_if_local
            return SAME if log is None else self._increment_high_watermark(log, now_ms)

    def _increment_high_watermark(self, log: UnifiedLog, now_ms: int | None = None) -> LeaderHwChange:
        state = log.state
        offset = state.log_end_offset
        if log.durable and log.config.durability != "page_cache":
            # What the leader could lose with its power is not committed.
            offset = state.flush_offset
        for replica in self._watched_replicas:
            if replica.log_end_offset < offset:
                offset = replica.log_end_offset
        if offset <= state.high_watermark:
            return SAME
        for replica in self._others:
            if replica.log_end_offset < offset and partition_isr.is_about_to_join(self, replica, now_ms):
                offset = replica.log_end_offset
        # It stands still below min.insync.replicas, also for what was appended before (KAFKA-15583).
        if offset <= state.high_watermark or self.is_under_min_isr:
            return SAME
        log.maybe_increment_high_watermark(offset)
        self.term.watermark.advance(offset)
        return INCREASED

    def check_enough_replicas_reach_offset(self, required_offset: int) -> tuple[bool, KreplicaError | None]:
        """Whether the wait for `required_offset` is over, and with what error: NotLeaderOrFollower, or
        NotEnoughReplicasAfterAppend where it is committed by fewer replicas than min.insync.replicas."""
        with self.leader_isr_update_lock:
            log = self.leader_log_if_local
            if log is None:
                return False, NotLeaderOrFollower(f"{self.topic_partition}: led elsewhere by now")
            if log.high_watermark < required_offset:
                return False, None
            if self.has_enough_in_sync:
                return True, None
            return True, NotEnoughReplicasAfterAppend(
                f"{self.topic_partition}: appended, but only {self.state.maximal_isr} are in sync"
            )

    # ---- fetch --------------------------------------------------------------------------------------------

    def fetch_records(
        self,
        fetch_offset: int,
        max_bytes: int,
        *,
        isolation: str = "high_watermark",
        replica_id: int = -1,
        current_leader_epoch: int | None = None,
        last_fetched_epoch: int | None = None,
        only_leader: bool = True,
        at_least_one: bool = True,
    ) -> LogReadInfo:
        """Whole batches from the one that holds `fetch_offset` on, as a pinned slice; see partition_fetch.

        `isolation`: log_end (followers), high_watermark, txn_committed. `replica_id`: the follower that
        fetches, -1 for a consumer. `current_leader_epoch`: what the fetcher takes for the leader epoch, None
        if it does not say. `last_fetched_epoch`: of the record before `fetch_offset`; where this log
        has others there, the answer has no records and a `diverging_epoch`. Holds no lock while it reads.

        Raises FencedLeaderEpoch, UnknownLeaderEpoch, NotLeaderOrFollower, OffsetOutOfRange, DamagedLog.
        """
        return partition_fetch.fetch_records(
            self,
            fetch_offset,
            max_bytes,
            isolation,
            replica_id,
            current_leader_epoch,
            last_fetched_epoch,
            only_leader,
            at_least_one,
        )

    def update_follower_fetch_state(
        self, replica_id: int, read: LogReadInfo, log_start_offset: int, now_ms: int, broker_epoch: int = -1
    ) -> PartitionEffects:
        """Note what the follower's fetch, whose answer is `read`, tells of it; it may join the ISR by that,
        and the high watermark move.

        `log_start_offset`: the follower's; `broker_epoch`: in which it fetched, -1 if it does not say. A
        diverging fetch tells nothing of what the follower has (KAFKA-13141). Nothing is noted where the
        leader epoch has changed since the read. Raises NotLeaderOrFollower for a fetch from before the
        follower's restart (KIP-903) and for one that is no replica.
        """
        with self.leader_isr_update_lock:
            term = self.term
            if not term.leads or term.leader_epoch != read.leader_epoch:
                return NOTHING
            replica = self._replicas.get(replica_id)
            registered = self.brokers.get_alive_broker_epoch(replica_id)
            if replica is None or not replica.broker_epoch <= broker_epoch == registered:
                replica = partition_fetch.check_follower(self, replica_id, broker_epoch)
            if read.diverging_epoch is not None:
                partition_isr.note_diverged(self, replica, read)
                return NOTHING
            former_end = replica.log_end_offset
            low_watermark = self.low_watermark_if_leader() if self.low_watermark_waiters else -1
            replica.update_fetch_state(
                read.fetch_offset, log_start_offset, now_ms, read.log_end_offset, broker_epoch
            )
            isr_change = None
            if replica_id not in self.state.isr and not self.state.is_inflight:
                isr_change = partition_isr.maybe_expand_isr(self, replica, now_ms)
            change = SAME
            if former_end != read.fetch_offset:
                assert term.log is not None
                change = self._increment_high_watermark(term.log, now_ms)
            if isr_change is None and not self.low_watermark_waiters:
                return NOTHING if change is SAME else HIGH_WATERMARK_MOVED
            moved = self.low_watermark_waiters > 0 and self.low_watermark_if_leader() > low_watermark
            return PartitionEffects(change, isr_change, moved)

    def attach_fetch_clock(self, replica_id: int, fetch_clock: FetchClock | None) -> FetchClock | None:
        """The follower fetches the partition in the session of that clock from now on, in none for None; the
        clock of the other session in which it did until now."""
        with self.leader_isr_update_lock:
            replica = self._replicas.get(replica_id)
            if replica is None or replica.fetch_clock is fetch_clock:
                return None
            former, replica.fetch_clock = replica.fetch_clock, fetch_clock
            return former

    def detach_fetch_clock(self, fetch_clock: FetchClock) -> None:
        """The session of that clock does not fetch the partition any more, spelled out or not."""
        with self.leader_isr_update_lock:
            for replica in self._remote_replicas:
                if replica.fetch_clock is fetch_clock:
                    if replica.log_end_offset == self.log_end_offset:
                        replica.leader_moved_on()
                    replica.fetch_clock = None

    def last_offset_for_leader_epoch(
        self, current_leader_epoch: int | None, leader_epoch: int, *, only_leader: bool = True
    ) -> EpochEndOffset:
        """The greatest epoch here not above `leader_epoch`, and where it ends; (-1, -1) where nothing is
        known.

        Raises FencedLeaderEpoch, UnknownLeaderEpoch, NotLeaderOrFollower.
        """
        log = partition_fetch.log_with_epoch(self, current_leader_epoch, only_leader).log
        assert log is not None
        return EpochEndOffset(*log.epochs.end_offset_for(leader_epoch, log.log_end_offset))

    def fetch_offset_for_timestamp(
        self, timestamp: int, isolation: str = "high_watermark", current_leader_epoch: int | None = None
    ) -> TimestampOffset:
        """The first record at or after `timestamp` that `isolation` lets see; offset -1 where there is none.

        LATEST_TIMESTAMP: the end of what it lets see. Raises OffsetNotAvailable while a new leader does not
        know yet how much is committed (KIP-207), and as `fetch_records`.
        """
        return partition_fetch.fetch_offset_for_timestamp(self, timestamp, isolation, current_leader_epoch)

    # ---- in-sync replicas ---------------------------------------------------------------------------------

    def maybe_shrink_isr(self, now_ms: int) -> PartitionEffects:
        """Propose to drop the replicas that have lagged too long; for the periodic isr-expiration.

        Where none has, one may be proposed to join whose fetches are not spelled out, since its session has
        no news of the partition. The high watermark may move too, where it waited for a replica outside of
        the ISR that has gone.
        """
        return partition_isr.maybe_shrink_isr(self, now_ms)

    def note_lost_range(
        self, replica_id: int, fetch_offset: int, current_leader_epoch: int, broker_epoch: int
    ) -> PartitionEffects:
        """Note that the follower lacks a range of its log from `fetch_offset` on, or, where that is its log
        end, that it has all again: it must not stay in the ISR with a range that is damaged, or join."""
        return partition_isr.note_lost_range(
            self, replica_id, fetch_offset, current_leader_epoch, broker_epoch
        )

    def handle_alter_partition_response(
        self, pending: PendingPartitionChange, answer: LeaderAndIsr | BaseException
    ) -> PartitionEffects:
        """Take the controller's answer to a proposal, which its `pending` tells apart, or what it failed
        with.

        `isr_change` is what has to be sent now: the same once more, or the change that is due next.
        """
        return partition_isr.handle_alter_partition_response(self, pending, answer)

    def why_not_in_isr(self, broker_id: int) -> OutOfIsr | None:
        """What put the replica out of the ISR and what keeps it out now; None for one that is in it.

        Raises NotLeaderOrFollower where this broker does not lead, ReplicaNotAvailable for no replica.
        """
        return partition_isr.why_not_in_isr(self, broker_id)

    # ---- damage -------------------------------------------------------------------------------------------

    def on_damage(self, _: UnifiedLog, damage: Damage) -> None:
        """A range of the log was found damaged: whoever repairs is told. Takes no lock."""
        if self.damage_listener is not None:
            self.damage_listener(self, damage)

    @property
    def is_damaged(self) -> bool:
        """Whether a range of the log cannot be read. Ranges below the log start offset do not count."""
        log = self.log
        return log is not None and bool(log.lost_ranges)

    def __repr__(self) -> str:
        role = "leader" if self.term.leads else f"follower of {self.term.leader}"
        return f"Partition({self.topic_partition}, {role}, epoch {self.term.leader_epoch})"
