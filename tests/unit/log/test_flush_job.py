"""Flushing a log by a disk thread, or for its only user: what counts as flushed, and when not."""

from __future__ import annotations

from pathlib import Path

import pytest

from kreplica.common.errors import LogClosed
from kreplica.log.unified_log import UnifiedLog
from tests.support.batches import build
from tests.support.logs import NOW_MS, open_log


def filled(path: Path, records: int) -> UnifiedLog:
    log = open_log(path)
    log.begin_epoch(0, 0)
    log.flush()
    append(log, records)
    return log


def append(log: UnifiedLog, records: int) -> None:
    for _ in range(records):
        log.append_as_leader(build([b"x"], now_ms=NOW_MS), 0)


def test_all_that_was_there_when_the_job_was_made_is_flushed(tmp_path: Path) -> None:
    log = filled(tmp_path, 1)
    log.flush()
    append(log, 2)
    made = log.flush_job()
    assert made is not None
    job, finish = made
    append(log, 1)
    job.run()
    assert log.flush_offset == 1
    finish()
    assert log.flush_offset == 3


def test_a_segment_that_was_begun_since_asks_for_more_than_a_job(tmp_path: Path) -> None:
    log = filled(tmp_path, 1)
    assert log.flush_job() is None
    log.flush()
    log.roll()
    append(log, 1)
    assert log.flush_job() is None


def test_what_was_cut_and_written_anew_meanwhile_is_flushed_again(tmp_path: Path) -> None:
    log = filled(tmp_path, 1)
    log.flush()
    append(log, 3)
    made = log.flush_job()
    assert made is not None
    job, finish = made
    job.run()
    log.truncate_to(2)
    append(log, 5)
    finish()
    assert log.flush_offset == log.log_end_offset == 7


def test_a_flush_that_fails_takes_the_log_offline(tmp_path: Path) -> None:
    log = filled(tmp_path, 1)
    log.flush()
    append(log, 1)
    made = log.flush_job()
    assert made is not None
    job, finish = made
    log.active.region.close()
    job.run()
    with pytest.raises(LogClosed):
        finish()
    assert log.is_offline


def test_the_only_user_of_a_log_flushes_it_without_the_others_means(tmp_path: Path) -> None:
    log = filled(tmp_path, 1)
    log.flush()
    append(log, 2)
    assert log.flush_alone()
    assert log.flush_offset == 3


def test_the_only_user_flushes_no_more_than_the_active_segment(tmp_path: Path) -> None:
    log = filled(tmp_path, 1)
    log.flush()
    log.roll()
    append(log, 1)
    assert not log.flush_alone()
    assert log.flush_offset == 1
    log.flush()
    append(log, 1)
    assert log.flush_alone()
    assert log.flush_offset == 3


def test_a_flush_of_the_only_user_that_fails_takes_the_log_offline(tmp_path: Path) -> None:
    log = filled(tmp_path, 1)
    log.flush()
    append(log, 1)
    log.active.region.close()
    with pytest.raises(LogClosed):
        log.flush_alone()
    assert log.is_offline
    assert log.flush_offset == 1
