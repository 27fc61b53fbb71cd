"""Load: the clients of a random run: producers (plain, idempotent, transactional), consumers, administrators.

The view checks the responses that producers and consumers get. Thread rule: one thread.
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
from kreplica.sim.invariants.cluster_view import PartitionView
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.load import READ_COMMITTED, Transactions

PRODUCE_TIMEOUT_MS = 400
# How often an idempotent producer sends a batch before it starts over with another producer id.
TRIES = 4


class IdempotentProducer:
    """The idempotent producer of a partition: its batch in flight, and its next sequence number."""

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.sequence = 0
        self.tries = 0
        self.request: client.ProduceRequest | None = None


class Load:
    """Runs client operations on random partitions. `pending`: requests without a response.

    `value_bytes`: the minimum size of a value.
    """

    def __init__(
        self,
        cluster: SimCluster,
        checker: InvariantChecker,
        counts: Counter[str],
        random: Random,
        value_bytes: int = 0,
    ) -> None:
        self.pending = 0
        self._cluster = cluster
        self._controller = cluster.controller
        self._checker = checker
        self._view = checker.view
        self._counts = counts
        self._random = random
        self._values = 0
        self._value_bytes = value_bytes
        self._positions: Counter[TopicPartition] = Counter()
        self._producer_ids = 0
        self._producers: dict[TopicPartition, IdempotentProducer] = {}
        self._transactions = Transactions(self._random, counts, PRODUCE_TIMEOUT_MS)

    def operate(self) -> None:
        """Run one operation of a random client."""
        at = self._random.choice(list(self._controller.partitions))
        self._look_for_a_frozen_mark(at)
        chance = self._random.randrange(100)
        if chance < 38:
            self._produce(at)
        elif chance < 53:
            self._produce_once(at)
        elif chance < 65:
            now_ms = self._cluster.brokers[1].clock.time_ms()
            self._send(self._transactions.next_request(at, self._new_values, now_ms), None)
        elif chance < 97:
            self._consume(at)
        else:
            self._delete(at)

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

    def _produce(self, at: TopicPartition) -> None:
        acks = self._random.choice((-1, -1, -1, 1, 0))
        self._send(client.ProduceRequest(at, self._new_values(), acks, PRODUCE_TIMEOUT_MS), None)

    def _produce_once(self, at: TopicPartition) -> None:
        producer = self._producers.get(at)
        if producer is None or producer.tries > TRIES:
            self._producer_ids += 1
            producer = self._producers[at] = IdempotentProducer(self._producer_ids)
        if producer.request is None:
            values = self._new_values()
            builder = BatchBuilder()
            builder.producer_id, builder.producer_epoch = producer.producer_id, 0
            builder.base_sequence = producer.sequence
            now_ms = self._cluster.brokers[1].clock.time_ms()
            batch = builder.build(values, now_ms=now_ms)
            producer.request = client.ProduceRequest(at, values, -1, PRODUCE_TIMEOUT_MS, batch)
        producer.tries += 1
        self._send(producer.request, producer)

    def _send(self, request: client.ProduceRequest, producer: IdempotentProducer | None) -> None:
        receiver = self._receiver(request.topic_partition)
        if receiver == NO_LEADER:
            return
        self.pending += 1
        answer = self._cluster.send(receiver, request, timeout_ms=2 * PRODUCE_TIMEOUT_MS)
        answer.add_done_callback(self._checker.watched(partial(self._produced, request, producer)))

    def _produced(
        self, request: client.ProduceRequest, producer: IdempotentProducer | None, answer: Future[Any]
    ) -> None:
        self.pending -= 1
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

    def _consume(self, at: TopicPartition) -> None:
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
        answer.add_done_callback(self._checker.watched(consumed))

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
                self._check_read_committed(view, offset, got)
            # Now and then start again at the beginning.
            again = self._random.random() < 0.1
            self._positions[at] = 0 if again else got.next_offset

    def _check_read_committed(self, view: PartitionView, offset: int, got: client.Consumed) -> None:
        """Check that the consumer got no records of open or aborted transactions, and all other records."""
        wrong = self._transactions.wrongly_given(value for _, _, value in got.records)
        if wrong:
            raise InvariantViolated(READ_COMMITTED, f"a consumer got {wrong}, not committed; {view}")
        given = {at for at, _, _ in got.records}
        for at, cell in enumerate(view.committed[offset : got.next_offset], offset):
            # The values of markers are not numbers.
            if at in given or cell is None or cell.value is None or not cell.value.isdigit():
                continue
            if self._transactions.is_visible(cell.value):
                raise InvariantViolated(READ_COMMITTED, f"a consumer was not given {cell} at {at}; {view}")
            self._counts["aborted records left out"] += 1

    def _delete(self, at: TopicPartition) -> None:
        leader = self._view.partitions[at].leader
        if leader is None or leader.high_watermark <= leader.log_start:
            return
        ahead = leader.high_watermark - leader.log_start
        offset = -1 if self._random.randrange(4) == 0 else leader.log_start + self._random.randrange(ahead)
        request = client.DeleteRecords(at, offset, PRODUCE_TIMEOUT_MS)
        self.pending += 1
        answer = self._cluster.send(leader.broker_id, request, timeout_ms=2 * PRODUCE_TIMEOUT_MS)
        answer.add_done_callback(self._checker.watched(partial(self._deleted, at)))

    def _deleted(self, at: TopicPartition, answer: Future[Any]) -> None:
        self.pending -= 1
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
