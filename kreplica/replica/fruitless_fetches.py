"""FruitlessFetches: partitions whose replication stands still though the leader answers, and why.

A fetcher notes each failure with the offset that it fetched from, and each fetch that was answered well. What
fails again and again at one offset is logged, once a minute. Owned by one ReplicaFetcher, guarded by its
lock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from kreplica.common.types import TopicPartition
from kreplica.replica.partition_fetch_state import PartitionFetchState

LOGGER = logging.getLogger(__name__)

# So many failures in a row at one offset are no accident of a moment.
IN_A_ROW = 3
TELL_EVERY_MS = 60_000


@dataclass(slots=True)
class _Standstill:
    """A fetch from `offset` failed, and no fetch from there or above has succeeded since."""

    offset: int
    since_ms: int
    failures: int = 0
    told_ms: int | None = None


class FruitlessFetches:
    """The standstills of the fetcher that fetches from broker `leader_id`.

    `patience_ms`: how long a failure may last without a warning if it may pass by itself, such as a leader
    that is not known yet.
    """

    def __init__(self, leader_id: int, patience_ms: int, now_ms: Callable[[], int]) -> None:
        self._leader_id = leader_id
        self._patience_ms = patience_ms
        self._now_ms = now_ms
        self._standstills: dict[TopicPartition, _Standstill] = {}

    def failed(self, state: PartitionFetchState, reason: str, *, may_pass: bool = False) -> int:
        """Note that a fetch led nowhere; returns how often that has happened in a row at its offset."""
        topic_partition, offset, now_ms = state.topic_partition, state.fetch_offset, self._now_ms()
        known = self._standstills.get(topic_partition)
        if known is None or offset != known.offset:
            known = self._standstills[topic_partition] = _Standstill(offset, now_ms)
        known.failures += 1
        lasts_ms = now_ms - known.since_ms
        is_serious = lasts_ms >= self._patience_ms if may_pass else known.failures >= IN_A_ROW
        if is_serious and (known.told_ms is None or now_ms - known.told_ms >= TELL_EVERY_MS):
            known.told_ms = now_ms
            LOGGER.warning(
                "%s: replication from broker %d makes no progress at offset %d (%d attempts in %d ms): %s",
                *(topic_partition, self._leader_id, offset, known.failures, lasts_ms, reason),
            )
        return known.failures

    def succeeded(self, state: PartitionFetchState) -> None:
        """Note that a fetch was answered well."""
        if self._standstills:
            known = self._standstills.get(state.topic_partition)
            if known is not None and state.fetch_offset >= known.offset:
                del self._standstills[state.topic_partition]

    def forget(self, topic_partition: TopicPartition) -> None:
        """The partition is fetched no longer, or in another leader epoch."""
        self._standstills.pop(topic_partition, None)
