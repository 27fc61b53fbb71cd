"""Partition: one partition's replica on one broker, as the leader or a follower.

It decides what is committed: the high watermark is the least log end of the leader and of every replica that
is in sync or may be in sync in the controller's view. The role, the followers' states and this rule are in
its native part, LeaderState (_core/leader_state). The rules of the ISR are in isr_policy; the immutable
values that this class replaces or returns are in partition_state.

Thread rule: `leader_isr_update_lock` guards the role, the ISR and the followers' states, and is held during
an append, so that no role changes meanwhile. Readers use `term`, `state` and `leader_and_isr`, each immutable
and replaced as a whole. Nothing is resolved, sent or flushed under the lock: methods return PartitionEffects.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from kreplica._core.leader_state import (
    NEVER_MS,
    UNKNOWN_BROKER_EPOCH,
    FetchClock,
    LeaderState,
    Replica,
    Term,
)
from kreplica._core.purgatory import Watermark
from kreplica._core.records import batches
from kreplica.common.dataclass import replace
from kreplica.common.errors import (
    DamagedLog,
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidRequest,
    InvalidUpdateVersion,
    KreplicaError,
    LogClosed,
    NewLeaderElected,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    OffsetOutOfRange,
    OffsetsOutOfOrder,
    OperationNotAttempted,
    OutOfOrderSequenceNumber,
    PolicyViolation,
    ReadOnlyLog,
    ReplicaNotAvailable,
    UnknownLeaderEpoch,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from kreplica.common.leader_and_isr import NO_LEADER, LeaderAndIsr, LeaderRecoveryState
from kreplica.common.locks import RLock
from kreplica.common.ports import Clock, monotonic_ms
from kreplica.common.types import ACKS_ALL, INT32_MAX, NO_LEADER_EPOCH, AppendOrigin, TopicPartition
from kreplica.log.append_queue import IN_FLIGHT, LEFT, MADE, AppendQueue, FollowerAppend, LeaderAppend
from kreplica.log.producer_append_info import Verification
from kreplica.log.unified_log import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, MAX_TIMESTAMP, TimestampOffset
from kreplica.record.batch_header import PRODUCER
from kreplica.replica import isr_policy
from kreplica.replica.isr_policy import IsrPolicy
from kreplica.replica.partition_state import (
    HIGH_WATERMARK_MOVED,
    INCREASED,
    NOTHING,
    SAME,
    BecameLeader,
    BrokerMetadata,
    CommittedPartitionState,
    EpochEndOffset,
    IsrChange,
    IsrChangeProposed,
    IsrChangeReason,
    IsrHistory,
    LeaderHwChange,
    LogReadInfo,
    OutOfIsr,
    PartitionEffects,
    PartitionState,
    PendingExpandIsr,
    PendingPartitionChange,
    PendingRecovery,
    PendingShrinkIsr,
    change_of,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kreplica._core.log_segment import LogAppendInfo
    from kreplica.log.damage import Damage
    from kreplica.log.unified_log import UnifiedLog

A = TypeVar("A", contravariant=True)

LOGGER = logging.getLogger(__name__)

# Passed to delete_records_on_leader instead of an offset: delete all that is committed.
HIGH_WATERMARK = -1
# The timestamp that asks for the first offset which this broker itself holds, of a log that is partly stored
# elsewhere (KIP-405).
EARLIEST_LOCAL_TIMESTAMP = -4

PRODUCER_FIELDS = struct.Struct(">qhi")
NO_PRODUCER = -1, -1, -1
# A partition remembers the refused batches of at most this many producers.
MAX_REFUSED_PRODUCERS = 1_000

# After these errors the change was not made and never will be: the committed ISR still holds.
NOT_MADE = (OperationNotAttempted, IneligibleReplica)
# After these errors only the controller's next metadata shows how the partition stands. Until then the change
# counts as possibly made, and no other is requested.
AWAIT_METADATA = (
    UnknownTopicOrPartition,
    UnknownTopicId,
    FencedLeaderEpoch,
    InvalidUpdateVersion,
    InvalidRequest,
    NewLeaderElected,
)
# What make_leader returns for a call that it ignores.
IGNORED = BecameLeader(False, False, NOTHING)


class Submitter(Protocol[A]):
    """Submits appends, and takes back those that a disk thread or a later turn has finished."""

    def finished(self, append: A, /) -> None: ...


class ProducerAppend(LeaderAppend):
    """An append of a producer's batch to a partition that this broker leads.

    `leader_epoch`: the epoch in which this broker must lead, None for any. `request`: gets the append if
    `Partition.append` could not finish it.

    Once it is finished, `change` says whether the high watermark moved, `mark` is the watermark of the
    leader's term, and `is_short` says whether the ISR has become too small since the append was started.
    """

    __slots__ = ("change", "is_short", "leader_epoch", "log", "mark", "partition", "request", "required_acks")

    def __init__(
        self,
        partition: Partition,
        records: Buffer,
        required_acks: int = 0,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        *,
        leader_epoch: int | None = None,
        connection: object = None,
        request: Submitter[ProducerAppend] | None = None,
        verification: Verification | None = None,
    ) -> None:
        super().__init__(records, origin, connection, verification)
        self.partition = partition
        self.required_acks = required_acks
        self.leader_epoch = leader_epoch
        self.request = request
        self.log: UnifiedLog | None = None
        self.mark: Watermark | None = None
        self.change = SAME
        self.is_short = False


class FetchedAppend(FollowerAppend):
    """An append of batches that were fetched from the leader of `leader_epoch`, unchanged.

    `leader_log_start`: where the leader's log begins. A log that ends at or below it is emptied first, unless
    the replica may be elected. `request`: as in ProducerAppend. `token`: for the caller's own use.

    Batches of a later epoch are left out (KAFKA-18723). The append is finished when the topic's durability is
    met, so that the next fetch reports flushed offsets. Its `info` is None if nothing was new.
    """

    __slots__ = ("leader_log_start", "log", "partition", "request", "token")

    def __init__(
        self,
        partition: Partition,
        records: Buffer,
        leader_epoch: int,
        leader_log_start: int = 0,
        *,
        request: Submitter[FetchedAppend] | None = None,
        token: Any = None,
    ) -> None:
        super().__init__(records, leader_epoch)
        self.token = token
        self.partition = partition
        self.leader_log_start = leader_log_start
        self.request = request
        self.log: UnifiedLog | None = None


ReplicaAppend = ProducerAppend | FetchedAppend


class Partition(LeaderState):
    """A replica of `topic_partition` on broker `broker_id`, at first without a role.

    `key`: the number under which operations wait for it. `broker_epoch()`: this broker's. `on_damage`: called
    as on_damage(partition, damage) when a range of the log is found damaged, in the thread that found it,
    which may hold locks: it should only record the range or post it to a loop.
    """

    __slots__ = (
        "_broker_epoch",
        "_brokers",
        "_damage_listener",
        "_isr_policy",
        "broker_id",
        "clock",
        "is_offline",
        "isr_history",
        "leader_and_isr",
        "log",
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
        self._brokers = brokers
        self.alive_broker_epoch = brokers.get_alive_broker_epoch
        self._broker_epoch = broker_epoch
        self._isr_policy = isr_policy
        # Whether its role ended with its disk.
        self.is_offline = False
        self._damage_listener = on_damage
        self.isr_history = IsrHistory()
        # What waits for this partition to move: the CachedPartition of each waiting fetch (ordered, so that a
        # run can be repeated), and the number of waiting deletions. The waiting operations keep these.
        self.fetch_waiters = {}
        self.low_watermark_waiters = 0
        self.leader_isr_update_lock = RLock()
        # Guarded by leader_isr_update_lock:
        self.log: UnifiedLog | None = None
        self.queue: AppendQueue | None = None
        self.term = Term(NO_LEADER, NO_LEADER_EPOCH)
        self.leader_and_isr: LeaderAndIsr | None = None
        self.state: PartitionState = CommittedPartitionState((), LeaderRecoveryState.RECOVERED)
        self.replicas_by_id = {}
        self.remote_replicas = self.watched_replicas = self.unwatched_replicas = ()
        # The lowest sequence number that was refused of each (producer id, epoch); see _note_refused.
        self.refused_sequences: dict[tuple[int, int], int] = {}

    # ---- where it stands ----------------------------------------------------------------------------------
    # Each answer comes from a value that is replaced as a whole, so it needs no lock and may be a moment old.

    @property
    def is_leader(self) -> bool:
        return self.term.leads

    @property
    def leader(self) -> int:
        """The leader's broker id, or NO_LEADER."""
        return self.term.leader

    @property
    def leader_epoch(self) -> int:
        return self.term.leader_epoch

    @property
    def partition_epoch(self) -> int:
        known = self.leader_and_isr
        return -1 if known is None else known.partition_epoch

    @property
    def isr(self) -> tuple[int, ...]:
        """The in-sync replicas that the controller has committed, as far as this broker knows."""
        known = self.leader_and_isr
        return () if known is None else known.isr

    @property
    def replicas(self) -> tuple[int, ...]:
        """The assigned brokers, in their order."""
        known = self.leader_and_isr
        return () if known is None else known.replicas

    @property
    def watermark(self) -> Watermark:
        """Moves with the high watermark while this broker leads; closed otherwise."""
        return self.term.watermark

    @property
    def high_watermark(self) -> int:
        return self.local_log.high_watermark

    @property
    def log_end_offset(self) -> int:
        return self.local_log.log_end_offset

    @property
    def log_start_offset(self) -> int:
        return self.local_log.log_start_offset

    @property
    def local_log(self) -> UnifiedLog:
        """This replica's log. Raises NotLeaderOrFollower before the first role."""
        if self.log is None:
            raise NotLeaderOrFollower(self._without_replica())
        return self.log

    def _without_replica(self) -> str:
        return f"{self.topic_partition}: no replica of it on broker {self.broker_id}"

    @property
    def leader_log_if_local(self) -> UnifiedLog | None:
        """The log if this broker leads, else None."""
        term = self.term
        return term.log if term.leads else None

    def replica(self, broker_id: int) -> Replica | None:
        """Return the follower's state; None if this broker does not lead or the other is not a replica."""
        return self.replicas_by_id.get(broker_id)

    @property
    def is_under_replicated(self) -> bool:
        """Whether this broker leads and a replica is out of sync."""
        return self.term.leads and len(self.state.isr) < len(self.remote_replicas) + 1

    @property
    def _may_be_elected(self) -> bool:
        """Whether this replica is in sync, or eligible (KIP-966), and so has all that is committed."""
        known = self.leader_and_isr
        return self.broker_id in self.isr or (known is not None and self.broker_id in known.elr)

    # ---- becoming a leader, a follower, or neither --------------------------------------------------------
    # A LeaderAndIsr that is older than the known one is ignored. One of the same partition epoch is not: the
    # answer to an AlterPartition may carry that epoch before the metadata does.

    def make_leader(self, new: LeaderAndIsr, log: UnifiedLog) -> BecameLeader:
        """Lead from `new.leader_epoch` on, which begins where the log ends now.

        The epoch is recorded even if nothing is ever appended in it: followers that hold records of epochs
        between find out by it where to truncate (KIP-279, KAFKA-7415). The leader of an unclean election
        reports that it has recovered (KIP-704), by `effects.isr_change`. Raises KafkaStorageError, and
        FencedLeaderEpoch if the log has records of a later epoch; nothing is changed then.
        """
        if log.config.durability != "page_cache":
            # Only what is flushed counts from now on, and perhaps no append will come that flushes the rest.
            # The fetcher has released the partition, so nothing is appended before the epoch begins.
            _flush(log)
        with self.leader_isr_update_lock:
            former, known = self.term, self.leader_and_isr
            if new.partition_epoch < self.partition_epoch:
                return IGNORED
            self._check_leader_of(new)
            now_ms = self._now_ms()
            is_new_leader = not former.leads
            is_new_epoch = new.leader_epoch > former.leader_epoch
            # The log comes first, so that its damage is repaired even if the damage keeps it from leading.
            self._take_log(log)
            start = former.epoch_start_offset
            if is_new_epoch or start is None:
                # Taking the log's lock waits for what a disk thread still appends in the former epoch.
                # Nothing is appended before the new epoch begins.
                with log.lock:
                    start = log.log_end_offset
                    _begin_epoch(log, new.leader_epoch, start)
            self._assign_replicas(new.replicas, _added_anew(new, known))
            self._note_isr_of(new, now_ms)
            if is_new_epoch or is_new_leader:
                # If an epoch was skipped, other replicas may have followed another leader in it and truncated
                # their logs. What was known of them no longer holds.
                knows_nothing = is_new_leader or new.leader_epoch > former.leader_epoch + 1
                for replica in self.remote_replicas:
                    is_in_sync = replica.broker_id in new.isr
                    replica.reset_replica_state(
                        now_ms, start, is_new_leader=knows_nothing, is_in_sync=is_in_sync
                    )
            # A leader that goes on keeps its watermark: nothing is truncated, so waiting produces go on.
            mark = Watermark(log.high_watermark) if is_new_leader else former.watermark
            self.term = Term(new.leader, new.leader_epoch, log=log, epoch_start_offset=start, watermark=mark)
            self.leader_and_isr = new
            isr_change = self._take_isr(new, known)
            change = self.maybe_increment_leader_hw(now_ms)
            return BecameLeader(is_new_leader, is_new_epoch, PartitionEffects(change, isr_change))

    def make_follower(self, new: LeaderAndIsr, log: UnifiedLog) -> bool:
        """Follow `new.leader`, which may be NO_LEADER. Return whether a leader epoch began.

        A fetcher must start over if one did, even if the leader stayed the same. Returns False for an
        out-of-date version of the partition, which is ignored.
        """
        if log.config.durability == "fsync_quorum":
            # The first fetch already gives the leader flushed offsets only.
            _flush(log)
        with self.leader_isr_update_lock:
            former = self.term
            if new.partition_epoch < self.partition_epoch:
                return False
            self._check_leader_of(new)
            is_new_epoch = new.leader_epoch > former.leader_epoch
            if former.leads:
                former.watermark.close()
            self._take_log(log)
            self.term = Term(new.leader, new.leader_epoch, log=log)
            self.leader_and_isr = new
            self._assign_replicas(())
            self._set_state(CommittedPartitionState((), new.leader_recovery_state))
        if former.leads and former.log is log:
            # The first fetch reports the log's end. If something were appended after that, the leader would
            # count records that are about to be truncated.
            _settle(log)
            if log.config.durability == "fsync_quorum":
                # What was appended after the flush above.
                _flush(log)
        return is_new_epoch

    def close(self, *, is_offline: bool = False) -> None:
        """End this broker's role: the replica is stopped or deleted, or its directory is offline."""
        self.is_offline = is_offline
        with self.leader_isr_update_lock:
            former = self.term
            if former.leads:
                former.watermark.close()
            self.term = Term(NO_LEADER, former.leader_epoch)
            self.log = self.queue = None
            self._assign_replicas(())
            self._set_state(CommittedPartitionState((), LeaderRecoveryState.RECOVERED))

    def _check_leader_of(self, new: LeaderAndIsr) -> None:
        """Assert that `new` names no second leader of the current leader epoch."""
        term = self.term
        assert (
            new.leader_epoch != term.leader_epoch
            or new.leader == term.leader
            or NO_LEADER in (new.leader, term.leader)
        ), f"{self.topic_partition}: epoch {new.leader_epoch} has leaders {term.leader} and {new.leader}"

    def _take_isr(self, new: LeaderAndIsr, known: LeaderAndIsr | None) -> IsrChangeProposed | None:
        state = self.state
        is_known = (
            known is not None
            and new.partition_epoch == known.partition_epoch
            and new.leader_epoch == known.leader_epoch
        )
        if is_known and state.is_inflight:
            # This is the version on which the proposal in flight is based. The proposal may still be
            # accepted, so the maximal ISR counts.
            self._set_state(state)
            return None
        self._set_state(CommittedPartitionState(new.isr, LeaderRecoveryState.RECOVERED))
        if new.leader_recovery_state is LeaderRecoveryState.RECOVERING:
            return self._propose_recovery()
        return None

    def _take_log(self, log: UnifiedLog) -> None:
        if self.log is log:
            return
        self.log, self.queue = log, AppendQueue.of(log)
        log.on_damage = self._on_damage
        # What was found before the listener was set.
        for damage in log.damages:
            self._on_damage(log, damage)

    def _assign_replicas(self, replicas: tuple[int, ...], added_anew: tuple[int, ...] = ()) -> None:
        """Set the followers. Those that stay keep their state, except `added_anew`.

        Call it before `_set_state`.
        """
        kept = {number: known for number, known in self.replicas_by_id.items() if number not in added_anew}
        self.replicas_by_id = {
            broker_id: kept.get(broker_id) or Replica(broker_id)
            for broker_id in replicas
            if broker_id != self.broker_id
        }
        self.remote_replicas = tuple(self.replicas_by_id.values())

    def _set_state(self, state: PartitionState) -> None:
        self.state = state
        maximal = state.maximal_isr
        self.watched_replicas = tuple(r for r in self.remote_replicas if r.broker_id in maximal)
        self.unwatched_replicas = tuple(r for r in self.remote_replicas if r.broker_id not in maximal)

    # ---- appends ------------------------------------------------------------------------------------------

    def append(self, append: ReplicaAppend) -> bool:
        """Make an append as leader or follower, or leave it to the queue. Return whether it is finished.

        A finished append has its `info` or an `error`. The queue's owner finishes the others: it calls
        `take_turn` when the queue returns the append, and `made` when the disk thread has made it. Errors of
        a ProducerAppend: NotLeaderOrFollower, FencedLeaderEpoch, NotEnoughReplicas, and as
        UnifiedLog.append_as_leader; nothing is appended then. Errors of a FetchedAppend: NotLeaderOrFollower
        and FencedLeaderEpoch if the role has changed, OffsetsOutOfOrder, CorruptMessage, KafkaStorageError.
        """
        queue = self.queue
        if queue is None:
            append.error = NotLeaderOrFollower(self._without_replica())
            return True
        return queue.admit(append) and self.take_turn(append, queue)

    def take_turn(self, append: ReplicaAppend, queue: AppendQueue) -> bool:
        """Make or start the append, whose turn in the queue has come. Return whether it is finished.

        The role and the ISR are checked now: they may have changed while the append waited.
        """
        try:
            while True:
                with self.leader_isr_update_lock:
                    if isinstance(append, ProducerAppend):
                        state = self._make_as_leader(append, queue)
                    else:
                        state = self._make_as_follower(append, queue)
                if state == MADE:
                    if append.log is not None and append.log.durable:
                        self._wait_durable(append)
                    return True
                if state == IN_FLIGHT or not queue.hold_back(append):
                    return False
        except KreplicaError as error:
            append.error = _bare(error)
            return True

    def made(self, append: ReplicaAppend) -> None:
        """Record an append that the disk thread has made. The role may have changed meanwhile."""
        assert append.log is not None
        try:
            if isinstance(append, ProducerAppend):
                info = append.info
                assert info is not None
                with self.leader_isr_update_lock:
                    if self.leader_log_if_local is append.log:
                        append.change = change_of(self.appended(append.log, info.base_offset))
                    # An append that arrived now would be rejected.
                    append.is_short = append.required_acks == ACKS_ALL and self.is_under_min_isr
            self._wait_durable(append)
        except KreplicaError as error:
            append.error = _bare(error)

    def _make_as_leader(self, append: ProducerAppend, queue: AppendQueue) -> int:
        """Append a producer's batch in one native call if possible, or else with care. Return LEFT if it has
        to wait."""
        records, refused = append.records, self.refused_sequences
        try:
            log = self.require_leader(append.required_acks)
        except (NotLeaderOrFollower, NotEnoughReplicas):
            self._note_refused(records)
            raise
        term = self.term
        if append.leader_epoch is not None and append.leader_epoch != term.leader_epoch:
            raise FencedLeaderEpoch(
                f"{self.topic_partition}: led in epoch {term.leader_epoch}, not {append.leader_epoch}"
            )
        append.log, append.mark = log, term.watermark
        end = log.state.log_end_offset
        is_doubtful = bool(refused) and _producer_of(records)[:2] in refused
        if log is queue.log and not is_doubtful:
            state = queue.start(append, term.leader_epoch)
            if state == MADE:
                assert append.info is not None
                assert append.info.base_offset >= end, (append.info.base_offset, end)
                append.change = change_of(self.appended(log, end))
            if state != LEFT:
                return state
        if queue.must_wait(append):
            return LEFT
        if is_doubtful:
            self._require_refused_first(log, records)
        append.make_carefully(log, term.leader_epoch)
        if is_doubtful:
            refused.pop(_producer_of(records)[:2], None)
        append.change = change_of(self.appended(log, end))
        return MADE

    def _make_as_follower(self, append: FetchedAppend, queue: AppendQueue) -> int:
        """Append what was fetched as it is, in one native call if possible, or else with care. Return LEFT if
        it has to wait."""
        append.log = log = self.follower_log(append.leader_epoch)
        starts_over = self._must_start_over(log, append.leader_log_start)
        if log is queue.log and not starts_over:
            state = queue.start(append, append.leader_epoch)
            if state != LEFT:
                return state
        if queue.must_wait(append):
            return LEFT
        if starts_over:
            log.truncate_fully_and_start_at(log.log_end_offset)
        append.info = self._append_fetched(log, append) or append.info
        return MADE

    def _append_fetched(self, log: UnifiedLog, append: FetchedAppend) -> LogAppendInfo | None:
        records, leader_epoch = append.rest, append.leader_epoch
        try:
            return log.append_as_follower(records, leader_epoch, wait=False)
        except OffsetsOutOfOrder:
            first = next(iter(batches(records)), None)
            # An empty log may begin inside the leader's first batch, after a deletion of records up to
            # there: batches are not split, so the log begins with the batch (KAFKA-6975). So does a log
            # that holds only what the leader has deleted, in other batches than the leader had.
            if (
                first is None
                or log.log_start_offset < log.log_end_offset > append.leader_log_start
                or not first.base_offset < log.log_end_offset <= first.last_offset
            ):
                raise
            log.truncate_fully_and_start_at(first.base_offset)
            return log.append_as_follower(records, leader_epoch, wait=False)

    def _wait_durable(self, append: ReplicaAppend) -> None:
        """Wait for the disk if the topic's durability requires it, holding no lock. The flush may commit what
        was appended."""
        log, info = append.log, append.info
        assert log is not None
        if info is None or not log.durable:
            return
        if isinstance(append, ProducerAppend):
            log.wait_durable(info)
            if self.maybe_increment_leader_hw() is INCREASED:
                append.change = INCREASED
        elif log.config.durability != "fsync":
            # With durability fsync only the leader's disk counts; with fsync_quorum this one's counts too.
            log.wait_durable(info)

    def require_leader(self, required_acks: int = 0) -> UnifiedLog:
        """Return the leader's log, ready for an append with `required_acks`.

        Raises NotLeaderOrFollower; NotEnoughReplicas if acks are -1 and too few replicas are in sync.
        """
        term = self.term
        log: UnifiedLog | None = term.log
        if not term.leads or log is None:
            self._refuse_leader()
        if required_acks == ACKS_ALL and len(self.state.isr) < log.config.min_insync_replicas:
            isr = self.state.isr
            if len(isr) < self.least_in_sync():
                raise NotEnoughReplicas(
                    f"{self.topic_partition}: in sync are {list(isr)}, "
                    f"min.insync.replicas is {log.config.min_insync_replicas}"
                )
        return log

    def _note_refused(self, records: Buffer) -> None:
        """Remember the lowest sequence number that was refused of a producer.

        A log accepts any first sequence number of a producer that it does not know. If it accepted a later
        batch of the same producer now, the client would believe that the refused one was appended.
        """
        producer_id, epoch, sequence = _producer_of(records)
        if producer_id < 0:
            return
        refused, key = self.refused_sequences, (producer_id, epoch)
        if sequence < refused.get(key, INT32_MAX):
            if len(refused) >= MAX_REFUSED_PRODUCERS and key not in refused:
                del refused[next(iter(refused))]
            refused[key] = sequence

    def _require_refused_first(self, log: UnifiedLog, records: Buffer) -> None:
        """Raise OutOfOrderSequenceNumber for a batch of an unknown producer if an earlier one was refused."""
        producer_id, epoch, sequence = _producer_of(records)
        refused = self.refused_sequences.get((producer_id, epoch))
        if refused is None or sequence <= refused:
            return
        known = log.producers.last_entry(producer_id)
        if known is None or known.producer_epoch != epoch:
            raise OutOfOrderSequenceNumber(
                f"{self.topic_partition}: sequence {sequence} of producer {producer_id} cannot come before"
                f" {refused}, which was refused; send that first"
            )
        del self.refused_sequences[producer_id, epoch]

    def _refuse_leader(self) -> NoReturn:
        raise NotLeaderOrFollower(f"{self.topic_partition}: broker {self.broker_id} does not lead it")

    # ---- deletion of records ------------------------------------------------------------------------------

    def delete_records_on_leader(self, offset: int) -> tuple[int, int]:
        """Delete the records below `offset` (-1: below the high watermark). Return that offset and the low
        watermark.

        All replicas have deleted them once `low_watermark_if_leader` has reached the offset. Raises
        NotLeaderOrFollower, PolicyViolation for a topic that is only compacted, OffsetOutOfRange.
        """
        with self.leader_isr_update_lock:
            log = self.leader_log_if_local
            if log is None:
                self._refuse_leader()
            if log.config.compact and not log.config.delete:
                raise PolicyViolation(
                    f"{self.topic_partition}: cleanup.policy=compact does not allow records to be deleted"
                )
            if offset == HIGH_WATERMARK:
                offset = log.high_watermark
            if offset < 0:
                raise OffsetOutOfRange(f"{self.topic_partition}: offset {offset} is negative", where=offset)
            log.maybe_increment_log_start_offset(offset)
            return offset, self.low_watermark_if_leader()

    def low_watermark_if_leader(self) -> int:
        """Return the least log start of the leader and its live followers. Raises NotLeaderOrFollower."""
        log = self.leader_log_if_local
        if log is None:
            self._refuse_leader()
        lowest = log.log_start_offset
        for replica in self.remote_replicas:
            # A dead follower must not hold up deletions; it learns the log start when it returns.
            if (
                replica.log_start_offset < lowest
                and self._brokers.get_alive_broker_epoch(replica.broker_id) is not None
            ):
                lowest = replica.log_start_offset
        return lowest

    # ---- the follower's log -------------------------------------------------------------------------------

    def require_no_later_epoch(self, records: Buffer, leader_epoch: int) -> None:
        """Raise OffsetsOutOfOrder if the first batch that the leader of `leader_epoch` gave is of a later
        epoch, so that nothing was appended."""
        first = next(iter(batches(records)), None)
        if first is not None and first.leader_epoch > leader_epoch:
            raise OffsetsOutOfOrder(
                f"{self.topic_partition}: the leader of epoch {leader_epoch} gave a batch of epoch "
                f"{first.leader_epoch} at offset {first.base_offset}",
                where=first.base_offset,
            )

    def maybe_increment_log_start_offset(self, offset: int, leader_epoch: int) -> bool:
        """Delete what the leader has deleted, as a follower. Return whether the log start moved."""
        with self.leader_isr_update_lock:
            log = self.follower_log(leader_epoch)
            if self._must_start_over(log, offset):
                return self._start_over_at(log, offset)
            return log.maybe_increment_log_start_offset(min(offset, log.high_watermark))

    def truncate_to(self, offset: int) -> bool:
        """Remove everything from `offset` on, as a follower. Return whether anything was removed.

        Raises NotLeaderOrFollower for a leader, which never truncates.
        """
        with self.leader_isr_update_lock:
            log = self.follower_log()
            if offset > log.log_start_offset:
                end = log.log_end_offset
                is_cut = log.truncate_to(offset)
                if is_cut:
                    self._log_truncation(log, end)
                return is_cut
            # The whole log goes. A replica that may be elected has deleted only what its leader had deleted,
            # so it starts at `offset`. Any other replica may have deleted records which the leader still has,
            # after an unclean election. It starts at 0, since otherwise it would count as having those
            # records.
            return self._start_over_at(log, offset if self._may_be_elected else 0)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove everything and begin again at `offset`, as a follower."""
        with self.leader_isr_update_lock:
            self._start_over_at(self.follower_log(), offset)

    def cut_unknown_epoch(self) -> None:
        """Truncate the records of the latest leader epoch here, which the leader does not know.

        They are not part of the partition's history. A replica that may be elected keeps them: its leader
        takes it out of the ISR first, since it cannot fetch.
        """
        latest = self.local_log.epochs.latest_entry
        if latest is not None and not self._may_be_elected:
            LOGGER.warning(
                "%s: cut at offset %d, where leader epoch %d begins, which the leader does not know",
                *(self.topic_partition, latest.start_offset, latest.epoch),
            )
            self.truncate_to(latest.start_offset)

    def follower_log(self, leader_epoch: int | None = None) -> UnifiedLog:
        """Return the log that this broker writes as a follower, in `leader_epoch` if given.

        Raises NotLeaderOrFollower, FencedLeaderEpoch.
        """
        # An answer may arrive after the end of the role for which it was fetched.
        term = self.term
        log: UnifiedLog | None = term.log
        if term.leads or log is None:
            raise NotLeaderOrFollower(f"{self.topic_partition}: broker {self.broker_id} is no follower of it")
        if leader_epoch is not None and leader_epoch != term.leader_epoch:
            raise FencedLeaderEpoch(
                f"{self.topic_partition}: an answer of leader epoch {leader_epoch}, now it is"
                f" {term.leader_epoch}"
            )
        return log

    def _must_start_over(self, log: UnifiedLog, leader_log_start: int) -> bool:
        # The leader has deleted all that is in this log and has forgotten its epochs. It could not detect
        # that its records do not continue this log. A power cut may undo the deletion on both, and the states
        # of producers would be those of other records: a transaction might never end.
        return log.state.log_end_offset <= leader_log_start and bool(log.size) and not self._may_be_elected

    def _start_over_at(self, log: UnifiedLog, start: int) -> bool:
        if start == log.log_start_offset == log.log_end_offset and not log.size:
            return log.truncate_to(start)
        # Deleted records may still be in the first segment. They must go too, or no record of an earlier
        # epoch could be appended after them.
        former_start, former_end = log.log_start_offset, log.log_end_offset
        log.truncate_fully_and_start_at(start)
        LOGGER.info(
            "%s: dropped the records from offset %d to %d and begins anew at %d, to follow broker %d, which"
            " leads epoch %d",
            *(self.topic_partition, former_start, former_end, start),
            *(self.leader, self.leader_epoch),
        )
        return True

    def _log_truncation(self, log: UnifiedLog, former_end: int) -> None:
        LOGGER.info(
            "%s: truncated from offset %d to %d, as the log parts from that of broker %d, which leads epoch"
            " %d; the log begins at %d, high watermark %d",
            *(self.topic_partition, former_end, log.log_end_offset, self.leader, self.leader_epoch),
            *(log.log_start_offset, log.high_watermark),
        )

    # ---- high watermark -----------------------------------------------------------------------------------

    def maybe_increment_leader_hw(self, now_ms: int | None = None) -> LeaderHwChange:
        """Move the high watermark to what all replicas that count have; SAME if this broker does not lead."""
        with self.leader_isr_update_lock:
            log = self.leader_log_if_local
            return SAME if log is None else change_of(self.increment_high_watermark(log, now_ms))

    def is_about_to_join(self, replica: Replica, now_ms: int | None) -> bool:
        """Return whether the high watermark waits for a replica outside the ISR.

        Without this wait the high watermark would always be ahead of a replica that has caught up, and the
        replica could never join.
        """
        log = self.term.log
        assert log is not None
        if now_ms is None:
            now_ms = self._now_ms()
        return (
            self._isr_policy.is_caught_up(replica, log.log_end_offset, now_ms)
            and isr_policy.what_makes_ineligible(replica, self._brokers) is None
        )

    # ---- reads --------------------------------------------------------------------------------------------
    # A read holds no lock: it looks at one Term and at what the log has published. The log's end is taken
    # before the records, so that appends made meanwhile do not make a follower seem to lag (its state is
    # updated after the read).

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
        """Return whole batches from the one that holds `fetch_offset` on, as a pinned slice.

        `isolation`: log_end (followers), high_watermark, txn_committed. `replica_id`: the follower that
        fetches, -1 for a consumer. `current_leader_epoch`: the leader epoch that the fetcher knows, None if
        it does not say. `last_fetched_epoch`: the epoch of the record before `fetch_offset`; if this log has
        another one there, the answer has no records but a `diverging_epoch`. `max_bytes`: whole batches up to
        this many bytes, but one batch of any size if `at_least_one`.

        Raises FencedLeaderEpoch, UnknownLeaderEpoch, NotLeaderOrFollower, OffsetOutOfRange, DamagedLog.
        """
        term = self.term
        log = term.log
        if current_leader_epoch != term.leader_epoch or log is None or not term.leads:
            # The condition covers the usual case; `_term_in_epoch` handles the others and raises the errors.
            term = self._term_in_epoch(current_leader_epoch, only_leader)
            log = term.log
            assert log is not None
        replica = None if replica_id < 0 else self.replicas_by_id.get(replica_id)
        if replica_id >= 0 and replica is None:
            self._refuse_follower(replica_id, current_leader_epoch)
        state = log.state
        end = state.log_end_offset
        mark, start, stable = state.high_watermark, state.log_start_offset, state.last_stable_offset
        if last_fetched_epoch is not None:
            epochs = log.epochs.entries
            # The log of a follower that has the latest epoch cannot diverge.
            if not epochs or epochs[-1].epoch != last_fetched_epoch or not start <= fetch_offset <= end:
                diverging = _diverging_epoch(log, start, end, fetch_offset, last_fetched_epoch)
                if diverging is not None:
                    return LogReadInfo(
                        fetch_offset, None, mark, start, end, stable, term.leader_epoch, diverging
                    )
        if fetch_offset == end and isolation == "log_end" and log.stopped_at is None:
            # A follower that has everything: the usual case between two appends.
            if log.closed or not log.damages.is_empty:
                log.check_start(fetch_offset)
            return LogReadInfo(fetch_offset, None, mark, start, end, stable, term.leader_epoch)
        try:
            read = log.read(fetch_offset, max_bytes, isolation=isolation, at_least_one=at_least_one)
            # A follower in sync fetches what was just written, and checks it itself. Older records may have
            # rotted, and so may those that a follower could not append. A consumer never gets such records.
            if read.records is not None and (
                replica is None or fetch_offset < mark or replica.asks_again(fetch_offset)
            ):
                log.check_records(read.records, fetch_offset)
        except LogClosed as error:
            # The replica was stopped after the look at its role.
            raise NotLeaderOrFollower(
                f"{self.topic_partition}: stopped on broker {self.broker_id}"
            ) from error
        return LogReadInfo(
            fetch_offset, read.records, mark, start, end, stable, term.leader_epoch, None, read.aborted
        )

    def last_offset_for_leader_epoch(
        self, current_leader_epoch: int | None, leader_epoch: int, *, only_leader: bool = True
    ) -> EpochEndOffset:
        """Return the greatest epoch here not above `leader_epoch`, and where it ends; (-1, -1) if nothing is
        known.

        Raises FencedLeaderEpoch, UnknownLeaderEpoch, NotLeaderOrFollower.
        """
        log = self._term_in_epoch(current_leader_epoch, only_leader).log
        assert log is not None
        return EpochEndOffset(*log.epochs.end_offset_for(leader_epoch, log.log_end_offset))

    def fetch_offset_for_timestamp(
        self, timestamp: int, isolation: str = "high_watermark", current_leader_epoch: int | None = None
    ) -> TimestampOffset:
        """Return the first visible record at or after `timestamp`; offset -1 if no record matches.

        `isolation` decides what is visible. LATEST_TIMESTAMP: the end of what is visible. Raises
        OffsetNotAvailable while a new leader does not know yet how much is committed (KIP-207), and as
        `fetch_records`.
        """
        term = self._term_in_epoch(current_leader_epoch, True)
        log = term.log
        assert log is not None
        bound = log.upper_bound(isolation)
        if isolation != "log_end" and log.high_watermark < (term.epoch_start_offset or 0):
            raise OffsetNotAvailable(
                f"{self.topic_partition}: its new leader does not know the high watermark yet"
            )
        if timestamp == EARLIEST_LOCAL_TIMESTAMP:
            timestamp = EARLIEST_TIMESTAMP  # all of a log is local
        if timestamp < MAX_TIMESTAMP:
            raise UnsupportedVersion(f"{self.topic_partition}: timestamp {timestamp} has no special meaning")
        if timestamp == LATEST_TIMESTAMP:
            epoch = log.epochs.epoch_for_offset(bound)
            return TimestampOffset(-1, bound, -1 if epoch is None else epoch)
        found: TimestampOffset | None = log.offset_for_timestamp(timestamp)
        if found is None or (found.offset >= bound and timestamp != EARLIEST_TIMESTAMP):
            return TimestampOffset(-1, -1, -1)
        return found

    def _term_in_epoch(self, current_leader_epoch: int | None, only_leader: bool) -> Term:
        """Return the term, which has a log.

        Raises FencedLeaderEpoch if the fetcher's epoch is over, UnknownLeaderEpoch if this broker does not
        know it yet (KIP-320), NotLeaderOrFollower.
        """
        term = self.term
        if current_leader_epoch is not None and current_leader_epoch != term.leader_epoch:
            where = f"{self.topic_partition}: leader epoch {current_leader_epoch}, here {term.leader_epoch}"
            if current_leader_epoch < term.leader_epoch:
                raise FencedLeaderEpoch(where)
            raise UnknownLeaderEpoch(where)
        if term.log is None or (only_leader and not term.leads):
            self._refuse_leader()
        return term

    def _refuse_follower(self, replica_id: int, current_leader_epoch: int | None) -> NoReturn:
        where = f"{self.topic_partition}: broker {replica_id} is not one of the replicas {self.replicas}"
        # A follower of the same leader epoch was assigned in a version that has not arrived here yet: it may
        # try again.
        if current_leader_epoch is not None and self.is_leader:
            raise UnknownLeaderEpoch(where)
        raise NotLeaderOrFollower(where)

    # ---- what followers' fetches report -------------------------------------------------------------------

    def update_follower_fetch_state(
        self, replica_id: int, read: LogReadInfo, log_start_offset: int, now_ms: int, broker_epoch: int = -1
    ) -> PartitionEffects:
        """Record what a follower's fetch, whose answer is `read`, shows of its log. The follower may then
        join the ISR, and the high watermark may move.

        `log_start_offset`: the follower's. `broker_epoch`: the epoch in which it fetched, -1 if it does not
        say. A diverging fetch does not show what the follower has (KAFKA-13141). Nothing is recorded if the
        leader epoch has changed since the read. Raises NotLeaderOrFollower for a fetch from before the
        follower's restart (KIP-903) and for a broker that is no replica.
        """
        with self.leader_isr_update_lock:
            term = self.term
            if not term.leads or term.leader_epoch != read.leader_epoch:
                return NOTHING
            replica = self.replicas_by_id.get(replica_id)
            registered = self._brokers.get_alive_broker_epoch(replica_id)
            if replica is None or not replica.broker_epoch <= broker_epoch == registered:
                replica = self._check_follower(replica_id, broker_epoch)
            if read.diverging_epoch is not None:
                self._note_diverged(replica, read)
                return NOTHING
            assert read.fetch_offset <= read.log_end_offset, read
            former_end = replica.log_end_offset
            low_watermark = self.low_watermark_if_leader() if self.low_watermark_waiters else -1
            replica.update_fetch_state(
                read.fetch_offset, log_start_offset, now_ms, read.log_end_offset, broker_epoch
            )
            isr_change = None
            if replica_id not in self.state.isr and not self.state.is_inflight:
                isr_change = self._maybe_expand_isr(replica, now_ms)
            change = SAME
            if former_end != read.fetch_offset:
                assert term.log is not None
                change = change_of(self.increment_high_watermark(term.log, now_ms))
            if isr_change is None and not self.low_watermark_waiters:
                return NOTHING if change is SAME else HIGH_WATERMARK_MOVED
            moved = self.low_watermark_waiters > 0 and self.low_watermark_if_leader() > low_watermark
            return PartitionEffects(change, isr_change, moved)

    def attach_fetch_clock(self, replica_id: int, fetch_clock: FetchClock | None) -> FetchClock | None:
        """Record in which session the follower fetches the partition, by the session's clock; None for no
        session. Return the clock of the session that it leaves, or None."""
        with self.leader_isr_update_lock:
            replica = self.replicas_by_id.get(replica_id)
            if replica is None or replica.fetch_clock is fetch_clock:
                return None
            former, replica.fetch_clock = replica.fetch_clock, fetch_clock
            return former

    def detach_fetch_clock(self, fetch_clock: FetchClock) -> None:
        """Record that the session of that clock no longer fetches the partition."""
        with self.leader_isr_update_lock:
            for replica in self.remote_replicas:
                if replica.fetch_clock is fetch_clock:
                    if replica.log_end_offset == self.log_end_offset:
                        replica.leader_moved_on()
                    replica.fetch_clock = None

    def _check_follower(self, replica_id: int, broker_epoch: int) -> Replica:
        """Return the follower that fetched in `broker_epoch`.

        Raises NotLeaderOrFollower if it is not a replica, or has been restarted since (KIP-903).
        """
        replica = self.replicas_by_id.get(replica_id)
        if replica is None:
            self._refuse_follower(replica_id, None)
        registered = self._brokers.get_alive_broker_epoch(replica_id)
        latest = max(replica.broker_epoch, UNKNOWN_BROKER_EPOCH if registered is None else registered)
        if UNKNOWN_BROKER_EPOCH < broker_epoch < latest:
            raise NotLeaderOrFollower(
                f"{self.topic_partition}: a fetch of broker {replica_id} from its epoch {broker_epoch}, "
                f"which is over since {latest}"
            )
        return replica

    def _note_diverged(self, replica: Replica, read: LogReadInfo) -> None:
        if not replica.diverged:
            replica.diverged = True
            LOGGER.info(
                "%s: the log of broker %d, which fetches from offset %d, parts from this one: epoch %d ends"
                " here at offset %d; this one ends at %d, high watermark %d",
                *(self.topic_partition, replica.broker_id, read.fetch_offset),
                *(read.diverging_epoch or ()),
                *(read.log_end_offset, self.high_watermark),
            )

    # ---- in-sync replicas ---------------------------------------------------------------------------------
    # One AlterPartition is in flight for a partition at a time (KIP-497).

    def maybe_shrink_isr(self, now_ms: int) -> PartitionEffects:
        """Propose to remove the replicas that have lagged too long; called by the periodic isr-expiration.

        If no replica lags, one may be proposed to join whose fetches do not name the partition (see
        `_expand_silent`). The high watermark moves if it waited for a replica outside the ISR that no longer
        keeps up.
        """
        with self.leader_isr_update_lock:
            if not self.term.leads:
                return NOTHING
            isr_change = self._shrink_isr(now_ms) or self._expand_silent(now_ms)
            change = self.maybe_increment_leader_hw(now_ms)
            if isr_change is None and change is SAME:
                return NOTHING
            return PartitionEffects(change, isr_change)

    def note_lost_range(
        self, replica_id: int, fetch_offset: int, current_leader_epoch: int, broker_epoch: int
    ) -> PartitionEffects:
        """Record that the follower lacks a range of its log from `fetch_offset` on, or, if that is its log
        end, that its log is whole again. A replica with a damaged range must not be in the ISR."""
        with self.leader_isr_update_lock:
            replica = self.replicas_by_id.get(replica_id)
            term = self.term
            if not term.leads or replica is None or term.leader_epoch != current_leader_epoch:
                return NOTHING
            if broker_epoch != self._brokers.get_alive_broker_epoch(replica_id):
                return NOTHING
            if broker_epoch != replica.broker_epoch:
                # All else that is known of it is from before its restart. It must fetch before it may join.
                replica.fetched_in_epoch = False
                replica.broker_epoch = broker_epoch
            # A follower that has not fetched yet is assumed to have had all up to the high watermark.
            end = self.high_watermark if replica.log_end_offset < 0 else replica.log_end_offset
            replica.damaged = fetch_offset < end
            return self.maybe_shrink_isr(self._now_ms())

    def handle_alter_partition_response(
        self, pending: PendingPartitionChange, answer: LeaderAndIsr | BaseException
    ) -> PartitionEffects:
        """Take the controller's answer to the proposal `pending`, or the error with which it failed.

        `isr_change` of the effects is what has to be sent next: the same proposal again, or another one.
        """
        with self.leader_isr_update_lock:
            if self.state is not pending:
                # Metadata from the controller came before this answer.
                return NOTHING
            if not isinstance(answer, LeaderAndIsr):
                return self._proposal_failed(pending, answer)
            if answer.leader_epoch != self.term.leader_epoch:
                return NOTHING
            if answer.partition_epoch < self.partition_epoch:
                return NOTHING
            self._commit(pending, answer)
            now_ms = self._now_ms()
            # Move the high watermark first: a replica below it has to fetch before it may join.
            change = self.maybe_increment_leader_hw(now_ms)
            return PartitionEffects(change, self._expand_silent(now_ms))

    def why_not_in_isr(self, broker_id: int) -> OutOfIsr | None:
        """Return why the replica left the ISR and what keeps it out now; None if it is in the ISR.

        Raises NotLeaderOrFollower if this broker does not lead, ReplicaNotAvailable if the other is not a
        replica.
        """
        with self.leader_isr_update_lock:
            log = self.leader_log_if_local
            if log is None:
                raise NotLeaderOrFollower(f"{self.topic_partition}: only its leader, {self.leader}, knows")
            if broker_id in self.state.isr:
                return None
            replica = self.replicas_by_id.get(broker_id)
            if replica is None:
                raise ReplicaNotAvailable(f"{self.topic_partition}: broker {broker_id} is no replica of it")
            now_ms = self._now_ms()
            last = self.isr_history.last_of(broker_id)
            change = last if last is not None and last.kind == "shrink" else None
            keeps_out = isr_policy.what_keeps_out(replica, self.term, self._brokers)
            if keeps_out is None:
                keeps_out = "the controller has not answered" if self.state.is_inflight else "its next fetch"
            return OutOfIsr(
                broker_id,
                self._why_out(broker_id, now_ms) if change is None else change.reason,
                keeps_out,
                None if change is None else change.time_ms,
                replica.log_end_offset,
                log.log_end_offset,
                log.high_watermark,
                self._date_or_none(replica.last_heard_time_ms),
                self._date_or_none(replica.last_caught_up_time_ms),
                change,
            )

    # Proposals. The caller holds the lock.

    def _maybe_expand_isr(self, replica: Replica, now_ms: int) -> IsrChangeProposed | None:
        """Propose that the follower, which has just fetched, joins the ISR; None if it may not."""
        state = self.state
        if isinstance(state, PendingPartitionChange) or replica.broker_id in state.isr:
            return None
        if isr_policy.what_keeps_out(replica, self.term, self._brokers) is not None:
            return None
        change = self._change("expand", replica.broker_id, IsrChangeReason.CAUGHT_UP, now_ms)
        return self._propose(PendingExpandIsr, state, (*state.isr, replica.broker_id), (change,))

    def _expand_silent(self, now_ms: int) -> IsrChangeProposed | None:
        """Propose that a follower joins although its fetches do not name the partition.

        A fetch session names only partitions with news. When the follower's fetch last named this one, it
        could not join: another change was in flight, or its broker was not eligible yet.
        """
        for replica in self.remote_replicas:
            session = replica.fetch_clock
            if session is not None and replica.broker_id not in self.state.maximal_isr:
                silent_ms = now_ms - session.last_fetch_time_ms
                if silent_ms <= self._isr_policy.replica_lag_time_max_ms:
                    proposed = self._maybe_expand_isr(replica, now_ms)
                    if proposed is not None:
                        return proposed
        return None

    def _shrink_isr(self, now_ms: int) -> IsrChangeProposed | None:
        state = self.state
        if isinstance(state, PendingPartitionChange):
            return None
        gone = tuple(
            broker_id
            for broker_id in state.isr
            if broker_id != self.broker_id and self._is_out_of_sync(broker_id, now_ms)
        )
        if not gone:
            return None
        changes = tuple(
            self._change("shrink", broker_id, self._why_out(broker_id, now_ms), now_ms) for broker_id in gone
        )
        kept = tuple(broker_id for broker_id in state.isr if broker_id not in gone)
        return self._propose(PendingShrinkIsr, state, kept, changes)

    def _is_out_of_sync(self, broker_id: int, now_ms: int) -> bool:
        """Return whether a member of the ISR has to leave it."""
        replica = self.replicas_by_id.get(broker_id)
        log = self.term.log
        assert log is not None
        return (
            replica is None
            or replica.damaged
            or not self._isr_policy.is_caught_up(replica, log.log_end_offset, now_ms)
        )

    def _propose_recovery(self) -> IsrChangeProposed | None:
        """Propose to end the recovery from an unclean election (KIP-704): this leader has begun to lead."""
        state = self.state
        assert isinstance(state, CommittedPartitionState)
        return self._propose(PendingRecovery, state, state.isr, ())

    def _propose(
        self,
        kind: type[PendingPartitionChange],
        state: CommittedPartitionState,
        isr: tuple[int, ...],
        changes: tuple[IsrChange, ...],
    ) -> IsrChangeProposed:
        known = self.leader_and_isr
        assert known is not None
        wanted = replace(known, isr=isr, leader_recovery_state=LeaderRecoveryState.RECOVERED, is_new=False)
        epochs = tuple(self._broker_epoch_of(broker_id) for broker_id in isr)
        pending = kind(wanted, epochs, state, changes)
        self._set_state(pending)
        return IsrChangeProposed(wanted, epochs, pending)

    def _broker_epoch_of(self, broker_id: int) -> int:
        if broker_id == self.broker_id:
            return self._broker_epoch()
        # The epoch of a member that has not fetched from this leader yet is unknown. If its broker restarts,
        # the controller removes it from the ISR.
        replica = self.replicas_by_id.get(broker_id)
        return UNKNOWN_BROKER_EPOCH if replica is None else replica.broker_epoch

    def _proposal_failed(self, pending: PendingPartitionChange, error: BaseException) -> PartitionEffects:
        if isinstance(error, NOT_MADE):
            self._set_state(pending.last_committed)
            return PartitionEffects(self.maybe_increment_leader_hw())
        if isinstance(error, AWAIT_METADATA):
            return NOTHING
        return PartitionEffects(
            isr_change=IsrChangeProposed(pending.sent, pending.isr_broker_epochs, pending)
        )

    def _commit(self, pending: PendingPartitionChange, answer: LeaderAndIsr) -> None:
        known = self.leader_and_isr
        assert known is not None
        for change in pending.changes:
            if (change.broker_id in answer.isr) == (change.kind == "expand"):
                self.isr_history.add(change._replace(partition_epoch=answer.partition_epoch, isr=answer.isr))
        self.leader_and_isr = replace(
            known,
            isr=answer.isr,
            partition_epoch=answer.partition_epoch,
            leader_recovery_state=answer.leader_recovery_state,
        )
        self._set_state(CommittedPartitionState(answer.isr, answer.leader_recovery_state))

    # The history of the ISR.

    def _note_isr_of(self, new: LeaderAndIsr, now_ms: int) -> None:
        """Record how the controller's ISR differs from the known one."""
        known, state = self.leader_and_isr, self.state
        if known is None:
            return
        proposed = (
            {change.broker_id: change for change in state.changes}
            if isinstance(state, PendingPartitionChange)
            else {}
        )
        for broker_id in sorted(set(known.isr) ^ set(new.isr)):
            kind = "expand" if broker_id in new.isr else "shrink"
            change = proposed.get(broker_id)
            if change is None or change.kind != kind:
                reason = isr_policy.why_controller_changed(broker_id, kind, self._brokers)
                change = self._change(kind, broker_id, reason, now_ms)
            self.isr_history.add(
                change._replace(
                    partition_epoch=new.partition_epoch, leader_epoch=new.leader_epoch, isr=new.isr
                )
            )

    def _why_out(self, broker_id: int, now_ms: int) -> IsrChangeReason:
        lag_ms = self._isr_policy.replica_lag_time_max_ms
        return isr_policy.why_out(
            self.replicas_by_id.get(broker_id), broker_id, self._brokers, now_ms, lag_ms
        )

    def _change(self, kind: str, broker_id: int, reason: IsrChangeReason, now_ms: int) -> IsrChange:
        replica = self.replicas_by_id.get(broker_id) or Replica(broker_id)
        log = self.local_log
        return IsrChange(
            self._date(now_ms),
            kind,
            broker_id,
            reason,
            replica.log_end_offset,
            log.log_end_offset,
            log.high_watermark,
            self._date_or_none(replica.last_heard_time_ms),
            self._date_or_none(replica.last_caught_up_time_ms),
            self.term.leader_epoch,
            self.partition_epoch,
            self.isr,
        )

    def _date(self, time_ms: int) -> int:
        """Return the date, in ms since 1970, of a time on the monotonic clock."""
        return self.clock.time_ms() - (self._now_ms() - time_ms)

    def _date_or_none(self, time_ms: int) -> int | None:
        return None if time_ms == NEVER_MS else self._date(time_ms)

    def _now_ms(self) -> int:
        return monotonic_ms(self.clock)

    # ---- damage -------------------------------------------------------------------------------------------

    def _on_damage(self, _: UnifiedLog, damage: Damage) -> None:
        """Pass on to the listener that a range of the log was found damaged. Takes no lock."""
        if self._damage_listener is not None:
            self._damage_listener(self, damage)

    @property
    def is_damaged(self) -> bool:
        """Whether a range of the log cannot be read. Ranges below the log start offset do not count."""
        log = self.log
        return log is not None and bool(log.lost_ranges)

    def __repr__(self) -> str:
        role = "leader" if self.term.leads else f"follower of {self.term.leader}"
        return f"Partition({self.topic_partition}, {role}, epoch {self.term.leader_epoch})"


