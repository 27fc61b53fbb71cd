"""Reading a partition record by record, from whoever leads it.

`Reading` says what to ask next and makes records of the answer; how an answer is waited for, by a thread, by
a task, or by letting virtual time pass, is the caller's. One reader, one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

from kreplica._core.record import Record
from kreplica.client.fetcher import EARLIEST, LATEST, Fetched, Fetcher
from kreplica.common.future import Future
from kreplica.common.types import TopicPartition
from kreplica.log.log_reader import AbortedFilter
from kreplica.log.transaction_index import AbortedTxn

Isolation = Literal["high_watermark", "txn_committed"]
Question = Callable[[], Future[Any]]
# How long one question of a reader that follows waits at the leader.
FOLLOW_WAIT_MS = 500


class Reading:
    """The records with offsets in [start, stop): from the log's start where `start` is None; up to where
    records may be read now, or with `follow` up to `stop`, waiting for what is not there yet."""

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
        # Whether reading begins above what may be read now: the leader tells whether its log ends below, too.
        self._is_beyond = False
        self._is_over = False

    def question(self) -> Question | None:
        """What to ask next; None once there is nothing more to read."""
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
        """The records of the answer to `question`; take all of them before the next one is asked for."""
        if self._offset is None:
            self._offset = found
        elif not self._knows_end:
            self._knows_end = True
            self._is_beyond = self._offset > found
            self._stop = found if self._stop is None else min(self._stop, found)
        elif self._is_beyond:
            # It is no error, but nothing that may be read now.
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
        # What cannot move on without more records to come has come to its end.
        self._is_over = offset == first and not self._follows
        self._offset = offset


def read(reading: Reading, result: Callable[[Question], Any]) -> Iterator[Record]:
    """All of it; `result(question)` asks, and waits for the future that it gets."""
    while (question := reading.question()) is not None:
        yield from reading.answer(result(question))
