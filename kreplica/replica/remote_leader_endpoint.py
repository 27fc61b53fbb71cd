"""RemoteLeaderEndPoint: sends a fetcher's requests to its leader, and reads the answers.

Nothing here waits. The fetch session (FetchSessionHandler) is the only state that spans requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from kreplica._core.fetch_frames import (
    Declined,
    FetchAnswer,
    FetchSettings,
    read_fetch_answer,
    read_fetch_buffers,
    write_fetch_request,
)
from kreplica.common.encoded_request import SIZE_BYTES, EncodedRequest, joined
from kreplica.common.future import Future
from kreplica.common.message import maker
from kreplica.common.message_reader import NUMBER_BYTES, read_response
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
from kreplica.common.types import INT32_MAX, TopicPartition, Uuid
from kreplica.common.wire import topic_id_of, uuid_of
from kreplica.replica.fetch_session import INITIAL_EPOCH, NO_SESSION
from kreplica.replica.partition_fetch_state import FetchData, PartitionFetchState
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
        self, states: Iterable[PartitionFetchState], epochs: Mapping[TopicPartition, int]
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

    def list_offset(self, state: PartitionFetchState, timestamp: int) -> Future[ListOffsetsResponse]:
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


def fetch_answers(response: FetchResponse) -> Iterator[tuple[bytes, int, FetchMessage]]:
    """Yield (bytes of the topic id, partition, answer) for each partition of a response."""
    for topic in response.responses:
        topic_id = topic_id_of(topic.topic_id).raw
        for answer in topic.partitions:
            yield topic_id, answer.partition_index, answer


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


# ---- the fetch session -------------------------------------------------------------------------------------


class SessionFetch(NamedTuple):
    """One fetch: its session, the partitions it names, and those that the leader should forget."""

    session_id: int
    session_epoch: int
    to_send: Mapping[TopicPartition, FetchData]
    to_forget: list[tuple[TopicPartition, Uuid]]


class FetchSessionHandler:
    """A follower's side of its fetch session with one leader (KIP-227), in the fetcher's loop.

    A fetch names only what has changed since the last one. `sent`: what was last sent to the leader for each
    partition of the session.
    """

    def __init__(self) -> None:
        self.sent: dict[TopicPartition, FetchData] = {}
        self._to_name_again: set[TopicPartition] = set()
        self._session_id = NO_SESSION
        self._epoch = INITIAL_EPOCH

    @property
    def is_new(self) -> bool:
        """Whether the next fetch must name every partition."""
        return self._epoch == INITIAL_EPOCH

    def build(
        self, changed: Mapping[TopicPartition, FetchData], gone: Sequence[TopicPartition]
    ) -> SessionFetch:
        """Build the next fetch.

        `changed`: the partitions to send (all partitions if `is_new`). `gone`: those that are no longer
        fetched.
        """
        if self.is_new:
            self._to_name_again.clear()
            self.sent = dict(changed)
            return SessionFetch(self._session_id, INITIAL_EPOCH, changed, [])
        again = self._to_name_again
        if len(changed) == 1 and not again and not gone:
            # The usual case after a new record: one partition advances.
            ((topic_partition, data),) = changed.items()
            known = self.sent.get(topic_partition)
            if known is not None and known.topic_id is data.topic_id and known != data:
                self.sent[topic_partition] = data
                return SessionFetch(self._session_id, self._epoch, changed, [])
        to_send = {tp: data for tp, data in changed.items() if tp in again or self.sent.get(tp) != data}
        again.difference_update(to_send)
        to_forget = [(tp, self.sent.pop(tp).topic_id) for tp in gone if tp in self.sent]
        # A topic with the same name but another id is a different topic, and the leader identifies topics by
        # id.
        for tp, data in to_send.items():
            known = self.sent.get(tp)
            if known is not None and known.topic_id != data.topic_id:
                to_forget.append((tp, known.topic_id))
        self.sent.update(to_send)
        return SessionFetch(self._session_id, self._epoch, to_send, to_forget)

    def name_again(self, topic_partition: TopicPartition) -> None:
        """Name the partition in the next fetch even if it has not changed.

        The leader's answer could not be used, and the leader would not send it again otherwise.
        """
        self._to_name_again.add(topic_partition)

    def answered(self, session_id: int) -> None:
        """Take over the session of the leader's answer. NO_SESSION: the leader has given us none."""
        if session_id == NO_SESSION:
            self._session_id, self._epoch = NO_SESSION, INITIAL_EPOCH
        elif session_id != self._session_id:
            self._session_id, self._epoch = session_id, 1
        else:
            self._epoch = 1 if self._epoch == INT32_MAX else self._epoch + 1

    def failed(self, *, is_unknown: bool) -> None:
        """Start a new session: the fetch was lost or rejected, so the leader's state is unknown.

        `is_unknown`: the leader does not know the session. Otherwise the next request ends it.
        """
        if is_unknown:
            self._session_id = NO_SESSION
        self._epoch = INITIAL_EPOCH


