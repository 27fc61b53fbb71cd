"""Logs that kreplica's cleaner went through, under a real node and before a stock consumer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import kreplica
from tests.conformance.adoption import read_by_kafka
from tests.conformance.compaction_differences import clean, latest
from tests.conformance.compaction_scripts import START_MS, draw
from tests.conformance.expectation import Expectation, differences
from tests.conformance.kafka_logs import KafkaLogs
from tests.conformance.segment_dump import view
from tests.support.clock import ManualClock

pytestmark = pytest.mark.conformance

NO_ANSWER = re.compile(r": at [0-9]+ there is [0-9]+, not None$")
SEEDS = (0, 2, 3, 5, 12, 13, 16, 18, 23, 35)


@pytest.fixture(scope="module")
def logs(kafka_logs: KafkaLogs, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By topic: each script's log, written by Kafka, cleaned by kreplica after each round."""
    root = tmp_path_factory.mktemp("cleaned")
    directories = {}
    for seed in SEEDS:
        script = draw(seed)
        log = directories[f"script-{seed}"] = root / str(seed) / f"script-{seed}-0"
        settings = {**script.settings, "cleanup.policy": "compact"}
        for each in script.rounds:
            kafka_logs.append(log, each.batches, now_ms=each.now_ms, settings=script.settings)
            with kreplica.Log.open(log, config=settings, clock=ManualClock(each.now_ms)) as opened:
                values = latest(view(opened)["committed"])
                clean(opened, each.now_ms, script.slots)
                assert latest(view(opened)["committed"]) == values
    directories["public"] = write_and_compact(root / "public-0")
    return directories


def write_and_compact(path: Path) -> Path:
    """A log that was written and compacted by the public face alone, in the passes that a small map wants."""
    settings = {"cleanup.policy": "compact", "segment.bytes": 4_000, "compression.type": "lz4"}
    with kreplica.Log.open(path, config=settings, clock=ManualClock(START_MS)) as log:
        for i in range(600):
            log.append([(b"key-%d" % (i * 7 % 50), None if i % 11 == 5 else b"value %d" % i)] * (i % 4 + 1))
        values = latest(view(log)["records"])
        stats = log.compact(dedupe_buffer_size=16 * 30)
        assert stats.rounds > 1
        assert stats.records_after < 100 < stats.records_before
        assert latest(view(log)["records"]) == values
        log.append([(b"key-0", b"written on")])
    return path


@pytest.fixture(scope="module", params=[True, False], ids=["trusted", "recovered"])
def consumed(
    request: pytest.FixtureRequest, logs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Expectation]:
    """What a stock consumer reads of the logs, their indexes believed or made anew."""
    return read_by_kafka(tmp_path_factory.mktemp("node"), logs, trusted=request.param)


def test_a_consumer_reads_what_kreplica_reads(
    logs: dict[str, Path], consumed: dict[str, Expectation]
) -> None:
    for topic, directory in logs.items():
        with kreplica.Log.open(directory, read_only=True) as log:
            found = differences(log, consumed[topic])
        # To a timestamp Kafka answers nothing where the first segment that should have it, by its greatest
        # one, has it no more: of that batch only the header is left. So it does behind its own cleaner.
        assert [line for line in found if not NO_ANSWER.search(line)] == []
