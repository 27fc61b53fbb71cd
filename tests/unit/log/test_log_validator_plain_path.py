"""Which batches may be appended in one call of the core, by a log's configuration, epoch and clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from kreplica.common.config import LogConfig
from kreplica.log.log_validator import NO_EPOCH, PlainPath
from tests.support.batches import build
from tests.support.logs import NOW_MS, ManualClock, open_log

EPOCH = 3


def path_of(**settings: object) -> PlainPath:
    made = PlainPath(LogConfig(**settings), NOW_MS)
    made.choose(EPOCH, is_ready=True)
    return made


@pytest.mark.parametrize(
    ("settings", "epoch"),
    [
        ({}, EPOCH),
        ({"compression_type": "uncompressed"}, EPOCH),
        ({"compression_type": "zstd"}, NO_EPOCH),
        ({"cleanup_policy": frozenset({"compact"})}, NO_EPOCH),
        ({"message_timestamp_type": "LogAppendTime"}, NO_EPOCH),
        ({"message_timestamp_before_max_ms": 5}, NO_EPOCH),
    ],
)
def test_only_what_is_stored_as_it_was_sent_takes_it(settings: dict[str, object], epoch: int) -> None:
    assert path_of(**settings).epoch == epoch


def test_none_takes_it_while_the_log_is_not_ready() -> None:
    path = path_of()
    path.choose(EPOCH, is_ready=False)
    assert path.epoch == NO_EPOCH
    path.choose(EPOCH + 1, is_ready=True)
    assert path.epoch == EPOCH + 1


def test_the_latest_create_time_follows_the_clock_and_stays_in_64_bits() -> None:
    path = path_of(message_timestamp_after_max_ms=10)
    assert path.latest_ms == NOW_MS + 10
    path.set_time(NOW_MS + 5)
    assert path.latest_ms == NOW_MS + 15
    assert path_of(message_timestamp_after_max_ms=(1 << 63) - 1).latest_ms < 1 << 63


def test_a_job_is_made_for_a_plain_batch_of_the_epoch_alone(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", ManualClock())
    log.begin_epoch(EPOCH, 0)
    plain = build([b"v"])
    in_transaction = build([b"v"], transactional=True, producer_id=7, producer_epoch=0, base_sequence=0)
    assert log.plain_job(plain, EPOCH) is not None
    assert log.plain_job(plain, EPOCH - 1) is None
    assert log.plain_job(in_transaction, EPOCH) is None
    log.close()
