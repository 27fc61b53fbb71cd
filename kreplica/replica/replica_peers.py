"""ReplicaPeers: requests to the other replicas of a partition, apart from those of fetchers.

A fetch outside of any session reports the state of the sender's log by its offset, which Kafka's followers
never do. Below the end that the leader knew, it reports that the log lacks something; at the log's end, that
it is whole. The same fetch in a consumer's name reads records from any replica (KIP-392) and reports nothing.
A leader that cannot go on asks here that another in-sync replica lead. DamageRepair and FullDisks use this
class.

It has no state but the owner's callback; any thread.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from kreplica.common.errors import CorruptMessage, KafkaStorageError, OffsetOutOfRange
from kreplica.common.future import Future
from kreplica.common.messages.data import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from kreplica.common.ports import Transport
from kreplica.replica.delayed_fetch import CONSUMER
from kreplica.replica.fetch_session import FINAL_EPOCH
from kreplica.replica.remote_leader_endpoint import fetch_answers
from kreplica.replica.replica_config import ReplicaConfig

if TYPE_CHECKING:
    from kreplica.common.messages.data import FetchResponse
    from kreplica.common.messages.data import PartitionData as FetchAnswer
    from kreplica.replica.partition import Partition

# A follower may answer a consumer that names its rack (KIP-392).
RACK = "damage-repair"

# Error codes of a leader that cannot give a range. A broker that is not the leader answers others.
OF_A_LEADER = frozenset({0, OffsetOutOfRange.code, CorruptMessage.code, KafkaStorageError.code})

IsWanted = Callable[[], bool]
WantsHandover = Callable[["Partition", IsWanted | None], None]


class ReplicaPeers:
    """The peers of broker `broker_id`, whose epoch is `broker_epoch()`.

    `on_wants_handover(partition, is_wanted)`: another replica should lead, as long as `is_wanted()` or as
    long as this broker leads. Requests are dropped until its owner sets it.
    """

    def __init__(
        self, broker_id: int, broker_epoch: Callable[[], int], config: ReplicaConfig, transport: Transport
    ) -> None:
        self.broker_id = broker_id
        self.on_wants_handover: WantsHandover | None = None
        self._broker_epoch = broker_epoch
        self._config = config
        self._transport = transport

    def want_handover(self, partition: Partition, is_wanted: IsWanted | None = None) -> None:
        """Ask that another replica lead the partition."""
        if self.on_wants_handover is not None:
            self.on_wants_handover(partition, is_wanted)

    def fetch(
        self,
        partition: Partition,
        peer: int,
        offset: int,
        *,
        last_epoch: int | None,
        leader_epoch: int | None = None,
        as_replica: bool = True,
        max_bytes: int | None = None,
    ) -> Future[FetchResponse] | None:
        """Fetch at `offset` from broker `peer`. Returns None if the partition's leader is unknown.

        `last_epoch`: of the batch before `offset`, None if unknown. `leader_epoch`: the partition's by
        default. `as_replica`: fetch as this replica, which reports its state; if False, as a consumer.
        `max_bytes`: as for a fetcher by default.
        """
        known, log = partition.leader_and_isr, partition.local_log
        if known is None:
            return None
        config = self._config
        asked = FetchPartition(
            partition=partition.topic_partition.partition,
            current_leader_epoch=partition.leader_epoch if leader_epoch is None else leader_epoch,
            fetch_offset=offset,
            last_fetched_epoch=-1 if last_epoch is None else last_epoch,
            log_start_offset=log.log_start_offset,
            partition_max_bytes=config.replica_fetch_max_bytes if max_bytes is None else max_bytes,
        )
        replica = (
            ReplicaState(replica_id=self.broker_id, replica_epoch=self._broker_epoch())
            if as_replica
            else ReplicaState(replica_id=CONSUMER, replica_epoch=-1)
        )
        request = FetchRequest(
            replica_state=replica,
            max_wait=timedelta(0),
            min_bytes=0,
            max_bytes=config.replica_fetch_response_max_bytes if max_bytes is None else max_bytes,
            isolation_level=0,
            session_id=0,
            session_epoch=FINAL_EPOCH,
            topics=(FetchTopic(topic_id=uuid.UUID(bytes=known.topic_id.raw), partitions=(asked,)),),
            forgotten_topics_data=(),
            rack_id="" if as_replica else RACK,
        )
        reply: Future[FetchResponse] = self._transport.send(
            peer, request, timeout_ms=config.replica_socket_timeout_ms
        )
        return reply


def answer_of(response: FetchResponse) -> FetchAnswer | None:
    """Return the answer for the only partition of the request; None if the whole request was rejected."""
    if response.error_code:
        return None
    return next((answer for _, _, answer in fetch_answers(response)), None)


def is_believed_whole(answer: FetchAnswer, offset: int) -> bool:
    """Return whether the leader takes the log for whole after this answer to a fetch at the log's end.

    A leader that knows nothing of this follower yet does so only from the high watermark on.
    """
    return not answer.error_code and offset >= answer.high_watermark
