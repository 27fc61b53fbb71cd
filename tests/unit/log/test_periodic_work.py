"""A LogManager's periodic work under a clock that a test turns: what a week does to the logs of a node."""

from __future__ import annotations

import ctypes
import random
import time
from pathlib import Path

import pytest

import kreplica
from kreplica.common.config import CleanerConfig, LogConfig, LogManagerConfig
from kreplica.common.errors import DamagedLog
from kreplica.common.types import TopicPartition
from kreplica.log import periodic_job
from kreplica.log.checkpoint import OffsetCheckpointFile
from kreplica.log.damage import Damage
from kreplica.log.log_manager import LogManager
from kreplica.log.periodic_job import LOGS_AT_ONCE
from kreplica.log.unified_log import UnifiedLog
from kreplica.runtime.scheduler import ThreadScheduler
from kreplica.sim.storage import SimStorage
from tests.support.batches import build
from tests.support.clocks import ManualClock
from tests.support.logs import get_or_create_log

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
ORDERS, TABLE = TopicPartition("orders", 0), TopicPartition("table", 0)
DIRECTORY = "/data"
SMALL = {"segment.bytes": 4_000, "segment.index.bytes": 400}
# Longer intervals than a node's, so that a week is short; the scrubber's is its own.
SETTINGS = {"log.flush.scheduler.interval.ms": 600_000}


class InTurn:
    """Workers that do one task after the other."""

    def run(self, tasks) -> None:
        for task in tasks:
            task()


class Node:
    """A LogManager over a simulated disk, whose time passes when the test says so."""

    def __init__(
        self, storage: SimStorage | None = None, clock: ManualClock | None = None, **settings: object
    ) -> None:
        self.clock = clock or ManualClock()
        self.storage = storage or SimStorage()
        self.errors: list[tuple[str, Exception]] = []
        self.damages: list[tuple[TopicPartition, Damage]] = []
        self.scheduler = ThreadScheduler(self.clock, lambda name, error: self.errors.append((name, error)))
        self.manager = LogManager(
            [DIRECTORY],
            cluster_id="c",
            node_id=1,
            storage=self.storage,
            clock=self.clock,
            scheduler=self.scheduler,
            workers=InTurn(),
            random=random.Random(3),
            config=LogConfig.parse(SMALL),
            configs={"table": LogConfig.parse({**SMALL, "cleanup.policy": "compact"})},
            settings=LogManagerConfig.parse({**SETTINGS, **settings}),
            cleaner=CleanerConfig(dedupe_buffer_size=1 << 16, backoff_ms=600_000),
            on_damage=lambda log, damage: self.damages.append((log.topic_partition, damage)),
        )
        self.manager.startup()

    def pass_(self, ms: int) -> None:
        end = self.clock.now_ms + ms
        while self.clock.now_ms < end:
            wait_ms = self.scheduler.run_due()
            self.clock.advance(max(1, min(wait_ms, end - self.clock.now_ms)))
        self.scheduler.run_due()

    def rows(self, name: str) -> dict[TopicPartition, int]:
        return OffsetCheckpointFile(self.storage, f"{DIRECTORY}/{name}").read()


def append(log: UnifiedLog, count: int, keys: int = 5) -> None:
    for _ in range(count):
        end = log.log_end_offset
        log.append_records([(b"k%d" % (end % keys), b"%d" % end)])
    log.update_high_watermark(log.log_end_offset)


def offsets(log: UnifiedLog, start: int | None = None) -> list[int]:
    begin = log.log_start_offset if start is None else start
    return [record.offset for batch in log.batches(begin) for record in batch if record.offset >= begin]


def flip(log: UnifiedLog, offset: int) -> None:
    segment = log.local.segments[log.local.segments.index_for(offset)]
    found = segment.position_of(offset)
    assert found is not None
    byte = segment.region.slice(found[0] + 65, 1)
    ctypes.c_uint8.from_address(byte.address).value ^= 1


