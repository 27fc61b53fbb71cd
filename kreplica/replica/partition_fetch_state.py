"""How far a follower's fetcher is with one partition."""

from __future__ import annotations

import enum
from typing import NamedTuple

from kreplica.common.types import TopicPartition, Uuid


class ReplicaState(enum.Enum):
    """What the fetcher does next: find out where the logs part, or fetch."""

    TRUNCATING = "truncating"
    FETCHING = "fetching"


class InitialFetchState(NamedTuple):
    """Where a partition's replication begins: `fetch_offset` is its log's end where it knows leader epochs,
    else its high watermark.
    """

    topic_id: Uuid
    leader: int
    leader_epoch: int
    fetch_offset: int


class PartitionFetchState(NamedTuple):
    """Immutable: an answer is dropped if the state is another one by then.

    `lag`: messages behind the leader's high watermark, None before the first answer. `last_fetched_epoch`:
    of the record before `fetch_offset`, -1 where the log knows none. `delayed_until_ms`: not to be fetched
    before, after an error; 0 for now.
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
        """What a fetch says of the partition, whose log begins at `log_start_offset`."""
        return FetchData(
            self.topic_id, self.fetch_offset, log_start_offset, self.leader_epoch, self.last_fetched_epoch
        )

    def gone_on(self, fetch_offset: int, lag: int, last_fetched_epoch: int) -> PartitionFetchState:
        """The state after an append. Not by _replace, which costs twice as much: each record comes here."""
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
        """Whether it had all that was committed when it was answered last."""
        return self.lag is not None and self.lag <= 0


class FetchData(NamedTuple):
    """What a fetch says of one partition."""

    topic_id: Uuid
    fetch_offset: int
    log_start_offset: int
    leader_epoch: int
    last_fetched_epoch: int
