"""Producer: appends records to partitions and retries; finds and follows their leaders.

With acks=all each batch is appended once, however often it is sent; see partition_sender. Thread rule: call
`send` from any thread; everything else runs in the loop.
"""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from kio.schema.init_producer_id.v4.request import InitProducerIdRequest
from kio.schema.init_producer_id.v4.response import InitProducerIdResponse

from kreplica.client.client_config import ClientConfig
from kreplica.client.client_metadata import ClientMetadata
from kreplica.client.partition_sender import ALL, Batch, PartitionSender, RecordMetadata
from kreplica.common.errors import BrokerNotAvailable, InvalidRequiredAcks
from kreplica.common.future import Future, failed, then
from kreplica.common.ports import Clock, Loop, Transport, monotonic_ms
from kreplica.common.types import TopicPartition
from kreplica.common.wire import error_of

if TYPE_CHECKING:
    from kreplica._core.batch_builder import _RecordList as RecordList

ACKS = (0, 1, ALL)


class Producer:
    """A producer over the nodes that `nodes()` names; not all of them need to be running."""

    def __init__(
        self,
        metadata: ClientMetadata,
        nodes: Callable[[], Sequence[int]],
        *,
        transport: Transport,
        loop: Loop,
        clock: Clock,
        config: ClientConfig | None = None,
    ) -> None:
        self._metadata = metadata
        self._nodes = nodes
        self._transport = transport
        self._loop = loop
        self._clock = clock
        self._config = config or ClientConfig()
        # Used only in the loop:
        self._senders: dict[TopicPartition, PartitionSender] = {}
        self._asked = 0

    def send(
        self,
        at: TopicPartition,
        records: RecordList,
        *,
        acks: int = ALL,
        timeout_ms: int | None = None,
        future: Future[RecordMetadata] | None = None,
    ) -> Future[RecordMetadata]:
        """Append the records as one batch, atomically, after earlier batches for the partition.

        The caller may reuse the sequence after the call, but the bytes in it only when the future is done.
        The
        future fails with RequestTimedOut after `timeout_ms` (delivery.timeout.ms by default), and at once
        with
        errors that a retry cannot fix: MessageTooLarge, InvalidRecord, TypeError for something that is not a
        record. `future`: resolve and return this one instead of a new one. Raises InvalidRequiredAcks.
        """
        if acks not in ACKS:
            raise InvalidRequiredAcks(f"acks={acks} is not supported: use 0, 1 or -1 (all)")
        patience_ms = self._config.delivery_timeout_ms if timeout_ms is None else timeout_ms
        batch = Batch(list(records), acks, monotonic_ms(self._clock) + patience_ms, future)
        self._loop.post(partial(self._add, at, batch))
        return batch.future

    # ---- in the loop --------------------------------------------------------------------------------------

    def _add(self, at: TopicPartition, batch: Batch) -> None:
        sender = self._senders.get(at)
        if sender is None:
            sender = self._senders[at] = PartitionSender(
                at,
                metadata=self._metadata,
                new_producer_id=self._new_producer_id,
                transport=self._transport,
                loop=self._loop,
                clock=self._clock,
                config=self._config,
            )
        sender.add(batch)

    def _new_producer_id(self) -> Future[int]:
        nodes = self._nodes()
        if not nodes:
            return failed(BrokerNotAvailable("cannot get a producer id: no broker is running"))
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout=timedelta(0))
        self._asked += 1
        node_id = nodes[self._asked % len(nodes)]
        reply = self._transport.send(node_id, request, timeout_ms=self._config.request_timeout_ms)
        return then(reply, _producer_id)


def _producer_id(response: InitProducerIdResponse) -> int:
    error = error_of(response.error_code)
    if error is not None:
        raise error
    return response.producer_id
