"""What reads of a log return, and the timestamps with a special meaning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kreplica._core.region import Slice
    from kreplica.log.log_segments import LogSegments
    from kreplica.log.transaction_index import AbortedTxn

EARLIEST_TIMESTAMP = -2
LATEST_TIMESTAMP = -1
MAX_TIMESTAMP = -3


class FetchDataInfo(NamedTuple):
    """The answer to a read: whole batches as one pinned slice (None: nothing there yet), and what they mean.

    `aborted` lists the transactions whose records in the slice a reader of committed data must leave out.
    """

    fetch_offset: int
    records: Slice | None
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    log_end_offset: int
    aborted: Sequence[AbortedTxn]


class LogSnapshot(NamedTuple):
    """One consistent look at a log: exclusive offsets, and the segments as they were."""

    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    log_end_offset: int
    leader_epoch: int
    segments: LogSegments


class TimestampOffset(NamedTuple):
    """A record's timestamp (ms), its offset, and the leader epoch it was written in."""

    timestamp: int
    offset: int
    leader_epoch: int
