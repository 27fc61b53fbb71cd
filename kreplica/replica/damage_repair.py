"""DamageRepair: fills the damaged ranges of this broker's logs from other replicas. Kafka has no such
feature.

A follower reports a range to its leader by a fetch outside of any session at the first offset that it lacks.
That takes it out of the ISR; it goes on replicating. It copies the range from the leader, or from another
replica if the leader lacks it too. A leader copies it from its followers, first from those in sync. A range
is accepted only from a replica of the same leader epoch whose batches join this log's batches (see
lost_range). When the log is whole, the same kind of fetch at its end reports that, and the usual rules let it
back into the ISR. A range that no replica can fill stays damaged, is never served, and is retried after a
back-off. A log at which recovery stopped is truncated there only after its leader has said that it cannot
give the range. Until then, this may be the last replica that has the records after the range.

Thread rule: any thread may call `found`, `role_changed` and `refused_to_lead`, under locks; everything else
runs in the loop. One request is in flight for each partition.
"""

from __future__ import annotations

import logging
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
    from kreplica.common.messages.data import FetchResponse
    from kreplica.common.messages.data import PartitionData as FetchAnswer
    from kreplica.log.damage import Damage
    from kreplica.replica.partition import Partition

LOGGER = logging.getLogger(__name__)

# Puts a range into a log at which recovery stopped: (partition, damage, data). Data of None truncates the
# log.
MendStopped = Callable[["Partition", "Damage", bytes | None], None]


class _Repair:
    """The repair of one partition. `number` distinguishes answers to earlier tries.

    `notified_leader`: the leader to which a range was last reported, or NO_LEADER. `is_heard`: whether it has
    since been notified that the log is whole. `leader_answered`: whether the leader has answered a fetch of
    the range.
    """

    __slots__ = (
        "damage",
        "filled",
        "is_heard",
        "is_scheduled",
        "leader_answered",
        "notified_leader",
        "number",
        "partition",
        "passed_over",
        "peers",
        "reached",
        "taken",
    )

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.number = 0
        self.damage: Damage | None = None
        # Path, first offset and checksum of the last range put where recovery had stopped. If recovery stops
        # there again, the same bytes will not help.
        self.filled: tuple[str, int, int] | None = None
        self.peers: list[int] = []
        self.taken: RangeFromPeers | None = None
        # The next offset of the range when its peers were last tried from the first one on.
        self.reached = 0
        self.leader_answered = False
        # Ranges that no replica could fill in this round.
        self.passed_over: set[Damage] = set()
        self.is_scheduled = False
        self.notified_leader = NO_LEADER
        self.is_heard = False


