"""A cluster of whole simulated nodes, and its messages as bytes."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import random
import uuid
from datetime import timedelta
from typing import Any

import pytest

from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import InvalidRequest
from kreplica.common.message import replace
from kreplica.common.messages.quorum import (
    FetchSnapshotResponse,
    FetchSnapshotResponsePartitionSnapshot,
    FetchSnapshotResponseTopicSnapshot,
    LeaderIdAndEpoch,
    SnapshotId,
    VoteRequest,
    VoteRequestPartitionData,
    VoteRequestTopicData,
)
from kreplica.common.types import TopicPartition
from kreplica.sim.nodes.node_checker import NodeChecker
from kreplica.sim.nodes.node_cluster import NodeCluster, wire_copy

PARTITION = TopicPartition("t", 0)


@pytest.fixture(params=[False, True], ids=["objects", "bytes"])
def cluster(request):
    cluster = NodeCluster(seed=1, as_bytes=request.param)
    cluster.boot()
    cluster.result(cluster.client.admin.create_topic("t", partitions=2, config={"min.insync.replicas": 2}))
    return cluster


def produce(cluster, *values, at=PARTITION):
    made = cluster.result(cluster.client.producer.send(at, values, timeout_ms=5_000))
    return made.base_offset


def read(cluster, at=PARTITION):
    found, offset = [], 0
    while True:
        fetched = cluster.result(cluster.client.fetcher.fetch(at, offset, timeout_ms=5_000))
        values = [record.value for batch in fetched.batches() for record in batch]
        if not values:
            return found
        found += values
        offset += len(values)


def leader(cluster):
    return cluster.partition("t").leader


def is_full(cluster):
    partition = cluster.partition("t")
    return partition is not None and len(partition.isr) == 3 and cluster.is_ready()


def test_records_are_replicated_and_read(cluster):
    assert produce(cluster, b"a", b"b") == 0
    assert produce(cluster, b"c") == 2
    assert read(cluster) == [b"a", b"b", b"c"]
    assert cluster.run_until(lambda: is_full(cluster))
    for node in cluster.live():
        log = node.broker.log_manager.get_log(PARTITION)
        assert cluster.run_until(lambda log=log: log.high_watermark == 3)


def test_a_killed_leader_is_replaced_and_comes_back(cluster):
    produce(cluster, b"a")
    killed = leader(cluster)
    cluster.kill(killed)
    assert produce(cluster, b"b") == 1
    assert leader(cluster) != killed
    cluster.start(killed)
    assert cluster.run_until(lambda: is_full(cluster))
    assert read(cluster) == [b"a", b"b"]


def test_the_active_controller_may_die(cluster):
    killed = cluster.controller
    cluster.kill(killed)
    produce(cluster, b"a")
    cluster.result(cluster.client.admin.create_topic("u", replication_factor=2, timeout_ms=5_000))
    assert cluster.controller not in (None, killed)
    cluster.start(killed)
    assert cluster.run_until(lambda: is_full(cluster))


def test_a_power_cut_of_all_loses_no_metadata(cluster):
    produce(cluster, b"a")
    cluster.client.admin.create_topic("u")
    assert cluster.run_until(lambda: "u" in cluster.metadata().topics)
    topic_id = cluster.metadata().topics["u"].topic_id
    chance = random.Random(3)
    for node_id in (1, 2, 3):
        cluster.power_cut(node_id, chance)
    cluster.boot()
    assert cluster.metadata().topics["u"].topic_id == topic_id


def test_a_node_that_stops_in_order_hands_over_and_keeps_its_place(cluster):
    stopped = leader(cluster)
    produce(cluster, b"a")
    cluster.result(cluster.shut_down(stopped))
    assert not cluster.brokers[stopped].is_alive
    assert leader(cluster) not in (-1, stopped)
    assert produce(cluster, b"b") == 1
    cluster.start(stopped)
    assert cluster.run_until(lambda: is_full(cluster))
    assert not cluster.fatal


def test_a_paused_leader_is_replaced_and_yields(cluster):
    produce(cluster, b"a")
    paused = leader(cluster)
    cluster.pause(paused)
    assert cluster.run_until(lambda: leader(cluster) not in (-1, paused))
    assert produce(cluster, b"b") == 1
    cluster.resume(paused)
    assert cluster.run_until(lambda: is_full(cluster))
    assert read(cluster) == [b"a", b"b"]


def test_a_node_that_is_cut_off_comes_back(cluster):
    lost = leader(cluster)
    for other in {1, 2, 3} - {lost}:
        cluster.cut(lost, other)
    assert cluster.run_until(lambda: leader(cluster) not in (-1, lost))
    produce(cluster, b"a")
    cluster.heal_all()
    assert cluster.run_until(lambda: is_full(cluster))
    assert read(cluster) == [b"a"]


def test_a_node_that_was_away_installs_a_snapshot(cluster):
    cluster.kill(3)
    log_start = 0
    for number in range(60):
        value = {"retention.ms": 1_000_000 + number}
        cluster.result(cluster.client.admin.alter_config("t", value))
        cluster.pass_time(50)
        log_start = max(node.raft.log.start_offset for node in cluster.live())
    assert log_start > 0
    cluster.start(3)
    assert cluster.run_until(cluster.is_ready)
    assert cluster.node(3).raft.log.start_offset > 0
    assert cluster.run_until(
        lambda: (
            cluster.node(3).loader.published.config(2, "t")
            == {"min.insync.replicas": "2", "retention.ms": "1000059"}
        )
    )


def test_controllers_may_be_nodes_of_their_own():
    cluster = NodeCluster(2, controllers=3, seed=4)
    cluster.boot()
    cluster.result(cluster.client.admin.create_topic("t"))
    assert cluster.controller >= 1001
    produce(cluster, b"a")
    cluster.kill(cluster.controller)
    produce(cluster, b"b")
    assert read(cluster) == [b"a", b"b"]


def test_the_same_seed_gives_the_same_events():
    hashes = []
    for _ in range(2):
        cluster = NodeCluster(seed=9)
        cluster.boot()
        cluster.result(cluster.client.admin.create_topic("t"))
        produce(cluster, b"a")
        cluster.kill(cluster.controller)
        cluster.pass_time(500)
        hashes.append(cluster.scheduler.event_hash)
    assert hashes[0] == hashes[1]


def test_a_leader_that_lost_its_power_leads_no_more_before_it_is_registered_anew(cluster):
    """Its last life led, and its session is not over yet: it has lost what was acknowledged (KIP-966)."""
    NodeChecker(cluster)
    produce(cluster, b"a")
    lost = leader(cluster)
    cluster.power_cut(lost)
    cluster.start(lost)
    assert cluster.run_until(lambda: leader(cluster) not in (-1, lost))
    [new] = [each for each in cluster.live() if each.config.node_id == leader(cluster)]
    log = new.broker.log_manager.get_log(PARTITION)
    assert cluster.run_until(lambda: log.high_watermark == 1)  # its followers have reported it
    assert read(cluster) == [b"a"]
    assert cluster.run_until(lambda: is_full(cluster))
    assert read(cluster) == [b"a"]


def test_a_node_whose_disk_is_full_ends_though_it_cannot_close_its_files(cluster):
    produce(cluster, b"a")
    stopped = leader(cluster)
    done = cluster.shut_down(stopped)
    cluster.brokers[stopped].storage.full = True
    cluster.result(done)
    assert not cluster.brokers[stopped].is_alive
    cluster.brokers[stopped].storage.full = False
    cluster.start(stopped)
    assert cluster.run_until(lambda: is_full(cluster))
    assert read(cluster) == [b"a"]


def vote(**changes: Any) -> VoteRequest:
    asked = VoteRequestPartitionData(
        partition_index=0,
        replica_epoch=7,
        replica_id=1,
        replica_directory_id=uuid.UUID(int=9),
        voter_directory_id=None,
        last_offset_epoch=6,
        last_offset=42,
        pre_vote=True,
    )
    topic = VoteRequestTopicData(topic_name="__cluster_metadata", partitions=(replace(asked, **changes),))
    return VoteRequest(cluster_id="cluster", voter_id=2, topics=(topic,))


def test_a_copy_says_the_same_and_shares_nothing() -> None:
    sent = vote()
    copied = wire_copy(sent)
    assert copied == sent
    assert copied is not sent
    assert copied.topics[0].partitions[0] is not sent.topics[0].partitions[0]


def test_records_are_carried_over_and_do_not_change_with_the_senders_memory() -> None:
    memory = bytearray(b"r" * 5_000)
    part = FetchSnapshotResponsePartitionSnapshot(
        index=0,
        error_code=ErrorCode.none,
        snapshot_id=SnapshotId(end_offset=10, epoch=3),
        current_leader=LeaderIdAndEpoch(leader_id=1, leader_epoch=3),
        size=5_000,
        position=0,
        unaligned_records=memoryview(memory),
    )
    topic = FetchSnapshotResponseTopicSnapshot(name="__cluster_metadata", partitions=(part,))
    sent = FetchSnapshotResponse(throttle_time=timedelta(0), error_code=ErrorCode.none, topics=(topic,))
    copied = wire_copy(sent)
    memory[:] = b"x" * 5_000
    assert bytes(copied.topics[0].partitions[0].unaligned_records) == b"r" * 5_000


def test_what_a_field_cannot_hold_is_found() -> None:
    with pytest.raises(InvalidRequest):
        wire_copy(vote(replica_epoch=1 << 31))


@pytest.mark.parametrize("body", [None, "a request of the simulator's own"])
def test_what_is_no_message_of_kafkas_stays(body: object) -> None:
    assert wire_copy(body) is body
