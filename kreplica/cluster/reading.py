"""Reads a partition record by record from its leader.

`Reading` returns the next request and turns its answer into records. The caller waits for answers: in a
thread, in a task, or by advancing virtual time. One reader; one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

from kreplica._core.record import Record
from kreplica.client.fetcher import EARLIEST, LATEST, Fetched, Fetcher
from kreplica.common.future import Future
from kreplica.common.types import TopicPartition
from kreplica.log.transaction_index import AbortedFilter, AbortedTxn

Isolation = Literal["high_watermark", "txn_committed"]
Question = Callable[[], Future[Any]]
# How long one fetch of a following reader may wait at the leader.
FOLLOW_WAIT_MS = 500


class Reading:
    """Reads the records with offsets in [start, stop), or without `start` from the log start.

    It stops at the end of the readable part; with `follow` it stops at `stop` and waits for records to come.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        at: TopicPartition,
        start: int | None,
        stop: int | None,
        isolation: Isolation,
        *,
        follow: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        self._offset_of = partial(fetcher.offset, at, isolation=isolation, timeout_ms=timeout_ms)
        self._fetch = partial(
            fetcher.fetch, at, isolation=isolation, max_wait_ms=FOLLOW_WAIT_MS if follow else 0
        )
        self._offset = start
        self._stop = stop
        self._follows = follow
        self._knows_end = follow
        # Whether reading starts above the readable part; the leader reports if that is also above its log
        # end.
        self._is_beyond = False
        self._is_over = False

    def question(self) -> Question | None:
        """Return the next request; None when there is nothing more to read."""
        if self._offset is None:
            return partial(self._offset_of, EARLIEST)
        if not self._knows_end:
            return partial(self._offset_of, LATEST)
        if self._is_over:
            return None
        if self._stop is not None and self._offset >= self._stop and not self._is_beyond:
            return None
        return partial(self._fetch, self._offset)

    def answer(self, found: Any) -> Iterator[Record]:
        """Iterate over the records of the answer; exhaust the iterator before the next `question`."""
        if self._offset is None:
            self._offset = found
        elif not self._knows_end:
            self._knows_end = True
            self._is_beyond = self._offset > found
            self._stop = found if self._stop is None else min(self._stop, found)
        elif self._is_beyond:
            # The offset is valid, but nothing can be read there yet.
            self._is_over, self._is_beyond = True, False
        else:
            yield from self._records(found, self._offset)

    def _records(self, fetched: Fetched, first: int) -> Iterator[Record]:
        aborted = AbortedFilter([AbortedTxn(pid, start, -1, -1) for pid, start in fetched.aborted])
        offset = first
        for batch in fetched.batches():
            if aborted.admits(batch) and not batch.is_control:
                yield from batch.records(start=first, stop=self._stop)
            offset = max(offset, batch.next_offset)
        # No progress means the end of the readable part, unless following.
        self._is_over = offset == first and not self._follows
        self._offset = offset


def read(reading: Reading, result: Callable[[Question], Any]) -> Iterator[Record]:
    """Iterate over all records; `result(question)` sends the request and waits for its result."""
    while (question := reading.question()) is not None:
        yield from reading.answer(result(question))
