"""The settings of logs, by topic and by default, and the listeners of changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kreplica.common.config import LogConfig
from kreplica.common.locks import RLock
from kreplica.log.log_manager import LogConfigs
from kreplica.log.unified_log import UnifiedLog
from tests.support.logs import open_log

OWN, OTHER, SMALL = (LogConfig(segment_bytes=size) for size in (9_000, 8_000, 1_000))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[UnifiedLog]:
    """One of topic t."""
    log = open_log(tmp_path / "t-0", segment_bytes=OWN.segment_bytes)
    yield log
    log.close()


def made(*logs: UnifiedLog, **by_topic: LogConfig) -> LogConfigs:
    return LogConfigs(OWN, by_topic, lock=RLock(), logs=lambda: list(logs))


def test_a_topic_has_its_own_or_the_nodes() -> None:
    configs = made(small=SMALL)
    assert (configs.of("small"), configs.of("t"), configs.default) == (SMALL, OWN, OWN)
    assert configs.by_topic == {"small": SMALL}


def test_a_change_reaches_the_topics_logs_and_none_takes_it_back(log: UnifiedLog) -> None:
    configs = made(log)
    configs.change({"other": SMALL})
    assert log.config == OWN
    configs.change({"t": SMALL})
    assert (log.config, configs.of("t")) == (SMALL, SMALL)
    configs.change({"t": None})
    assert (log.config, configs.of("t")) == (OWN, OWN)
    assert configs.by_topic == {"other": SMALL}


def test_another_default_reaches_the_logs_without_one_of_their_own(log: UnifiedLog) -> None:
    configs = made(log)
    configs.change({}, OTHER)
    assert (log.config, configs.default) == (OTHER, OTHER)
    configs.change({"t": SMALL}, OTHER)
    configs.change({}, OWN)
    assert (log.config, configs.of("u")) == (SMALL, OWN)
    configs.change({"t": None}, OTHER)
    assert log.config == OTHER


def test_listeners_hear_of_each_change_once_the_logs_have_it(log: UnifiedLog) -> None:
    configs = made(log)
    heard = []
    configs.on_change = lambda changed: heard.append((changed, log.config))
    configs.change({"t": SMALL})
    configs.change({"t": None, "u": OTHER})
    assert heard == [({"t": SMALL}, SMALL), ({"t": None, "u": OTHER}, OWN)]


def test_what_is_given_away_is_a_copy() -> None:
    configs = made(small=SMALL)
    configs.by_topic["t"] = SMALL
    assert configs.of("t") == OWN