def test_a_week_passes() -> None:
    node = Node()
    orders, table = (get_or_create_log(node.manager, each) for each in (ORDERS, TABLE))
    node.manager.configs.change({"orders": LogConfig.parse({**SMALL, "retention.ms": 3 * DAY_MS})})
    appended = flipped = 0
    for day in range(8):
        for _ in range(6):
            append(orders, 20)
            append(table, 20)
            appended += 20
            node.pass_(4 * HOUR_MS)
        if day == 6:
            # Scrubbed the first time when the node began, the next time when a week is over.
            flipped = appended - 150
            flip(orders, flipped)
    assert node.errors == []
    # Retention: the last three days are there, give or take a segment; the files of the others are gone.
    assert appended - 120 * 4 < orders.log_start_offset <= appended - 120 * 3 + 20
    assert not [
        name for name in node.storage.list_directory(f"{DIRECTORY}/orders-0") if "deleted" in name[-8:]
    ][1:]
    # Cleaning: of the older part each key is there once.
    clean = node.manager.cleaner.manager.checkpoint(table)
    assert clean is not None
    assert clean > appended // 2
    assert len([offset for offset in offsets(table) if offset < clean]) < appended // 4
    # Scrubbing: the batch is named, everything else is read, and appends went on all the time.
    assert [(partition, d.first_offset, d.next_offset) for partition, d in node.damages] == [
        (ORDERS, flipped, flipped + 1)
    ]
    assert offsets(orders, flipped + 1) == list(range(flipped + 1, appended))
    with pytest.raises(DamagedLog):
        offsets(orders)
    assert node.manager.scrubber.status.rounds == 2
    # Checkpoints.
    assert node.rows("recovery-point-offset-checkpoint")[ORDERS] == orders.flush_offset > flipped
    assert node.rows("cleaner-offset-checkpoint") == {TABLE: clean}
    jobs = node.manager.jobs
    assert jobs["log-retention"].runs == pytest.approx(8 * DAY_MS // 300_000, abs=3)
    assert all(job.failures == 0 and job.failed == {} for job in jobs.values())
    assert all(job.last_run_ms > node.clock.now_ms - 8 * DAY_MS for job in jobs.values())
    # And the node comes back with what it knows.
    node.manager.shutdown()
    assert len(node.scheduler) == 0
    again = Node(node.storage.after_kill())
    restarted = again.manager.get_log(ORDERS)
    assert restarted is not None
    assert [d.first_offset for d in restarted.damages] == [flipped]
    append(restarted, 1)
    again.manager.shutdown()


def test_a_job_that_fails_for_one_log_names_it_and_goes_on() -> None:
    node = Node()
    logs = [get_or_create_log(node.manager, TopicPartition("orders", number)) for number in range(3)]
    node.manager.configs.change({"orders": LogConfig.parse({**SMALL, "retention.bytes": 8_000})})
    for log in logs:
        append(log, 400)

    bad, before = logs[1], logs[1].size

    def refuse(operation: str, path: str) -> None:
        # No disk fails so: it is whatever else may go wrong.
        if operation == "rename" and "orders-1/0" in path:
            raise ValueError("not this one")

    node.storage.before = refuse
    node.pass_(node.manager.settings.log_initial_task_delay_ms)
    assert [name for name, _ in node.errors] == ["log-retention"]
    record = node.manager.jobs["log-retention"]
    assert record.failed == {bad.topic_partition: "ValueError: not this one"}
    assert record.failures == 1
    assert f"log: {bad.topic_partition}" in node.errors[0][1].__notes__
    assert all(log.size < before for log in (logs[0], logs[2]))
    node.storage.before = None
    node.pass_(HOUR_MS)
    assert (record.failures, record.failed) == (1, {})


def test_many_logs_are_swept_some_at_a_time() -> None:
    node = Node(**{"log.initial.task.delay.ms": 1000, "log.retention.check.interval.ms": 60_000})
    count = 2 * LOGS_AT_ONCE + 1
    for number in range(count):
        get_or_create_log(node.manager, TopicPartition("orders", number))
    visited: list[int] = []
    for log in node.manager.logs():
        log.configure(LogConfig.parse({**SMALL, "retention.bytes": 0}))
        append(log, 1)
    node.clock.advance(1000)
    for _ in range(3):
        node.scheduler.run_due()
        visited.append(sum(log.log_start_offset for log in node.manager.logs()))
        node.clock.advance(1)
    assert visited == [LOGS_AT_ONCE, 2 * LOGS_AT_ONCE, count]
    assert node.manager.jobs["log-retention"].runs == 3
    node.pass_(59_000)
    assert node.manager.jobs["log-retention"].runs == 3
    node.pass_(1_000)
    assert node.manager.jobs["log-retention"].runs == 6


def test_an_unused_log_holds_no_resources() -> None:
    node = Node()
    idle, busy = (get_or_create_log(node.manager, TopicPartition("orders", number)) for number in range(2))
    for log in (idle, busy):
        append(log, 300)
        offsets(log)
    for _ in range(3):
        append(busy, 1)
        node.pass_(10 * 60_000)
    assert [segment.region.is_mapped for segment in idle.local.segments] == [False] * len(idle.local.segments)
    assert [s.region.is_mapped for s in busy.local.segments][:-1] == [False] * (len(busy.local.segments) - 1)
    assert busy.active.region.is_mapped
    assert offsets(idle) == list(range(300))
    append(idle, 1)


def test_a_log_that_is_deleted_leaves_the_jobs_alone() -> None:
    node = Node()
    for each in (ORDERS, TABLE):
        append(get_or_create_log(node.manager, each), 200)
    node.pass_(HOUR_MS)
    node.manager.delete_logs([TABLE])
    node.pass_(HOUR_MS)
    assert node.errors == []
    assert node.rows("cleaner-offset-checkpoint") == {}
    assert node.manager.offline_directories == {}


def produce(log: UnifiedLog, producer_id: int, sequence: int = 0) -> None:
    """One record of an idempotent producer, now."""
    now_ms = log.time_ms()
    data = build([b"v"], now_ms=now_ms, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
    log.append_as_leader(data, 0)


def test_idle_producers_are_forgotten_while_the_log_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka's settings say when; a step looks at a bounded number."""
    monkeypatch.setattr(periodic_job, "PRODUCERS_AT_ONCE", 100)
    settings = {"producer.id.expiration.ms": HOUR_MS, "producer.id.expiration.check.interval.ms": 60_000}
    node = Node(**settings)
    log = get_or_create_log(node.manager, ORDERS)
    for producer_id in range(1, 451):
        produce(log, producer_id)
    most = 0
    # More and more come, each writes once, and one goes on.
    for minute in range(180):
        produce(log, 0, minute)
        for producer_id in range(20):
            produce(log, 1000 + minute * 20 + producer_id)
        node.pass_(60_000)
        if minute > 62:
            most = max(most, len(log.producers.active_producers))
    assert 20 * 60 <= most <= 20 * 63 + 1
    entry = log.producers.last_entry(0)
    assert entry is not None
    assert entry.last_sequence == 179
    record = node.manager.jobs["producer-expiration"]
    assert record.failures == 0
    assert record.runs > 180 * most // 100, "in steps"
    node.pass_(2 * HOUR_MS)
    assert log.producers.is_empty


def test_producers_are_first_looked_at_after_the_interval_as_in_kafka() -> None:
    """Though the other periodic work begins later, or sooner (UnifiedLog.producerExpireCheck)."""
    for interval_ms in (500, 600_000):
        node = Node(**{"producer.id.expiration.check.interval.ms": interval_ms})
        record = node.manager.jobs["producer-expiration"]
        node.pass_(interval_ms - 1)
        assert record.runs == 0
        node.pass_(1)
        assert record.runs == 1


def test_a_log_that_is_loaded_takes_over_no_expired_producer() -> None:
    node = Node(**{"producer.id.expiration.ms": 2 * DAY_MS})
    log = get_or_create_log(node.manager, ORDERS)
    produce(log, 7)
    node.manager.shutdown()
    for idle_ms, known in ((DAY_MS + HOUR_MS, {7}), (DAY_MS, set())):
        node.clock.advance(idle_ms)
        node = Node(node.storage, node.clock, **{"producer.id.expiration.ms": 2 * DAY_MS})
        log = node.manager.get_log(ORDERS)
        assert log is not None
        assert set(log.producers.active_producers) == known
        node.manager.shutdown()


def test_a_standalone_log_forgets_idle_producers_with_its_old_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(periodic_job, "PRODUCERS_AT_ONCE", 3)
    with kreplica.Log.open(tmp_path / "orders-0") as log:
        now_ms = time.time_ns() // 1_000_000

        def produced(producer_id: int, at_ms: int) -> bytes:
            return build([b"v"], now_ms=at_ms, producer_id=producer_id, producer_epoch=0, base_sequence=0)

        for producer_id in range(1, 11):
            log.append_batch(produced(producer_id, now_ms - 2 * DAY_MS))
        log.append_batch(produced(11, now_ms))
        assert log.delete_old_segments() == 0
        assert list(log._log.producers.active_producers) == [11]
        # One that writes again begins anew; one that is known is taken for a repetition.
        assert log.append_batch(produced(1, now_ms)).base_offset == 11
        assert log.append_batch(produced(11, now_ms)).base_offset == 10