# ---- functions of logs and errors --------------------------------------------------------------------------


def _added_anew(new: LeaderAndIsr, known: LeaderAndIsr | None) -> tuple[int, ...]:
    # A replica may be removed and added again in one step. It then has an empty log, and what is known of it
    # belongs to its former log.
    before = () if known is None else known.adding_replicas
    return tuple(broker_id for broker_id in new.adding_replicas if broker_id not in before)


def _begin_epoch(log: UnifiedLog, leader_epoch: int, start_offset: int) -> None:
    try:
        log.begin_epoch(leader_epoch, start_offset)
    except ReadOnlyLog as error:
        # Nothing can be written if recovery stopped at rot: another replica has to lead.
        raise DamagedLog(f"{log.topic_partition}: cannot lead: {error}") from error


def _settle(log: UnifiedLog) -> None:
    """Wait until the appends that a disk thread has under way are in the log."""
    with log.lock:
        pass


def _flush(log: UnifiedLog) -> None:
    _settle(log)
    if log.flush_offset < log.log_end_offset:
        log.flush()


def _diverging_epoch(
    log: UnifiedLog, start: int, end: int, fetch_offset: int, last_fetched_epoch: int
) -> EpochEndOffset | None:
    epoch, end_offset = log.epochs.end_offset_for(last_fetched_epoch, end)
    if end_offset < 0:
        raise OffsetOutOfRange(
            f"{log.topic_partition}: leader epoch {last_fetched_epoch} of the fetch is not known here"
        )
    # Check this before epochs are compared: those below the log start are forgotten.
    if fetch_offset < start:
        raise OffsetOutOfRange(
            f"{log.topic_partition}: offset {fetch_offset} is below the log start {start}", where=fetch_offset
        )
    if epoch < last_fetched_epoch or end_offset < fetch_offset:
        return EpochEndOffset(epoch, end_offset)
    return None


def _producer_of(records: Buffer) -> tuple[int, int, int]:
    """Return the producer id, epoch and first sequence number of a batch; -1 each for a batch without."""
    fields = bytes(memoryview(records)[PRODUCER])
    if len(fields) < PRODUCER_FIELDS.size:
        return NO_PRODUCER
    producer_id, epoch, sequence = PRODUCER_FIELDS.unpack(fields)
    return producer_id, epoch, sequence


def _bare(error: KreplicaError) -> KreplicaError:
    # Drop the traceback: the error may be kept for long, and the frames would keep the records in memory.
    return error.with_traceback(None)
