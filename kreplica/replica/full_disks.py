"""FullDisks: how a broker handles a log directory that is full.

A full disk is not a failure. Operations that find no room are retried, so the problem is logged. A follower
without room would delay all producers that wait for its ISR until its lag takes it out. So it notifies its
leader at once, as one that lacks a range does (see damage_repair): by a fetch outside of any session below
its log end. After a successful append, the same kind of fetch at its end reports that. Either may arrive late
or twice, so the follower keeps checking while that leader leads, in later leader epochs too, since the leader
keeps its knowledge.

A leader asks that another in-sync replica lead if nothing could be appended for a while after a refusal. So
does a broker without room to begin to lead. As a follower it then reports to the new leader that it has no
room. It does so until its disk has more free space than at the refusal, or some time has passed without a
refusal: without writes it would never find out that there is room again. For this reason, and because the
wait doubles each time, a partition is not handed around among brokers that are all full.

Thread rule: any thread may call `refused`; everything else runs in the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from kreplica.common.errors import KafkaStorageError, StorageFull
from kreplica.common.future import Future
from kreplica.common.leader_and_isr import LeaderAndIsr
from kreplica.common.ports import Cancellable, Clock, Loop, monotonic_ms
from kreplica.common.types import TopicPartition
from kreplica.replica.hosted_partitions import HostedPartitions
from kreplica.replica.replica_config import ReplicaConfig
from kreplica.replica.replica_peers import OF_A_LEADER, ReplicaPeers, answer_of, is_believed_whole

if TYPE_CHECKING:
    from kreplica.common.messages.data import FetchResponse
    from kreplica.log.unified_log import UnifiedLog
    from kreplica.replica.partition import Partition

LOGGER = logging.getLogger(__name__)
# Least time between two log lines about one directory, whose logs are all refused repeatedly.
LOG_INTERVAL_MS = 30_000
# When a follower assumes that it has room again, without an append: if its disk has this much more free space
# than at the refusal, or after a time without a refusal, which doubles with each refusal in a row up to this
# maximum.
ROOM_BYTES, HOPE_MS = 16 << 20, 30_000


class _Refusal:
    """A write was refused at `refused_ms`, because the disk was full.

    `end`: the log end then. `free_bytes`: the least free space seen. `hope_ms`: after how long without a
    refusal there may be room again. `has_room`: what was last reported to `leader` in `leader_epoch`.
    `led_since_ms`: when a leader, or a broker that should lead, was first refused; None for a follower.
    `patience_ms`: how long after that it asks for another leader.
    """

    __slots__ = (
        "end",
        "free_bytes",
        "has_room",
        "hope_ms",
        "leader",
        "leader_epoch",
        "led_since_ms",
        "patience_ms",
        "refused_ms",
    )

    def __init__(self, leader: int, leader_epoch: int, patience_ms: int) -> None:
        self.leader = leader
        self.leader_epoch = leader_epoch
        self.patience_ms = patience_ms
        self.end = self.refused_ms = self.free_bytes = 0
        self.hope_ms = 0
        self.has_room: bool | None = None
        self.led_since_ms: int | None = None


class UntakenRoles:
    """Roles that this broker could not take yet because its disk is full.

    A new leader must write its epoch before it leads. Without room for that, the broker leaves the partition
    as it is and retries, since the controller assigns a role only once: `take_again()` is called in `loop`,
    `backoff_ms` after the first role was added. The ReplicaManager's role lock guards all but `is_to_lead`.
    """

    def __init__(self, loop: Loop, take_again: Callable[[], None], backoff_ms: int) -> None:
        self._loop = loop
        self._take_again = take_again
        self._backoff_ms = backoff_ms
        self._states: dict[TopicPartition, LeaderAndIsr] = {}
        self._alarm: Cancellable | None = None

    def __contains__(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._states

    def is_to_lead(self, topic_partition: TopicPartition, broker_id: int) -> bool:
        """Return whether this broker is to lead the partition as soon as there is room."""
        waiting = self._states.get(topic_partition)
        return waiting is not None and waiting.leader == broker_id

    def outdates(self, state: LeaderAndIsr) -> bool:
        """Return whether a later role of the partition waits to be taken."""
        waiting = self._states.get(state.topic_partition)
        return waiting is not None and state.partition_epoch < waiting.partition_epoch

    def add(self, state: LeaderAndIsr) -> None:
        """Add a role that found no room."""
        self._states[state.topic_partition] = state
        if self._alarm is None:
            self._alarm = self._loop.post_later(self._take_again, self._backoff_ms)

    def discard(self, topic_partition: TopicPartition) -> None:
        """Remove the partition's role: it was taken, or the partition has left this broker."""
        self._states.pop(topic_partition, None)

    def take(self) -> list[LeaderAndIsr]:
        """Return the roles to retry now."""
        self._alarm = None
        return list(self._states.values())

    def clear(self) -> None:
        """Cancel all retries."""
        self._states.clear()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None


