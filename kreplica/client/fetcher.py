"""Fetcher: reads batches of partitions from whoever leads them.

A fetch is one question; when the leader has changed, or does not answer, it is asked again elsewhere until
the time is up. The partition's leader epoch goes along, so that a deposed leader does not answer (KIP-320).
Nothing is kept between fetches but what the metadata knows. Thread rule: any thread; futures are resolved in
the loop.
"""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any, Literal, NamedTuple

from kio.schema.fetch.v17.request import FetchPartition, FetchRequest, FetchTopic
from kio.schema.fetch.v17.response import FetchResponse

from kreplica._core.records import BatchIterator, batches
from kreplica.client.client_config import ClientConfig
from kreplica.client.client_metadata import ClientMetadata, TopicInfo
from kreplica.common.errors import KreplicaError, RequestTimedOut, UnknownServerError
from kreplica.common.future import Future
from kreplica.common.ports import Clock, Loop, Transport
from kreplica.common.types import TopicPartition
from kreplica.common.wire import error_of, maker, uuid_of

_request, _topic, _partition = maker(FetchRequest), maker(FetchTopic), maker(FetchPartition)

Isolation = Literal["high_watermark", "txn_committed"]
ISOLATION_LEVEL = {"high_watermark": 0, "txn_committed": 1}


class Fetched(NamedTuple):
    """What the leader answered: whole batches, whose first may begin below the offset that was asked for.

    `aborted`: (producer id, first offset) of the aborted transactions within, for "txn_committed".
    """

    records: Any
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...]

    def batches(self) -> BatchIterator:
        """The batches; each checks its CRC where it is opened."""
        return batches(b"" if self.records is None else self.records)


class _Fetch:
    __slots__ = ("at", "deadline_ms", "future", "isolation", "last_error", "max_wait_ms", "offset")

    def __init__(
        self, at: TopicPartition, offset: int, isolation: Isolation, max_wait_ms: int, deadline_ms: int
    ) -> None:
        self.at = at
        self.offset = offset
        self.isolation = isolation
        self.max_wait_ms = max_wait_ms
        self.deadline_ms = deadline_ms
        self.future: Future[Fetched] = Future()
        self.last_error: BaseException | None = None


class Fetcher:
    """See the module."""

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
        """The batches from `offset` on; none where there are none within `max_wait_ms`.

        The future fails with OffsetOutOfRange, with RequestTimedOut where no leader answers within
        `timeout_ms` (by default default.api.timeout.ms), and with other errors that do not pass.
        """
        patience_ms = self._config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        asked = _Fetch(at, offset, isolation, max_wait_ms, self._now_ms() + patience_ms)
        self._loop.post(partial(self._ask, asked))
        return asked.future

    # ---- in the loop --------------------------------------------------------------------------------------

    def _ask(self, asked: _Fetch) -> None:
        if asked.future.cancelled():
            return
        left_ms = asked.deadline_ms - self._now_ms()
        if left_ms <= 0:
            error = RequestTimedOut(f"{asked.at}: no leader answered in time")
            error.__cause__ = asked.last_error
            asked.future.set_exception(error)
            return
        topic = self._metadata.topic(asked.at.topic)
        leader = self._metadata.leader(asked.at)
        if topic is None or leader is None:
            self._refresh(asked)
            return
        max_wait_ms = min(asked.max_wait_ms, left_ms)
        timeout_ms = min(left_ms, max_wait_ms + self._config.request_timeout_ms)
        request = self._request(asked, topic, max_wait_ms)
        reply = self._transport.send(leader, request, timeout_ms=timeout_ms)
        reply.add_done_callback(lambda done: self._loop.post(partial(self._answered, asked, done)))

    def _request(self, asked: _Fetch, topic: TopicInfo, max_wait_ms: int) -> FetchRequest:
        wanted = _partition(
            partition=asked.at.partition,
            current_leader_epoch=topic.partitions[asked.at.partition].leader_epoch,
            fetch_offset=asked.offset,
            partition_max_bytes=self._config.fetch_max_bytes,
        )
        return _request(
            max_wait=timedelta(milliseconds=max_wait_ms),
            min_bytes=1,
            isolation_level=ISOLATION_LEVEL[asked.isolation],
            topics=(_topic(topic_id=uuid_of(topic.topic_id), partitions=(wanted,)),),
            forgotten_topics_data=(),
        )

    def _answered(self, asked: _Fetch, reply: Future[FetchResponse]) -> None:
        if asked.future.cancelled():
            return
        error, answer = _outcome(reply)
        if error is None:
            asked.future.set_result(
                Fetched(
                    answer.records,
                    answer.high_watermark,
                    answer.last_stable_offset,
                    answer.log_start_offset,
                    tuple(
                        (each.producer_id, each.first_offset) for each in answer.aborted_transactions or ()
                    ),
                )
            )
        elif isinstance(error, KreplicaError) and error.retriable:
            asked.last_error = error
            self._loop.post_later(partial(self._refresh, asked), self._config.retry_backoff_ms)
        else:
            asked.future.set_exception(error)

    def _refresh(self, asked: _Fetch) -> None:
        if self._now_ms() >= asked.deadline_ms:
            self._ask(asked)
            return
        answer = self._metadata.refresh(asked.at.topic)
        answer.add_done_callback(lambda done: self._loop.post(partial(self._refreshed, asked, done)))

    def _refreshed(self, asked: _Fetch, answer: Future[TopicInfo]) -> None:
        asked.last_error = answer.exception() or asked.last_error
        if answer.exception() is not None or self._metadata.leader(asked.at) is None:
            self._loop.post_later(partial(self._refresh, asked), self._config.retry_backoff_ms)
        else:
            self._ask(asked)

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000


def _outcome(reply: Future[FetchResponse]) -> tuple[BaseException | None, Any]:
    error = reply.exception()
    if error is not None:
        return error, None
    response = reply.result()
    error = error_of(response.error_code)
    if error is not None:
        return error, None
    if not response.responses or not response.responses[0].partitions:
        return UnknownServerError("a fetch that was answered without its partition"), None
    answer = response.responses[0].partitions[0]
    return error_of(answer.error_code), answer
