"""Reading a partition record by record, from whoever leads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from kreplica._core.record import Record
from kreplica.client.fetcher import Fetched, Fetcher
from kreplica.common.future import Future
from kreplica.common.types import TopicPartition
from kreplica.log.log_reader import AbortedFilter
from kreplica.log.transaction_index import AbortedTxn

Isolation = Literal["high_watermark", "txn_committed"]
# How long one question of a reader that follows waits at the leader.
FOLLOW_WAIT_MS = 500


def read(
    fetcher: Fetcher,
    at: TopicPartition,
    start: int,
    stop: int | None,
    isolation: Isolation,
    result: Callable[[Future[Fetched]], Fetched],
) -> Iterator[Record]:
    """The records with offsets in [start, stop), which are there; without a `stop` it waits for more.

    `result(future)` waits for a future.
    """
    offset = start
    wait_ms = FOLLOW_WAIT_MS if stop is None else 0
    while stop is None or offset < stop:
        fetched = result(fetcher.fetch(at, offset, isolation=isolation, max_wait_ms=wait_ms))
        aborted = AbortedFilter([AbortedTxn(pid, first, -1, -1) for pid, first in fetched.aborted])
        first = offset
        for batch in fetched.batches():
            if aborted.admits(batch) and not batch.is_control:
                for record in batch:
                    if record.offset is not None and first <= record.offset:
                        if stop is not None and record.offset >= stop:
                            return
                        yield record
            offset = max(offset, batch.next_offset)
        if offset == first and stop is not None:
            return