class FullDisks:
    """The full disks of one broker. It checks every `replica.fetch.backoff.ms`, as fetchers do.

    `peers`: the other replicas, which are notified. `untaken`: the roles that found no room.
    """

    def __init__(
        self,
        config: ReplicaConfig,
        peers: ReplicaPeers,
        loop: Loop,
        clock: Clock,
        partitions: HostedPartitions,
        untaken: UntakenRoles,
    ) -> None:
        self._broker_id = peers.broker_id
        self._config = config
        self._peers = peers
        self._loop = loop
        self._clock = clock
        self._partitions = partitions
        self._untaken = untaken
        self._logged_ms: dict[str, int] = {}
        self._refusals: dict[Partition, _Refusal] = {}

    def refused(self, directory: str, topic_partition: TopicPartition, error: StorageFull) -> None:
        """Handle a write for the partition that found no room in the log directory."""
        now_ms = self._now_ms()
        logged_ms = self._logged_ms.get(directory)
        if logged_ms is None or now_ms - logged_ms >= LOG_INTERVAL_MS:
            self._logged_ms[directory] = now_ms
            LOGGER.warning("%s is full, and writers wait: %s: %s", directory, topic_partition, error)
        partition = self._partitions.get(topic_partition)
        if partition is not None:
            # Take the log end now. When the loop handles this, there may be room again.
            end, free = _end_of(partition), _free_bytes(partition)
            self._loop.post(partial(self._refused, partition, end, free, now_ms))

    def _refused(self, partition: Partition, end: int, free_bytes: int, now_ms: int) -> None:
        known = self._refusals.get(partition)
        backoff_ms = self._config.replica_fetch_backoff_ms
        refusal = known or _Refusal(partition.leader, partition.leader_epoch, backoff_ms)
        self._refusals[partition] = refusal
        if known is not None and end <= refusal.end:
            # One more refusal in a row. A disk thread's refusal may arrive when there is room again: keep the
            # least.
            refusal.hope_ms = min(2 * refusal.hope_ms, HOPE_MS)
            refusal.free_bytes = min(refusal.free_bytes, free_bytes)
        else:
            refusal.hope_ms, refusal.free_bytes = backoff_ms, free_bytes
        refusal.end, refusal.refused_ms = end, now_ms
        if not self._is_to_lead(partition):
            if known is None:
                self._look(partition)
            return
        if refusal.led_since_ms is None:
            refusal.led_since_ms = now_ms
        if known is None:
            self._look_later(partition)

    def _is_to_lead(self, partition: Partition) -> bool:
        return partition.is_leader or self._untaken.is_to_lead(partition.topic_partition, self._broker_id)

    def _look(self, partition: Partition) -> None:
        """Report what the leader does not know yet, and check again later unless everything is reported."""
        refusal = self._refusals[partition]
        is_gone = self._partitions.get(partition.topic_partition) is not partition
        if self._is_to_lead(partition):
            goes_on = self._look_as_leader(partition, refusal)
        else:
            goes_on = self._look_as_follower(partition, refusal)
        if is_gone or not goes_on:
            del self._refusals[partition]
        else:
            self._look_later(partition)

    def _look_later(self, partition: Partition) -> None:
        self._loop.post_later(partial(self._look, partition), self._config.replica_fetch_backoff_ms)

    def _look_as_leader(self, partition: Partition, refusal: _Refusal) -> bool:
        """Ask for another leader if nothing has been appended since. Returns True to check again."""

        def is_wanted() -> bool:
            is_known = self._refusals.get(partition) is refusal
            return is_known and self._is_to_lead(partition) and _end_of(partition) <= refusal.end

        if not is_wanted():
            return False
        since_ms = refusal.led_since_ms
        is_due = since_ms is not None and self._now_ms() - since_ms >= refusal.patience_ms
        if is_due:
            self._peers.want_handover(partition, is_wanted)
        return True

    def _look_as_follower(self, partition: Partition, refusal: _Refusal) -> bool:
        """Report to the leader what it does not know yet. Returns True to check again."""
        log = partition.log
        if log is None:
            return False
        end = log.log_end_offset
        if refusal.led_since_ms is not None:
            refusal.led_since_ms = None
            refusal.patience_ms = min(2 * refusal.patience_ms, HOPE_MS)
        if partition.leader_epoch != refusal.leader_epoch:
            if refusal.has_room and partition.leader != refusal.leader:
                # The new leader knows nothing of the full disk.
                return False
            refusal.leader, refusal.leader_epoch = partition.leader, partition.leader_epoch
            refusal.end, refusal.has_room = min(refusal.end, end), None
        if end <= refusal.end and not self._may_have_room(partition, refusal):
            if refusal.has_room is not False and end > 0:
                self._report(partition, log, refusal, end - 1, has_room=False)
        elif not partition.is_damaged and (not refusal.has_room or self._broker_id not in partition.isr):
            self._report(partition, log, refusal, end, has_room=True)
        return True

    def _may_have_room(self, partition: Partition, refusal: _Refusal) -> bool:
        if self._now_ms() - refusal.refused_ms >= refusal.hope_ms:
            return True
        return _free_bytes(partition) >= refusal.free_bytes + ROOM_BYTES

    def _report(
        self, partition: Partition, log: UnifiedLog, refusal: _Refusal, offset: int, *, has_room: bool
    ) -> None:
        """Report with a fetch outside of any session whether there is room."""
        reply = self._peers.fetch(
            partition,
            partition.leader,
            offset,
            last_epoch=log.epochs.epoch_for_offset(offset - 1),
            leader_epoch=refusal.leader_epoch,
            max_bytes=1,
        )
        if reply is None:
            return

        leader_epoch = refusal.leader_epoch

        def heard(done: Future[FetchResponse]) -> None:
            answer = None if done.exception() is not None else answer_of(done.result())
            if answer is None or refusal.leader_epoch != leader_epoch:
                return
            is_heard = is_believed_whole(answer, offset) if has_room else answer.error_code in OF_A_LEADER
            if is_heard:
                refusal.has_room = has_room

        reply.add_done_callback(lambda done: self._loop.post(partial(heard, done)))

    def _now_ms(self) -> int:
        return monotonic_ms(self._clock)


def _end_of(partition: Partition) -> int:
    log = partition.log
    return 0 if log is None else log.log_end_offset


def _free_bytes(partition: Partition) -> int:
    log = partition.log
    try:
        return 0 if log is None else log.local.storage.free_bytes(log.local.directory)
    except KafkaStorageError:
        # The directory is gone or its disk fails. Other operations detect that.
        return 0
