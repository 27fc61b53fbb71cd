"""Reads topics record by record as a member of a consumer group, and parses a member's settings.

Stateless; the consumer's iterator belongs to the thread that iterates.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from kreplica._core.record import Record
from kreplica.client.client_config import ConsumerConfig
from kreplica.client.group_consumer import GroupConsumer
from kreplica.common.errors import ClusterClosed, InvalidConfig, RequestTimedOut
from kreplica.common.future import Future

# The wait of one poll if the iteration has no timeout.
POLL_MS = 500
# How long an iteration with a timeout waits to become a member.
JOIN_TIMEOUT_MS = 30_000
# In one process a coordinator answers in microseconds; the session only has to outlast a busy machine.
CONSUMER = ConsumerConfig(
    session_timeout_ms=3_000,
    heartbeat_interval_ms=50,
    auto_commit_interval_ms=200,
    metadata_max_age_ms=500,
)


class Consuming:
    """A consumer's records, poll by poll; ends after `timeout_ms` as a member without any record."""

    def __init__(self, consumer: GroupConsumer, timeout_ms: int | None) -> None:
        self._consumer = consumer
        self._is_endless = timeout_ms is None
        self._wait_ms = POLL_MS if timeout_ms is None else max(timeout_ms, 1)
        self._joining_ms = 0
        self._term: Any = None
        self._is_over = False

    def question(self) -> Callable[[], Future[Any]] | None:
        """Return the next request; None at the end, after which the caller must call `leave`."""
        if self._is_over:
            return None
        self._term = self._consumer.term if self._consumer.is_settled else None
        return lambda: self._consumer.poll(self._wait_ms)

    def answer(self, chunks: Any) -> Iterator[Record]:
        """Iterate over the records of the answer, marking each as processed when the next is requested.

        Raises RequestTimedOut if the consumer does not become a member.
        """
        if not chunks and not self._is_endless:
            self._nothing_came()
        for chunk in chunks:
            for record in chunk.records:
                if not self._consumer.owns(chunk):
                    break
                yield record
                self._consumer.mark(chunk, (record.offset or 0) + 1)
            else:
                self._consumer.mark(chunk, chunk.next_offset)

    def _nothing_came(self) -> None:
        if self._consumer.is_settled and self._consumer.term == self._term:
            self._is_over = True
            return
        self._joining_ms += self._wait_ms
        if self._joining_ms > JOIN_TIMEOUT_MS + self._wait_ms:
            raise RequestTimedOut(f"the consumer did not join its group within {JOIN_TIMEOUT_MS} ms")

    def leave(self) -> Future[Any]:
        """Leave the group; must be called however the reading ended."""
        return self._consumer.close()


def consume(consuming: Consuming, result: Callable[[Callable[[], Future[Any]]], Any]) -> Iterator[Record]:
    """Iterate over all records; `result(ask)` sends the request and waits for its result."""
    try:
        while (question := consuming.question()) is not None:
            yield from consuming.answer(result(question))
    finally:
        with suppress(ClusterClosed):  # the group's coordinator is closed, too
            result(consuming.leave)


def consumer_config(settings: Mapping[str, object], base: ConsumerConfig = CONSUMER) -> ConsumerConfig:
    """Return `base` with these properties changed; by default the settings for one process.

    Raises InvalidConfig.
    """
    known = {field.name.replace("_", "."): field.name for field in dataclasses.fields(ConsumerConfig)}
    changes: dict[str, Any] = {}
    for given, value in settings.items():
        name = given.replace("_", ".")
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            raise InvalidConfig(f"there is no setting {given!r}" + (f"; is it {near[0]!r}?" if near else ""))
        is_number = isinstance(getattr(base, known[name]), int)
        if is_number is not (isinstance(value, int) and not isinstance(value, bool)):
            raise InvalidConfig(f"{name} must be {'an integer' if is_number else 'text'}, not {value!r}")
        changes[known[name]] = value
    return dataclasses.replace(base, **changes)
