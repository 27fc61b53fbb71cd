"""The states of partitions and replicas, and the legal transitions between them.

The controller keeps them in memory only. The metadata log has the leaders and ISRs, from which a new
controller determines the states, together with the live brokers.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping


class PartitionState(enum.Enum):
    """The state of a partition.

    NonExistent: not created yet, or deleted. New: has replicas but never had a leader. Online: has a leader.
    Offline: has lost its leader.
    """

    NON_EXISTENT = "NonExistentPartition"
    NEW = "NewPartition"
    ONLINE = "OnlinePartition"
    OFFLINE = "OfflinePartition"

    def __str__(self) -> str:
        return str(self.value)


class ReplicaState(enum.Enum):
    """The state of a replica.

    New: assigned, but not known to follow yet. Online: takes part. Offline: its broker or directory is down.
    The deletion states: started, done, or waiting until the broker is back.
    """

    NON_EXISTENT = "NonExistentReplica"
    NEW = "NewReplica"
    ONLINE = "OnlineReplica"
    OFFLINE = "OfflineReplica"
    DELETION_STARTED = "ReplicaDeletionStarted"
    DELETION_SUCCESSFUL = "ReplicaDeletionSuccessful"
    DELETION_INELIGIBLE = "ReplicaDeletionIneligible"

    def __str__(self) -> str:
        return str(self.value)


PREVIOUS_PARTITION_STATES: Mapping[PartitionState, frozenset[PartitionState]] = {
    PartitionState.NEW: frozenset({PartitionState.NON_EXISTENT}),
    PartitionState.ONLINE: frozenset({PartitionState.NEW, PartitionState.ONLINE, PartitionState.OFFLINE}),
    PartitionState.OFFLINE: frozenset({PartitionState.NEW, PartitionState.ONLINE, PartitionState.OFFLINE}),
    PartitionState.NON_EXISTENT: frozenset({PartitionState.OFFLINE}),
}
"""The states from which a partition may enter each state."""

_TAKES_PART = frozenset(
    {ReplicaState.NEW, ReplicaState.ONLINE, ReplicaState.OFFLINE, ReplicaState.DELETION_INELIGIBLE}
)
PREVIOUS_REPLICA_STATES: Mapping[ReplicaState, frozenset[ReplicaState]] = {
    ReplicaState.NEW: frozenset({ReplicaState.NON_EXISTENT}),
    ReplicaState.ONLINE: _TAKES_PART,
    ReplicaState.OFFLINE: _TAKES_PART,
    ReplicaState.DELETION_STARTED: frozenset({ReplicaState.OFFLINE}),
    ReplicaState.DELETION_SUCCESSFUL: frozenset({ReplicaState.DELETION_STARTED}),
    ReplicaState.DELETION_INELIGIBLE: frozenset({ReplicaState.OFFLINE, ReplicaState.DELETION_STARTED}),
    ReplicaState.NON_EXISTENT: frozenset({ReplicaState.DELETION_SUCCESSFUL}),
}
"""The states from which a replica may enter each state."""