# ---- the fetch as bytes ------------------------------------------------------------------------------------


class EncodedFetch(EncodedRequest):
    """One fetch of a follower. An answer that the core declines is read as a message, and counted."""

    __slots__ = ("_declined", "_fetch", "_settings")

    kind = FetchRequest

    def __init__(self, fetch: SessionFetch, settings: FetchSettings, declined: Counter[Declined]) -> None:
        self._fetch = fetch
        self._settings = settings
        self._declined = declined

    def frame(self, number: int, client_id: bytes) -> bytes:
        """Return the request with its header; see EncodedRequest."""
        fetch = self._fetch
        asked: dict[bytes, list[tuple[int, int, int, int, int]]] = {}
        for (_, partition), data in fetch.to_send.items():
            asked.setdefault(data.topic_id.raw, []).append((partition, *data[1:]))
        forgotten: dict[bytes, list[int]] = {}
        for (_, partition), topic_id in fetch.to_forget:
            forgotten.setdefault(topic_id.raw, []).append(partition)
        return write_fetch_request(
            number, client_id, self._settings, fetch.session_id, fetch.session_epoch, asked, forgotten
        )

    def read(self, frame: memoryview) -> FetchAnswer | FetchResponse:
        """Return the answer in the frame; see EncodedRequest."""
        answer = read_fetch_answer(frame, NUMBER_BYTES)
        return answer if isinstance(answer, FetchAnswer) else self._as_message(answer, frame)

    def read_buffers(self, buffers: list[Any]) -> FetchAnswer | FetchResponse:
        """Return the answer in the frame of these buffers; see EncodedRequest."""
        answer = read_fetch_buffers(buffers, SIZE_BYTES + NUMBER_BYTES)
        return answer if isinstance(answer, FetchAnswer) else self._as_message(answer, joined(buffers))

    def _as_message(self, why: Declined, frame: memoryview) -> FetchResponse:
        self._declined[why] += 1
        return read_response(FetchResponse, frame)

    def message(self) -> FetchRequest:
        """Return the request as a message."""
        fetch, settings = self._fetch, self._settings
        asked: dict[Uuid, list[FetchPartition]] = {}
        for topic_partition, data in fetch.to_send.items():
            asked.setdefault(data.topic_id, []).append(
                _fetch_partition(
                    partition=topic_partition.partition,
                    current_leader_epoch=data.leader_epoch,
                    fetch_offset=data.fetch_offset,
                    last_fetched_epoch=data.last_fetched_epoch,
                    log_start_offset=data.log_start_offset,
                    partition_max_bytes=settings.partition_max_bytes,
                )
            )
        topics = [
            _fetch_topic(topic_id=uuid_of(topic_id), partitions=tuple(partitions))
            for topic_id, partitions in asked.items()
        ]
        forgotten: dict[Uuid, list[int]] = {}
        for topic_partition, topic_id in fetch.to_forget:
            forgotten.setdefault(topic_id, []).append(topic_partition.partition)
        return _fetch_request(
            replica_state=ReplicaState(replica_id=settings.replica_id, replica_epoch=settings.replica_epoch),
            max_wait=timedelta(milliseconds=settings.max_wait_ms),
            min_bytes=settings.min_bytes,
            max_bytes=settings.max_bytes,
            isolation_level=READ_UNCOMMITTED,
            session_id=fetch.session_id,
            session_epoch=fetch.session_epoch,
            topics=tuple(topics),
            forgotten_topics_data=tuple(
                [
                    ForgottenTopic(topic_id=uuid_of(topic_id), partitions=tuple(partitions))
                    for topic_id, partitions in forgotten.items()
                ]
            ),
        )
