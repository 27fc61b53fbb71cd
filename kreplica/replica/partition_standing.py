"""PartitionStanding: where a partition stands, for everybody to ask.

Each answer is taken from what a Partition replaces as a whole, so it needs no lock, and may be a moment old.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kreplica._core.purgatory import Watermark
from kreplica.common.errors import NotLeaderOrFollower
from kreplica.common.leader_and_isr import LeaderAndIsr
from kreplica.common.types import TopicPartition
from kreplica.replica.partition_state import PartitionState
from kreplica.replica.partition_term import Term
from kreplica.replica.replica import Replica

if TYPE_CHECKING:
    from kreplica.log.unified_log import UnifiedLog


class PartitionStanding:
    """The questions to a Partition, which has the fields."""

    __slots__ = ()

    topic_partition: TopicPartition
    broker_id: int
    log: UnifiedLog | None
    term: Term
    state: PartitionState
    leader_and_isr: LeaderAndIsr | None
    _remote_replicas: tuple[Replica, ...]

    @property
    def is_leader(self) -> bool:
        return self.term.leads

    @property
    def leader(self) -> int:
        """The leader's broker id, or NO_LEADER."""
        return self.term.leader

    @property
    def leader_epoch(self) -> int:
        return self.term.leader_epoch

    @property
    def partition_epoch(self) -> int:
        known = self.leader_and_isr
        return -1 if known is None else known.partition_epoch

    @property
    def isr(self) -> tuple[int, ...]:
        """The in-sync replicas that the controller has committed, as far as this broker knows."""
        known = self.leader_and_isr
        return () if known is None else known.isr

    @property
    def replicas(self) -> tuple[int, ...]:
        """The assigned brokers, in their order."""
        known = self.leader_and_isr
        return () if known is None else known.replicas

    @property
    def watermark(self) -> Watermark:
        """Moves with the high watermark for as long as this broker leads; closed where it does not."""
        return self.term.watermark

    @property
    def high_watermark(self) -> int:
        return self.local_log.high_watermark

    @property
    def log_end_offset(self) -> int:
        return self.local_log.log_end_offset

    @property
    def log_start_offset(self) -> int:
        return self.local_log.log_start_offset

    @property
    def local_log(self) -> UnifiedLog:
        """This replica's log. Raises NotLeaderOrFollower before the first role."""
        if self.log is None:
            raise NotLeaderOrFollower(f"{self.topic_partition}: no replica of it on broker {self.broker_id}")
        return self.log

    @property
    def leader_log_if_local(self) -> UnifiedLog | None:
        """The log where this broker leads."""
        term = self.term
        return term.log if term.leads else None

    def effective_min_isr(self) -> int:
        """min.insync.replicas, or the number of replicas if that is smaller; 0 where no leader asks."""
        # The role may end at any moment: a second look would find another one.
        term = self.term
        if not term.leads or term.log is None:
            return 0
        least, replicas = term.log.config.min_insync_replicas, len(self._remote_replicas) + 1
        return least if least < replicas else replicas

    @property
    def has_enough_in_sync(self) -> bool:
        """Whether what is committed now is on min.insync.replicas replicas, the one about to join
        included; so it stays where this broker leads no longer."""
        return len(self.state.maximal_isr) >= self.effective_min_isr()

    @property
    def is_under_min_isr(self) -> bool:
        """Whether this broker leads with fewer replicas in sync than min.insync.replicas."""
        return len(self.state.isr) < self.effective_min_isr()

    @property
    def is_at_min_isr(self) -> bool:
        return self.term.leads and len(self.state.isr) == self.effective_min_isr()

    @property
    def is_under_replicated(self) -> bool:
        """Whether this broker leads and a replica is out of sync."""
        return self.term.leads and len(self.state.isr) < len(self._remote_replicas) + 1
