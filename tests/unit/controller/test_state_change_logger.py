"""StateChangeLogger: one readable line for each transition, logged when it takes effect."""

from __future__ import annotations

import logging

import pytest

from kreplica.controller.state_change_logger import StateChangeLogger
from tests.support.controllers import ControllerStage


def test_each_transition_has_its_line() -> None:
    stage = ControllerStage()
    stage.create("orders", (0, 1))
    stage.fence(0)
    start = "Controller 1 epoch 3 "
    assert [line.removeprefix(start) for line in stage.logger.lines()] == [
        "changed partition orders-0 from NonExistentPartition to NewPartition",
        "changed replica 0 of orders-0 from NonExistentReplica to NewReplica",
        "changed replica 1 of orders-0 from NonExistentReplica to NewReplica",
        "changed partition orders-0 from NewPartition to OnlinePartition with leader 0",
        "changed replica 0 of orders-0 from NewReplica to OnlineReplica",
        "changed replica 1 of orders-0 from NewReplica to OnlineReplica",
        "changed partition orders-0 from OnlinePartition to OfflinePartition",
        "changed partition orders-0 from OfflinePartition to OnlinePartition with leader 1",
        "changed replica 0 of orders-0 from OnlineReplica to OfflineReplica",
    ]


def test_an_abandoned_transition_is_not_logged_as_done() -> None:
    logger = StateChangeLogger(1)
    logger.epoch = 2
    logger.trace("changed %s", ["a", "b"])
    logger.failure("could not change %s", "c")
    logger.give_up(ValueError("no"))
    assert logger.lines() == [
        "Controller 1 epoch 2 could not change c",
        "Controller 1 epoch 2 gave up 2 state changes: ValueError('no')",
    ]


def test_a_batch_without_state_changes_gives_up_nothing() -> None:
    logger = StateChangeLogger(1)
    logger.give_up(ValueError("no"))
    assert logger.lines() == []


def test_only_the_newest_lines_are_kept() -> None:
    logger = StateChangeLogger(1, kept_lines=10)
    for number in range(100):
        logger.trace("changed %d %s", [number] * 3, "xyz")
        logger.commit()
    lines = logger.lines()
    assert len(lines) <= 10
    assert lines[-1].endswith("changed 99 z")


def test_lines_go_to_the_logger(caplog: pytest.LogCaptureFixture) -> None:
    logger = StateChangeLogger(1)
    with caplog.at_level(logging.DEBUG, logger="kreplica.state.change"):
        logger.trace("changed %s", ["a"])
        assert caplog.messages == []
        logger.commit()
    assert caplog.messages == ["Controller 1 epoch -1 changed a"]


def test_the_failures_of_a_batch_are_one_line_of_the_logger_and_all_are_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logger = StateChangeLogger(1)
    with caplog.at_level(logging.DEBUG, logger="kreplica.state.change"):
        for number in range(50):
            logger.failure("could not change %d", number)
        logger.give_up(ValueError("no"))
    assert caplog.messages == [
        "Controller 1 epoch -1 could not change 0 (and 49 more failures)",
        "Controller 1 epoch -1 gave up 0 state changes: ValueError('no')",
    ]
    assert len(logger.lines()) == 51
