"""The progress of a follower's fetcher in one partition."""

from __future__ import annotations

import enum
from typing import NamedTuple

from kreplica.common.types import TopicPartition, Uuid


class ReplicaState(enum.Enum):
    """What the fetcher does next: find where the logs diverge, or fetch."""

    TRUNCATING = "truncating"
    FETCHING = "fetching"


class InitialFetchState(NamedTuple):
    """Where a partition's replication starts.

    `fetch_offset`: the log end if the log knows leader epochs, else the high watermark.
    """

    topic_id: Uuid
    leader: int
    leader_epoch: int
    fetch_offset: int


class PartitionFetchState(NamedTuple):
    """The state of one partition. It is immutable, and an answer is dropped if the state has changed since.

    `lag`: messages behind the leader's high watermark, None before the first answer. `last_fetched_epoch`: of
    the record before `fetch_offset`, -1 if the log does not know it. `delayed_until_ms`: when it may be
    fetched again after an error; 0 for now.
    """

    topic_partition: TopicPartition
    topic_id: Uuid
    fetch_offset: int
    leader_epoch: int
    state: ReplicaState
    last_fetched_epoch: int
    lag: int | None = None
    delayed_until_ms: int = 0

    def asks(self, log_start_offset: int) -> FetchData:
        """Return what a fetch sends for the partition, whose log starts at `log_start_offset`."""
        return FetchData(
            self.topic_id, self.fetch_offset, log_start_offset, self.leader_epoch, self.last_fetched_epoch
        )

    def gone_on(self, fetch_offset: int, lag: int, last_fetched_epoch: int) -> PartitionFetchState:
        """Return the state after an append. Faster than _replace, since this runs for each record."""
        topic_partition, topic_id, _, leader_epoch, state, _, _, delayed_until_ms = self
        return PartitionFetchState(
            topic_partition,
            topic_id,
            fetch_offset,
            leader_epoch,
            state,
            last_fetched_epoch,
            lag,
            delayed_until_ms,
        )

    @property
    def is_in_sync(self) -> bool:
        """Whether it had all committed records at the last answer."""
        return self.lag is not None and self.lag <= 0


class FetchData(NamedTuple):
    """What a fetch sends for one partition."""

    topic_id: Uuid
    fetch_offset: int
    log_start_offset: int
    leader_epoch: int
    last_fetched_epoch: int
