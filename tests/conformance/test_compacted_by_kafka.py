"""Logs that Kafka's cleaner went through, opened, read and carried on by kreplica."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import kreplica
from tests.conformance.compaction_scripts import Script, draw
from tests.conformance.kafka_logs import SLOT_BYTES, KafkaLogs
from tests.conformance.segment_dump import dump, standing, view
from tests.support.batches import build
from tests.support.clock import ManualClock

pytestmark = pytest.mark.conformance

SCRIPTS = range(16)


def play(kafka: KafkaLogs, script: Script, log: Path, *, killed: bool = False) -> int:
    """Append and clean, round by round, then append the last round's batches without cleaning; the time then.

    `killed`: the log is not closed behind the last one.
    """
    for each in script.rounds[:-1]:
        kafka.append(log, each.batches, now_ms=each.now_ms, settings=script.settings)
        compact = {**script.settings, "cleanup.policy": "compact"}
        kafka.clean(log, now_ms=each.now_ms, settings=compact, map_bytes=SLOT_BYTES * script.slots)
    last = script.rounds[-1]
    kafka.append(log, last.batches, now_ms=last.now_ms, settings=script.settings, killed=killed)
    return last.now_ms


def carry_on(log: kreplica.Log, seen: dict[str, Any], now_ms: int) -> None:
    """Let each producer that `seen` knows of send its next batch."""
    for producer_id, (epoch, _, first_offset, batches) in seen["producers"].items():
        fields = {"producer_id": int(producer_id), "producer_epoch": epoch, "now_ms": now_ms}
        last_sequence = batches[-1][1] if batches else -1
        batch = build(
            [(b"key-0", b"next")], base_sequence=last_sequence + 1, transactional=first_offset >= 0, **fields
        )
        assert log.append_batch(batch).duplicate is False


@pytest.mark.parametrize("ending", ["closed", "killed"])
@pytest.mark.parametrize("seed", SCRIPTS)
def test_read_and_carried_on(kafka_logs: KafkaLogs, seed: int, ending: str, scratch: Path) -> None:
    script = draw(seed)
    log = scratch / "kafka" / "t-0"
    now_ms = play(kafka_logs, script, log, killed=ending == "killed")
    assert dump(log) == kafka_logs.dump(log)
    again = shutil.copytree(log, scratch / "again" / "t-0")
    expected = kafka_logs.read(again, now_ms=now_ms, settings=script.settings, clean=ending == "closed")

    with kreplica.Log.open(log, read_only=True, clock=ManualClock(now_ms)) as reader:
        # A reader follows no producers.
        assert {**view(reader), "producers": None} == {**expected, "producers": None}
    # The topic may have been compacted once, and be no longer.
    for policy in ("compact", "delete"):
        ours = shutil.copytree(log, scratch / policy / "t-0")
        settings = {**script.settings, "cleanup.policy": policy}
        with kreplica.Log.open(ours, config=settings, clock=ManualClock(now_ms)) as opened:
            assert opened.damage is None
            assert standing(view(opened)) == standing(expected)
            carry_on(opened, expected, now_ms)
            carried_on = standing(view(opened))
        for clean in (True, False):
            theirs = kafka_logs.read(ours, now_ms=now_ms, settings=script.settings, clean=clean)
            assert standing(theirs) == carried_on
