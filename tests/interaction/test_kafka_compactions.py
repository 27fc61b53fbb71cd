"""Logs that Kafka 4.3.0's cleaner went through (tests/data/kafka-4.3/compactions), round by round."""

from __future__ import annotations

from pathlib import Path

import pytest

import kreplica
from tests.conformance.compaction_differences import clean, differences, latest, write_checkpoint
from tests.conformance.compaction_scripts import PLENTY
from tests.conformance.compactions import COMPACTIONS, load, write_files
from tests.conformance.segment_dump import dump, standing, view
from tests.support.clock import ManualClock

FILES = sorted(COMPACTIONS.iterdir())


@pytest.fixture(params=FILES, ids=lambda file: file.name.partition(".")[0])
def file(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


def test_it_reads_as_kafka_reads_it(file: Path, tmp_path: Path) -> None:
    for number, visit in enumerate(load(file)):
        log = write_files(tmp_path / str(number) / "t-0", visit.after)
        with kreplica.Log.open(log, read_only=True, clock=ManualClock(visit.now_ms)) as reader:
            assert {**view(reader), "producers": None} == {**visit.read, "producers": None}


# A topic that was compacted once may be so no longer.
@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_opened_to_write_it_loads_or_recovers(file: Path, policy: str, tmp_path: Path) -> None:
    visit = load(file)[-1]
    log = write_files(tmp_path / "t-0", visit.after)
    settings = {**visit.settings, "cleanup.policy": policy}
    for was_closed in (False, True):
        with kreplica.Log.open(log, config=settings, clock=ManualClock(visit.now_ms)) as opened:
            assert opened.damage is None
            assert opened.recovery.clean is was_closed
            assert standing(view(opened)) == standing(visit.read)


def test_it_is_cleaned_as_kafka_cleans_it(file: Path, tmp_path: Path) -> None:
    for number, visit in enumerate(load(file)):
        path = tmp_path / f"before-{number}" / "t-0"
        log = write_files(path, visit.before, flushed=visit.read["end"])
        write_checkpoint(log, visit.checkpoint)
        before = dump(log)
        after = dump(write_files(tmp_path / f"after-{number}" / "t-0", visit.after))
        settings = {**visit.settings, "cleanup.policy": "compact"}
        with kreplica.Log.open(log, config=settings, clock=ManualClock(visit.now_ms)) as opened:
            rounds = clean(opened, visit.now_ms, visit.slots)
            seen = standing(view(opened))
        assert latest(seen["committed"]) == latest(visit.read["committed"])
        if visit.slots == PLENTY:
            # With less room, ours takes in more: a key that it knows already wants none.
            assert rounds == [[first, end] for first, _, end in visit.rounds]
            assert differences(dump(log), after, before) == []
            assert seen == standing(visit.read)
