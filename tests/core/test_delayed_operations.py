"""What a move of a partition completes, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

from kreplica._core.delayed_operations import DelayedOperations
from kreplica._core.fetch_session import CachedPartition, FetchSession
from kreplica._core.purgatory import Purgatory
from kreplica.common.errors import NotEnoughReplicasAfterAppend
from kreplica.common.future import Future
from kreplica.common.types import TopicPartition, Uuid
from kreplica.replica.delayed_requests import not_enough_replicas_after_append
from tests.support.waiting import Led

TOPIC_ID = Uuid(bytes(15) + b"\x01")


class Fetch:
    """A fetch that notes what is done with it. `answers`: whether a try answers it."""

    def __init__(
        self, noted: list[str], name: str, *, answers: bool = False, may_linger: bool = False
    ) -> None:
        self.noted = noted
        self.name = name
        self.answers = answers
        self.may_linger = may_linger
        self.linger_handle = 0

    def try_complete(self) -> bool:
        self.noted.append(f"try {self.name}")
        return self.answers

    def linger(self) -> None:
        self.noted.append(f"linger {self.name}")
        self.linger_handle = 1


class Token:
    def __init__(self, noted: list[str]) -> None:
        self.noted = noted

    def complete(self) -> None:
        self.noted.append("produce")


class Share:
    """A waiter that is neither a follower's nor a consumer's, as the partition of a share group."""

    def __init__(self, noted: list[str]) -> None:
        self.noted = noted

    def notify(self) -> None:
        self.noted.append("share")


class World:
    """A partition with one waiting fetch of a follower, one of a consumer, and a share group's."""

    def __init__(self, **of_follower: Any) -> None:
        self.noted: list[str] = []
        self.purgatory = Purgatory()
        self.operations = DelayedOperations(self.purgatory, not_enough_replicas_after_append)
        self.partition: Any = Led(1)
        self.follower = self.listening(Fetch(self.noted, "follower", **of_follower), is_privileged=True)
        self.consumer = self.listening(Fetch(self.noted, "consumer", answers=True), is_privileged=False)
        self.partition.fetch_waiters[Share(self.noted)] = None

    def listening(self, fetch: Fetch, *, is_privileged: bool) -> CachedPartition:
        session = FetchSession(1, now_ms=0, is_privileged=is_privileged)
        session.ask([CachedPartition(TopicPartition("t", 1), TOPIC_ID, fetch_offset=0, max_bytes=100)])
        [cached] = session.take_ready()
        cached.listen(self.partition)
        assert session.park(fetch)
        return cached

    def wait(self, offset: int, token: object) -> None:
        self.purgatory.watch(1, offset, 1 << 40, token, 0, self.partition.watermark)

    def advance(self, offset: int) -> None:
        self.partition.watermark.advance(offset)


def test_an_append_tries_only_the_fetches_of_followers() -> None:
    world = World(answers=True)
    world.wait(1, Token(world.noted))
    world.operations.appended(world.partition, False)
    assert world.noted == ["try follower"]
    session = world.follower.session
    assert session is not None
    assert list(session.ready) == [world.follower]


def test_a_high_watermark_completes_produces_first_and_reaches_followers_later() -> None:
    world = World()
    world.wait(1, Token(world.noted))
    world.wait(9, Token(world.noted))
    world.advance(5)
    world.operations.high_watermark_moved(world.partition)
    assert world.noted == ["produce", "linger follower", "try consumer", "share"]
    # It lingers already.
    world.operations.high_watermark_moved(world.partition)
    assert world.noted[4:] == ["try consumer", "share"]
    assert world.purgatory.delayed == 1


def test_an_append_that_moves_the_high_watermark_does_both() -> None:
    world = World(may_linger=True)
    world.operations.appended(world.partition, True)
    assert world.noted == ["linger follower", "try consumer", "share", "try follower"]


def test_a_follower_whose_fetch_is_being_noted_is_not_notified() -> None:
    world = World()
    world.follower.is_being_noted = True
    world.operations.high_watermark_moved(world.partition)
    assert world.noted == ["try consumer", "share"]


def test_a_change_of_the_role_tries_all() -> None:
    world = World(may_linger=True)
    world.operations.moved(world.partition)
    assert world.noted == ["try follower", "linger follower", "try consumer", "share"]


def test_a_partition_whose_session_has_ended_is_passed_over() -> None:
    world = World()
    session: Any = world.consumer.session
    session.unpark(session.parked)
    waiters = dict(world.partition.fetch_waiters)
    world.consumer.session = None
    world.partition.fetch_waiters.update(waiters)
    world.operations.moved(world.partition)
    world.operations.appended(world.partition, True)
    assert "try consumer" not in world.noted


@pytest.mark.parametrize("is_enough", [True, False])
def test_a_future_gets_its_result_if_enough_replicas_are_in_sync(is_enough: bool) -> None:
    world = World()
    future: Future[int] = Future()
    future.prepare(7)
    world.wait(1, future)
    world.partition.has_enough_in_sync = is_enough
    world.advance(1)
    world.operations.high_watermark_moved(world.partition)
    if is_enough:
        assert future.result(0) == 7
    else:
        assert isinstance(future.exception(0), NotEnoughReplicasAfterAppend)
