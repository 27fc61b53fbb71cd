"""Simulated machines: what a kill, a power cut, a stall and a slow disk do to the broker on them."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from kreplica.common.config import LogConfig
from kreplica.common.errors import KafkaStorageError, NetworkException, StorageFull
from kreplica.common.future import resolved
from kreplica.common.types import TopicPartition
from kreplica.log.log_manager import LogManager
from kreplica.sim.cluster import SimCluster
from tests.support.logs import checkpoint, get_or_create_log

PARTITION = TopicPartition("t", 0)


@dataclass
class AppendRequest:
    value: bytes
    flush: bool = False


class LogBroker:
    """Appends what it is asked to its own log, and ticks every 50 ms."""

    def __init__(self, ports, _):
        self.ports = ports
        self.ticks = 0
        self.logs = LogManager(
            ports.directories,
            cluster_id="c",
            node_id=ports.broker_id,
            storage=ports.storage,
            clock=ports.clock,
            scheduler=ports.scheduler,
            workers=ports.workers,
            random=ports.random,
            config=LogConfig(segment_bytes=65536, segment_index_bytes=4096),
        )

    def startup(self):
        self.logs.startup()
        self.log = get_or_create_log(self.logs, PARTITION)
        self.ports.scheduler.schedule("tick", self.tick, 50, 50)

    def tick(self):
        self.ticks += 1

    def shutdown(self):
        self.logs.shutdown()

    def handle(self, request):
        info = self.log.append_records([request.value])
        if request.flush:
            self.log.flush()
        return resolved(info.base_offset)


@pytest.fixture
def cluster():
    cluster = SimCluster(LogBroker)
    cluster.add_broker(1)
    cluster.start(1)
    return cluster


def append(cluster, value, *, flush=False):
    return cluster.send(1, AppendRequest(value, flush), timeout_ms=1000)


def values(cluster):
    log = cluster.program(1).log
    return [record.value for batch in log.batches(0) for record in batch]


def test_a_killed_broker_finds_all_that_it_wrote(cluster):
    append(cluster, b"a", flush=True)
    append(cluster, b"b")
    cluster.settle()
    cluster.kill(1)
    assert cluster.program(1) is None
    cluster.start(1)
    assert values(cluster) == [b"a", b"b"]


def test_a_power_cut_takes_what_was_not_flushed(cluster):
    append(cluster, b"a", flush=True)
    append(cluster, b"b")
    cluster.settle()
    cluster.power_cut(1)
    cluster.start(1)
    assert values(cluster) == [b"a"]


def test_a_stopped_broker_starts_as_one_that_was_closed_in_order(cluster):
    append(cluster, b"a")
    cluster.settle()
    cluster.stop(1)
    assert cluster.brokers[1].storage.exists("/data/.kafka_cleanshutdown")
    cluster.start(1)
    assert values(cluster) == [b"a"]


def test_nothing_of_a_dead_life_acts(cluster):
    append(cluster, b"a", flush=True)
    cluster.settle()
    program = cluster.program(1)
    late = append(cluster, b"late")
    cluster.kill(1)
    cluster.pass_time(100)
    assert program.ticks == 0
    with pytest.raises(NetworkException):
        late.result(0)
    program.log.append_records([b"zombie"])
    checkpoint(program.logs)
    assert isinstance(program.logs.offline_directories["/data"], KafkaStorageError)
    cluster.start(1)
    assert values(cluster) == [b"a"]


def test_each_life_has_a_broker_epoch_of_its_own(cluster):
    first = cluster.program(1).ports.broker_epoch
    cluster.kill(1)
    cluster.start(1)
    second = cluster.program(1).ports.broker_epoch
    assert second > first
    assert cluster.controller.get_alive_broker_epoch(1) == second


def test_a_paused_broker_does_nothing_until_it_goes_on(cluster):
    cluster.pause(1)
    answer = append(cluster, b"a")
    cluster.pass_time(100)
    assert (cluster.program(1).ticks, answer.done()) == (0, False)
    cluster.resume(1)
    cluster.settle()
    assert (cluster.program(1).ticks, answer.done()) == (1, True)


def test_a_slow_disk_delays_answers(cluster):
    cluster.brokers[1].flush_us = 3_000
    cluster.pass_time(20)  # its own start has flushed, too
    began_ms = cluster.now_ms()
    answer = append(cluster, b"a", flush=True)
    assert cluster.scheduler.run_until(answer.done)
    assert cluster.now_ms() - began_ms >= 3


def test_a_full_disk_refuses(cluster):
    def full(operation, path):
        raise StorageFull(f"{operation} of {path}")

    cluster.add_broker(2)
    cluster.set_disk_fault(2, full)
    with pytest.raises(KafkaStorageError):
        cluster.start(2)
    assert not cluster.brokers[2].is_alive
    cluster.set_disk_fault(2, None)
    cluster.start(2)
    assert cluster.program(2).log.log_end_offset == 0


def test_dates_jump_apart(cluster):
    cluster.add_broker(2)
    cluster.jump_date(2, -5_000)
    assert cluster.brokers[1].clock.time_ms() - cluster.brokers[2].clock.time_ms() == 5_000


def run(seed):
    cluster = SimCluster(LogBroker, seed=seed)
    chance = random.Random(seed)
    cluster.add_broker(1)
    cluster.start(1)
    for number in range(30):
        append(cluster, str(number).encode(), flush=chance.random() < 0.3)
        cluster.pass_time(chance.randrange(20))
        if chance.random() < 0.2:
            cluster.power_cut(1, chance)
            cluster.start(1)
    return cluster.scheduler.event_hash, tuple(values(cluster))


def test_the_same_seed_gives_the_same_run():
    assert run(3) == run(3)
    assert run(3) != run(4)
