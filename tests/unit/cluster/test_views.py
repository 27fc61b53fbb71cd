"""What a Cluster shows of a partition."""

from __future__ import annotations

import time

from kreplica.cluster import Cluster

PATIENCE = 30


def test_the_isr_history_stays_when_a_replica_is_back_and_another_one_leads(tmp_path) -> None:
    with Cluster(3, tmp_path / "data") as cluster:
        cluster.create_topic("orders", config={"min.insync.replicas": 2})
        cluster.append("orders", [b"a"], partition=0).result(PATIENCE)
        view = cluster.partition("orders")
        first = view.leader
        began_ms = int(time.time() * 1000)
        cluster.kill(first)
        cluster.append("orders", [b"b"], partition=0).result(PATIENCE)
        cluster.start(first)
        cluster._wait(lambda: sorted(view.isr) == [1, 2, 3], PATIENCE, "a full ISR")
        cluster.elect("orders", 0, "preferred")
        cluster._wait(lambda: view.leader == first, PATIENCE, "the preferred leader")
        cluster.append("orders", [b"c"], partition=0).result(PATIENCE)
        assert view.why_not_in_isr(first) is None
        changes = [
            (change.kind, str(change.reason)) for change in view.isr_history if change.broker_id == first
        ]
        assert changes == [("shrink", "fenced"), ("expand", "caught up")]
        dates = [change.time_ms for change in view.isr_history]
        assert dates == sorted(dates)
        assert began_ms <= dates[0] <= dates[-1] <= time.time() * 1000
        leaders = [(change.old or change.new)["leader"] for change in view.changes]
        assert leaders[0] == first
        assert any(leader != first for leader in leaders)


def test_the_isr_history_survives_a_restart_of_the_whole_cluster(tmp_path) -> None:
    with Cluster(3, tmp_path / "data") as cluster:
        cluster.create_topic("orders", assignment={0: [1, 2, 3]})
        view = cluster.partition("orders")
        cluster.kill(3)
        cluster._wait(lambda: view.isr == (1, 2), PATIENCE, "an ISR without broker 3")
        (left,) = view.isr_history
    with Cluster(3, tmp_path / "data") as cluster:
        view = cluster.partition("orders")
        first = view.isr_history[0]
        assert (first.kind, first.broker_id, first.isr) == ("shrink", 3, (1, 2))
        assert (first.time_ms, first.partition_epoch) == (left.time_ms, left.partition_epoch)
        assert str(first.reason) == "unknown"
        assert [change.version for change in view.changes] == sorted({c.version for c in view.changes})
        cluster.delete_topic("orders")
        cluster.create_topic("orders", assignment={0: [1, 2, 3]})
        assert len(cluster.partition("orders").changes) == 1
