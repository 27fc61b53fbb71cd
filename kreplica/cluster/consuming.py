"""Reading topics as a member of a consumer group, record by record, and a member's settings.

No state of its own; the consumer's iterator belongs to the thread that iterates.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from kreplica._core.record import Record
from kreplica.client.consumer_config import ConsumerConfig
from kreplica.client.group_consumer import GroupConsumer
from kreplica.common.errors import ClusterClosed, InvalidConfig, RequestTimedOut
from kreplica.common.future import Future

# How long one poll waits where there is no end to the waiting.
POLL_MS = 500
# So long one that does not wait for ever waits until it is a member.
JOIN_TIMEOUT_MS = 30_000
# In one process a coordinator answers in microseconds; a session has to outlast a busy machine only.
CONSUMER = ConsumerConfig(
    session_timeout_ms=3_000,
    heartbeat_interval_ms=50,
    auto_commit_interval_ms=200,
    metadata_max_age_ms=500,
)


def consume(
    consumer: GroupConsumer,
    result: Callable[[Callable[[], Future[Any]]], Any],
    timeout_ms: int | None,
) -> Iterator[Record]:
    """The consumer's records; it ends after `timeout_ms` as a member without any, and leaves then.

    `result(ask)` asks, and waits for the future that it gets.
    """
    wait_ms = POLL_MS if timeout_ms is None else max(timeout_ms, 1)
    joining_ms = 0
    try:
        while True:
            term = consumer.term if consumer.is_settled else None
            chunks = result(lambda: consumer.poll(wait_ms))
            if not chunks and timeout_ms is not None:
                if consumer.is_settled and consumer.term == term:
                    return
                joining_ms += wait_ms
                if joining_ms > JOIN_TIMEOUT_MS + wait_ms:
                    raise RequestTimedOut(f"no member of the group after {JOIN_TIMEOUT_MS} ms")
            for chunk in chunks:
                for record in chunk.records:
                    if not consumer.owns(chunk):
                        break
                    yield record
                    consumer.mark(chunk, (record.offset or 0) + 1)
                else:
                    consumer.mark(chunk, chunk.next_offset)
    finally:
        with suppress(ClusterClosed):  # its coordinator is closed, too
            result(consumer.close)


def consumer_config(settings: Mapping[str, object], base: ConsumerConfig = CONSUMER) -> ConsumerConfig:
    """A consumer's settings, by default those in one process, with these properties changed. Raises
    InvalidConfig.
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
