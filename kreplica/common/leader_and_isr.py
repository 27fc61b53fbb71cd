"""LeaderAndIsr: the controller's decision about one partition, as brokers receive it.

The controller sends it as LeaderAndIsr; a leader proposes a new one with AlterPartition. Immutable.
"""

from __future__ import annotations

import enum

from kreplica.common.dataclass import dataclass
from kreplica.common.types import TopicPartition, Uuid

NO_LEADER = -1


class LeaderRecoveryState(enum.IntEnum):
    """Whether the leader was elected uncleanly and has not yet recovered from that (KIP-704)."""

    RECOVERED = 0
    RECOVERING = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAndIsr:
    """A partition's leader, its epoch and its in-sync replicas, at one version of the partition's record.

    `leader`: a broker id, or NO_LEADER. `leader_epoch` increases with each new leader, `partition_epoch` with
    each change of this record. `isr`, `replicas`: broker ids, `replicas` in the order of assignment.
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
