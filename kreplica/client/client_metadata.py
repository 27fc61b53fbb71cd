"""ClientMetadata: the leaders of partitions, as reported by brokers.

This is a cache that may be out of date: after a broker refuses a request as not being the leader, the caller
asks for a `refresh`. At most one request is in flight; topics wanted meanwhile go into the next one.
Partition data of an older leader epoch than the known one is ignored, since brokers learn of elections at
different times. Thread rule: call `topic` and `leader` from any thread, because their data is replaced and
never changed; everything else runs in the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from kreplica.client.client_config import ClientConfig
from kreplica.common.errors import KreplicaError, UnknownTopicOrPartition
from kreplica.common.future import Future
from kreplica.common.messages.data import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from kreplica.common.ports import Loop, Transport
from kreplica.common.types import NO_LEADER_EPOCH, TopicPartition, Uuid
from kreplica.common.wire import error_of, topic_id_of, uuid_of


class PartitionInfo(NamedTuple):
    """A partition as reported by a broker; `leader` is None if it has no leader."""

    leader: int | None
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class TopicInfo(NamedTuple):
    """A topic as reported by a broker."""

    name: str
    topic_id: Uuid
    partitions: Mapping[int, PartitionInfo]


# Futures by the name or id of their topic.
_Wanted = dict[str | Uuid, list[Future[TopicInfo]]]


class ClientMetadata:
    """Cached topic metadata, refreshed on request. `nodes()`: the ids of the nodes to ask."""

    def __init__(
        self,
        nodes: Callable[[], Sequence[int]],
        *,
        transport: Transport,
        loop: Loop,
        config: ClientConfig | None = None,
    ) -> None:
        self.controller_id: int | None = None
        self._nodes = nodes
        self._transport = transport
        self._loop = loop
        self._config = config or ClientConfig()
        self._topics: dict[str, TopicInfo] = {}
        # Used only in the loop:
        self._wanted: _Wanted = {}
        self._in_flight = False
        self._asked = 0  # number of requests sent; used to ask another node each time
        self._closed = False

    def topic(self, name: str) -> TopicInfo | None:
        """Return the cached topic, or None."""
        return self._topics.get(name)

    def leader(self, at: TopicPartition) -> int | None:
        """Return the node that leads the partition, as far as known, or None."""
        topic = self._topics.get(at.topic)
        partition = None if topic is None else topic.partitions.get(at.partition)
        return None if partition is None else partition.leader

    def leader_epoch(self, at: TopicPartition) -> int:
        """Return the leader epoch that belongs to `leader`; NO_LEADER_EPOCH if unknown."""
        topic = self._topics.get(at.topic)
        partition = None if topic is None else topic.partitions.get(at.partition)
        return NO_LEADER_EPOCH if partition is None else partition.leader_epoch

    def refresh(self, name: str) -> Future[TopicInfo]:
        """Ask a broker for the topic, with a request sent after this call.

        The future fails with UnknownTopicOrPartition if that broker does not know the topic (or not yet).
        Brokers that do not answer are skipped until one answers.
        """
        future: Future[TopicInfo] = Future()
        self._loop.post(partial(self._want, name, future))
        return future

    def refresh_id(self, topic_id: Uuid) -> Future[TopicInfo]:
        """Ask a broker for the topic with this id; see `refresh`."""
        future: Future[TopicInfo] = Future()
        self._loop.post(partial(self._want, topic_id, future))
        return future

    def close(self) -> None:
        """Send no more requests; pending futures stay unresolved."""
        self._closed = True

    # ---- in the loop --------------------------------------------------------------------------------------

    def _want(self, name: str | Uuid, future: Future[TopicInfo]) -> None:
        self._wanted.setdefault(name, []).append(future)
        self._ask()

    def _ask(self) -> None:
        nodes = self._nodes()
        if self._in_flight or self._closed or not self._wanted:
            return
        self._in_flight = True
        if not nodes:
            self._again_later()
            return
        # Brokers ignore the names in a request that has ids.
        kind = type(next(iter(self._wanted)))
        wanted = {each: self._wanted.pop(each) for each in list(self._wanted) if type(each) is kind}
        # Another node each time: a node that is cut off from the others still answers, but with old data.
        self._asked += 1
        node_id = nodes[self._asked % len(nodes)]
        request = MetadataRequest(
            topics=tuple(_asked(each) for each in wanted),
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        reply = self._transport.send(node_id, request, timeout_ms=self._config.request_timeout_ms)
        reply.add_done_callback(lambda done: self._loop.post(partial(self._answered, wanted, done)))

    def _answered(self, wanted: _Wanted, reply: Future[MetadataResponse]) -> None:
        if reply.exception() is not None:
            for name, futures in wanted.items():
                self._wanted.setdefault(name, [])[:0] = futures
            self._again_later()
            return
        self._in_flight = False
        response = reply.result()
        self.controller_id = response.controller_id if response.controller_id >= 0 else None
        answers: dict[str | Uuid, MetadataResponseTopic] = {}
        for topic in response.topics:
            answers[topic_id_of(topic.topic_id)] = topic
            if topic.name is not None:
                answers[topic.name] = topic
        for name, futures in wanted.items():
            answer = answers.get(name)
            error = UnknownTopicOrPartition() if answer is None else error_of(answer.error_code)
            if error is None and answer is not None and answer.name is not None:
                info = self._take_in(answer.name, answer)
                _resolve(futures, info)
            else:
                if isinstance(error, UnknownTopicOrPartition):
                    self._topics.pop(str(name), None)
                    error = UnknownTopicOrPartition(f"there is no topic {str(name)!r}")
                _fail(futures, error)
        self._ask()

    def _take_in(self, name: str, reported: MetadataResponseTopic) -> TopicInfo:
        topic_id = topic_id_of(reported.topic_id)
        known = self._topics.get(name)
        former = known.partitions if known is not None and known.topic_id == topic_id else {}
        partitions: dict[int, PartitionInfo] = {}
        for each in reported.partitions:
            before = former.get(each.partition_index)
            info = PartitionInfo(
                each.leader_id if each.leader_id >= 0 else None,
                each.leader_epoch,
                each.replica_nodes,
                each.isr_nodes,
            )
            is_older = before is not None and before.leader_epoch > info.leader_epoch
            partitions[each.partition_index] = before if before is not None and is_older else info
        made = self._topics[name] = TopicInfo(name, topic_id, partitions)
        return made

    def _again_later(self) -> None:
        self._loop.post_later(self._again, self._config.retry_backoff_ms)

    def _again(self) -> None:
        self._in_flight = False
        self._ask()


def _asked(name: str | Uuid) -> MetadataRequestTopic:
    if isinstance(name, str):
        return MetadataRequestTopic(topic_id=None, name=name)
    return MetadataRequestTopic(topic_id=uuid_of(name), name=None)


def _resolve(futures: Sequence[Future[TopicInfo]], info: TopicInfo) -> None:
    for future in futures:
        future.set_result(info)


def _fail(futures: Sequence[Future[TopicInfo]], error: KreplicaError | None) -> None:
    for future in futures:
        future.set_exception(error)
