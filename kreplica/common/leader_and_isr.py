"""LeaderAndIsr: what the cluster has decided about one partition, as it is handed to its replicas.

The controller's decision, told to brokers as LeaderAndIsr and asked for by leaders as AlterPartition.
Immutable.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass

from kreplica.common.types import TopicPartition, Uuid

NO_LEADER = -1


class LeaderRecoveryState(enum.IntEnum):
    """Whether the leader came from an unclean election and has not yet taken note of it (KIP-704)."""

    RECOVERED = 0
    RECOVERING = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAndIsr:
    """A partition's leader, its epoch, and the replicas in sync, at one version of the partition's record.

    `leader`: a broker id, NO_LEADER where there is none. `leader_epoch` goes up with each new leader;
    `partition_epoch` with each change of this record. `isr`, `replicas`: broker ids, `replicas` in the order
    of assignment.
    """

    topic_partition: TopicPartition
    topic_id: Uuid
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int
    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    leader_recovery_state: LeaderRecoveryState = LeaderRecoveryState.RECOVERED
    is_new: bool = False

    def with_isr(self, isr: tuple[int, ...], partition_epoch: int) -> LeaderAndIsr:
        """The same leader, with the in-sync replicas of a later version."""
        return dataclasses.replace(self, isr=isr, partition_epoch=partition_epoch)
