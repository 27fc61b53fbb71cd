"""FullDisks: what a broker does about a log directory that has no room, where nothing has failed.

What there is no room for is tried again, so nobody would hear of it but by writers that wait: it is logged. A
follower would hold up all who wait for its ISR until its lag takes it out. So it tells its leader at once, as
one that lacks a range does (see damage_repair): by a fetch outside of any session below its log end. Once an
append went through, the same kind of fetch at its end says so. Either may come late or twice, so it looks
again for as long as that leader leads.

Thread rule: `refused` may come from any thread; all else runs in the loop.
"""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from kio.schema.fetch.v17.request import FetchPartition, FetchRequest, FetchTopic, ReplicaState

from kreplica.common.errors import StorageFull
from kreplica.common.future import Future
from kreplica.common.ports import Clock, Loop, Transport
from kreplica.common.types import TopicPartition
from kreplica.replica.fetch_session import FINAL_EPOCH
from kreplica.replica.hosted_partitions import HostedPartitions
from kreplica.replica.replica_config import ReplicaConfig

if TYPE_CHECKING:
    from kio.schema.fetch.v17.response import FetchResponse

    from kreplica.log.unified_log import UnifiedLog
    from kreplica.replica.partition import Partition

LOGGER = logging.getLogger(__name__)
# Between two words about one directory, whose logs are all refused again and again.
TELL_INTERVAL_MS = 30_000


class _Refusal:
    """A follower had no room. `end`: of its log then; `has_room`: what the leader has heard since."""

    __slots__ = ("end", "has_room", "leader_epoch")

    def __init__(self, leader_epoch: int, end: int) -> None:
        self.leader_epoch = leader_epoch
        self.end = end
        self.has_room: bool | None = None


class FullDisks:
    """See the module. Followers look again each `replica.fetch.backoff.ms`, as those do that fetch."""

    def __init__(
        self,
        broker_id: int,
        broker_epoch: Callable[[], int],
        config: ReplicaConfig,
        transport: Transport,
        loop: Loop,
        clock: Clock,
        partitions: HostedPartitions,
    ) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._config = config
        self._transport = transport
        self._loop = loop
        self._clock = clock
        self._partitions = partitions
        self._logged_ms: dict[str, int] = {}
        self._refusals: dict[Partition, _Refusal] = {}

    def refused(self, directory: str, topic_partition: TopicPartition, error: StorageFull) -> None:
        """There was no room in the log directory for what was to be written for the partition."""
        now_ms = self._clock.monotonic_ns() // 1_000_000
        logged_ms = self._logged_ms.get(directory)
        if logged_ms is None or now_ms - logged_ms >= TELL_INTERVAL_MS:
            self._logged_ms[directory] = now_ms
            LOGGER.warning("%s is full, and writers wait: %s: %s", directory, topic_partition, error)
        partition = self._partitions.get(topic_partition)
        if partition is not None and not partition.is_leader:
            self._loop.post(partial(self._refused, partition))

    def _refused(self, partition: Partition) -> None:
        log, known = partition.log, self._refusals.get(partition)
        if log is None:
            return
        if known is not None and known.leader_epoch == partition.leader_epoch:
            known.end = log.log_end_offset
            return
        self._refusals[partition] = _Refusal(partition.leader_epoch, log.log_end_offset)
        if known is None:
            self._look(partition)

    def _look(self, partition: Partition) -> None:
        """Tell the leader what it has not heard, and look again later."""
        refusal, log = self._refusals[partition], partition.log
        is_gone = log is None or self._partitions.get(partition.topic_partition) is not partition
        if is_gone or partition.is_leader or partition.leader_epoch != refusal.leader_epoch:
            del self._refusals[partition]
            return
        assert log is not None
        end = log.log_end_offset
        if end <= refusal.end:
            if refusal.has_room is not False and end > 0:
                self._tell(partition, log, refusal, end - 1, has_room=False)
        elif not partition.is_damaged and (not refusal.has_room or self._broker_id not in partition.isr):
            self._tell(partition, log, refusal, end, has_room=True)
        self._loop.post_later(partial(self._look, partition), self._config.replica_fetch_backoff_ms)

    def _tell(
        self, partition: Partition, log: UnifiedLog, refusal: _Refusal, offset: int, *, has_room: bool
    ) -> None:
        """Fetch outside of any session, for what that says: of the answer it counts that there is one."""
        known = partition.leader_and_isr
        if known is None:
            return
        epoch = log.epochs.epoch_for_offset(offset - 1)
        asked = FetchPartition(
            partition=partition.topic_partition.partition,
            current_leader_epoch=refusal.leader_epoch,
            fetch_offset=offset,
            last_fetched_epoch=-1 if epoch is None else epoch,
            log_start_offset=log.log_start_offset,
            partition_max_bytes=1,
        )
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=self._broker_id, replica_epoch=self._broker_epoch()),
            max_wait=timedelta(0),
            min_bytes=0,
            max_bytes=1,
            isolation_level=0,
            session_id=0,
            session_epoch=FINAL_EPOCH,
            topics=(FetchTopic(topic_id=uuid.UUID(bytes=known.topic_id.raw), partitions=(asked,)),),
            forgotten_topics_data=(),
            rack_id="",
        )
        reply: Future[FetchResponse] = self._transport.send(
            partition.leader, request, timeout_ms=self._config.replica_socket_timeout_ms
        )

        def heard(done: Future[FetchResponse]) -> None:
            if done.exception() is None and not done.result().error_code:
                refusal.has_room = has_room

        reply.add_done_callback(lambda done: self._loop.post(partial(heard, done)))
