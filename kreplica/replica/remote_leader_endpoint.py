"""RemoteLeaderEndPoint: sends a fetcher's requests to its leader, and reads the answers.

Nothing here waits, and no state spans requests: the fetch session is the fetcher's (_core/follower).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from kreplica._core.fetch_frames import (
    Declined,
    FetchAnswer,
    FetchFrames,
    FetchSettings,
    SessionFetch,
)
from kreplica._core.follower import FollowedPartition
from kreplica.common.encoded_request import EncodedRequest
from kreplica.common.future import Future
from kreplica.common.message import maker, uuid_of_bytes
from kreplica.common.message_reader import read_response
from kreplica.common.messages.data import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
    ReplicaState,
)
from kreplica.common.messages.data import OffsetForLeaderEpochResponseEpochEndOffset as EpochAnswer
from kreplica.common.messages.data import PartitionData as FetchMessage
from kreplica.common.ports import Transport
from kreplica.common.types import TopicPartition
from kreplica.common.wire import topic_id_of
from kreplica.replica.replica_config import ReplicaConfig

_fetch_request, _fetch_topic, _fetch_partition = maker(FetchRequest), maker(FetchTopic), maker(FetchPartition)

# A follower reads everything that its leader has.
READ_UNCOMMITTED = 0


class LeaderOffset(NamedTuple):
    """An offset of the leader, or an error code."""

    error_code: int
    offset: int


class RemoteLeaderEndPoint:
    """The leader on broker `leader_id`, to which broker `broker_id` sends requests."""

    def __init__(
        self,
        leader_id: int,
        broker_id: int,
        broker_epoch: Callable[[], int],
        config: ReplicaConfig,
        transport: Transport,
    ) -> None:
        self.leader_id = leader_id
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._config = config
        self._transport = transport
        self._settings = self._settings_in(broker_epoch())
        # How many answers were read as messages, by the reason.
        self.declined: Counter[Declined] = Counter()

    def fetch(self, fetch: SessionFetch) -> Future[FetchAnswer | FetchResponse]:
        """Send a fetch. Read the partitions of a message with `fetch_answers`."""
        epoch = self._broker_epoch()
        if self._settings.replica_epoch != epoch:
            self._settings = self._settings_in(epoch)
        return self._send(EncodedFetch(fetch, self._settings, self.declined))

    def _settings_in(self, broker_epoch: int) -> FetchSettings:
        config = self._config
        return FetchSettings(
            self._broker_id,
            broker_epoch,
            max_wait_ms=config.replica_fetch_wait_max_ms,
            min_bytes=config.replica_fetch_min_bytes,
            max_bytes=config.replica_fetch_response_max_bytes,
            partition_max_bytes=config.replica_fetch_max_bytes,
        )

    def fetch_epoch_end_offsets(
        self, states: Iterable[FollowedPartition], epochs: Mapping[TopicPartition, int]
    ) -> Future[OffsetForLeaderEpochResponse]:
        """Ask where these epochs end in the leader's log. Read the answer with `epoch_answers`."""
        topics: dict[str, list[OffsetForLeaderPartition]] = {}
        for state in states:
            topic, partition = state.topic_partition
            topics.setdefault(topic, []).append(
                OffsetForLeaderPartition(
                    partition=partition,
                    current_leader_epoch=state.leader_epoch,
                    leader_epoch=epochs[state.topic_partition],
                )
            )
        return self._send(
            OffsetForLeaderEpochRequest(
                replica_id=self._broker_id,
                topics=tuple(
                    OffsetForLeaderTopic(topic=topic, partitions=tuple(partitions))
                    for topic, partitions in topics.items()
                ),
            )
        )

    def list_offset(self, state: FollowedPartition, timestamp: int) -> Future[ListOffsetsResponse]:
        """Ask for the partition's log end (-1) or log start (-2). Read the answer with `leader_offset`."""
        topic, partition = state.topic_partition
        asked = ListOffsetsPartition(
            partition_index=partition, current_leader_epoch=state.leader_epoch, timestamp=timestamp
        )
        return self._send(
            ListOffsetsRequest(
                replica_id=self._broker_id,
                isolation_level=READ_UNCOMMITTED,
                topics=(ListOffsetsTopic(name=topic, partitions=(asked,)),),
            )
        )

    def _send(self, request: Any) -> Future[Any]:
        return self._transport.send(
            self.leader_id, request, timeout_ms=self._config.replica_socket_timeout_ms
        )


def fetch_answers(response: FetchResponse) -> list[tuple[bytes, int, FetchMessage]]:
    """Return (bytes of the topic id, partition, answer) for each partition of a response."""
    return [
        (topic_id_of(topic.topic_id).raw, answer.partition_index, answer)
        for topic in response.responses
        for answer in topic.partitions
    ]


def epoch_answers(response: OffsetForLeaderEpochResponse) -> dict[TopicPartition, EpochAnswer]:
    """Return the answer of each partition."""
    return {
        TopicPartition(topic.topic, answer.partition): answer
        for topic in response.topics
        for answer in topic.partitions
    }


def leader_offset(response: ListOffsetsResponse) -> LeaderOffset:
    """Return the answer for the only partition of the request."""
    answer = response.topics[0].partitions[0]
    return LeaderOffset(answer.error_code, answer.offset)


# ---- the fetch as bytes ------------------------------------------------------------------------------------


class EncodedFetch(FetchFrames, EncodedRequest):
    """One fetch of a follower. An answer that the core declines is read as a message, and counted."""

    __slots__ = ()

    kind = FetchRequest

    def read_message(self, frame: memoryview) -> FetchResponse:
        """Return the answer in the frame as a message."""
        return read_response(FetchResponse, frame)

    def message(self) -> FetchRequest:
        """Return the request as a message."""
        fetch, settings = self.fetch, self.settings
        return _fetch_request(
            replica_state=ReplicaState(replica_id=settings.replica_id, replica_epoch=settings.replica_epoch),
            max_wait=timedelta(milliseconds=settings.max_wait_ms),
            min_bytes=settings.min_bytes,
            max_bytes=settings.max_bytes,
            isolation_level=READ_UNCOMMITTED,
            session_id=fetch.session_id,
            session_epoch=fetch.session_epoch,
            topics=tuple(
                _fetch_topic(
                    topic_id=uuid_of_bytes(topic_id),
                    partitions=tuple(self._partition(*each) for each in asked),
                )
                for topic_id, asked in fetch.asked.items()
            ),
            forgotten_topics_data=tuple(
                ForgottenTopic(topic_id=uuid_of_bytes(topic_id), partitions=tuple(partitions))
                for topic_id, partitions in fetch.forgotten.items()
            ),
        )

    def _partition(
        self,
        partition: int,
        fetch_offset: int,
        log_start_offset: int,
        leader_epoch: int,
        last_fetched_epoch: int,
    ) -> FetchPartition:
        return _fetch_partition(
            partition=partition,
            current_leader_epoch=leader_epoch,
            fetch_offset=fetch_offset,
            last_fetched_epoch=last_fetched_epoch,
            log_start_offset=log_start_offset,
            partition_max_bytes=self.settings.partition_max_bytes,
        )
