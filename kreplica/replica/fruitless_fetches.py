"""FruitlessFetches: partitions whose replication makes no progress although the leader answers, and why.

A fetcher records each failure with the offset that it fetched from, and each success. Repeated failures at
one offset are logged, once a minute. Owned by one ReplicaFetcher, guarded by its lock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from kreplica.common.types import TopicPartition
from kreplica.replica.partition_fetch_state import PartitionFetchState

LOGGER = logging.getLogger(__name__)

# This many failures in a row at one offset are not a coincidence.
IN_A_ROW = 3
LOG_EVERY_MS = 60_000


@dataclass(slots=True)
class _Standstill:
    """A fetch from `offset` has failed, and no fetch from there or above has succeeded since."""

    offset: int
    since_ms: int
    failures: int = 0
    logged_ms: int | None = None


class FruitlessFetches:
    """The partitions without progress of the fetcher that fetches from broker `leader_id`.

    `patience_ms`: how long a failure may last without a warning if it may be temporary, such as an unknown
    leader.
    """

    def __init__(self, leader_id: int, patience_ms: int, now_ms: Callable[[], int]) -> None:
        self._leader_id = leader_id
        self._patience_ms = patience_ms
        self._now_ms = now_ms
        self._standstills: dict[TopicPartition, _Standstill] = {}

    def failed(self, state: PartitionFetchState, reason: str, *, may_pass: bool = False) -> int:
        """Record a failed fetch. Returns how many have failed in a row at its offset."""
        topic_partition, offset, now_ms = state.topic_partition, state.fetch_offset, self._now_ms()
        known = self._standstills.get(topic_partition)
        if known is None or offset != known.offset:
            known = self._standstills[topic_partition] = _Standstill(offset, now_ms)
        known.failures += 1
        lasts_ms = now_ms - known.since_ms
        is_serious = lasts_ms >= self._patience_ms if may_pass else known.failures >= IN_A_ROW
        if is_serious and (known.logged_ms is None or now_ms - known.logged_ms >= LOG_EVERY_MS):
            known.logged_ms = now_ms
            LOGGER.warning(
                "%s: replication from broker %d makes no progress at offset %d (%d attempts in %d ms): %s",
                *(topic_partition, self._leader_id, offset, known.failures, lasts_ms, reason),
            )
        return known.failures

    def succeeded(self, state: PartitionFetchState) -> None:
        """Record a successful fetch."""
        if self._standstills:
            known = self._standstills.get(state.topic_partition)
            if known is not None and state.fetch_offset >= known.offset:
                del self._standstills[state.topic_partition]

    def forget(self, topic_partition: TopicPartition) -> None:
        """Forget the partition: it is no longer fetched, or in another leader epoch."""
        self._standstills.pop(topic_partition, None)
