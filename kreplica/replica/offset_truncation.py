"""Computes where a follower truncates, from the leader's end of a leader epoch (KIP-101, KIP-279,
KIP-320).
"""

from __future__ import annotations

from typing import NamedTuple

from kreplica.log.unified_log import UnifiedLog


class OffsetTruncationState(NamedTuple):
    """Truncate to `offset`. `completed`: the logs agree below it; if not, ask the leader again."""

    offset: int
    completed: bool


def offset_truncation_state(
    log: UnifiedLog, leader_epoch: int, leader_end_offset: int
) -> OffsetTruncationState:
    """Compute the truncation from the leader's answer: its greatest epoch up to the follower's, and its end.

    The answer -1, -1 means that the leader has no epoch that old, so only committed records are kept. If the
    follower has the same epoch, the logs agree up to the lower of the two ends. If the follower has only
    lower epochs up to it, the follower has records of an epoch that the leader never had. After those are
    truncated, the leader is asked about the epoch that is last then.
    """
    end = log.log_end_offset
    if leader_end_offset < 0:
        return OffsetTruncationState(log.high_watermark, True)
    if leader_epoch < 0:
        return OffsetTruncationState(min(leader_end_offset, end), True)
    epoch, end_offset = log.epochs.end_offset_for(leader_epoch, end)
    if end_offset < 0:
        # All epochs of this log are below the leader's.
        return OffsetTruncationState(min(leader_end_offset, end), True)
    if epoch != leader_epoch:
        return OffsetTruncationState(min(end_offset, end), False)
    return OffsetTruncationState(min(end_offset, leader_end_offset, end), True)
