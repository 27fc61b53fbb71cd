"""TransactionMarkers: sends the markers of ended transactions to the leaders of their partitions.

A transaction whose end is decided stays here until each of its partitions has the marker, or no longer
exists. A marker that a broker refuses, because it does not lead the partition now, or that is lost on the
way, is sent again to the leader of that time; partitions accept a repeated marker. One request is in flight
for each broker, with all markers that have come together meanwhile. Partitions refuse what a replaced
coordinator sends (TransactionCoordinatorFenced); it stops when it resigns. Thread rule: everything runs in
the coordinator's loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any, NamedTuple

from kreplica.common.error_code import ErrorCode
from kreplica.common.future import Future
from kreplica.common.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kreplica.common.ports import Loop
from kreplica.common.types import TopicPartition

LOGGER = logging.getLogger(__name__)

# The pause before a marker is sent again, and before a leader is looked up again.
RETRY_BACKOFF_MS = 20
# The pause if a later coordinator has sent markers there: this one is about to be replaced.
FENCED_BACKOFF_MS = 1_000
# A later epoch is only given out once the transaction has ended everywhere. The last two are of a partition
# that cannot take markers at all.
DONE = frozenset(
    {
        ErrorCode.none,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.unsupported_for_message_format,
        ErrorCode.unsupported_version,
    }
)


class Marker(NamedTuple):
    """The end of a transaction, as its partitions record it."""

    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int
    transaction_version: int


class Marking:
    """An ended transaction. `left`: the partitions whose marker is not confirmed yet.

    `on_done()`: called once no partition is left. Cancel it when the coordinator resigns. `is_fenced`: a
    later coordinator has sent markers to a partition, which refuses this one.
    """

    __slots__ = ("is_cancelled", "is_fenced", "left", "marker", "on_done")

    def __init__(
        self, marker: Marker, partitions: Iterable[TopicPartition], on_done: Callable[[], object]
    ) -> None:
        self.marker = marker
        self.left = set(partitions)
        self.on_done = on_done
        self.is_cancelled = False
        self.is_fenced = False

    def cancel(self) -> None:
        """Send no more markers, and do not call `on_done`."""
        self.is_cancelled = True


class TransactionMarkers:
    """Sends markers for one coordinator.

    `send(broker_id, request)`: sends a request, also to this broker. `leader(at)`: the partition's leader,
    None without one. `exists(at)`: whether the cluster has the partition.
    """

    def __init__(
        self,
        send: Callable[[int, WriteTxnMarkersRequest], Future[Any]],
        *,
        leader: Callable[[TopicPartition], int | None],
        exists: Callable[[TopicPartition], bool],
        loop: Loop,
    ) -> None:
        self._send = send
        self._leader = leader
        self._exists = exists
        self._loop = loop
        # What waits for each broker; a broker with a request in flight has an entry, too.
        self._waiting: dict[int, dict[Marking, set[TopicPartition]]] = {}
        self._in_flight: set[int] = set()

    def add(self, marking: Marking) -> None:
        """Send the markers, now and until all partitions have them."""
        self._route(marking, set(marking.left))

    def _route(self, marking: Marking, partitions: Collection[TopicPartition]) -> None:
        """Assign the partitions to their leaders of now, and send."""
        if marking.is_cancelled:
            return
        unknown: set[TopicPartition] = set()
        for at in sorted(partitions):
            leader = self._leader(at)
            if leader is not None:
                if leader not in self._waiting:
                    self._waiting[leader] = {}
                    # Others that come in the same turn are in the same request.
                    self._loop.post(partial(self._flush, leader))
                self._waiting[leader].setdefault(marking, set()).add(at)
            elif self._exists(at):
                unknown.add(at)
            else:
                marking.left.discard(at)
        if unknown:
            self._loop.post_later(partial(self._route, marking, unknown), RETRY_BACKOFF_MS)
        self._look(marking)

    def _flush(self, broker_id: int) -> None:
        if broker_id in self._in_flight:
            return
        waiting = self._waiting.pop(broker_id, {})
        sent = {marking: some for marking, some in waiting.items() if not marking.is_cancelled}
        if not sent:
            return
        self._in_flight.add(broker_id)
        request = WriteTxnMarkersRequest(markers=tuple(_written(*each) for each in sent.items()))
        answer = self._send(broker_id, request)
        answer.add_done_callback(lambda done: self._loop.post(partial(self._answered, broker_id, sent, done)))

    def _answered(
        self, broker_id: int, sent: dict[Marking, set[TopicPartition]], answer: Future[Any]
    ) -> None:
        self._in_flight.discard(broker_id)
        try:
            self._distribute(sent, answer)
        finally:
            # Also after a failure: those that wait post nothing.
            self._flush(broker_id)

    def _distribute(self, sent: dict[Marking, set[TopicPartition]], answer: Future[Any]) -> None:
        codes = {} if answer.cancelled() or answer.exception() is not None else _codes(answer.result())
        for marking, partitions in sent.items():
            for at in sorted(partitions):
                code = codes.get((marking.marker.producer_id, at))
                if code in DONE:
                    marking.left.discard(at)
                    continue
                is_fenced = code is ErrorCode.transaction_coordinator_fenced
                if is_fenced and not marking.is_fenced:
                    marking.is_fenced = True
                    LOGGER.warning("%s refuses %s: a later coordinator has sent markers", at, marking.marker)
                pause_ms = FENCED_BACKOFF_MS if is_fenced else RETRY_BACKOFF_MS
                self._loop.post_later(partial(self._route, marking, (at,)), pause_ms)
            self._look(marking)

    def _look(self, marking: Marking) -> None:
        # A repeated answer must not end the transaction twice (KAFKA-10080).
        if not marking.left and not marking.is_cancelled:
            marking.cancel()
            marking.on_done()


def _written(marking: Marking, partitions: Iterable[TopicPartition]) -> WritableTxnMarker:
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    marker = marking.marker
    return WritableTxnMarker(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        transaction_result=marker.commit,
        topics=tuple(
            WritableTxnMarkerTopic(name=name, partition_indexes=tuple(numbers))
            for name, numbers in topics.items()
        ),
        coordinator_epoch=marker.coordinator_epoch,
        transaction_version=marker.transaction_version,
    )


def _codes(answer: WriteTxnMarkersResponse) -> dict[tuple[int, TopicPartition], ErrorCode]:
    return {
        (marker.producer_id, TopicPartition(topic.name, each.partition_index)): each.error_code
        for marker in answer.markers
        for topic in marker.topics
        for each in topic.partitions
    }
