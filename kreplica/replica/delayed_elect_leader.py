"""An election that waits until this broker has heard of the leaders it brought (KIP-460)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kreplica.common.errors import KreplicaError, RequestTimedOut
from kreplica.common.future import Future
from kreplica.common.types import TopicPartition

ElectionResults = dict[TopicPartition, KreplicaError | None]


class DelayedElectLeader:
    """`expected`: the leaders that were elected; `known_leader` tells which one this broker knows of."""

    __slots__ = ("_expected", "_known_leader", "_results", "future")

    def __init__(
        self,
        results: Mapping[TopicPartition, KreplicaError | None],
        expected: Mapping[TopicPartition, int],
        known_leader: Callable[[TopicPartition], int | None],
    ) -> None:
        self._results = dict(results)
        self._expected = expected
        self._known_leader = known_leader
        self.future: Future[ElectionResults] = Future()

    @property
    def expected(self) -> Mapping[TopicPartition, int]:
        return self._expected

    def is_known(self, topic_partition: TopicPartition) -> bool:
        """Whether the leader that was elected for the partition is known here."""
        return self._known_leader(topic_partition) == self._expected[topic_partition]

    def complete(self) -> None:
        """Answer, with what is known now."""
        for topic_partition, leader in self._expected.items():
            error = None
            if not self.is_known(topic_partition):
                error = RequestTimedOut(f"{topic_partition}: broker {leader} was elected, unknown here yet")
            self._results[topic_partition] = error
        self.future.set_result(self._results)
