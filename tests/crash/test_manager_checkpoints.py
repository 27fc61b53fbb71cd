"""A node that stops at any change of its disk while it cuts, flushes and checkpoints its logs."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from kreplica.common.config import LogConfig
from kreplica.common.types import TopicPartition
from kreplica.log.log_manager import LogManager
from kreplica.log.unified_log import UnifiedLog
from kreplica.runtime.scheduler import ThreadScheduler
from kreplica.sim.storage import SimStorage
from tests.support.clocks import ManualClock
from tests.support.crashing import Stopped
from tests.support.logs import checkpoint, get_or_create_log

DIRECTORY = "/data"
PARTITIONS = [TopicPartition("orders", number) for number in range(3)]
SEGMENT_BYTES = 2_000


class InTurn:
    def run(self, tasks) -> None:
        for task in tasks:
            task()


class Node:
    """A node that does the same things until its machine stops, and what its logs may not lose."""

    def __init__(self, storage: SimStorage) -> None:
        self.clock = ManualClock()
        self.scheduler = ThreadScheduler(self.clock)
        self.storage = storage
        self.manager = LogManager(
            [DIRECTORY],
            cluster_id="c",
            node_id=1,
            storage=storage,
            clock=self.clock,
            scheduler=self.scheduler,
            workers=InTurn(),
            random=random.Random(3),
            config=LogConfig.parse({"segment.bytes": SEGMENT_BYTES, "segment.index.bytes": 400}),
        )
        # Records by offset, and the offset below which they must be there: acknowledged, and flushed.
        self.truth: dict[TopicPartition, dict[int, bytes]] = {each: {} for each in PARTITIONS}
        self.acknowledged = dict.fromkeys(PARTITIONS, 0)
        self.flushed = dict.fromkeys(PARTITIONS, 0)
        self.generation = 0

    def append(self, partition: TopicPartition, count: int) -> None:
        log = get_or_create_log(self.manager, partition)
        for _ in range(count):
            end = log.log_end_offset
            value = b"%d:%d" % (self.generation, end)
            self.truth[partition][end] = value
            log.append_records([value, bytes(40)])
            self.truth[partition][end + 1] = bytes(40)
            self.acknowledged[partition] = log.log_end_offset
        log.update_high_watermark(log.log_end_offset)

    def flush(self) -> None:
        for log in self.manager.logs():
            log.flush()
            self.flushed[log.topic_partition] = log.log_end_offset

    def truncate(self, partition: TopicPartition, offset: int) -> None:
        for known in (self.acknowledged, self.flushed):
            known[partition] = min(known[partition], offset)
        self.generation += 1
        log = self.manager.get_log(partition)
        assert log is not None
        log.truncate_to(offset)

    def run(self) -> None:
        """Appends, checkpoints, cuts, appends over what was cut, the periodic work, a stop in order."""
        self.manager.startup()
        for partition in PARTITIONS:
            self.append(partition, 20)
        checkpoint(self.manager)
        self.flush()
        checkpoint(self.manager)
        self.manager.checkpoint_high_watermarks()
        self.truncate(PARTITIONS[0], 12)
        self.append(PARTITIONS[0], 9)
        self.truncate(PARTITIONS[1], 0)
        self.append(PARTITIONS[1], 3)
        self.flush()
        checkpoint(self.manager)
        self.append(PARTITIONS[2], 15)
        self.clock.advance(30_000)
        self.scheduler.run_due()
        self.manager.shutdown()

    def check(self, log: UnifiedLog, least: int) -> None:
        assert not log.damages, log.damages
        assert log.is_writable
        assert log.log_end_offset >= least
        found = [record for batch in log.batches(log.log_start_offset) for record in batch]
        assert [r.offset for r in found] == list(range(log.log_start_offset, log.log_end_offset))
        truth = self.truth[log.topic_partition]
        for record in found:
            if record.offset < least:
                assert record.value == truth[record.offset]


def changes_of_a_run() -> int:
    node = Node(SimStorage())
    count = 0

    def note(_operation: str, _path: str) -> None:
        nonlocal count
        count += 1

    node.storage.before = note
    node.run()
    return count


def stopped_at(number: int) -> Node:
    node = Node(SimStorage())
    left = number

    def stop(_operation: str, _path: str) -> None:
        nonlocal left
        if left == 0:
            raise Stopped
        left -= 1

    node.storage.before = stop
    with suppress(Stopped):
        node.run()
    node.storage.before = None
    return node


@pytest.mark.parametrize("how", ["killed", "power cut", "torn power cut"])
def test_a_node_that_stops_anywhere_comes_back_with_its_logs(how: str) -> None:
    chance = random.Random(5)
    total = changes_of_a_run()
    assert total > 100
    for number in range(total):
        node = stopped_at(number)
        if how == "killed":
            storage, least = node.storage.after_kill(), node.acknowledged
        else:
            torn = chance if how == "torn power cut" else None
            storage, least = node.storage.after_power_cut(torn), node.flushed
        again = Node(storage)
        again.manager.startup()
        assert again.manager.offline_directories == {}
        for log in again.manager.logs():
            node.check(log, least[log.topic_partition])
            log.append_records([b"on"])
        again.manager.shutdown()
