"""FruitlessFetches: what is logged of a partition whose replication stands still, and when."""

from __future__ import annotations

import logging

import pytest

from kreplica._core.follower import FollowedPartition
from kreplica.common.types import TopicPartition, Uuid
from kreplica.replica.replica_fetcher import IN_A_ROW, LOG_EVERY_MS, FruitlessFetches

T0 = TopicPartition("t", 0)
PATIENCE_MS = 10_000


class Stage:
    """The standstills of a fetcher, and a clock."""

    def __init__(self) -> None:
        self.now_ms = 5
        self.fetches = FruitlessFetches(7, PATIENCE_MS, lambda: self.now_ms)
        self.state = FollowedPartition(T0, Uuid(bytes(16)), 0, 1)

    def at(self, offset: int) -> FollowedPartition:
        self.state.fetch_offset = offset
        return self.state

    def failed(self, offset: int, *, may_pass: bool = False) -> int:
        return self.fetches.failed(self.at(offset), "because", may_pass=may_pass)


def test_a_repeated_failure_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    for attempt in range(1, IN_A_ROW):
        assert stage.failed(20) == attempt
    assert caplog.messages == []
    stage.now_ms += 400
    assert stage.failed(20) == IN_A_ROW
    (said,) = caplog.messages
    assert caplog.records[0].levelno == logging.WARNING
    assert (
        said
        == "t-0: replication from broker 7 makes no progress at offset 20 (3 attempts in 400 ms): because"
    )
    stage.now_ms += LOG_EVERY_MS - 1
    stage.failed(20)
    assert len(caplog.messages) == 1
    stage.now_ms += 1
    stage.failed(20)
    assert len(caplog.messages) == 2


def test_progress_ends_a_standstill_and_a_fetch_from_below_does_not() -> None:
    stage = Stage()
    stage.failed(20)
    stage.fetches.succeeded(stage.at(19))
    assert stage.failed(20) == 2
    stage.fetches.succeeded(stage.at(20))
    assert stage.failed(20) == 1
    assert stage.failed(18) == 1


def test_a_failure_that_may_pass_is_logged_once_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    for _ in range(9):
        stage.failed(20, may_pass=True)
        stage.now_ms += 1000
    assert caplog.messages == []
    stage.now_ms += 1000
    stage.failed(20, may_pass=True)
    assert len(caplog.messages) == 1
