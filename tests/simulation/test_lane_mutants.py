"""Bugs of the native lanes that only a script meets: it holds without the bug, and fails with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from kreplica.broker import framed_requests
from kreplica.common.encoded_request import joined
from kreplica.common.types import TopicPartition
from tests.mutants.lane_mutants import SCRIPTED_LANE_MUTANTS
from tests.mutants.mutants import built_in
from tests.support.replicas import Replicas, batch

T0 = TopicPartition("t", 0)


def commits_without_delay() -> bool:
    """Whether a record is committed in less time than a fetch waits, while all followers wait."""
    at = Replicas()
    at.pass_time(2_000)
    answer = at.manager(1).append(T0, batch(b"a"))
    at.pass_time(100)
    return answer.done()


def answers_stay_as_they_are() -> bool:
    """Whether answers that are not sent yet keep their bytes when the log is cut and written again."""
    kept: list[tuple[list[Any], bytes]] = []

    def keep(buffers: list[Any]) -> memoryview:
        frame = joined(buffers)
        kept.append((buffers, bytes(frame)))
        return frame

    with mock.patch.object(framed_requests, "_joined", keep):
        at = Replicas(brokers=2)
        at.pass_time(2_000)
        for value in (b"first", b"second"):
            at.manager(1).append(T0, batch(value))
            at.settle()
    log = at.partition(1).local_log
    log.truncate_to(1)
    log.append_as_leader(batch(b"others"), at.partition(1).leader_epoch)
    assert any(b"second" in frame for _, frame in kept)
    return all(joined(buffers) == frame for buffers, frame in kept)


SCRIPTS: dict[str, Callable[[], bool]] = {
    "wake_no_waiting_fetch": commits_without_delay,
    "answer_without_a_pin": answers_stay_as_they_are,
}


@pytest.mark.parametrize("name", SCRIPTED_LANE_MUTANTS)
def test_a_script_catches_the_bug(name: str) -> None:
    assert SCRIPTS[name]()
    with built_in(SCRIPTED_LANE_MUTANTS[name]):
        assert not SCRIPTS[name]()
