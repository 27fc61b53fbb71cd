"""FullDisks: what a broker does about a log directory that has no room, where nothing has failed.

What there is no room for is tried again, so nobody would hear of it but by writers that wait: it is logged. A
follower would hold up all who wait for its ISR until its lag takes it out. So it tells its leader at once, as
one that lacks a range does (see damage_repair): by a fetch outside of any session below its log end. Once an
append went through, the same kind of fetch at its end says so. Either may come late or twice, so it looks
again for as long as that leader leads, in later leader epochs, too: a leader that goes on keeps what it
knows.

A leader asks for another one in sync to lead, if nothing went through for a while after it was refused; so
does a broker that has no room to begin to lead. As a follower it tells whoever leads then that it has no
room, until the disk has more left than then, or some time has passed without a refusal: where nobody can
write nobody would find out that he can. So, and since it asks later each time, a partition is not handed on
and on among those who have none.

Thread rule: `refused` may come from any thread; all else runs in the loop.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from kreplica.common.errors import KafkaStorageError, StorageFull
from kreplica.common.future import Future
from kreplica.common.ports import Clock, Loop, monotonic_ms
from kreplica.common.types import TopicPartition
from kreplica.replica.hosted_partitions import HostedPartitions
from kreplica.replica.replica_config import ReplicaConfig
from kreplica.replica.replica_peers import OF_A_LEADER, ReplicaPeers, answer_of, is_believed_whole
from kreplica.replica.untaken_roles import UntakenRoles

if TYPE_CHECKING:
    from kio.schema.fetch.v17.response import FetchResponse

    from kreplica.log.unified_log import UnifiedLog
    from kreplica.replica.partition import Partition

LOGGER = logging.getLogger(__name__)
# Between two words about one directory, whose logs are all refused again and again.
TELL_INTERVAL_MS = 30_000
# A follower may have room, though nothing came to show it, whose disk has so much more left than when it was
# refused; or that was not refused for a while, which doubles with each refusal in a row, and is at most that.
ROOM_BYTES, HOPE_MS = 16 << 20, 30_000


class _Refusal:
    """There was no room at `refused_ms`. `end`: of the log then; `free_bytes`: what the disk had left, at the
    least; `hope_ms`: how long after that there may be room again; `has_room`: what `leader` has heard in
    `leader_epoch`.

    `led_since_ms`: when the leader, or who was to lead, was refused first, None for a follower;
    `patience_ms`: how long after that it asks for another one.
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


class FullDisks:
    """See the module. A broker looks again each `replica.fetch.backoff.ms`, as those do that fetch.

    `peers`: the other replicas, which are told. `untaken`: the roles for which there was no room.
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
        """There was no room in the log directory for what was to be written for the partition."""
        now_ms = self._now_ms()
        logged_ms = self._logged_ms.get(directory)
        if logged_ms is None or now_ms - logged_ms >= TELL_INTERVAL_MS:
            self._logged_ms[directory] = now_ms
            LOGGER.warning("%s is full, and writers wait: %s: %s", directory, topic_partition, error)
        partition = self._partitions.get(topic_partition)
        if partition is not None:
            # Its end as it is now: by the time that the loop comes to it, there may have been room again.
            end, free = _end_of(partition), _free_bytes(partition)
            self._loop.post(partial(self._refused, partition, end, free, now_ms))

    def _refused(self, partition: Partition, end: int, free_bytes: int, now_ms: int) -> None:
        known = self._refusals.get(partition)
        backoff_ms = self._config.replica_fetch_backoff_ms
        refusal = known or _Refusal(partition.leader, partition.leader_epoch, backoff_ms)
        self._refusals[partition] = refusal
        if known is not None and end <= refusal.end:
            # One more in a row. A disk thread's may be told when there is room again: so the least counts.
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
        """Say what is to be said, and look again later, as long as there is anything to say."""
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
        """Ask for another leader, if nothing has been appended since; whether to look again."""

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
        """Tell the leader what it has not heard; whether to look again."""
        log = partition.log
        if log is None:
            return False
        end = log.log_end_offset
        if refusal.led_since_ms is not None:
            refusal.led_since_ms = None
            refusal.patience_ms = min(2 * refusal.patience_ms, HOPE_MS)
        if partition.leader_epoch != refusal.leader_epoch:
            if refusal.has_room and partition.leader != refusal.leader:
                # Its new leader knows nothing of that.
                return False
            refusal.leader, refusal.leader_epoch = partition.leader, partition.leader_epoch
            refusal.end, refusal.has_room = min(refusal.end, end), None
        if end <= refusal.end and not self._may_have_room(partition, refusal):
            if refusal.has_room is not False and end > 0:
                self._tell(partition, log, refusal, end - 1, has_room=False)
        elif not partition.is_damaged and (not refusal.has_room or self._broker_id not in partition.isr):
            self._tell(partition, log, refusal, end, has_room=True)
        return True

    def _may_have_room(self, partition: Partition, refusal: _Refusal) -> bool:
        if self._now_ms() - refusal.refused_ms >= refusal.hope_ms:
            return True
        return _free_bytes(partition) >= refusal.free_bytes + ROOM_BYTES

    def _tell(
        self, partition: Partition, log: UnifiedLog, refusal: _Refusal, offset: int, *, has_room: bool
    ) -> None:
        """Fetch outside of any session, for what that says."""
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
        # The directory is gone, or its disk fails: others find that out.
        return 0
