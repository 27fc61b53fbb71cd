"""BrokerLoad: the clients of a random run of brokers: producers, consumers and administrators.

Producers are plain, idempotent or transactional. The view checks the responses that producers and consumers
get. Thread rule: one thread.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from random import Random
from typing import Any

from kreplica._core.batch_builder import BatchBuilder
from kreplica.common.errors import NotEnoughReplicas, NotEnoughReplicasAfterAppend
from kreplica.common.future import Future
from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.common.types import TopicPartition
from kreplica.sim import client
from kreplica.sim.cluster import SimCluster
from kreplica.sim.invariants.checker import InvariantChecker
from kreplica.sim.load import PRODUCE_TIMEOUT_MS, Load

# How often an idempotent producer sends a batch before it starts over with another producer id.
TRIES = 4


class IdempotentProducer:
    """The idempotent producer of a partition: its batch in flight, and its next sequence number."""

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.sequence = 0
        self.tries = 0
        self.request: client.ProduceRequest | None = None


class BrokerLoad(Load):
    """Runs client operations on random partitions. `value_bytes`: the minimum size of a value."""

    _at: TopicPartition  # of the current operation

    def __init__(
        self,
        cluster: SimCluster,
        checker: InvariantChecker,
        counts: Counter[str],
        random: Random,
        value_bytes: int = 0,
    ) -> None:
        super().__init__(checker.watched, counts, random)
        self._cluster = cluster
        self._controller = cluster.controller
        self._view = checker.view
        self._values = 0
        self._value_bytes = value_bytes
        self._positions: Counter[TopicPartition] = Counter()
        self._producer_ids = 0
        self._producers: dict[TopicPartition, IdempotentProducer] = {}
        self.kinds = {
            self._produce: 38,
            self._produce_once: 15,
            self._produce_in_transaction: 12,
            self._consume: 32,
            self._delete: 3,
        }

    def operate(self) -> None:
        self._at = self._random.choice(list(self._controller.partitions))
        self._look_for_a_frozen_mark(self._at)
        super().operate()

    # ---- producers ----------------------------------------------------------------------------------------

    def _receiver(self, at: TopicPartition) -> int:
        # A client may not know the current leader.
        believed = self._controller.partitions[at].leader
        brokers = len(self._cluster.brokers)
        return self._random.choice((believed, believed, believed, 1 + self._random.randrange(brokers)))

    def _new_values(self) -> list[bytes]:
        count = 1 + self._random.randrange(3)
        self._values += count
        return [b"%0*d" % (self._value_bytes, value) for value in range(self._values - count, self._values)]

    def _produce(self) -> None:
        acks = self._random.choice((-1, -1, -1, 1, 0))
        self._send(client.ProduceRequest(self._at, self._new_values(), acks, PRODUCE_TIMEOUT_MS), None)

    def _produce_once(self) -> None:
        at = self._at
        producer = self._producers.get(at)
        if producer is None or producer.tries > TRIES:
            self._producer_ids += 1
            producer = self._producers[at] = IdempotentProducer(self._producer_ids)
        if producer.request is None:
            values = self._new_values()
            builder = BatchBuilder()
            builder.producer_id, builder.producer_epoch = producer.producer_id, 0
            builder.base_sequence = producer.sequence
            batch = builder.build(values, now_ms=self._now_ms())
            producer.request = client.ProduceRequest(at, values, -1, PRODUCE_TIMEOUT_MS, batch)
        producer.tries += 1
        self._send(producer.request, producer)

    def _produce_in_transaction(self) -> None:
        self._send(self._transactions.next_request(self._at, self._new_values, self._now_ms()), None)

    def _now_ms(self) -> int:
        return self._cluster.brokers[1].clock.time_ms()

    def _send(self, request: client.ProduceRequest, producer: IdempotentProducer | None) -> None:
        receiver = self._receiver(request.topic_partition)
        if receiver == NO_LEADER:
            return
        answer = self._cluster.send(receiver, request, timeout_ms=2 * PRODUCE_TIMEOUT_MS)
        self._await(answer, partial(self._produced, request, producer))

    def _produced(
        self, request: client.ProduceRequest, producer: IdempotentProducer | None, answer: Future[Any]
    ) -> None:
        outcome = client.produced(answer)
        if outcome.error is not None:
            self._counts["refused"] += 1
            if isinstance(outcome.error, (NotEnoughReplicas, NotEnoughReplicasAfterAppend)):
                self._counts["refused for too few in sync"] += 1
            return
        self._counts["acked"] += 1
        self._transactions.acknowledged(request)
        if producer is not None and producer.request is request:
            self._counts["acked by a retry"] += producer.tries > 1
            producer.sequence += len(request.values)
            producer.request, producer.tries = None, 0
        view = self._view.partitions[request.topic_partition]
        # An unclean election may void what a leader acknowledged in an earlier epoch.
        if request.acks == -1 and outcome.leader_epoch >= view.unclean_epoch:
            self._view.acknowledged(request.topic_partition, outcome.base_offset, request.values)

    # ---- consumers and others -----------------------------------------------------------------------------

    def _consume(self) -> None:
        at = self._at
        state = self._controller.partitions[at]
        if state.leader == NO_LEADER:
            return
        offset = self._positions[at]
        unclean_epoch = self._view.partitions[at].unclean_epoch
        # After an unclean election, only a consumer that names the leader epoch is safe from an earlier
        # leader.
        names_epoch = unclean_epoch >= 0 or self._random.randrange(2) == 0
        read_committed = self._random.randrange(2) == 0
        request = client.fetch_request(
            state.topic_id,
            at.partition,
            offset,
            read_committed=read_committed,
            leader_epoch=state.leader_epoch if names_epoch else -1,
        )
        answer = self._cluster.send(state.leader, request, timeout_ms=PRODUCE_TIMEOUT_MS)
        consumed = partial(self._consumed, at, offset, unclean_epoch, read_committed)
        answer.add_done_callback(self._watched(consumed))

    def _consumed(
        self,
        at: TopicPartition,
        offset: int,
        unclean_epoch: int,
        read_committed: bool,
        answer: Future[Any],
    ) -> None:
        got = client.consumed(answer, offset)
        view = self._view.partitions[at]
        if got.error is not None or view.unclean_epoch != unclean_epoch:
            leader = view.leader
            self._positions[at] = 0 if leader is None else leader.log_start
        elif got.next_offset > offset:
            self._counts["read"] += len(got.records)
            self._view.consumed(at, got.records)
            if read_committed:
                given = {at: value for at, _, value in got.records}
                self._transactions.check(view, offset, got.next_offset, given)
            # Now and then start again at the beginning.
            again = self._random.random() < 0.1
            self._positions[at] = 0 if again else got.next_offset

    def _delete(self) -> None:
        at = self._at
        leader = self._view.partitions[at].leader
        if leader is None or leader.high_watermark <= leader.log_start:
            return
        ahead = leader.high_watermark - leader.log_start
        offset = -1 if self._random.randrange(4) == 0 else leader.log_start + self._random.randrange(ahead)
        request = client.DeleteRecords(at, offset, PRODUCE_TIMEOUT_MS)
        answer = self._cluster.send(leader.broker_id, request, timeout_ms=2 * PRODUCE_TIMEOUT_MS)
        self._await(answer, partial(self._deleted, at))

    def _deleted(self, at: TopicPartition, answer: Future[Any]) -> None:
        if answer.exception() is None and answer.result()[at].error is None:
            self._counts["records deleted"] += 1

    def _look_for_a_frozen_mark(self, at: TopicPartition) -> None:
        leader = self._view.partitions[at].leader
        if (
            leader is not None
            and leader.high_watermark < leader.log_end
            and leader.partition.is_under_min_isr
        ):
            self._counts["frozen high watermarks"] += 1
