"""A leader whose disk fails it hands over, through the real controller."""

from __future__ import annotations

from kreplica.cluster import Cluster

PATIENCE = 30


def test_a_leader_that_cannot_go_on_hands_over(tmp_path):
    with Cluster(3, tmp_path) as cluster:
        cluster.create_topic("orders", config={"min.insync.replicas": 2})
        cluster.append("orders", [b"a"], partition=0).result(PATIENCE)
        view = cluster.partition("orders")
        first, epoch = view.leader, view.leader_epoch
        manager = cluster.node(first).broker.replica_manager
        manager.repairs.refused_to_lead(manager.partitions.get(("orders", 0)))
        cluster._wait(lambda: view.leader not in (None, first), PATIENCE, "another leader")
        assert view.leader_epoch == epoch + 1
        assert first in view.isr
        assert cluster.append("orders", [b"b"], partition=0).result(PATIENCE).base_offset == 1
        assert cluster.failures == []


def test_a_handover_without_another_replica_changes_nothing(tmp_path):
    with Cluster(1, tmp_path) as cluster:
        cluster.create_topic("orders", replication_factor=1)
        view = cluster.partition("orders")
        manager = cluster.node(1).broker.replica_manager
        partition = manager.partitions.get(("orders", 0))
        manager.repairs.refused_to_lead(partition)
        cluster.append("orders", [b"a"], partition=0).result(PATIENCE)
        assert (view.leader, view.leader_epoch) == (1, 0)
