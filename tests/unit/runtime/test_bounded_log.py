"""Lines of a flood: the first ones as they are, the rest as one."""

from __future__ import annotations

import asyncio
import logging

import pytest

from kreplica.runtime.bounded_log import LINES, BoundedLog

LOGGER = logging.getLogger("test_bounded_log")
FLOOD = 1_000


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, LOGGER.name)
    return caplog


def test_a_flood_is_summed_up(logged: pytest.LogCaptureFixture) -> None:
    async def flood() -> None:
        summed_up = asyncio.Event()
        log = BoundedLog(asyncio.get_running_loop(), LOGGER, "more were closed", span_s=0.01)
        for number in range(FLOOD):
            log.log("nonsense" if number % 4 else "silence", "number %d", number)

        def look(_: logging.LogRecord) -> bool:
            summed_up.set()
            return True

        LOGGER.addFilter(look)
        await summed_up.wait()
        LOGGER.removeFilter(look)
        log.log("nonsense", "after it")
        log.close()

    asyncio.run(flood())
    assert logged.messages[:LINES] == [f"number {number}" for number in range(LINES)]
    silent = FLOOD // 4 - 3
    summary = f"{FLOOD - LINES} more were closed: {FLOOD - LINES - silent} x nonsense, {silent} x silence"
    assert logged.messages[LINES:] == [summary, "after it"]


def test_suppressed_lines_are_summed_up_at_the_end(logged: pytest.LogCaptureFixture) -> None:
    async def flood() -> None:
        log = BoundedLog(asyncio.get_running_loop(), LOGGER, "more were closed")
        for _ in range(LINES + 1):
            log.log("LookupError", "failed", level=logging.ERROR, error=LookupError("lost"))
        log.close()

    asyncio.run(flood())
    assert logged.messages == ["failed"] * LINES + ["1 more were closed: 1 x LookupError"]
    assert logged.records[0].exc_info is not None
    assert logged.records[0].levelno == logging.ERROR
