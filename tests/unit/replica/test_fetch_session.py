"""Fetch sessions: which requests may continue one, what is checked, and which ones a full cache admits."""

from __future__ import annotations

import random

import pytest

from kreplica._core.fetch_session import CachedPartition, wire_id
from kreplica.common.errors import FetchSessionIdNotFound, InvalidFetchSessionEpoch
from kreplica.common.types import INT32_MAX, TopicPartition, Uuid
from kreplica.replica.fetch_session import (
    FINAL_EPOCH,
    NO_SESSION,
    FetchSessionCache,
    with_session,
)

TOPIC_ID = Uuid(bytes(15) + b"\x01")


def asked(number: int, offset: int = 0) -> CachedPartition:
    return CachedPartition(TopicPartition("t", number), TOPIC_ID, fetch_offset=offset, max_bytes=100)


def key(number: int) -> bytes:
    return wire_id(TOPIC_ID.raw, number)


def cache(slots: int = 10) -> FetchSessionCache:
    return FetchSessionCache(slots, 120_000, random.Random(1))


def served(sessions: FetchSessionCache, session_id: int, epoch: int, size: int = 1):
    return with_session(sessions, session_id, epoch, is_privileged=True, size=size, now_ms=0)


def test_a_session_goes_on_by_its_epochs() -> None:
    sessions = cache()
    session = served(sessions, NO_SESSION, 0)
    assert session.is_lasting
    assert served(sessions, session.id, 1) is session
    assert served(sessions, session.id, 2) is session
    for epoch in (2, 4):
        with pytest.raises(InvalidFetchSessionEpoch):
            served(sessions, session.id, epoch)
    with pytest.raises(FetchSessionIdNotFound):
        served(sessions, session.id + 1, 1)
    session.epoch = INT32_MAX
    assert served(sessions, session.id, INT32_MAX) is session
    assert session.epoch == 1


def test_a_session_ends_when_it_is_asked_to() -> None:
    sessions = cache()
    session = served(sessions, NO_SESSION, 0)
    last = served(sessions, session.id, FINAL_EPOCH)
    assert not last.is_lasting
    assert len(sessions) == 0
    # A fetch that begins anew under its old id gets another one.
    again = served(sessions, served(sessions, NO_SESSION, 0).id, 0)
    assert again.is_lasting
    assert len(sessions) == 1
    # Nothing to remember, no session.
    assert not served(sessions, NO_SESSION, 0, size=0).is_lasting


def test_an_incremental_fetch_looks_at_what_is_named_or_has_moved() -> None:
    session = served(cache(), NO_SESSION, 0)
    session.ask([asked(0), asked(1), asked(2)])
    assert [c.topic_partition.partition for c in session.take_ready()] == [0, 1, 2]
    assert session.take_ready() == []
    session.ask([asked(1, offset=5)])
    [ready] = session.take_ready()
    assert (ready.topic_partition.partition, ready.fetch_offset) == (1, 5)
    moved = session.partitions[key(2)]
    assert moved.notify() is None  # no fetch is parked
    session.put_back([session.partitions[key(0)]])
    assert [c.topic_partition.partition for c in session.take_ready()] == [0, 2]


def test_what_is_forgotten_is_not_looked_at_again() -> None:
    session = served(cache(), NO_SESSION, 0)
    session.ask([asked(0), asked(1)])
    gone = session.partitions[key(0)]
    session.ask([], [key(0), key(9)])
    assert gone.notify() is None
    session.put_back([gone])
    assert [c.topic_partition.partition for c in session.take_ready()] == [1]


def test_a_full_cache_admits_a_session_that_is_worth_more() -> None:
    sessions = cache(slots=2)
    for _ in range(2):
        consumer = sessions.create(5, is_privileged=False, now_ms=0)
        consumer.ask([asked(n) for n in range(5)])
    assert not sessions.create(9, is_privileged=False, now_ms=100_000).is_lasting
    assert sessions.create(1, is_privileged=True, now_ms=100_000).is_lasting
    assert sessions.evictions.count == 1
    # A session that was not used for two minutes makes room for any other.
    assert sessions.create(1, is_privileged=False, now_ms=200_000).is_lasting
    assert len(sessions) == 2
