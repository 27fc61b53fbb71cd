"""LogCleaner: which log is cleaned when, in steps, and what becomes of one that cannot be."""

from __future__ import annotations

import random

import pytest

from kreplica.common.config import CleanerConfig, LogConfig
from kreplica.common.types import TopicPartition
from kreplica.log import log_loader
from kreplica.log.checkpoint import OffsetCheckpointFile
from kreplica.log.log_cleaner import LogCleaner
from kreplica.log.log_loader import OpenOptions
from kreplica.sim.storage import SimStorage
from tests.support.logs import ManualClock

SETTINGS = {
    "cleanup_policy": "compact",
    "segment_bytes": 2000,
    "segment_index_bytes": 4096,
    "max_message_bytes": 4096,
    "min_cleanable_dirty_ratio": 0.3,
}
BACKOFF_MS = 15_000


class Node:
    """Some compacted logs in one directory, and their cleaner."""

    def __init__(self, names=("a",), **config):
        self.storage = SimStorage()
        self.clock = ManualClock()
        self.logs = [self.open(name) for name in names]
        self.cleaner = self.new_cleaner(**config)

    def open(self, name, **settings):
        path = f"/data/{name}-0"
        self.storage.make_directory(path)
        return log_loader.load(
            path,
            TopicPartition(name, 0),
            LogConfig(**(SETTINGS | settings)),
            self.storage,
            self.clock,
            OpenOptions(),
        )

    def new_cleaner(self, **config):
        return LogCleaner(
            lambda: self.logs,
            clock=self.clock,
            random=random.Random(1),
            storage=self.storage,
            config=CleanerConfig(**({"dedupe_buffer_size": 1 << 16} | config)),
        )

    def work(self, most=10_000):
        """Steps until the cleaner rests; their number."""
        for steps in range(most):
            if self.cleaner.do_work() == BACKOFF_MS:
                return steps
        pytest.fail("the cleaner never rests")

    def checkpoints(self):
        return OffsetCheckpointFile(self.storage, "/data/cleaner-offset-checkpoint").read()


def fill(log, rounds=10, keys=5, size=80):
    for number in range(rounds):
        log.append_records([(b"%d" % key, b"%04d" % number * (size // 4)) for key in range(keys)])


def content(log):
    return {record.key: record.value for batch in log.batches(log.log_start_offset) for record in batch}


def count(log):
    return sum(batch.record_count for batch in log.batches(log.log_start_offset))


def cleanable(log):
    return log.local.segments.active.base_offset


def test_the_last_value_of_each_key_stays_and_the_checkpoint_says_how_far():
    node = Node()
    log = node.logs[0]
    fill(log)
    before, records = content(log), count(log)
    assert node.work() > 1
    assert content(log) == before
    assert count(log) < records
    assert node.checkpoints() == {TopicPartition("a", 0): cleanable(log)}
    stats = node.cleaner.stats[TopicPartition("a", 0)]
    assert (stats.first_dirty_offset, stats.end_offset) == (0, cleanable(log))
    assert stats.records_after < stats.records_before
    assert node.work() == 0, "nothing is dirty any more"
