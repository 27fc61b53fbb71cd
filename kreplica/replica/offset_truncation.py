"""Where a follower cuts its log, from what its leader says of a leader epoch (KIP-101, KIP-279, KIP-320)."""

from __future__ import annotations

from typing import NamedTuple

from kreplica.log.unified_log import UnifiedLog


class OffsetTruncationState(NamedTuple):
    """Cut from `offset` on; `completed`: the logs are known to agree below it, else the leader is to be
    asked again.
    """

    offset: int
    completed: bool


def offset_truncation_state(
    log: UnifiedLog, leader_epoch: int, leader_end_offset: int
) -> OffsetTruncationState:
    """What follows from the leader's answer: its greatest epoch not above the follower's, and where that
    ends.

    -1, -1: the leader knows nothing so old, so only what is committed is certain. The same epoch here: the
    logs agree up to the lesser of its two ends. Another one here, below it: the follower has records of an
    epoch that the leader never had, and after they are cut the epoch that is last then is asked for.
    """
    end = log.log_end_offset
    if leader_end_offset < 0:
        return OffsetTruncationState(log.high_watermark, True)
    if leader_epoch < 0:
        return OffsetTruncationState(min(leader_end_offset, end), True)
    epoch, end_offset = log.epochs.end_offset_for(leader_epoch, end)
    if end_offset < 0:
        # All epochs here are below the leader's.
        return OffsetTruncationState(min(leader_end_offset, end), True)
    if epoch != leader_epoch:
        return OffsetTruncationState(min(end_offset, end), False)
    return OffsetTruncationState(min(end_offset, leader_end_offset, end), True)
