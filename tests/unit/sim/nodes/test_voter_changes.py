"""An administrator changes the voters of a quorum that runs."""

from __future__ import annotations

from random import Random

import pytest

from kreplica.sim.nodes.node_checker import NodeChecker
from kreplica.sim.nodes.node_cluster import NodeCluster
from kreplica.sim.nodes.voter_changes import VoterChanges


@pytest.mark.parametrize("as_bytes", [False, True])
def test_voters_come_and_go(as_bytes):
    cluster = NodeCluster(1, controllers=2, standbys=1, as_bytes=as_bytes)
    NodeChecker(cluster)
    changes = VoterChanges(cluster, cluster.client, Random(1))
    cluster.boot()
    assert cluster.controllers == [1001, 1002, 1003]
    assert cluster.voters() == [1001, 1002]
    made, sizes = [], [2]
    while len(made) < 6:
        asked = changes.ask()
        if asked is None:
            # The active controller has gone, and the next one is not there yet.
            cluster.scheduler.run_for(100)
            continue
        what, answer = asked
        assert changes.ask() is None, "one change at a time"
        assert cluster.run_until(answer.done)
        cluster.scheduler.run_for(200)
        if changes.answered(answer):
            made.append(what)
            sizes.append(len(cluster.voters()))
            assert sizes[-1] - sizes[-2] == (1 if what == "voters added" else -1)
    assert set(made) == {"voters added", "voters removed"}
    killed = cluster.controller
    cluster.kill(killed)
    cluster.start(killed)
    assert cluster.run_until(lambda: cluster.controller is not None)


def test_nothing_is_asked_while_nobody_leads():
    cluster = NodeCluster(1, controllers=1)
    changes = VoterChanges(cluster, cluster.client, Random(1))
    assert changes.ask() is None
    cluster.boot()
    # Who votes alone stays.
    assert changes.ask() is None
