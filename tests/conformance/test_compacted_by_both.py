"""The same log compacted by Kafka's cleaner and by kreplica's: the same records are kept, batch by batch."""

from __future__ import annotations

from pathlib import Path

import pytest

import kreplica
from tests.conformance.compaction_differences import clean, differences, latest, write_checkpoint
from tests.conformance.compaction_scripts import draw
from tests.conformance.compactions import Compaction, write_files
from tests.conformance.kafka_logs import KafkaLogs
from tests.conformance.make_compactions import visits
from tests.conformance.segment_dump import dump, standing, view
from tests.support.clock import ManualClock

pytestmark = pytest.mark.conformance

SEEDS = range(30)


def open_log(log: Path, visit: Compaction) -> kreplica.Log:
    settings = {**visit.settings, "cleanup.policy": "compact"}
    return kreplica.Log.open(log, config=settings, clock=ManualClock(visit.now_ms))


@pytest.mark.parametrize("seed", SEEDS)
def test_one_visit(kafka_logs: KafkaLogs, seed: int, scratch: Path) -> None:
    script = draw(seed)
    for number, visit in enumerate(visits(kafka_logs, script, scratch / "kafka" / "t-0")):
        log = write_files(scratch / f"ours-{number}" / "t-0", visit.before, flushed=visit.read["end"])
        write_checkpoint(log, visit.checkpoint)
        before = dump(log)
        theirs = dump(write_files(scratch / f"theirs-{number}" / "t-0", visit.after))
        with open_log(log, visit) as opened:
            records = view(opened)["committed"]
            rounds = clean(opened, visit.now_ms, script.slots)
            seen = standing(view(opened))
        assert latest(seen["committed"]) == latest(visit.read["committed"]) == latest(records)
        if script.has_room:
            assert rounds == [[first, end] for first, _, end in visit.rounds]
            assert differences(dump(log), theirs, before) == []
            assert [each["base"] for each in dump(log)] == [each["base"] for each in theirs]
            assert seen == standing(visit.read)


@pytest.mark.parametrize("seed", SEEDS)
def test_round_upon_round(kafka_logs: KafkaLogs, seed: int, scratch: Path) -> None:
    """Kafka appends to a log that kreplica cleans, and producers go on as in the one that Kafka cleans."""
    script = draw(seed)
    log = scratch / "ours" / "t-0"
    found = visits(kafka_logs, script, scratch / "kafka" / "t-0")
    for visit, each in zip(found, script.rounds, strict=True):
        answers = kafka_logs.append(log, each.batches, now_ms=each.now_ms, settings=script.settings)
        assert not any(isinstance(answer, str) for answer in answers), answers
        with open_log(log, visit) as opened:
            clean(opened, visit.now_ms, script.slots)
            seen = standing(view(opened))
        assert dump(log) == kafka_logs.dump(log)
        assert latest(seen["committed"]) == latest(visit.read["committed"])
        for clean_stop in (True, False):
            theirs = kafka_logs.read(log, now_ms=each.now_ms, settings=script.settings, clean=clean_stop)
            assert standing(theirs) == seen
