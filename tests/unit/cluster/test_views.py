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
