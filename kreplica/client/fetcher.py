"""Fetcher: reads batches and looks up offsets at the leaders of partitions.

A fetch is retried until its time is up: with a new leader if the leader has changed, or if it does not
answer.
Each request carries the partition's leader epoch, so that a deposed leader refuses it (KIP-320). Only the
metadata cache persists between fetches. Thread rule: any thread; futures are resolved in the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from kreplica._core.records import BatchIterator, batches
from kreplica.client.client_config import ISOLATION_LEVEL, ClientConfig, Isolation
from kreplica.client.client_metadata import ClientMetadata, TopicInfo
from kreplica.common.dataclass import dataclass, field
from kreplica.common.errors import KreplicaError, OffsetOutOfRange, UnknownServerError, timed_out
from kreplica.common.future import Future
from kreplica.common.message import maker
from kreplica.common.messages.data import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from kreplica.common.ports import Cancellable, Clock, Loop, Transport, monotonic_ms
from kreplica.common.types import TopicPartition
from kreplica.common.wire import error_of, uuid_of

_request, _topic, _partition = maker(FetchRequest), maker(FetchTopic), maker(FetchPartition)


class Fetched(NamedTuple):
    """The leader's response: whole batches. The first one may begin below the requested offset.

    `aborted`: (producer id, first offset) of the aborted transactions within, for "txn_committed".
    """

    records: Any
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...]

    def batches(self) -> BatchIterator:
        """Return the batches; each checks its CRC when it is opened."""
        return batches(b"" if self.records is None else self.records)


T = TypeVar("T")
EARLIEST, LATEST = -2, -1
CONSUMER = -1


@dataclass(slots=True, eq=False)
class _Question(Generic[T]):
    """A pending request to a partition's leader.

    `make(topic, left_ms)` builds the request; `read(response)` returns its (error, result). `max_wait_ms`:
    how long the leader may delay the response.
    """

    at: TopicPartition
    make: Callable[[TopicInfo, int], Any]
    read: Callable[[Any], tuple[BaseException | None, T | None]]
    max_wait_ms: int
    deadline_ms: int
    future: Future[T] = field(default_factory=Future)
    timer: Cancellable | None = None
    last_error: BaseException | None = None


class Fetcher:
    """Reads batches and looks up offsets; finds and follows the leader of each partition."""

    def __init__(
        self,
        metadata: ClientMetadata,
        *,
        transport: Transport,
        loop: Loop,
        clock: Clock,
        config: ClientConfig | None = None,
    ) -> None:
        self._metadata = metadata
        self._transport = transport
        self._loop = loop
        self._clock = clock
        self._config = config or ClientConfig()

    def fetch(
        self,
        at: TopicPartition,
        offset: int,
        *,
        isolation: Isolation = "high_watermark",
        max_wait_ms: int = 0,
        timeout_ms: int | None = None,
    ) -> Future[Fetched]:
        """Fetch the batches from `offset` on; the result is empty if none arrive within `max_wait_ms`.

        The future fails with OffsetOutOfRange, with RequestTimedOut if no leader answers within `timeout_ms`
        (default.api.timeout.ms by default), and with other errors that are not retriable. Raises KeyError for
        an unknown isolation.
        """
        level = ISOLATION_LEVEL[isolation]

        def make(topic: TopicInfo, left_ms: int) -> FetchRequest:
            wanted = _partition(
                partition=at.partition,
                current_leader_epoch=topic.partitions[at.partition].leader_epoch,
                fetch_offset=offset,
                partition_max_bytes=self._config.fetch_max_bytes,
            )
            return _request(
                max_wait=timedelta(milliseconds=min(max_wait_ms, left_ms)),
                min_bytes=1,
                isolation_level=level,
                topics=(_topic(topic_id=uuid_of(topic.topic_id), partitions=(wanted,)),),
                forgotten_topics_data=(),
            )

        return self._begin(at, make, partial(_fetched, at, offset), max_wait_ms, timeout_ms)

    def offset(
        self,
        at: TopicPartition,
        timestamp: int,
        *,
        isolation: Isolation = "high_watermark",
        timeout_ms: int | None = None,
    ) -> Future[int]:
        """Look up the offset of the first record at or after `timestamp` (ms since 1970), or -1.

        EARLIEST and LATEST look up the log start offset and the end of the readable part. The future fails as
        that of `fetch` does.
        """
        level = ISOLATION_LEVEL[isolation]

        def make(topic: TopicInfo, _left_ms: int) -> ListOffsetsRequest:
            wanted = ListOffsetsPartition(
                partition_index=at.partition,
                current_leader_epoch=topic.partitions[at.partition].leader_epoch,
                timestamp=timestamp,
            )
            return ListOffsetsRequest(
                replica_id=CONSUMER,
                isolation_level=level,
                topics=(ListOffsetsTopic(name=at.topic, partitions=(wanted,)),),
            )

        return self._begin(at, make, _offset, 0, timeout_ms)

    def _begin(
        self,
        at: TopicPartition,
        make: Callable[[TopicInfo, int], Any],
        read: Callable[[Any], tuple[BaseException | None, T | None]],
        max_wait_ms: int,
        timeout_ms: int | None,
    ) -> Future[T]:
        patience_ms = self._config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        asked = _Question(at, make, read, max_wait_ms, monotonic_ms(self._clock) + patience_ms)
        self._loop.post(partial(self._start, asked))
        return asked.future

    # ---- in the loop --------------------------------------------------------------------------------------

    def _start(self, asked: _Question[Any]) -> None:
        left_ms = asked.deadline_ms - monotonic_ms(self._clock)
        asked.timer = self._loop.post_later(partial(self._expire, asked), left_ms)
        self._ask(asked)

    def _expire(self, asked: _Question[Any]) -> None:
        self._end(asked, timed_out(f"{asked.at}: no leader answered in time", asked.last_error), None)

    def _end(self, asked: _Question[Any], error: BaseException | None, result: Any) -> None:
        if asked.timer is not None:
            asked.timer.cancel()
        if asked.future.done():
            return
        if error is not None:
            asked.future.set_exception(error)
        else:
            asked.future.set_result(result)

    def _ask(self, asked: _Question[Any]) -> None:
        if asked.future.done():
            return
        left_ms = max(asked.deadline_ms - monotonic_ms(self._clock), 0)
        topic = self._metadata.topic(asked.at.topic)
        leader = self._metadata.leader(asked.at)
        if topic is None or leader is None:
            self._refresh(asked)
            return
        request = asked.make(topic, left_ms)
        timeout_ms = max(min(left_ms, asked.max_wait_ms + self._config.request_timeout_ms), 1)
        reply = self._transport.send(leader, request, timeout_ms=timeout_ms)
        reply.add_done_callback(lambda done: self._loop.post(partial(self._answered, asked, done)))

    def _answered(self, asked: _Question[Any], reply: Future[Any]) -> None:
        error, result = reply.exception(), None
        if error is None:
            error, result = asked.read(reply.result())
        if isinstance(error, KreplicaError) and error.retriable:
            asked.last_error = error
            self._loop.post_later(partial(self._refresh, asked), self._config.retry_backoff_ms)
        else:
            self._end(asked, error, result)

    def _refresh(self, asked: _Question[Any]) -> None:
        if asked.future.done():
            return
        answer = self._metadata.refresh(asked.at.topic)
        answer.add_done_callback(lambda done: self._loop.post(partial(self._refreshed, asked, done)))

    def _refreshed(self, asked: _Question[Any], answer: Future[TopicInfo]) -> None:
        asked.last_error = answer.exception() or asked.last_error
        if answer.exception() is not None or self._metadata.leader(asked.at) is None:
            self._loop.post_later(partial(self._refresh, asked), self._config.retry_backoff_ms)
        else:
            self._ask(asked)


def _fetched(
    at: TopicPartition, offset: int, response: FetchResponse
) -> tuple[BaseException | None, Fetched | None]:
    error = error_of(response.error_code)
    if error is not None:
        return error, None
    answer = _only(response.responses)
    if answer is None:
        return UnknownServerError("the Fetch response leaves out the requested partition"), None
    aborted = tuple((each.producer_id, each.first_offset) for each in answer.aborted_transactions or ())
    fetched = Fetched(
        answer.records, answer.high_watermark, answer.last_stable_offset, answer.log_start_offset, aborted
    )
    error = error_of(answer.error_code)
    if isinstance(error, OffsetOutOfRange):
        error = OffsetOutOfRange(
            f"{at}: offset {offset} is below the log's start or above its end", where=offset
        )
    return error, fetched


def _offset(response: ListOffsetsResponse) -> tuple[BaseException | None, int | None]:
    answer = _only(response.topics)
    if answer is None:
        return UnknownServerError("the ListOffsets response leaves out the requested partition"), None
    return error_of(answer.error_code), answer.offset


def _only(topics: Sequence[Any]) -> Any:
    return topics[0].partitions[0] if topics and topics[0].partitions else None
