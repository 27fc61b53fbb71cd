"""What the lanes charge a client: by a gate whose lanes the test plays, and a clock that it turns."""

from __future__ import annotations

from typing import Any

import pytest

from kreplica._core.client_account import ClientAccount, RateBucket
from kreplica._core.frame_reader import ReceiveBuffer
from kreplica._core.server_connection import LaneGate, Processor, RequestMemory, ServerConnection
from kreplica._core.task_queue import TaskQueue

MS = 1_000_000
NOW_MS = 5_000
PRODUCE, FETCH = 0, 1


class Lane:
    """Takes requests while `is_willing`; each costs `cost_ms`."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.taken: list[tuple[Any, ...]] = []
        self.is_willing = True
        self.cost_ms = 0
        self.declined_for_quota = 0

    def decline_for_quota(self) -> None:
        self.declined_for_quota += 1

    def take(self, *arguments: Any) -> object | None:
        self.clock.ns += self.cost_ms * MS
        if not self.is_willing:
            return None
        self.taken.append(arguments)
        return object()


class Clock:
    def __init__(self) -> None:
        self.ns = NOW_MS * MS

    def __call__(self) -> int:
        return self.ns


class Stage:
    """A gate, and a client with an account."""

    rules = None

    def __init__(self, **quotas: float) -> None:
        self.clock = Clock()
        self.produce_lane, self.fetch_lane = Lane(self.clock), Lane(self.clock)
        self.buckets = {name: RateBucket(11, 1_000, quota) for name, quota in quotas.items()}
        account = ClientAccount(self.clock, *map(self.buckets.get, ("produced", "fetched", "time")))
        self.gate = LaneGate(self, produces=True, fetches=True)
        processor = Processor(
            None,
            TaskQueue(),
            self.gate,
            RequestMemory(1 << 20),
            ReceiveBuffer(),
            min_frame_bytes=8,
            max_frame_bytes=1 << 20,
            max_in_flight_requests=1,
            max_in_flight_bytes=1 << 20,
        )
        self.client = ServerConnection(processor)
        limits = object()
        self.gate.limit(limits)
        self.client.set_account(limits, b"c", account)

    def ask(self, key: int = PRODUCE, size: int = 100) -> bool:
        """Return whether a lane has taken a request of this size."""
        header = key.to_bytes(2, "big") + bytes(6) + b"\0\1c"
        return self.gate.take(header.ljust(size, b"."), None, self.client) is not None

    def rate(self, name: str) -> float:
        return self.buckets[name].rate(self.clock.ns // MS)


def test_what_a_lane_takes_is_charged_for_its_size() -> None:
    stage = Stage(produced=1_000)
    assert stage.ask(size=4_000)
    assert stage.ask(size=6_000)
    assert stage.rate("produced") == 1_000
    assert stage.buckets["produced"].used_ms == NOW_MS


def test_a_request_whose_client_has_to_wait_is_left_to_python_uncharged() -> None:
    stage = Stage(produced=1_000)
    assert stage.ask(size=9_000)
    assert not stage.ask(size=1_001)
    assert stage.produce_lane.declined_for_quota == 1
    assert stage.rate("produced") == 900
    # A smaller one fits, and after a while the other one does.
    assert stage.ask(size=1_000)
    stage.clock.ns += 12_000 * MS
    assert stage.ask(size=1_001)


def test_what_a_lane_declines_is_not_charged() -> None:
    stage = Stage(produced=1_000, time=50)
    stage.produce_lane.is_willing = False
    stage.produce_lane.cost_ms = 10
    assert not stage.ask(size=5_000)
    assert stage.rate("produced") == 0
    assert stage.rate("time") == 0
    assert stage.produce_lane.declined_for_quota == 0


@pytest.mark.parametrize("key", [PRODUCE, FETCH])
def test_a_client_that_has_used_up_its_time_is_left_to_python(key: int) -> None:
    stage = Stage(time=50)
    lane = stage.fetch_lane if key else stage.produce_lane
    lane.cost_ms = 6_000
    assert stage.ask(key)
    if key == FETCH:
        # A fetch lane charges the time itself, once it knows that the client is no follower.
        assert stage.rate("time") == 0
        account, began_ns = lane.taken[0][4:]
        assert isinstance(account, ClientAccount)
        assert began_ns == NOW_MS * MS
        assert not lane.taken[0][3]
        stage.buckets["time"].charge(600, stage.clock.ns // MS)
    assert stage.rate("time") == 60
    stage.ask(key)
    if key == FETCH:
        # The lane takes it only if it is a follower's.
        assert lane.taken[1][3]
    else:
        assert len(lane.taken) == lane.declined_for_quota == 1


@pytest.mark.parametrize("name", ["produced", "fetched", "time"])
def test_an_account_with_a_bucket_that_is_gone_is_used_no_more(name: str) -> None:
    stage = Stage(produced=1_000, fetched=1_000, time=50)
    assert stage.ask()
    stage.buckets[name].is_gone = True
    assert not stage.ask()
    assert stage.produce_lane.declined_for_quota == 1


def test_a_bucket_may_limit_its_throttle_time() -> None:
    limited, other = RateBucket(11, 1_000, 1, 1_000), RateBucket(11, 1_000, 1)
    assert limited.charge(100, 0) == 1_000
    assert other.charge(100, 0) == 90_000
    assert (other.burst, other.quota, other.rate(0)) == (10, 1, 10)


def test_what_is_larger_than_any_burst_is_sent_to_a_client_within_its_quota() -> None:
    bucket = RateBucket(11, 1_000, 1)
    assert bucket.take(100, 0) == (True, 90_000)
    assert bucket.take(100, 0) == (False, 190_000)
    assert bucket.rate(0) == 10
