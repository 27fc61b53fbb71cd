"""What a step of a Partition has changed, for its caller to act upon once it holds no lock.

A Partition resolves no future and sends nothing: it says what moved. Immutable; those without news are shared
constants, so that a step that changed nothing allocates nothing.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from kreplica.common.leader_and_isr import LeaderAndIsr
from kreplica.replica.partition_state import PendingPartitionChange


class LeaderHwChange(enum.Enum):
    """Whether the leader's high watermark moved: then produces, fetches and deletions that wait may be
    done."""

    SAME = 0
    INCREASED = 1


class IsrChangeProposed(NamedTuple):
    """A change of the ISR for the AlterPartitionManager to ask for.

    `leader_and_isr`: the wish, at the partition epoch it is to follow on. `isr_broker_epochs`: of its ISR, in
    the same order, as the replicas' own fetches told them, -1 where one has not fetched yet: the controller
    compares them, so a replica that was restarted meanwhile is not admitted (KIP-903). `pending` tells the
    proposal apart from later ones: it comes back with the answer.
    """

    leader_and_isr: LeaderAndIsr
    isr_broker_epochs: tuple[int, ...]
    pending: PendingPartitionChange


class PartitionEffects(NamedTuple):
    """`isr_change` is to be sent. `low_watermark_moved`: a deletion of records may be done."""

    high_watermark_change: LeaderHwChange = LeaderHwChange.SAME
    isr_change: IsrChangeProposed | None = None
    low_watermark_moved: bool = False


class BecameLeader(NamedTuple):
    """`is_new_leader`: this broker did not lead the partition until now. `is_new_epoch`: a leader epoch
    began. Both are False for a version of the partition that was out of date, which is ignored."""

    is_new_leader: bool
    is_new_epoch: bool
    effects: PartitionEffects


SAME, INCREASED = LeaderHwChange.SAME, LeaderHwChange.INCREASED
NOTHING = PartitionEffects()
HIGH_WATERMARK_MOVED = PartitionEffects(INCREASED)
