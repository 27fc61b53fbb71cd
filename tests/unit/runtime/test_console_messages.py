"""The messages that the console shows of one log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kreplica._core.record import Record
from kreplica.common.errors import InvalidRequest
from kreplica.log.unified_log import UnifiedLog
from kreplica.runtime import console_messages
from kreplica.runtime.console_messages import messages
from tests.support.logs import open_log

STARTED_MS = 1_700_000_000_000


@pytest.fixture
def log(tmp_path: Path) -> UnifiedLog:
    log = open_log(tmp_path / "t-0")
    for number in range(10):
        record = Record(
            b"\xff\xfe" if number == 9 else f"value {number}".encode(),
            f"key {number % 2}".encode(),
            [("trace", None if number else b"x")],
            STARTED_MS + number,
        )
        log.append_records([record])
    log.update_high_watermark(8)
    return log


def read(log: UnifiedLog, **asked: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "offset": None,
        "timestamp": None,
        "last": None,
        "limit": 50,
        "contains": "",
        "isolation": "high_watermark",
    }
    return messages(log, **{**usual, **asked})


def offsets(found: dict[str, Any]) -> list[int]:
    return [each["offset"] for each in found["messages"]]


def test_only_what_is_committed_is_shown(log: UnifiedLog) -> None:
    found = read(log, offset=0)
    assert offsets(found) == list(range(8))
    assert (found["next_offset"], found["end_offset"], found["log_start_offset"]) == (8, 8, 0)
    assert found["messages"][0]["key"] == {"size": 5, "text": "key 0"}
    assert found["messages"][0]["headers"] == [{"name": "trace", "value": {"size": 1, "text": "x"}}]
    assert found["messages"][1]["headers"] == [{"name": "trace", "value": None}]


def test_reading_starts_at_an_offset_a_time_or_before_the_end(log: UnifiedLog) -> None:
    assert offsets(read(log, last=3)) == [5, 6, 7]
    assert offsets(read(log, timestamp=STARTED_MS + 6)) == [6, 7]
    assert offsets(read(log, timestamp=STARTED_MS + 9)) == []
    assert offsets(read(log, timestamp=STARTED_MS + 100)) == []
    assert offsets(read(log, offset=1000)) == []
    with pytest.raises(InvalidRequest, match="give one of offset, time and last"):
        read(log, offset=1, last=1)
    for limit in (0, 501):
        with pytest.raises(InvalidRequest, match=f"limit={limit} is not between 1 and 500"):
            read(log, limit=limit)


def test_pages_and_filters_leave_out_nothing(log: UnifiedLog) -> None:
    found = read(log, offset=0, limit=3, contains="key 1")
    assert offsets(found) == [1, 3, 5]
    assert offsets(read(log, offset=found["next_offset"], limit=3, contains="key 1")) == [7]
    assert offsets(read(log, offset=0, contains="value 4")) == [4]


def test_one_request_reads_a_bounded_number_of_bytes(
    log: UnifiedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console_messages, "SCAN_BYTES", 200)
    found = read(log, offset=0, contains="value 7")
    seen = [found["next_offset"]]
    while found["next_offset"] < found["end_offset"]:
        assert offsets(found) == [] or found["next_offset"] == 8
        found = read(log, offset=found["next_offset"], contains="value 7")
        seen.append(found["next_offset"])
    assert offsets(found) == [7]
    assert len(seen) > 2


def test_bytes_that_are_no_text_are_in_base64_and_long_ones_are_cut(
    log: UnifiedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append_records([Record("né".encode())])
    log.update_high_watermark(11)
    monkeypatch.setattr(console_messages, "SHOWN_BYTES", 2)
    found = read(log, offset=9)["messages"]
    assert found[0]["value"] == {"size": 2, "base64": "//4="}
    assert found[1]["value"] == {"size": 3, "text": "n"}
    assert found[1]["key"] is None
