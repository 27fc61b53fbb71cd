"""NodeTransactions: transactional producers of a run of whole nodes, and readers of committed records.

Nodes have no transaction coordinator, so one is scripted, as for brokers (kreplica.sim.transactions). The
methods of the partition's leader carry out its requests and the producers'. Thread rule: one thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from kreplica.common.errors import CorruptMessage
from kreplica.common.future import Future
from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.common.types import TopicPartition
from kreplica.sim import client
from kreplica.sim.invariants.partition_view import PartitionView
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.nodes.node_checker import NodeChecker
from kreplica.sim.nodes.node_cluster import NodeCluster
from kreplica.sim.transactions import READ_COMMITTED, Transactions

PRODUCE_TIMEOUT_MS = 400

Await = Callable[[Future[Any], Callable[[Future[Any]], None]], None]


class NodeTransactions:
    """The transactions of `cluster`. `wait(future, callback)` calls `callback` with the future when it is
    done."""

    def __init__(
        self, cluster: NodeCluster, checker: NodeChecker, counts: Counter[str], random: Random, wait: Await
    ) -> None:
        self._cluster = cluster
        self._partitions = checker.view.partitions
        self._reused_names = checker.word.reused_names
        self._counts = counts
        self._random = random
        self._wait = wait
        self._client = cluster.add_client()
        self._transactions = Transactions(random, counts, PRODUCE_TIMEOUT_MS)
        # The next read position of each partition.
        self._positions: Counter[TopicPartition] = Counter()

    def produce(self, at: TopicPartition, new_values: Callable[[], list[bytes]]) -> None:
        """Send the next batch of the partition's transaction, or its end, or a retry; or begin a
        transaction."""
        decided = self._partitions[at].decided
        if decided is None or decided.leader == NO_LEADER:
            return
        now_ms = self._cluster.brokers[decided.leader].clock.time_ms()
        request = self._transactions.next_request(at, new_values, now_ms)
        answer = self._client.endpoint.send(decided.leader, request, timeout_ms=2 * PRODUCE_TIMEOUT_MS)
        self._wait(answer, partial(self._produced, request))

    def _produced(self, request: client.ProduceRequest, answer: Future[Any]) -> None:
        if client.produced(answer).error is None:
            self._transactions.acknowledged(request)

    def read(self, at: TopicPartition) -> None:
        """Read committed records."""
        offset = self._positions[at]
        answer = self._client.fetcher.fetch(at, offset, isolation="txn_committed")
        self._wait(answer, partial(self._read, at, offset))

    def _read(self, at: TopicPartition, offset: int, answer: Future[Any]) -> None:
        view = self._partitions.get(at)
        if answer.exception() is not None or view is None:
            leader = None if view is None else view.leader
            self._positions[at] = 0 if leader is None else leader.log_start
            return
        fetched = answer.result()
        aborted = [(first, producer_id) for producer_id, first in fetched.aborted]
        try:
            records, next_offset = client.records_in(fetched.records, offset, aborted)
        except CorruptMessage:
            if self._cluster.as_bytes:
                raise
            # The response shares memory with the leader, where a bit has flipped since.
            return
        # After an unclean election, an earlier leader may return records that it voided. With a reused topic
        # name, a leader of the deleted topic may return that topic's records.
        if view.unclean_epoch < 0 and at.topic not in self._reused_names:
            self._check(view, offset, next_offset, {at: value for at, _, value in records})
        self._counts["read as committed"] += len(records)
        # Now and then start again at the beginning.
        self._positions[at] = 0 if self._random.random() < 0.1 else next_offset

    def _check(
        self, view: PartitionView, offset: int, next_offset: int, given: dict[int, bytes | None]
    ) -> None:
        """Check that the reader got no records of open or aborted transactions, and all other records."""
        wrong = self._transactions.wrongly_given(given.values())
        if wrong:
            raise InvariantViolated(READ_COMMITTED, f"a consumer got {wrong}, not committed; {view}")
        for at, cell in enumerate(view.committed[offset:next_offset], offset):
            # The values of markers begin with a byte that is not alphanumeric.
            if at in given or cell is None or cell.value is None or not cell.value[:1].isalnum():
                continue
            if self._transactions.is_visible(cell.value):
                raise InvariantViolated(READ_COMMITTED, f"a consumer was not given {cell} at {at}; {view}")
            self._counts["aborted records left out"] += 1
