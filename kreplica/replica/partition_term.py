"""What a partition's role rests on: the term of this broker, and what it knows of the other brokers.

A Term is made when a role begins and is not changed, but for its watermark; any thread may read it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kreplica._core.purgatory import Watermark

if TYPE_CHECKING:
    from kreplica.log.unified_log import UnifiedLog


class BrokerMetadata(Protocol):
    """What this broker knows of the others: Kafka's MetadataCache."""

    def is_broker_fenced(self, broker_id: int) -> bool:
        """Whether the controller keeps the broker from leading; of an unknown one, False."""
        ...

    def is_broker_shutting_down(self, broker_id: int) -> bool: ...

    def get_alive_broker_epoch(self, broker_id: int) -> int | None:
        """The epoch in which the broker is registered; None for one that is fenced or unknown."""
        ...


class Term:
    """One role of this broker, from the moment it begins; never changed, but for its watermark.

    `leads`: whether this broker is the leader. `epoch_start_offset`: where the leader epoch begins, None for
    a follower. `watermark`: what waiting produces watch, closed when this broker's leadership ends.
    """

    __slots__ = ("epoch_start_offset", "leader", "leader_epoch", "leads", "log", "watermark")

    def __init__(
        self,
        leader: int,
        leader_epoch: int,
        *,
        log: UnifiedLog | None = None,
        epoch_start_offset: int | None = None,
        watermark: Watermark | None = None,
    ) -> None:
        self.leader = leader
        self.leader_epoch = leader_epoch
        self.leads = watermark is not None
        self.log = log
        self.epoch_start_offset = epoch_start_offset
        if watermark is None:
            watermark = Watermark()
            watermark.close()
        self.watermark = watermark
