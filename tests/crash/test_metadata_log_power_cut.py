"""Power cuts of a voter: at every change and flush of a history with appends, epochs, snapshots and cleaning.

Flushed records are there afterwards, and a snapshot covers those that the log no longer holds. The log opens,
and its content is what was written.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.raft.kafka_metadata_log import KafkaMetadataLog
from kreplica.raft.snapshots import RecordsSnapshotWriter
from kreplica.sim.storage import SimStorage
from tests.support.logs import NOW_MS, ManualClock
from tests.support.metadata_logs import (
    append,
    commit,
    content,
    machine,
    open_metadata_log,
    record,
    snapshot,
    snapshot_content,
)

SEEDS = max(2, int(os.environ.get("KREPLICA_CUTS", "400")) // 200)
SETTINGS = {"log_segment_bytes": 1024, "max_retention_ms": 0, "max_retention_bytes": -1}


class PowerCut(BaseException):
    """No code of the program goes on."""


class Voter:
    """A log with what was promised of it: `flushed`, below which nothing may be lost.

    Every record holds its offset, so the log's content shows whether it is right.
    """

    def __init__(self, storage: SimStorage) -> None:
        self.clock = ManualClock()
        # While the log is cut, a power cut leaves it as it was or as it is to be.
        self.flushed = 0
        self.epochs: dict[int, int] = {}
        self.log: KafkaMetadataLog = open_metadata_log(storage, self.clock, **SETTINGS)

    def lead(self, count: int, epoch: int) -> None:
        for _ in range(count):
            self.epochs[self.log.end_offset] = epoch
            append(self.log, epoch=epoch)
            self.clock.now_ms += 300

    def flush(self) -> None:
        self.log.flush()
        self.flushed = self.log.flushed_offset

    def commit(self) -> None:
        self.flush()
        commit(self.log)

    def cut(self, offset: int) -> None:
        self.flushed = min(self.flushed, offset)
        self.log.truncate_to(offset)

    def fetch_snapshot(self, offset: int, epoch: int) -> None:
        with RecordsSnapshotWriter(
            self.log.store_snapshot(OffsetAndEpoch(offset, epoch)), self.clock, last_contained_log_timestamp=1
        ) as writer:
            writer.append([record(number) for number in range(offset)])
            writer.freeze()
        self.log.truncate_to_latest_snapshot()
        self.flushed = offset


def leads_and_cleans(voter: Voter) -> None:
    log = voter.log
    log.begin_epoch(1)
    voter.lead(12, 1)
    voter.commit()
    snapshot(log, 12, 1)
    log.begin_epoch(3)
    voter.lead(14, 3)
    voter.commit()
    snapshot(log, 20, 3)
    log.clean(NOW_MS + 10_000_000)
    voter.lead(4, 3)
    voter.commit()
    snapshot(log, 30, 3)
    log.clean(NOW_MS + 10_000_000)
    voter.lead(1, 3)
    voter.flush()


def follows_and_is_cut(voter: Voter) -> None:
    voter.lead(10, 1)
    voter.commit()
    voter.lead(9, 2)
    voter.flush()
    voter.cut(14)
    voter.lead(5, 4)
    voter.flush()
    voter.cut(10)
    voter.lead(9, 5)
    voter.flush()


def falls_behind_and_fetches_snapshots(voter: Voter) -> None:
    voter.lead(5, 1)
    voter.commit()
    voter.lead(3, 1)
    voter.fetch_snapshot(20, 3)
    voter.lead(4, 3)
    voter.commit()
    voter.fetch_snapshot(60, 3)
    voter.lead(2, 3)
    voter.flush()


HISTORIES = (leads_and_cleans, follows_and_is_cut, falls_behind_and_fetches_snapshots)


def played(history: Callable[[Voter], None], stop_at: int) -> tuple[SimStorage, Voter | None, bool]:
    """The machine stopped before its `stop_at`th change or flush, and whether it came so far."""
    storage = machine()
    left = stop_at

    def before(_operation: str, _path: str) -> None:
        nonlocal left
        if left == 0:
            raise PowerCut
        left -= 1

    storage.before = before
    voter = None
    try:
        voter = Voter(storage)
        history(voter)
    except PowerCut:
        return storage, voter, True
    finally:
        storage.before = None
    return storage, voter, False


def check(log: KafkaMetadataLog, voter: Voter | None) -> None:
    """Nothing that was flushed is missing, nothing is there that was not written so."""
    least = 0 if voter is None else voter.flushed
    assert log.end_offset >= least, (log.end_offset, least)
    assert log.flushed_offset <= log.end_offset
    assert content(log) == list(range(log.start_offset, log.end_offset))
    for batch in log.log.batches(log.start_offset):
        if batch.base_offset < least:
            assert voter is not None
            assert batch.leader_epoch == voter.epochs[batch.base_offset]
            assert log.log.epochs.epoch_for_offset(batch.base_offset) == batch.leader_epoch
    latest = log.latest_snapshot_id
    if log.start_offset:
        assert latest is not None
        assert log.start_offset <= latest.offset <= log.end_offset
    if latest is not None:
        assert snapshot_content(log, latest) == list(range(latest.offset))
    assert log.last_fetched_epoch >= 0
    end = log.end_offset
    append(log, epoch=9)
    log.flush()
    assert log.end_offset == end + 1


@pytest.mark.parametrize("history", HISTORIES)
def test_no_power_cut_loses_what_was_flushed(history: Callable[[Voter], None]) -> None:
    stop_at, went_on = 0, True
    while went_on:
        storage, voter, went_on = played(history, stop_at)
        for seed in range(SEEDS):
            after = storage.after_power_cut(random.Random(f"{stop_at} {seed}") if seed else None)
            log = open_metadata_log(after, ManualClock(), **SETTINGS)
            check(log, voter)
            log.close()
            again = open_metadata_log(after, ManualClock(), **SETTINGS)
            assert content(again) == list(range(again.start_offset, again.end_offset))
            again.abandon()
        stop_at += 1
    assert stop_at > 50


@pytest.mark.parametrize("history", HISTORIES)
def test_a_kill_loses_nothing(history: Callable[[Voter], None]) -> None:
    stop_at, went_on = 0, True
    while went_on:
        storage, voter, went_on = played(history, stop_at)
        log = open_metadata_log(storage.after_kill(), ManualClock(), **SETTINGS)
        check(log, voter)
        log.abandon()
        stop_at += 7
