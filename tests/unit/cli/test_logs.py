"""The lines that a serving process logs."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from kreplica.cli import logs


@pytest.fixture(autouse=True)
def _root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_json_is_one_object_a_line_with_the_error_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up("json", "info", "node-1")
    logger = logging.getLogger("kreplica.test")
    logger.debug("not told")
    logger.info("two\nlines %d", 2)
    try:
        raise ValueError("why")
    except ValueError:
        logger.exception("it failed")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert (first["node"], first["level"], first["message"]) == ("node-1", "INFO", "two\nlines 2")
    assert first["time"].endswith("+00:00")
    assert "error" not in first
    assert second["error"].endswith("ValueError: why")


def test_text_names_the_node_and_takes_the_place_of_what_was_before(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.set_up("json", "info", "node-1")
    logs.set_up("text", "warning", "node-2")
    logging.getLogger("kreplica.test").info("not told")
    logging.getLogger("kreplica.test").warning("told")
    assert capsys.readouterr().err.endswith(" node-2 WARNING kreplica.test: told\n")
