"""LogCleaner: which log is cleaned when, in steps, and what becomes of one that cannot be."""

from __future__ import annotations

import random

import pytest

from kreplica._core.records import batches
from kreplica.common.config import CleanerConfig, LogConfig
from kreplica.common.errors import KafkaStorageError, StorageIOError
from kreplica.common.types import TopicPartition
from kreplica.log import log_loader
from kreplica.log.checkpoint import OffsetCheckpointFile
from kreplica.log.log_cleaner import LogCleaner
from kreplica.log.log_loader import OpenOptions
from kreplica.log.verify.partition import PartitionVerifier
from kreplica.sim.storage import SimStorage
from tests.support.batches import build
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
            OpenOptions(is_only_replica=True),
        )

    def new_cleaner(self, **config):
        return LogCleaner(
            lambda: [log for log in self.logs if not log.closed],
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
    assert node.work() == 0, "nothing is dirty now"


def test_the_dirtiest_log_comes_first():
    node = Node(("a", "b", "c"))
    for log in node.logs:
        fill(log, 12, keys=15)
    node.work()
    # Each was wholly dirty; now one is more so than another, and one too little to be due.
    for log, rounds, keys in zip(node.logs, (9, 1, 3), (15, 2, 15), strict=True):
        fill(log, rounds, keys)
    order = []
    while node.cleaner.do_work() != BACKOFF_MS:
        topic = node.cleaner._log.topic_partition.topic
        if order[-1:] != [topic]:
            order.append(topic)
    assert order == ["a", "c"]


def test_only_closed_and_stable_segments_older_than_the_lag_are_cleaned():
    node = Node()
    log = node.open("lag", min_compaction_lag_ms=1000)
    node.logs = [log]
    fill(log, 10)
    assert node.work() == 0
    node.clock.now_ms += 2000
    old = cleanable(log)
    fill(log, 10)
    node.work()
    assert 0 < node.checkpoints()[TopicPartition("lag", 0)] <= old


def test_max_compaction_lag_makes_a_log_due_and_rolls_it():
    node = Node()
    log = node.open("due", max_compaction_lag_ms=5000, min_cleanable_dirty_ratio=1.0, segment_ms=1 << 40)
    node.logs = [log]
    fill(log, 1, keys=1)
    node.clock.now_ms += 5001
    assert node.work() == 0, "all that there is lies in the active segment"
    fill(log, 1, keys=1)
    assert cleanable(log) == 1
    node.work()
    assert node.checkpoints() == {TopicPartition("due", 0): 1}


def test_the_bytes_per_second_set_the_delay_of_the_next_step():
    node = Node(io_max_bytes_per_second=1000, io_buffer_size=1000)
    fill(node.logs[0], 30)
    delays = []
    while (delay := node.cleaner.do_work()) != BACKOFF_MS:
        delays.append(delay)
    stats = node.cleaner.stats[TopicPartition("a", 0)]
    assert max(delays) >= 1000
    assert max(delays) < 6000, "a step is bounded"
    assert sum(delays) >= stats.bytes_read + stats.bytes_written


def test_it_does_nothing_when_it_is_switched_off():
    node = Node(enable=False)
    fill(node.logs[0])
    assert node.work() == 0
    assert node.checkpoints() == {}


# ---- what goes wrong ---------------------------------------------------------------------------------------


def names(node, log):
    return node.storage.list_directory(log.local.directory)


def test_a_bad_batch_makes_the_partition_uncleanable_and_leaves_the_log_as_it_is():
    node = Node(("bad", "good"))
    for log in node.logs:
        fill(log)
    bad = node.logs[0].local.segments[1]
    path = bad.region.path
    first, following, *_ = batches(bad.region.slice(0, bad.size))
    size, second = first.size, following.base_offset
    bad.region.write(size + 70, bytes([bad.region.read(size + 70, 1)[0] ^ 1]))
    before = names(node, node.logs[0])
    node.work()
    assert list(node.cleaner.manager.uncleanable) == [TopicPartition("bad", 0)]
    reason = node.cleaner.manager.uncleanable[TopicPartition("bad", 0)]
    assert reason.startswith(f"{path}, byte {size}, offset {second}: ")
    assert names(node, node.logs[0]) == before
    assert list(node.checkpoints()) == [TopicPartition("good", 0)]
    node.clock.now_ms += 10 * BACKOFF_MS
    fill(node.logs[0])
    assert node.work() == 0


@pytest.mark.parametrize("position", [0, 8, 16], ids=["offset", "length", "magic"])
def test_a_log_of_unknown_age_does_not_keep_the_others_from_their_turn(position):
    node = Node(names=())
    node.logs = [node.open("bad", max_compaction_lag_ms=1000), node.open("good")]
    for log in node.logs:
        fill(log)
    region = node.logs[0].local.segments[0].region
    region.write(position, bytes([region.read(position, 1)[0] ^ 1]))
    node.clock.now_ms += 10_000
    node.work()
    assert list(node.cleaner.manager.uncleanable) == [TopicPartition("bad", 0)]
    assert list(node.checkpoints()) == [TopicPartition("good", 0)]


def test_retention_goes_on_behind_segments_that_compaction_emptied():
    node = Node(names=())
    log = node.open("a", cleanup_policy="compact,delete", retention_ms=10_000, segment_bytes=1200)
    node.logs = [log]
    fill(log, rounds=10, size=160)
    log.roll()
    node.work()
    empty = [s for s in log.local.segments if s.size and s.largest_timestamp() < 0]
    assert empty
    assert empty[0] is log.local.segments[0]
    assert log.delete_old_segments() == 0, "its records would not be old enough either"
    node.clock.now_ms += 10_001
    assert log.delete_old_segments() == len(empty) + 1
    assert count(log) == 0


def test_verify_has_nothing_to_say_of_an_emptied_batch_that_was_later_than_those_behind_it():
    node = Node(names=())
    log = node.open("a", index_interval_bytes=1, message_timestamp_after_max_ms=1 << 60)
    node.logs = [log]
    now_ms = node.clock.now_ms
    producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    late = build([(b"k", b"old", (), now_ms + 500)], now_ms=now_ms, **producer)
    log.append_as_leader(late, 0)
    for key in (b"a", b"b", b"c"):
        log.append_records([(key, b"stays")])
    log.append_records([(b"k", b"new")])
    log.roll()
    node.work()
    assert next(iter(log.batches(0))).record_count == 0, "it stays: its producer's last"
    log.close()
    assert list(PartitionVerifier(node.storage, log.local.directory, None).problems()) == []


def test_a_full_disk_leaves_the_log_as_it_is_and_it_is_tried_again():
    node = Node()
    log = node.logs[0]
    fill(log)
    before, there = content(log), names(node, log)
    node.storage.full = True
    assert node.work() >= 1
    assert names(node, log) == there
    assert content(log) == before
    assert log.is_writable
    node.storage.full = False
    assert node.work() == 0, "it rests first"
    node.clock.now_ms += BACKOFF_MS
    assert node.work() > 0
    assert node.checkpoints() != {}
    assert content(log) == before


@pytest.mark.parametrize("seen", range(0, 60, 3))
def test_a_disk_failure_at_any_moment_is_reported_and_the_records_stay(seen):
    node = Node(io_buffer_size=1000)
    log = node.logs[0]
    fill(log)
    before = content(log)
    failures = []
    node.cleaner._on_storage_error = lambda log, error: failures.append((log, error))
    left = [seen]

    def refuse(operation, path):
        left[0] -= 1
        if left[0] < 0:
            raise StorageIOError(f"{operation} {path}")

    node.storage.before = refuse
    while not failures and node.cleaner.do_work() != BACKOFF_MS:
        pass
    node.storage.before = None
    assert [each[0] for each in failures] == [log]
    log.abandon()
    node.storage = node.storage.after_kill()
    assert content(node.open("a")) == before


# ---- what happens meanwhile --------------------------------------------------------------------------------


def begun(**config):
    """A node whose cleaner is in the middle of a round."""
    node = Node(io_buffer_size=1, **config)
    fill(node.logs[0])
    while not any(name.endswith(".cleaned") for name in names(node, node.logs[0])):
        assert node.cleaner.do_work() != BACKOFF_MS
    node.cleaner.do_work()
    return node


@pytest.mark.parametrize("back", [1, 25, 54, 56, 90])
def test_a_cut_takes_the_checkpoint_along_and_ends_the_round(back):
    node = Node(io_buffer_size=1)
    log = node.logs[0]
    fill(log)
    node.work()
    clean = node.checkpoints()[TopicPartition("a", 0)]
    fill(log)
    node.cleaner.do_work()
    assert node.cleaner._run is not None
    cut = log.log_end_offset - back
    log.truncate_to(cut)
    assert node.checkpoints()[TopicPartition("a", 0)] == min(clean, cut)
    at_cut = content(log)
    while node.cleaner._run is not None:
        node.cleaner.do_work()
    assert content(log) == at_cut
    assert node.cleaner.manager.uncleanable == {}
    node.clock.now_ms += BACKOFF_MS
    fill(log)
    before = content(log)
    node.work()
    assert content(log) == before
    assert node.checkpoints()[TopicPartition("a", 0)] == cleanable(log)


def test_a_cut_before_the_cleaner_first_saw_the_log_counts_too():
    node = Node()
    fill(node.logs[0])
    node.work()
    node.logs[0].close()
    node.logs = [node.open("a")]
    log = node.logs[0]
    log.truncate_to(7)
    fill(log)
    before = content(log)
    node.cleaner = node.new_cleaner()
    node.work()
    assert node.cleaner.stats[TopicPartition("a", 0)].first_dirty_offset <= 7
    assert content(log) == before


def test_beginning_anew_elsewhere_makes_all_dirty():
    node = Node()
    log = node.logs[0]
    fill(log)
    node.work()
    log.truncate_fully_and_start_at(10_000)
    fill(log)
    node.work()
    assert node.cleaner.stats[TopicPartition("a", 0)].first_dirty_offset == 10_000


@pytest.mark.parametrize(
    "change",
    [
        lambda node: node.logs[0].abandon(),
        lambda node: node.logs[0].close(),
        lambda node: node.logs[0].fail(KafkaStorageError("the disk is gone")),
        lambda node: node.cleaner.manager.abort_cleaning(TopicPartition("a", 0)),
        lambda node: node.cleaner.manager.abort_and_pause_cleaning(TopicPartition("a", 0)),
    ],
    ids=["abandoned", "closed", "offline", "aborted", "paused"],
)
def test_a_round_ends_when_its_log_does(change):
    node = begun()
    before = content(node.logs[0])
    change(node)
    for _ in range(3):
        node.cleaner.do_work()
    assert node.cleaner._run is None
    assert node.cleaner.manager.uncleanable == {}
    assert not [name for name in names(node, node.logs[0]) if name.endswith((".cleaned", ".swap"))]
    node.logs[0].abandon()
    node.storage = node.storage.after_kill()
    assert content(node.open("a")) == before


def test_a_deleted_directory_is_no_fault_of_the_disk():
    node = begun()
    log = node.logs[0]
    log.abandon()
    node.storage.rename("/data/a-0", "/data/a-0.gone-delete")
    failures = []
    node.cleaner._on_storage_error = lambda _, error: failures.append(error)
    for _ in range(3):
        node.cleaner.do_work()
    assert failures == []


def test_retention_takes_segments_from_a_round_that_goes_on_later():
    node = begun()
    log = node.logs[0]
    log.maybe_increment_log_start_offset(20)
    log.delete_old_segments()
    before = content(log)
    while node.cleaner._run is not None:
        node.cleaner.do_work()
    assert content(log) == before
    node.clock.now_ms += BACKOFF_MS
    node.work()
    assert content(log) == before
    assert log.log_start_offset == 20


def test_paused_partitions_wait_for_as_many_calls():
    node = Node()
    partition = TopicPartition("a", 0)
    fill(node.logs[0])
    node.cleaner.manager.abort_and_pause_cleaning(partition)
    node.cleaner.manager.abort_and_pause_cleaning(partition)
    assert node.work() == 0
    node.cleaner.manager.resume_cleaning(partition)
    assert node.work() == 0
    node.cleaner.manager.resume_cleaning(partition)
    assert node.work() > 0
    with pytest.raises(ValueError, match="not paused"):
        node.cleaner.manager.resume_cleaning(partition)


def test_closing_removes_what_was_begun():
    node = begun()
    node.cleaner.close()
    node.cleaner.close()
    assert not [name for name in names(node, node.logs[0]) if name.endswith(".cleaned")]


def test_a_broken_checkpoint_costs_one_more_round():
    node = Node()
    fill(node.logs[0])
    node.work()
    node.storage.write_file("/data/cleaner-offset-checkpoint", b"0\n7\nrubbish\n")
    node.cleaner = node.new_cleaner()
    node.work()
    assert node.checkpoints() == {TopicPartition("a", 0): cleanable(node.logs[0])}


def test_a_log_that_goes_takes_its_row_along():
    node = Node(("a", "b"))
    for log in node.logs:
        fill(log)
    node.work()
    node.cleaner.manager.forget(node.logs[0])
    assert list(node.checkpoints()) == [TopicPartition("b", 0)]
    assert node.cleaner.manager.checkpoint(node.logs[0]) is None
