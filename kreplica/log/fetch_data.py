"""The results of reading a log, and the timestamps with a special meaning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kreplica._core.region import Slice
    from kreplica.log.local_log import LogSegments
    from kreplica.log.transaction_index import AbortedTxn

EARLIEST_TIMESTAMP = -2
LATEST_TIMESTAMP = -1
MAX_TIMESTAMP = -3


class FetchDataInfo(NamedTuple):
    """The result of a read: whole batches as one pinned slice (None if no batch is there yet), and the
    offsets.

    `aborted`: the transactions whose records in the slice a read_committed reader must skip.
    """

    fetch_offset: int
    records: Slice | None
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    log_end_offset: int
    aborted: Sequence[AbortedTxn]


class LogSnapshot(NamedTuple):
    """A consistent snapshot of a log's offsets and segments. All offsets but the log start are exclusive."""

    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    log_end_offset: int
    leader_epoch: int
    segments: LogSegments


class TimestampOffset(NamedTuple):
    """A record's timestamp (ms), its offset, and its leader epoch."""

    timestamp: int
    offset: int
    leader_epoch: int
