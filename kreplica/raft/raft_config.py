"""The settings of a metadata quorum, under Kafka's names with dots for underscores."""

from __future__ import annotations

from dataclasses import dataclass

from kreplica.common.errors import InvalidConfig
from kreplica.raft.batch_accumulator import MAX_BATCH_SIZE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftConfig:
    """Times in ms, sizes in bytes; the defaults are Kafka's where Kafka has the setting.

    Raises InvalidConfig for times with which no quorum could settle, and batches that no log takes.
    """

    # A voter that knows of no leader waits so long, and up to twice as long, before it asks for votes.
    quorum_election_timeout_ms: int = 1_000
    # A follower that has no answer from its leader for so long tries to become the leader itself.
    quorum_fetch_timeout_ms: int = 2_000
    # The longest pause of a candidate that was not elected.
    quorum_election_backoff_max_ms: int = 1_000
    # How long appends are collected while others are not committed yet; the first ones never wait.
    quorum_append_linger_ms: int = 25
    quorum_request_timeout_ms: int = 2_000
    quorum_retry_backoff_ms: int = 20
    # How long a leader that has nothing new holds a fetch: None for a quarter of the fetch timeout. It has to
    # be well below that, or a quorum without writes never settles.
    quorum_fetch_wait_max_ms: int | None = None
    quorum_fetch_max_bytes: int = 8 << 20
    quorum_fetch_snapshot_max_bytes: int = 8 << 20
    # What the records of one event take at most; also at most what a segment of the metadata log holds.
    quorum_max_batch_size_bytes: int = MAX_BATCH_SIZE_BYTES
    # How often old snapshots, and the log below them, are looked for.
    metadata_log_cleanup_interval_ms: int = 60_000

    def __post_init__(self) -> None:
        for name in ("quorum_election_timeout_ms", "quorum_fetch_timeout_ms", "quorum_request_timeout_ms"):
            if getattr(self, name) < 1:
                raise InvalidConfig(f"{name} is {getattr(self, name)}; it has to be 1 at least")
        if not 0 <= self.fetch_wait_max_ms <= self.quorum_fetch_timeout_ms // 2:
            raise InvalidConfig(
                f"quorum_fetch_wait_max_ms is {self.fetch_wait_max_ms}; it has to be from 0 to half of"
                f" quorum_fetch_timeout_ms, which is {self.quorum_fetch_timeout_ms}"
            )

        if not 1 <= self.quorum_max_batch_size_bytes <= MAX_BATCH_SIZE_BYTES:
            raise InvalidConfig(
                f"quorum_max_batch_size_bytes is {self.quorum_max_batch_size_bytes}; it has to be from 1 to"
                f" {MAX_BATCH_SIZE_BYTES}, the largest batch that the metadata log takes"
            )

    def require_log_takes_batches(self, log_segment_bytes: int) -> None:
        """Raises InvalidConfig where a batch may be larger than a segment of the metadata log: the log would
        refuse it when a leader appends it, and end the leader."""
        if self.quorum_max_batch_size_bytes > log_segment_bytes:
            raise InvalidConfig(
                f"quorum_max_batch_size_bytes is {self.quorum_max_batch_size_bytes}; it must not be above"
                f" metadata.log.segment.bytes, which is {log_segment_bytes}"
            )

    @property
    def fetch_wait_max_ms(self) -> int:
        """How long a leader that has nothing new holds a fetch, in ms."""
        if self.quorum_fetch_wait_max_ms is None:
            return self.quorum_fetch_timeout_ms // 4
        return self.quorum_fetch_wait_max_ms

    @property
    def check_quorum_timeout_ms(self) -> int:
        """A leader that a majority has not fetched from for so long resigns (KAFKA-15489)."""
        return self.quorum_fetch_timeout_ms * 3 // 2

    @property
    def begin_quorum_epoch_timeout_ms(self) -> int:
        """A leader tells a voter that does not fetch so often that it leads."""
        return max(self.quorum_fetch_timeout_ms // 2, 1)
