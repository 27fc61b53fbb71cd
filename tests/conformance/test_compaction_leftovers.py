"""What a crash in the middle of a cleaning leaves, Kafka's and kreplica's: opened by both, it is one log."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import kreplica
from kreplica.runtime.storage import FileStorage
from tests.conformance.compaction_differences import clean, latest
from tests.conformance.compaction_scripts import Script, draw
from tests.conformance.kafka_logs import SLOT_BYTES, KafkaLogs
from tests.conformance.segment_dump import standing, view
from tests.support.clock import ManualClock

pytestmark = pytest.mark.conformance

SEEDS = (0, 3, 13, 23)
STATES_OF_A_SCRIPT = 8
CLEANED, SWAP, DELETED = ".cleaned", ".swap", ".deleted"
KAFKAS_ORDER = (".log", ".index", ".timeindex", ".txnindex")


class Observed(FileStorage):
    """Copies a log's directory before each change of it that concerns a replacement."""

    def __init__(self, log: Path, target: Path) -> None:
        self.log, self.target = log, target
        self.states: list[Path] = []

    def rename(self, source: str, target: str) -> None:
        self._look(source, target)
        super().rename(source, target)

    def remove(self, path: str) -> None:
        self._look(path)
        super().remove(path)

    def _look(self, *paths: str) -> None:
        if any(path.endswith((CLEANED, SWAP, DELETED)) for path in paths):
            state = self.target / str(len(self.states)) / self.log.name
            self.states.append(Path(shutil.copytree(self.log, state)))


def names_of(log: Path) -> list[str]:
    return sorted(file.name for file in log.iterdir())


def copy_with(log: Path, target: Path, renamed: dict[str, str]) -> Path:
    """A copy of the log in which some files have other names."""
    copy = Path(shutil.copytree(log, target / log.name))
    for old, new in renamed.items():
        (copy / old).rename(copy / new)
    return copy


def kafkas_states(snapshots: Path, scratch: Path) -> Iterator[Path]:
    """The snapshots that Kafka took while it cleaned, and what lay between them: one file renamed after the
    other, to .swap before the first old segment goes, and to their last names after the last one."""
    logs = [snapshots / str(n) / "t-0" for n in range(len(list(snapshots.iterdir())))]
    swaps = [[name for name in names_of(log) if name.endswith(SWAP)] for log in logs]
    for n, log in enumerate(logs):
        names = names_of(log)
        if any(name.endswith((CLEANED, SWAP)) for name in names):
            yield log
        ordered = sorted(swaps[n], key=lambda name: KAFKAS_ORDER.index(Path(name[: -len(SWAP)]).suffix))
        is_first = swaps[n] != (swaps[n - 1] if n else [])
        is_last = swaps[n] != (swaps[n + 1] if n + 1 < len(logs) else [])
        for count in range(1, len(ordered) + 1):
            if is_first:
                back = {name: name.removesuffix(DELETED) for name in names if name.endswith(DELETED)}
                back |= {name: name.removesuffix(SWAP) + CLEANED for name in ordered[count:]}
                yield copy_with(log, scratch / f"swap-{n}-{count}", back)
            if is_last:
                final = {name: name.removesuffix(SWAP) for name in ordered[:count]}
                yield copy_with(log, scratch / f"final-{n}-{count}", final)


def check(kafka: KafkaLogs, script: Script, state: Path, now_ms: int, values: object, scratch: Path) -> None:
    """Both open copies of the state, and see one log, with the latest values that it had."""
    theirs = Path(shutil.copytree(state, scratch / "theirs" / state.name))
    seen = standing(kafka.read(theirs, now_ms=now_ms, settings=script.settings, clean=False))
    assert latest(seen["committed"]) == values, names_of(state)
    for policy in ("compact", "delete"):
        ours = Path(shutil.copytree(state, scratch / policy / state.name))
        settings = {**script.settings, "cleanup.policy": policy}
        with kreplica.Log.open(ours, config=settings, clock=ManualClock(now_ms)) as log:
            assert log.damage is None
            assert standing(view(log)) == seen, names_of(state)


def some(states: list[Path], seed: int) -> list[Path]:
    return random.Random(seed).sample(states, min(len(states), STATES_OF_A_SCRIPT))


@pytest.mark.parametrize("seed", SEEDS)
def test_kafkas(kafka_logs: KafkaLogs, seed: int, scratch: Path) -> None:
    script = draw(seed)
    log = scratch / "kafka" / "t-0"
    compact = {**script.settings, "cleanup.policy": "compact"}
    checked = 0
    for number, each in enumerate(script.rounds):
        kafka_logs.append(log, each.batches, now_ms=each.now_ms, settings=script.settings)
        before = kafka_logs.read(log, now_ms=each.now_ms, settings=script.settings)
        snapshots = scratch / f"snapshots-{number}"
        snapshots.mkdir()
        size = SLOT_BYTES * script.slots
        kafka_logs.clean(log, now_ms=each.now_ms, settings=compact, map_bytes=size, snapshots=snapshots)
        states = list(kafkas_states(snapshots, scratch / f"between-{number}"))
        for n, state in enumerate(some(states, seed)):
            values = latest(before["committed"])
            check(kafka_logs, script, state, each.now_ms, values, scratch / f"check-{number}-{n}")
            checked += 1
    assert checked


@pytest.mark.parametrize("seed", SEEDS)
def test_kreplicas(kafka_logs: KafkaLogs, seed: int, scratch: Path) -> None:
    script = draw(seed)
    log = scratch / "ours" / "t-0"
    checked = 0
    for number, each in enumerate(script.rounds):
        kafka_logs.append(log, each.batches, now_ms=each.now_ms, settings=script.settings)
        storage = Observed(log, scratch / f"snapshots-{number}")
        settings = {**script.settings, "cleanup.policy": "compact"}
        clock = ManualClock(each.now_ms)
        with kreplica.Log.open(log, config=settings, storage=storage, clock=clock) as opened:
            values = latest(view(opened)["committed"])
            clean(opened, each.now_ms, script.slots)
        for n, state in enumerate(some(storage.states, seed)):
            check(kafka_logs, script, state, each.now_ms, values, scratch / f"check-{number}-{n}")
            checked += 1
    assert checked