class DamageRepair:
    """The repairs of one broker, whose other replicas are `peers`.

    It asks that another replica lead a partition in three cases: the broker cannot write into its log what an
    in-sync follower has, it was to lead with a log at which recovery stopped, or it has rot above the high
    watermark, which no follower can get past. `on_moved(partition)`: records can be read again.
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
        # The partition whose log is being opened again. Taking its role again is not a change then.
        self._mending: Partition | None = None
        self._closed = False
        self._repaired = metrics.meter("ReplicaManager", "DamageRepairsPerSec")
        self._failed = metrics.meter("ReplicaManager", "FailedDamageRepairsPerSec")

    def found(self, partition: Partition, _: Damage) -> None:
        """Start to repair a range that was found damaged."""
        self._loop.post(partial(self._take_note, partition))

    def role_changed(self, partition: Partition) -> None:
        """Restart the repair: the partition has a new role, leader, epoch or ISR."""
        if partition is self._mending:
            return
        if partition.is_damaged or partition.topic_partition in self._repairs:
            self._loop.post(partial(self._begin, partition))

    def refused_to_lead(self, partition: Partition) -> None:
        """Ask that another replica lead: nothing can be written where recovery stopped at rot."""
        self._loop.post(partial(self._want_handover, partition))

    def shutdown(self) -> None:
        """Stop all repairs."""
        self._closed = True
        self._repairs.clear()

    def _take_note(self, partition: Partition) -> None:
        known = self._repairs.get(partition.topic_partition)
        # A repair in progress will get to the new range. A log that was opened again reports old ranges
        # again.
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
        """Start with the next damaged range, or finish if all are repaired."""
        partition, log = repair.partition, repair.partition.log
        repair.number += 1
        repair.leader_answered = False
        if self._closed or log is None or log.is_offline:
            self._repairs.pop(partition.topic_partition, None)
            if log is not None and isinstance(log.failure, KreplicaError):
                # The disk failed while the range was recorded.
                self._on_failure(partition.topic_partition, log.failure)
            return
        lost = log.lost_ranges
        if not lost:
            self._say_whole(repair)
            return
        # Start with the last range: a repair that changes the size of its segment moves the ranges after it.
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
                # All of its records are deleted, but recovery stopped there nevertheless.
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
            # Each peer may lack another piece of the range, so try the first ones again from here.
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
        partition, log = repair.partition, repair.partition.log
        if log is None:
            # Its directory has failed just now.
            self._next_range(repair)
            return
        if log.stopped_at == damage and repair.leader_answered and self._broker_id not in partition.isr:
            # The leader has all committed records, and this replica is not in the ISR: it can start again
            # from here.
            try:
                self._mend(partition, damage, None)
            except KreplicaError as error:
                self._on_failure(partition.topic_partition, error)
            else:
                LOGGER.info(
                    "broker %d: %s: truncated the log to offset %d and follows broker %d from there: no"
                    " replica could fill the damaged %s",
                    *(self._broker_id, partition.topic_partition),
                    *(damage.first_offset, partition.leader, damage),
                )
            self._again_later(repair)
            return
        if partition.is_leader and damage.stop_offset > log.high_watermark and len(partition.isr) > 1:
            # Not all of the range is committed, and no replica will ever have it. An in-sync replica can lead
            # without.
            self._want_handover(partition)
        repair.passed_over.add(damage)
        self._next_range(repair)

    # ---- messages -----------------------------------------------------------------------------------------

    def _fetch(self, repair: _Repair, peer: int, offset: int) -> None:
        partition = repair.partition
        log = partition.local_log
        # By such a fetch below its end the leader takes the fetcher out of the ISR, and at its end back in.
        reports = peer == partition.leader and (repair.damage is None or offset <= repair.damage.first_offset)
        epoch = log.epochs.epoch_for_offset(offset - 1)
        if log.stopped_at is not None and offset > log.stopped_at.first_offset:
            # The epochs of the range itself and of the records after it are not known yet.
            epoch = None
        if reports and repair.damage is not None:
            repair.notified_leader, repair.is_heard = peer, False
        reply = self._peers.fetch(partition, peer, offset, last_epoch=epoch, as_replica=reports)
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
            # This peer cannot give the range. Another one may.
            self._ask_next_peer(repair)

    def _take(self, repair: _Repair, peer: int, answer: FetchAnswer | None) -> None:
        damage, taken = repair.damage, repair.taken
        assert damage is not None
        assert taken is not None
        if answer is None or answer.diverging_epoch.end_offset >= 0:
            raise PeerDisagrees(f"broker {peer} does not have the range")
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
            raise PeerDisagrees(f"broker {peer} has the range only up to offset {taken.fetch_offset}")

    def _put(self, repair: _Repair, peer: int, data: bytes) -> None:
        partition, damage = repair.partition, repair.damage
        log = partition.local_log
        assert damage is not None
        lost_bytes = damage.end_position - damage.position
        if log.config.compact and damage.next_offset is not None and len(data) > lost_bytes:
            # The peer has records that the cleaner has removed here. Their tombstones may be gone too, so
            # deleted keys would come back. Another peer, or this one after its next cleaning, has less.
            repair.taken = RangeFromPeers(wanted_by(log, damage))
            raise PeerDisagrees(f"broker {peer} has more data in the range than this log had")
        filling = damage.path, damage.first_offset, checksum(data)
        if log.stopped_at is not None and repair.filled == filling:
            raise PeerDisagrees(f"recovery stopped again at {damage} with the data of broker {peer}")
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
        LOGGER.info(
            "broker %d: %s: repaired the damaged %s with the data of broker %d",
            *(self._broker_id, partition.topic_partition, damage, peer),
        )
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

    # ---- the log is whole ---------------------------------------------------------------------------------

    def _say_whole(self, repair: _Repair) -> None:
        """Report to the leader that the log is whole, until it has answered and this broker is in the ISR.

        The report of the range may reach the leader late or twice, and take this broker out of the ISR again,
        which is a change of the ISR here. So the report is remembered for as long as that leader leads.
        """
        partition = repair.partition
        repair.damage = repair.taken = None
        if partition.is_leader or partition.leader != repair.notified_leader:
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
