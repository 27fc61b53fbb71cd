"""Cluster.watch and Simulation.watch: what a program sees of a cluster, whatever becomes of its nodes."""

from __future__ import annotations

import threading

import pytest

from kreplica import Cluster, Simulation
from kreplica.common.errors import ClusterClosed
from kreplica.metadata.image_format import Node
from kreplica.metadata.image_writer import ImageStore
from kreplica.sim.nodes.node_cluster import NodeCluster

SHORT_LOG = {
    "metadata.log.max.record.bytes.between.snapshots": 2_000,
    "metadata.log.segment.bytes": 4_096,
    "metadata.max.retention.bytes": 4_096,
}


def isr(value: dict | None) -> list[int] | None:
    return None if value is None else value["isr"]


def test_a_watch_follows_a_partition_through_kills() -> None:
    with Cluster(3) as cluster:
        cluster.create_topic("orders", assignment={0: [1, 2, 3]})
        with cluster.watch("/brokers/topics/orders/partitions/0", timeout=20, initial=True) as watch:
            assert isr(next(watch).new) == [1, 2, 3]
            cluster.kill(1)
            leaders = [next(watch).new["leader"]]
            while leaders[-1] in (1, None):
                leaders.append(next(watch).new["leader"])
            assert leaders[-1] in (2, 3)
            cluster.start(1)
            changes = []
            while not changes or len(changes[-1].new["isr"]) < 3:
                changes.append(next(watch))
            versions = [change.version for change in changes]
            assert versions == sorted(set(versions))
            epochs = [change.new["partition_epoch"] for change in changes]
            assert epochs == list(range(epochs[0], epochs[0] + len(epochs)))
            assert all(change.timestamp_ms > 0 for change in changes)


def test_an_iteration_ends_when_nothing_comes_and_goes_on_later() -> None:
    with Cluster(1) as cluster, cluster.watch("/config", timeout=0.01) as watch:
        assert list(watch) == []
        cluster.create_topic("orders", config={"retention.ms": 5})
        assert [(change.path, change.new) for change in watch] == [
            ("/config/2/orders", {"retention.ms": "5"})
        ]
        watch.close()
        assert list(watch) == []


def test_a_reader_that_waits_is_woken_by_the_close_of_the_cluster() -> None:
    errors: list[BaseException] = []
    with Cluster(1) as cluster:
        watch = cluster.watch("/brokers/topics")

        def read() -> None:
            with pytest.raises(ClusterClosed, match="was closed") as raised:
                next(watch)
            errors.append(raised.value)

        reader = threading.Thread(target=read)
        reader.start()
    reader.join(30)
    assert len(errors) == 1
    with pytest.raises(ClusterClosed):
        cluster.watch()


def test_a_simulation_is_watched_in_virtual_time() -> None:
    def changes() -> list:
        with Simulation(seed=3, config=SHORT_LOG) as simulation, simulation.watch(timeout=2) as watch:
            simulation.create_topic("orders", 2)
            simulation.kill(simulation.controller)
            return [(change.path, change.version, change.timestamp_ms) for change in watch]

    first = changes()
    assert {"/brokers/topics/orders", "/controller"} <= {path for path, _, _ in first}
    assert first == changes()
    simulation = Simulation(seed=3)
    watch = simulation.watch("/brokers/topics")
    simulation.close()
    with pytest.raises(ClusterClosed, match="simulation of seed 3 was closed"):
        next(watch)


def test_versions_are_the_same_on_every_node_also_after_a_snapshot() -> None:
    cluster = NodeCluster(3, seed=5, settings=SHORT_LOG)
    cluster.boot()
    admin = cluster.client.admin
    cluster.kill(3)
    for number in range(60):
        cluster.result(admin.create_topic(f"topic-{number}"), 5_000)
        cluster.run_until(lambda: False, 100)
    assert cluster.node(1).raft.log.start_offset > 0  # node 3 has to load a snapshot
    cluster.images[3].discard()
    cluster.start(3)
    cluster.run_until(lambda: False, 3_000)
    nodes = []
    for node_id in (1, 2, 3):
        image = ImageStore(cluster.images[node_id].open(), cluster.configs[node_id].cluster_id)
        nodes.append({"/".join(names): Node(*node) for names, node in image.contents()})
    assert len(nodes[0]) > 120
    assert nodes[0] == nodes[1] == nodes[2]
    assert all(node.version >= 0 for node in nodes[2].values())
