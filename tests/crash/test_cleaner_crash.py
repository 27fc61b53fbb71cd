"""The machine stops before any change or flush that a cleaner makes: the log opens with the same records."""

from __future__ import annotations

import itertools
import random
from contextlib import suppress

import pytest

from kreplica._core.offset_map import OffsetMap
from kreplica.common.config import LogConfig
from kreplica.common.types import AppendOrigin, TopicPartition
from kreplica.log import log_loader
from kreplica.log.cleaner import compact
from kreplica.log.log_loader import OpenOptions
from kreplica.record.control import EndTransactionMarker, build_end_transaction_marker
from kreplica.sim.storage import SimStorage
from tests.support.batches import build
from tests.support.crashing import Stopped
from tests.support.logs import NOW_MS, ManualClock

PATH = "/data/t-0"
SETTINGS = {
    "cleanup_policy": "compact",
    "segment_bytes": 900,
    "segment_index_bytes": 4096,
    "max_message_bytes": 4096,
    "index_interval_bytes": 100,
}


def opened(storage, *, read_only=False):
    partition = TopicPartition("t", 0)
    return log_loader.load(
        PATH,
        partition,
        LogConfig(**SETTINGS),
        storage,
        ManualClock(),
        OpenOptions(read_only=read_only),
    )


def filled():
    """Keys that come again and again, tombstones, transactions of both ends, and each codec."""
    storage = SimStorage()
    storage.make_directory(PATH)
    storage.sync_directory("/")
    storage.sync_directory("/data")
    log = opened(storage)
    codecs = itertools.cycle(["none", "gzip", "snappy", "lz4", "zstd"])
    for number in range(14):
        log.append_records([(b"%d" % (number % 4), b"%d" % number * 20), (b"only %d" % number, b"x")])
        producer = 100 + number % 2
        batch = build(
            [(b"%d" % (number % 3), None if number % 5 == 0 else b"txn %d" % number)],
            codec=next(codecs),
            producer_id=producer,
            producer_epoch=0,
            base_sequence=number // 2,
            transactional=True,
        )
        log.append_as_leader(batch, 0)
        marker = build_end_transaction_marker(
            EndTransactionMarker(commit=number % 3 != 0, coordinator_epoch=0),
            producer_id=producer,
            producer_epoch=0,
            timestamp_ms=NOW_MS,
        )
        log.append_as_leader(marker, 0, origin=AppendOrigin.COORDINATOR)
    log.roll()
    log.flush()
    return storage, log


def cleaned(log):
    return compact(log, OffsetMap(1 << 16, bytes(16)), 700)


def rows(log):
    return [
        (record.offset, record.key, record.value)
        for batch in log.batches(log.log_start_offset, isolation="txn_committed")
        if not batch.is_control
        for record in batch
    ]


def last_values(found):
    return {key: value for _, key, value in found}


def state_of(log):
    producers = {
        p.producer_id: (p.producer_epoch, p.last_sequence) for p in log.producers.active_producers.values()
    }
    return producers, log.log_end_offset, log.last_stable_offset


def _total():
    storage, log = filled()
    before = len(storage.trace)
    cleaned(log)
    return len(storage.trace) - before


TOTAL = _total()


@pytest.mark.parametrize("start", range(8))
def test_a_stop_at_any_step_of_a_round_loses_nothing(start):
    _, whole = filled()
    before, state = rows(whole), state_of(whole)
    for step in range(start, TOTAL, 8):
        storage, log = filled()
        left = iter(range(step))

        def stop(_operation, _path, left=left):
            if next(left, None) is None:
                raise Stopped

        storage.before = stop
        with suppress(Stopped):
            cleaned(log)
        storage.before = None
        states = [storage.after_kill(), storage.after_power_cut()]
        states += [storage.after_power_cut(random.Random(step + seed)) for seed in range(2)]
        for left_over in states:
            seen = rows(opened(left_over, read_only=True))
            again = opened(left_over)
            assert again.damage is None
            assert rows(again) == seen
            assert set(seen) <= set(before)
            assert last_values(seen) == last_values(before)
            assert state_of(again) == state
            assert not [
                name for name in left_over.list_directory(PATH) if name.endswith((".cleaned", ".swap"))
            ]
            stats = cleaned(again)
            assert stats.end_offset == again.local.segments.active.base_offset
            assert last_values(rows(again)) == last_values(before)
