"""AlterPartitionManager: asks the controller to change the ISRs of partitions that this broker leads.

The changes of one broker go out together. All changes that wait when a request is sent make one
AlterPartition, and one request is in flight (KIP-497; it replaces ZooKeeper's isr-change-propagation every
2,500 ms). A lost request is sent again, so an answer may be to the second of two equal requests; the
controller distinguishes them by the partition epoch. Thread rule: any thread may call `submit`, `_lock`
guards what waits; everything else runs in the loop.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kreplica.common.controller_requests import ControllerRequests, OneAtATime
from kreplica.common.dataclass import dataclass
from kreplica.common.errors import (
    NetworkException,
    NotController,
    OperationNotAttempted,
    StaleBrokerEpoch,
    UnknownServerError,
)
from kreplica.common.future import Future, failed
from kreplica.common.leader_and_isr import LeaderAndIsr, LeaderRecoveryState
from kreplica.common.locks import Lock
from kreplica.common.messages.controllers import AlterPartitionRequest, AlterPartitionResponse, BrokerState
from kreplica.common.messages.controllers import AlterPartitionRequestPartitionData as PartitionData
from kreplica.common.messages.controllers import AlterPartitionRequestTopicData as TopicData
from kreplica.common.messages.controllers import AlterPartitionResponsePartitionData as PartitionAnswer
from kreplica.common.ports import Loop, Transport
from kreplica.common.types import TopicPartition, Uuid
from kreplica.common.wire import error_of

RETRY_BACKOFF_MS = 50
REQUEST_TIMEOUT_MS = 30_000


@dataclass(frozen=True, slots=True)
class _Item:
    wanted: LeaderAndIsr
    broker_epochs: Sequence[int]
    future: Future[LeaderAndIsr]


class AlterPartitionManager:
    """Sends changes to the controller. `controller()`: its node id, None if unknown now.

    `broker_epoch()`: the epoch in which this broker is registered.
    """

    def __init__(
        self,
        broker_id: int,
        *,
        broker_epoch: Callable[[], int],
        controller: Callable[[], int | None],
        transport: Transport,
        loop: Loop,
        retry_backoff_ms: int = RETRY_BACKOFF_MS,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._loop = loop
        requests = ControllerRequests(
            controller,
            transport=transport,
            loop=loop,
            request_timeout_ms=request_timeout_ms,
            retry_backoff_ms=retry_backoff_ms,
        )
        self._changes = OneAtATime(requests, self._request, self._take)
        self._lock = Lock()
        # Guarded by _lock:
        self._pending: dict[TopicPartition, _Item] = {}
        # Owned by the loop:
        self._sent: list[_Item] = []  # the changes in the last request
        self._closed = False

    def submit(self, wanted: LeaderAndIsr, broker_epochs: Sequence[int]) -> Future[LeaderAndIsr]:
        """Ask for `wanted`, a change of the version `wanted.partition_epoch`. The future gets the new state.

        `broker_epochs`: of the replicas in `wanted.isr`, as named in their fetches, so that the controller
        can keep out a replica that has restarted since (KIP-903). The future fails with the controller's
        error for the partition, or with OperationNotAttempted if another change of the partition is in
        flight.
        """
        item = _Item(wanted, broker_epochs, Future())
        with self._lock:
            if wanted.topic_partition in self._pending or self._closed:
                return failed(
                    OperationNotAttempted(f"{wanted.topic_partition}: another change of the ISR is in flight")
                )
            self._pending[wanted.topic_partition] = item
        self._loop.post(self._changes.begin)
        return item.future

    def shutdown(self) -> None:
        """Send no further requests. Changes that wait stay unanswered."""
        self._closed = True

    @property
    def pending(self) -> int:
        """How many partitions wait for an answer."""
        return len(self._pending)

    # ---- in the loop --------------------------------------------------------------------------------------

    def _request(self) -> AlterPartitionRequest | None:
        with self._lock:
            items = self._sent = list(self._pending.values())
        if self._closed or not items:
            return None
        topics: dict[Uuid, list[PartitionData]] = {}
        for item in items:
            wanted = item.wanted
            topics.setdefault(wanted.topic_id, []).append(
                PartitionData(
                    partition_index=wanted.topic_partition.partition,
                    leader_epoch=wanted.leader_epoch,
                    new_isr_with_epochs=tuple(
                        BrokerState(broker_id=broker, broker_epoch=epoch)
                        for broker, epoch in zip(wanted.isr, item.broker_epochs, strict=True)
                    ),
                    leader_recovery_state=int(wanted.leader_recovery_state),
                    partition_epoch=wanted.partition_epoch,
                )
            )
        return AlterPartitionRequest(
            broker_id=self._broker_id,
            broker_epoch=self._broker_epoch(),
            topics=tuple(
                TopicData(topic_id=uuid.UUID(bytes=topic_id.raw), partitions=tuple(partitions))
                for topic_id, partitions in topics.items()
            ),
        )

    def _take(self, reply: Future[AlterPartitionResponse]) -> bool:
        if self._closed:
            return False
        error = reply.exception()
        if error is None:
            error = error_of(reply.result().error_code)
        if isinstance(error, (NetworkException, NotController, StaleBrokerEpoch)):
            # The controller has changed, or it does not know this broker's registration yet.
            return True
        answers = {} if error else _by_partition(reply.result())
        with self._lock:
            for item in self._sent:
                del self._pending[item.wanted.topic_partition]
        for item in self._sent:
            self._settle(item, error, answers)
        return False

    def _settle(
        self, item: _Item, error: BaseException | None, answers: Mapping[Any, PartitionAnswer]
    ) -> None:
        wanted = item.wanted
        answer = answers.get((wanted.topic_id.raw, wanted.topic_partition.partition))
        if error is None and answer is None:
            error = UnknownServerError(
                f"{wanted.topic_partition}: the controller's answer does not contain it"
            )
        if error is None and answer is not None:
            error = error_of(answer.error_code)
        if error is not None or answer is None:
            item.future.set_exception(error)
            return
        item.future.set_result(
            LeaderAndIsr(
                topic_partition=wanted.topic_partition,
                topic_id=wanted.topic_id,
                leader=answer.leader_id,
                leader_epoch=answer.leader_epoch,
                isr=tuple(answer.isr),
                partition_epoch=answer.partition_epoch,
                replicas=wanted.replicas,
                adding_replicas=wanted.adding_replicas,
                removing_replicas=wanted.removing_replicas,
                leader_recovery_state=LeaderRecoveryState(answer.leader_recovery_state),
            )
        )


def _by_partition(response: AlterPartitionResponse) -> dict[tuple[bytes, int], PartitionAnswer]:
    return {
        (topic.topic_id.bytes if topic.topic_id else bytes(16), partition.partition_index): partition
        for topic in response.topics
        for partition in topic.partitions
    }
