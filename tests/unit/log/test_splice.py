"""Batches put into the place of a damaged range of a log that runs, also where they are of another size."""

from __future__ import annotations

import ctypes

import pytest

from kreplica._core.batch_builder import BatchBuilder
from kreplica.common.config import LogConfig
from kreplica.common.errors import LogCleaningAborted
from kreplica.common.types import TopicPartition
from kreplica.log import log_loader
from kreplica.log.file_names import DAMAGE_FILE
from kreplica.log.log_loader import OpenOptions
from kreplica.log.lost_range import PeerDisagrees
from kreplica.log.splice import splice
from kreplica.log.unified_log import UnifiedLog
from kreplica.sim.storage import SimStorage
from tests.support.clock import ManualClock

DIRECTORY = "/data/orders-0"


def opened(storage: SimStorage) -> UnifiedLog:
    return log_loader.load(
        DIRECTORY,
        TopicPartition("orders", 0),
        LogConfig(),
        storage,
        ManualClock(),
        OpenOptions(is_only_replica=True),
    )


def damaged(*offsets: int) -> tuple[SimStorage, UnifiedLog]:
    """A log of ten batches in one closed segment, those at the offsets damaged."""
    storage = SimStorage()
    storage.make_directory(DIRECTORY)
    log = opened(storage)
    for offset in range(10):
        log.append_records([b"%d" % offset * 20])
    log.roll()
    segment = log.local.segments[0]
    for offset in offsets:
        found = segment.position_of(offset)
        assert found is not None
        cell = segment.region.slice(found[0] + 70, 1)
        ctypes.c_uint8.from_address(cell.address).value ^= 1
    for offset in offsets:
        assert log.search_damage(segment, offset)
    return storage, log


def batch_at(offset: int, size: int) -> bytes:
    """As a cleaner or another codec may have left it: of another size."""
    data = bytearray(BatchBuilder().build([b"%d" % offset * size], now_ms=1))
    data[:8] = offset.to_bytes(8, "big")
    data[12:16] = bytes(4)  # leader epoch 0
    return bytes(data)


def all_values(log: UnifiedLog) -> list[bytes | None]:
    return [record.value for each in log.batches(0) for record in each]


@pytest.mark.parametrize("size", [1, 20, 3000])
def test_every_offset_is_found_where_it_stands_now(size: int) -> None:
    storage, log = damaged(4)
    splice(log, log.damages[0], batch_at(4, size))
    expected = [b"%d" % offset * (size if offset == 4 else 20) for offset in range(10)]
    assert all_values(log) == expected
    assert not log.damages
    assert not storage.exists(f"{DIRECTORY}/{DAMAGE_FILE}")
    log.append_records([b"on"])
    log.close()
    assert all_values(opened(storage)) == [*expected, b"on"]


def test_a_range_of_another_size_waits_for_damage_behind_it() -> None:
    _, log = damaged(2, 7)
    first, second = log.damages
    with pytest.raises(PeerDisagrees):
        splice(log, first, batch_at(2, 30))
    splice(log, second, batch_at(7, 30))
    assert list(log.damages) == [first]
    splice(log, first, batch_at(2, 30))
    assert all_values(log) == [b"%d" % offset * (30 if offset in (2, 7) else 20) for offset in range(10)]


def test_a_range_that_is_gone_is_not_filled() -> None:
    _, log = damaged(4)
    damage = log.damages[0]
    log.truncate_to(2)
    with pytest.raises(LogCleaningAborted):
        splice(log, damage, batch_at(4, 20))
    assert all_values(log) == [b"0" * 20, b"1" * 20]
