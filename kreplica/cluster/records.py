"""ClusterRecords: builds the requests to append to a cluster and to read from it; the caller waits for them.

A request is a function that sends something and returns a future. Cluster waits in a thread, Simulation by
advancing virtual time, kreplica.aio in a task. The only state is the next partition for records without a
key.
Thread rule: any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from kreplica._core.batch_builder import require_list
from kreplica.client.client import Client
from kreplica.client.client_config import ConsumerConfig
from kreplica.client.fetcher import ISOLATION_LEVEL
from kreplica.cluster.appending import Acks, AppendResult, KeyedRecords, acks_of, as_one, one_batch
from kreplica.cluster.arguments import choice, milliseconds, offset_of, partition_of, topic_name
from kreplica.cluster.consuming import CONSUMER, Consuming, consumer_config
from kreplica.cluster.pending_futures import PendingFutures
from kreplica.cluster.reading import Isolation, Reading
from kreplica.common.errors import NoRecords, UnknownTopicOrPartition
from kreplica.common.future import Future
from kreplica.common.types import TopicPartition
from kreplica.metadata.cluster_metadata import ClusterMetadata

if TYPE_CHECKING:
    from kreplica._core.batch_builder import _RecordList as RecordList

T = TypeVar("T")


class ClusterRecords:
    """Requests for records of one cluster.

    `newest()`: the most recent metadata of any node. `consumer`: default settings of a group member.
    """

    def __init__(
        self,
        client: Client,
        newest: Callable[[], ClusterMetadata],
        pending: PendingFutures,
        consumer: ConsumerConfig = CONSUMER,
    ) -> None:
        self._client = client
        self._newest = newest
        self._pending = pending
        self._consumer = consumer
        self._keys = KeyedRecords()

    def ask(self, question: Callable[[], Future[T]]) -> Future[T]:
        """Send the request; its future fails with ClusterClosed if the cluster is closed meanwhile.

        Raises ClusterClosed, UseAfterFork.
        """
        self._pending.require_open()
        return self._pending.track(question())

    def require(self, topic: str, partition: int) -> TopicPartition:
        """Return the partition. Raises UnknownTopicOrPartition, ClusterClosed, UseAfterFork."""
        self._pending.require_open()
        at = TopicPartition(topic, partition)
        if self._newest().partition(at) is None:
            raise UnknownTopicOrPartition(f"there is no partition {at}")
        return at

    def appending(
        self,
        topic: str,
        records: RecordList,
        partition: int | None,
        acks: Acks,
        timeout: float | None,
    ) -> Callable[[], Future[AppendResult]]:
        """Build the request of Cluster.append.

        Raises UnknownTopicOrPartition, InvalidRequiredAcks, NoRecords, TypeError.
        """
        send = partial(
            self._client.producer.send,
            acks=acks_of(acks),
            timeout_ms=None if timeout is None else milliseconds(timeout),
        )
        require_list(records)
        if partition is not None:
            at = self.require(topic, partition_of(partition))
            return partial(_send_one, send, at, records)
        self._pending.require_open()
        found = self._newest().topics.get(topic)
        if found is None:
            raise UnknownTopicOrPartition(f"there is no topic {topic!r}")
        chosen = self._keys.by_partition(found, records)
        if not chosen:
            raise NoRecords
        if len(chosen) == 1:
            [(number, only)] = chosen.items()
            return partial(_send_one, send, TopicPartition(topic, number), only)
        return lambda: as_one([send(TopicPartition(topic, number), each) for number, each in chosen.items()])

    def reading(
        self,
        topic: str,
        partition: int,
        start: int | None,
        stop: int | None,
        isolation: Isolation,
        *,
        follow: bool = False,
        timeout: float | None = None,
    ) -> Reading:
        """Return the reader of Cluster.read; `timeout` applies to each request.

        Raises UnknownTopicOrPartition, OffsetOutOfRange, ValueError.
        """
        at = self.require(topic, partition)
        choice(isolation, ISOLATION_LEVEL, "isolation")
        return Reading(
            self._client.fetcher,
            at,
            offset_of(start),
            stop,
            isolation,
            follow=follow,
            timeout_ms=None if timeout is None else milliseconds(timeout),
        )

    def consuming(
        self,
        topics: str | Sequence[str],
        group: str,
        timeout: float | None,
        config: Mapping[str, object] | None,
    ) -> Consuming:
        """Return the reader of Cluster.consume. Raises InvalidConfig, TypeError."""
        self._pending.require_open()
        names = [topics] if isinstance(topics, str) else [topic_name(each) for each in topics]
        member = self._client.consumer(group, names, consumer_config(config or {}, self._consumer))
        return Consuming(member, None if timeout is None else milliseconds(timeout))


def _send_one(send: Callable[..., object], at: TopicPartition, records: RecordList) -> Future[AppendResult]:
    future = one_batch()
    send(at, records, future=future)
    return future
