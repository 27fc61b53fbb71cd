"""DamageRepair: fills the damaged ranges of this broker's logs from the other replicas. Kafka has nothing
like it.

A follower tells its leader of the range by a fetch outside of any session at the first offset that it lacks,
which takes it out of the ISR, and goes on replicating. It takes the range from the leader, or from another
replica where the leader lacks it, too; a leader takes it from its followers, those in sync first. A range is
taken only from a replica of the same leader epoch whose batches join on to this log's (see lost_range). Once
the log is whole, the same kind of fetch at its end says so, and the usual rules let it back in. What no
replica can fill stays damaged, is never served, and is tried again after a back-off. A log at which
recovery stopped is cut there once its leader, as such, has said that it cannot give the range: as long as
nobody answers, this may be the last replica that has what lies behind.

Thread rule: `found`, `role_changed` and `refused_to_lead` may come from any thread, under locks; all else
runs in the loop. One request is in flight for each partition.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from kreplica._core.crc32c import checksum
from kreplica.common.errors import KreplicaError, LogCleaningAborted
from kreplica.common.future import Future
from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.common.metrics import MetricRegistry
from kreplica.common.ports import Loop
from kreplica.common.types import TopicPartition
from kreplica.log.lost_range import PeerDisagrees, RangeFromPeers, wanted_by
from kreplica.log.splice import splice
from kreplica.replica.replica_config import ReplicaConfig
from kreplica.replica.replica_peers import OF_A_LEADER, ReplicaPeers, answer_of, is_believed_whole

if TYPE_CHECKING:
    from kio.schema.fetch.v17.response import FetchResponse
    from kio.schema.fetch.v17.response import PartitionData as FetchAnswer

    from kreplica.log.damage import Damage
    from kreplica.replica.partition import Partition

# Puts a range into the log at which recovery stopped: (partition, damage, data); None: cuts the log there.
MendStopped = Callable[["Partition", "Damage", bytes | None], None]


class _Repair:
    """The work on one partition. `number` tells answers to an earlier try apart.

    `told_leader`: the leader that was last told of a range, NO_LEADER for none; `is_heard`: whether it has
    heard since that the log is whole. `leader_answered`: whether the leader has said what it has of
    the range.
    """

    __slots__ = (
        "damage",
        "filled",
        "is_heard",
        "is_scheduled",
        "leader_answered",
        "number",
        "partition",
        "passed_over",
        "peers",
        "reached",
        "taken",
        "told_leader",
    )

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.number = 0
        self.damage: Damage | None = None
        # Path, first offset and checksum of what was last put where recovery had stopped. If recovery stops
        # there again, the same bytes will not help.
        self.filled: tuple[str, int, int] | None = None
        self.peers: list[int] = []
        self.taken: RangeFromPeers | None = None
        # How far the range had come when its peers were last asked from the first one on.
        self.reached = 0
        self.leader_answered = False
        # Ranges that nobody could fill in this round.
        self.passed_over: set[Damage] = set()
        self.is_scheduled = False
        self.told_leader = NO_LEADER
        self.is_heard = False


class DamageRepair:
    """The repairs of the broker that has these `peers`, of which one should lead in its place where it cannot
    put into its log what an in-sync follower has, was to lead with a log at whose rot recovery stopped, or
    has rot above the high watermark, which no follower can get past.

    `on_moved(partition)`: records can be read again.
    """

    def __init__(
        self,
        config: ReplicaConfig,
        peers: ReplicaPeers,
        *,
        loop: Loop,
        metrics: MetricRegistry,
        mend_stopped: MendStopped,
        on_moved: Callable[[Partition], None],
        on_failure: Callable[[TopicPartition, KreplicaError], None],
    ) -> None:
        self._broker_id = peers.broker_id
        self._config = config
        self._peers = peers
        self._loop = loop
        self._mend_stopped = mend_stopped
        self._on_moved = on_moved
        self._on_failure = on_failure
        self._repairs: dict[TopicPartition, _Repair] = {}
        # The partition whose log is being opened again: taking its role once more is no news.
        self._mending: Partition | None = None
        self._closed = False
        self._repaired = metrics.meter("ReplicaManager", "DamageRepairsPerSec")
        self._failed = metrics.meter("ReplicaManager", "FailedDamageRepairsPerSec")

    def found(self, partition: Partition, _: Damage) -> None:
        """A range was found damaged."""
        self._loop.post(partial(self._take_note, partition))

    def role_changed(self, partition: Partition) -> None:
        """The partition has another role, leader, epoch or ISR: what is under way starts over."""
        if partition is self._mending:
            return
        if partition.is_damaged or partition.topic_partition in self._repairs:
            self._loop.post(partial(self._begin, partition))

    def refused_to_lead(self, partition: Partition) -> None:
        """Nothing can be written where recovery stopped at rot: another replica should lead."""
        self._loop.post(partial(self._want_handover, partition))

    def shutdown(self) -> None:
        """Do nothing any more."""
        self._closed = True
        self._repairs.clear()

    def _take_note(self, partition: Partition) -> None:
        known = self._repairs.get(partition.topic_partition)
        # What is under way comes to the new range, too, and a log that was opened again tells of old ones.
        if known is None or known.partition is not partition or known.damage is None:
            self._begin(partition)

    # ---- one round ----------------------------------------------------------------------------------------

    def _begin(self, partition: Partition) -> None:
        if self._closed:
            return
        known = self._repairs.get(partition.topic_partition)
        if known is None or known.partition is not partition:
            known = self._repairs[partition.topic_partition] = _Repair(partition)
        known.passed_over.clear()
        self._next_range(known)

    def _next_range(self, repair: _Repair) -> None:
        """Begin with the next damaged range, or end where there is none."""
        partition, log = repair.partition, repair.partition.log
        repair.number += 1
        repair.leader_answered = False
        if self._closed or log is None or log.is_offline:
            self._repairs.pop(partition.topic_partition, None)
            if log is not None and isinstance(log.failure, KreplicaError):
                # The disk failed when the range was to be noted.
                self._on_failure(partition.topic_partition, log.failure)
            return
        lost = log.lost_ranges
        if not lost:
            self._say_whole(repair)
            return
        # The last one first: one that changes its segment's size moves those behind it.
        left = [damage for damage in lost if damage not in repair.passed_over]
        if log.stopped_at is not None:
            left = [damage for damage in left if damage == log.stopped_at]
        repair.peers = self._in_order(partition)
        if not left or not repair.peers:
            self._again_later(repair)
            return
        damage = repair.damage = left[-1]
        try:
            taken = repair.taken = RangeFromPeers(wanted_by(log, damage))
            if taken.is_whole:
                # All of it is deleted, and recovery stopped there nevertheless.
                self._put(repair, self._broker_id, taken.data)
                return
        except PeerDisagrees:
            self._pass_over(repair, damage)
            return
        except KreplicaError as error:
            self._on_failure(partition.topic_partition, error)
            self._pass_over(repair, damage)
            return
        repair.reached = damage.first_offset
        self._ask_next_peer(repair)

    def _in_order(self, partition: Partition) -> list[int]:
        others = [each for each in partition.replicas if each != self._broker_id]
        if partition.is_leader:
            return sorted(others, key=lambda each: each not in partition.isr)
        return sorted(others, key=lambda each: each != partition.leader)

    def _again_later(self, repair: _Repair) -> None:
        repair.passed_over.clear()
        if repair.is_scheduled:
            return
        repair.is_scheduled = True

        def again() -> None:
            repair.is_scheduled = False
            if self._repairs.get(repair.partition.topic_partition) is repair:
                self._next_range(repair)

        self._loop.post_later(again, self._config.replica_fetch_backoff_ms)

    def _ask_next_peer(self, repair: _Repair) -> None:
        damage, taken, log = repair.damage, repair.taken, repair.partition.log
        assert damage is not None
        assert taken is not None
        if log is None or damage not in log.damages:
            self._next_range(repair)
            return
        if not repair.peers and taken.next_offset > repair.reached:
            # Each may lack another piece of the range: those that were asked first may go on now.
            repair.reached = taken.next_offset
            repair.peers = self._in_order(repair.partition)
        if not repair.peers:
            self._pass_over(repair, damage)
            return
        peer = repair.peers.pop(0)
        taken.begin_with_peer()
        self._fetch(repair, peer, taken.fetch_offset)

    def _pass_over(self, repair: _Repair, damage: Damage) -> None:
        self._failed.mark()
        partition, log = repair.partition, repair.partition.local_log
        if log.stopped_at == damage and repair.leader_answered and self._broker_id not in partition.isr:
            # The leader has all that is committed, and nobody counts on this replica: it begins again there.
            try:
                self._mend(partition, damage, None)
            except KreplicaError as error:
                self._on_failure(partition.topic_partition, error)
            self._again_later(repair)
            return
        if partition.is_leader and damage.stop_offset > log.high_watermark and len(partition.isr) > 1:
            # Not all of it is committed, and nobody will ever have it: who is in sync can lead without it.
            self._want_handover(partition)
        repair.passed_over.add(damage)
        self._next_range(repair)

    # ---- messages -----------------------------------------------------------------------------------------

    def _fetch(self, repair: _Repair, peer: int, offset: int) -> None:
        partition = repair.partition
        log = partition.local_log
        # The leader takes whoever fetches so below its own end out of the ISR, and back in at its end.
        tells = peer == partition.leader and (repair.damage is None or offset <= repair.damage.first_offset)
        epoch = log.epochs.epoch_for_offset(offset - 1)
        if log.stopped_at is not None and offset > log.stopped_at.first_offset:
            # Of the range itself, and of what lies behind, the epochs are not known yet.
            epoch = None
        if tells and repair.damage is not None:
            repair.told_leader, repair.is_heard = peer, False
        reply = self._peers.fetch(partition, peer, offset, last_epoch=epoch, tells=tells)
        assert reply is not None
        answered = partial(self._answered, repair, repair.number, peer, offset)
        reply.add_done_callback(lambda done: self._loop.post(partial(answered, done)))

    def _answered(
        self, repair: _Repair, number: int, peer: int, offset: int, reply: Future[FetchResponse]
    ) -> None:
        current = self._repairs.get(repair.partition.topic_partition)
        if self._closed or current is not repair or number != repair.number:
            return
        answer = None if reply.exception() is not None else answer_of(reply.result())
        if repair.damage is None:
            self._heard_whole(repair, offset, answer)
            return
        if peer == repair.partition.leader and answer is not None and answer.error_code in OF_A_LEADER:
            repair.leader_answered = True
        try:
            self._take(repair, peer, answer)
        except KreplicaError:
            # This peer cannot give it: another one may.
            self._ask_next_peer(repair)

    def _take(self, repair: _Repair, peer: int, answer: FetchAnswer | None) -> None:
        damage, taken = repair.damage, repair.taken
        assert damage is not None
        assert taken is not None
        if answer is None or answer.diverging_epoch.end_offset >= 0:
            raise PeerDisagrees(f"broker {peer} has no such range")
        if answer.error_code:
            if taken.skip_before() or (damage.next_offset is not None and taken.skip_to_last()):
                self._fetch(repair, peer, taken.fetch_offset)
            elif taken.is_whole:
                self._put(repair, peer, taken.data)
            else:
                raise PeerDisagrees(f"broker {peer} has no batch at offset {taken.next_offset}")
            return
        before = taken.fetch_offset, taken.is_whole
        records: Any = answer.records
        goes_on = bool(records) and taken.take(records)
        if goes_on and (taken.fetch_offset, taken.is_whole) != before:
            self._fetch(repair, peer, taken.fetch_offset)
        elif taken.is_whole or (damage.next_offset is None and taken.data):
            self._put(repair, peer, taken.data)
        else:
            raise PeerDisagrees(f"broker {peer} has the range up to offset {taken.fetch_offset} only")

    def _put(self, repair: _Repair, peer: int, data: bytes) -> None:
        partition, damage = repair.partition, repair.damage
        log = partition.local_log
        assert damage is not None
        lost_bytes = damage.end_position - damage.position
        if log.config.compact and damage.next_offset is not None and len(data) > lost_bytes:
            # It has records that the cleaner took out here, and the tombstones behind them may be gone, too:
            # deleted keys would come back. Another peer, or this one when it was cleaned, has less.
            repair.taken = RangeFromPeers(wanted_by(log, damage))
            raise PeerDisagrees(f"broker {peer} has more in the range than was here")
        filling = damage.path, damage.first_offset, checksum(data)
        if log.stopped_at is not None and repair.filled == filling:
            raise PeerDisagrees(f"recovery stopped again at {damage} with what broker {peer} has")
        try:
            if log.stopped_at is None:
                splice(log, damage, data)
            else:
                self._mend(partition, damage, data)
                repair.filled = filling
        except LogCleaningAborted:
            self._again_later(repair)
            return
        except KreplicaError as error:
            self._on_failure(partition.topic_partition, error)
            if partition.is_leader and peer in partition.isr:
                self._want_handover(partition)
            raise
        self._repaired.mark()
        self._on_moved(partition)
        self._next_range(repair)

    def _mend(self, partition: Partition, damage: Damage, data: bytes | None) -> None:
        self._mending = partition
        try:
            self._mend_stopped(partition, damage, data)
        finally:
            self._mending = None

    def _want_handover(self, partition: Partition) -> None:
        if not self._closed:
            self._peers.want_handover(partition)

    # ---- whole again --------------------------------------------------------------------------------------

    def _say_whole(self, repair: _Repair) -> None:
        """Tell the leader, until it has heard, and this broker is in the ISR.

        What it was told of the range may come to it late, or twice, and take this broker out of the ISR again
        (which is news of another ISR): so that is remembered for as long as it leads.
        """
        partition = repair.partition
        repair.damage = repair.taken = None
        if partition.is_leader or partition.leader != repair.told_leader:
            del self._repairs[partition.topic_partition]
        elif not repair.is_heard or self._broker_id not in partition.isr:
            self._fetch(repair, partition.leader, partition.log_end_offset)

    def _heard_whole(self, repair: _Repair, offset: int, answer: FetchAnswer | None) -> None:
        if answer is None or not is_believed_whole(answer, offset):
            self._again_later(repair)
            return
        repair.is_heard = True
        if self._broker_id not in repair.partition.isr:
            self._again_later(repair)
