"""enable_logging prints the library's messages, once, in the chosen format."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

import kreplica
from kreplica.runtime.log_output import ROOT


@pytest.fixture(autouse=True)
def _logger_as_before() -> Iterator[None]:
    logger = logging.getLogger(ROOT)
    before = list(logger.handlers), logger.level, logger.propagate
    yield
    logger.handlers, logger.level, logger.propagate = before


def test_messages_of_a_level_are_printed_once() -> None:
    stream = io.StringIO()
    kreplica.enable_logging("warning", stream=io.StringIO())
    kreplica.enable_logging("INFO", stream=stream)
    logging.getLogger("kreplica.raft").info("elected %d", 1)
    logging.getLogger("kreplica.raft").debug("hidden")
    [line] = stream.getvalue().splitlines()
    assert line.endswith(" INFO kreplica.raft: elected 1")


def test_messages_as_json() -> None:
    stream = io.StringIO()
    kreplica.enable_logging(json=True, stream=stream)
    try:
        raise ValueError("x")
    except ValueError:
        logging.getLogger("kreplica.log").exception("failed")
    fact = json.loads(stream.getvalue())
    assert (fact["level"], fact["logger"], fact["message"]) == ("ERROR", "kreplica.log", "failed")
    assert "ValueError: x" in fact["error"]
    assert "node" not in fact


@pytest.mark.parametrize("level", [logging.ERROR, 40, "ERROR", "error"])
def test_a_level_is_a_name_or_a_number_of_logging(level: int | str) -> None:
    kreplica.enable_logging(level, stream=io.StringIO())
    assert logging.getLogger("kreplica").level == logging.ERROR


def test_an_unknown_level_is_refused() -> None:
    wrong: Any
    for wrong in ("LOUD", 15, None):
        with pytest.raises(ValueError, match=f"level {wrong!r} is not one of DEBUG"):
            kreplica.enable_logging(wrong)
