"""What conformance tests share: Kafka itself, or a line that says why it is not to be had."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance import kafka_peer, make_fixtures
from tests.conformance.kafka_logs import KafkaLogs


@pytest.fixture(scope="session", autouse=True)
def _kafka() -> None:
    if reason := kafka_peer.missing():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories that Kafka wrote for this run, `clean` and `unclean`, larger than the committed ones."""
    target = tmp_path_factory.mktemp("kafka")
    make_fixtures.write(target, "large")
    return target


@pytest.fixture(scope="session")
def kafka_logs() -> Iterator[KafkaLogs]:
    """Kafka's classes for logs, in one JVM for all tests."""
    with KafkaLogs() as running:
        yield running


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """As `tmp_path`, in memory where there is a place for that: many small logs, and no question of disks."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as directory:
        yield Path(directory)
