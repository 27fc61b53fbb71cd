"""Durability "fsync": what is acknowledged is on disk, its bytes and the names it rests on; and a disk that
refuses a flush ends the log's work at once."""

from __future__ import annotations

import random

import pytest

from kreplica._core.region import Region
from kreplica.common.errors import KafkaStorageError, StorageFull, StorageIOError
from kreplica.log.local_log import LocalLog
from kreplica.sim.storage import SimStorage
from tests.support.crashing import DIRECTORY, Run, open_log

STEPS = [("append", 900), ("append_batch", 3), ("append_epoch", 50), ("roll", 0), ("append", 5000)] * 6


def unflushed_at_acknowledgement(run: Run, acknowledgements: list[tuple[int, str, int]]) -> list[str]:
    """Read the trace: what each acknowledgement rested on that was not on disk by then.

    An acknowledgement: (length of the trace at that time, the segment's path, the position of its end).
    """
    missing: list[str] = []
    for at, path, end in acknowledgements:
        flushed = -1
        unsynced: set[str] = set()
        for event in run.storage.trace[:at]:
            if event.operation in ("create", "make_directory"):
                unsynced.add(event.path)
            elif event.operation == "sync_directory":
                unsynced = {name for name in unsynced if name.rpartition("/")[0] != event.path}
            elif event.operation == "flush" and event.path == path:
                flushed = max(flushed, event.stop)
        if flushed < end:
            missing.append(f"bytes up to {end} of {path}: flushed up to {flushed}")
        missing += [f"the name {name}" for name in sorted(unsynced & {path, DIRECTORY})]
    return missing


def play(steps: list[tuple[str, int]]) -> tuple[Run, list[tuple[int, str, int]]]:
    run = Run(durability="fsync")
    acknowledgements = []
    run.open()
    for name, argument in steps:
        getattr(run, name)(argument)
        assert run.log is not None
        active = run.log._log.local.segments.active
        if name.startswith("append"):
            acknowledgements.append((len(run.storage.trace), active.region.path, active.size))
    return run, acknowledgements


def test_every_acknowledgement_comes_after_its_flushes():
    run, acknowledgements = play(STEPS)
    assert len(acknowledgements) == 24
    assert unflushed_at_acknowledgement(run, acknowledgements) == []


def test_a_log_without_fsync_is_caught(monkeypatch):
    def forgets(self: LocalLog, from_offset: int, along: Region | None) -> None:
        pass

    monkeypatch.setattr(LocalLog, "flush", forgets)
    run, acknowledgements = play(STEPS)
    assert len(unflushed_at_acknowledgement(run, acknowledgements)) >= len(acknowledgements)
    log = open_log(run.storage.after_power_cut(), durability="fsync")
    with pytest.raises(AssertionError):
        run.check(log, run.end)


def test_a_log_that_does_not_flush_names_is_caught(monkeypatch):
    monkeypatch.setattr(LocalLog, "flush_names", lambda _self: None)
    run, acknowledgements = play(STEPS)
    assert any("the name" in line for line in unflushed_at_acknowledgement(run, acknowledgements))


def test_the_worst_power_cut_after_each_acknowledgement_loses_nothing():
    run = Run(durability="fsync")
    run.open()
    for name, argument in STEPS:
        getattr(run, name)(argument)
        run.check(open_log(run.storage.after_power_cut(), durability="fsync"), run.end)
        run.check(open_log(run.storage.after_power_cut(random.Random(argument)), durability="fsync"), run.end)


def test_the_flush_point_on_disk_is_at_most_one_commit_behind():
    run = Run(durability="fsync")
    run.open()
    for number in range(12):
        run.append(100)
        left = run.storage.after_power_cut()
        assert open_log(left, durability="fsync").flush_offset >= number


class Refusal:
    """A disk that refuses one kind of operation, from a moment on, and counts how often it was asked."""

    def __init__(self, storage: SimStorage, operation: str) -> None:
        self.operation = operation
        self.asked = 0
        storage.before = self

    def __call__(self, operation: str, path: str) -> None:
        if operation == self.operation:
            self.asked += 1
            raise StorageIOError(f"{operation} {path}: the disk says no")


@pytest.mark.parametrize("operation", ["flush", "sync_directory"])
def test_a_refused_flush_takes_the_log_offline_and_is_never_tried_again(operation):
    run = Run(durability="fsync")
    run.open()
    run.append(100)
    assert run.log is not None
    run.log.roll()
    refusal = Refusal(run.storage, operation)
    with pytest.raises(StorageIOError):
        run.log.append([b"lost"])
    asked = refusal.asked
    run.storage.before = None
    trace = len(run.storage.trace)
    with pytest.raises(KafkaStorageError):
        run.log.append([b"x"])
    with pytest.raises(KafkaStorageError):
        run.log.flush()
    run.log.close()
    assert refusal.asked == asked == 1
    assert not [event for event in run.storage.trace[trace:] if event.operation == "flush"]
    left = open_log(run.storage.after_power_cut(), durability="fsync")
    assert [record.value for record in left.read()][: run.end] == list(run.values.values())


def test_a_full_disk_is_an_error_and_then_over():
    run = Run(durability="fsync")
    run.open()
    run.append(100)
    run.storage.full = True
    assert run.log is not None
    with pytest.raises(StorageFull):
        run.play_on([("append", 6000)] * 50)
    assert [record.offset for record in run.log.read()] == list(range(run.end))
    run.storage.full = False
    run.append(6000)
    run.check(open_log(run.storage.after_power_cut(), durability="fsync"), run.end)
